"""What the user asks for, made into a job: defaults, and everything that is wrong with it found here."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from flatout.records.errors import CallerMistake, UnknownName
from flatout.records.launch import TARGETS, Gpus, LaunchJob, Program, Settings, Target
from flatout.records.plan import read_plan
from flatout.runtime.command import job_command
from flatout.runtime.launching.gpu_names import resolve
from flatout.runtime.launching.program import Typed, insist_on_ranks_that_can_meet, typed

# Options that only some targets have a use for, and why others have none.
ONLY_FOR: dict[str, tuple[tuple[Target, ...], str]] = {
    "partition": (("slurm",), "only Slurm has partitions"),
    "account": (("slurm",), "only Slurm has accounts"),
    "qos": (("slurm",), "only Slurm has a quality of service"),
    "namespace": (("kubernetes",), "only Kubernetes has namespaces"),
    "claim": (("kubernetes",), "only Kubernetes has volume claims"),
    "storage": (("kubernetes",), "only for Kubernetes is a volume made"),
    "workdir": (("kubernetes",), "elsewhere the job runs in this folder, or in a copy of it"),
    "cloud": (("skypilot",), "only SkyPilot chooses among clouds"),
    "bucket": (("skypilot",), "only SkyPilot mounts buckets"),
    "setup": (("skypilot",), "only SkyPilot's machines start bare"),
    "spot": (("skypilot",), "only SkyPilot rents spot machines"),
    "image": (("kubernetes", "skypilot"), "on Slurm the job runs with the Python that is here"),
    "checkpoints": (("kubernetes", "skypilot"), "on Slurm the job runs in this folder: its files stay"),
    "time": (("slurm", "kubernetes"), "SkyPilot has no limit of time for a job"),
    "grace": (("slurm", "kubernetes"), "SkyPilot gives no warning before machines go"),
    "restarts": (("slurm", "kubernetes"), "SkyPilot recovers a job as often as its machines go"),
}
# Where a setting's value stands in a line that somebody else parses.
_VALUES = {
    "partition": r"[\w.,:@+/=-]+",
    "account": r"[\w.,:@+/=-]+",
    "qos": r"[\w.,:@+/=-]+",
    "namespace": r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
    "claim": r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?",
    "cloud": r"[\w*/:.@-]+",
    "bucket": r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]",
    "image": r"[\w./:@-]+",
    "workdir": r"/[^\x00-\x1f:]*",
    "checkpoints": r"[^\x00-\x1f:]+",
}
# Pods are called after the job, and labels end at 63 characters.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What scripts that know of other ranks have in them.
_KNOWS_RANKS = re.compile(
    r"LOCAL_RANK|torch\.distributed|init_process_group|accelerat|lightning|deepspeed|transformers",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """The options of `flatout launch`, as they were given; None where nothing was said."""

    target: str
    words: Sequence[str]
    as_module: bool = False
    name: str | None = None
    python: str
    folder: str
    plan: str | None
    is_protected: bool = False
    nodes: int | None = None
    gpus: int | None = None
    gpu: str | None = None
    gpu_name: str = ""
    time_s: int | None = None
    grace_s: int = 120
    restarts: int = 100
    cpus: int | None = None
    memory_bytes: int | None = None
    environment: Sequence[str] = ()
    settings: Settings = dataclasses.field(default_factory=Settings)


def job_for(request: LaunchRequest) -> tuple[LaunchJob, tuple[str, ...]]:
    """The job, and notes on what was decided for the user."""
    target = next((one for one in TARGETS if one == request.target), None)
    if target is None:
        raise UnknownName("target", request.target, TARGETS)
    found = typed(request.words, as_module=request.as_module)
    nodes = _agreed("--nodes", request.nodes, found.nodes, default=1)
    gpus = _gpus(request, found)
    processes = found.processes_per_node or max(gpus.per_node, 1)
    if found.program.kind == "command":
        processes = 1
    insist_on_ranks_that_can_meet(found.program, nodes)
    if found.program.kind == "script" and target != "kubernetes":  # there, the image has it
        job_command(found.program.words)
    program = _at_home(found.program, request, target)
    settings = _settings(request.settings, target)
    _insist_on_time(request)
    _insist_on_protection(request, nodes, target)
    plan_text = ""
    if request.plan is not None:
        read_plan(Path(request.plan))
        plan_text = Path(request.plan).read_text(encoding="utf-8")
    job = LaunchJob(
        name=_name(request, program),
        target=target,
        program=program,
        folder=request.folder,
        python=request.python,
        nodes=nodes,
        processes_per_node=processes,
        gpus=gpus,
        plan=request.plan,
        plan_text=plan_text,
        is_protected=request.is_protected,
        time_s=request.time_s,
        grace_s=request.grace_s,
        restarts=request.restarts,
        cpus=request.cpus,
        memory_bytes=request.memory_bytes,
        environment=_environment(request.environment),
        settings=settings,
    )
    return job, _notes(job)


def _agreed(option: str, given: int | None, said: int | None, *, default: int) -> int:
    """What the option says, or torchrun; they must not contradict each other."""
    if given is not None and said is not None and given != said:
        raise CallerMistake(
            f"{option} says {given}, and torchrun was told {said}",
            expected="the same number in both, or in one of them",
            remedy=f"{option} {said}, or leave it to {option}",
        )
    return given if given is not None else said if said is not None else default


def _gpus(request: LaunchRequest, found: Typed) -> Gpus:
    said = found.processes_per_node
    # With --gpus 0 there are none, and torchrun's processes compute on the CPU.
    per_node = 0 if request.gpus == 0 else _agreed("--gpus", request.gpus, said, default=1)
    ids = resolve(request.gpu) if request.gpu else ()
    if per_node == 0 and (ids or request.gpu_name):
        raise CallerMistake(
            f"--gpus 0 was given, and a GPU: {request.gpu or request.gpu_name}",
            expected="one or the other",
            remedy="--gpus 1",
        )
    if request.gpu_name and not re.fullmatch(r"[\w.-]{1,63}", request.gpu_name, re.ASCII):
        raise _bad_value("gpu-name", request.gpu_name)
    return Gpus(per_node=per_node, ids=ids, name_there=request.gpu_name)


def _at_home(program: Program, request: LaunchRequest, target: Target) -> Program:
    """The script by its way from the job's folder: there, the folder lies elsewhere."""
    if program.kind != "script" or target == "slurm":
        return program
    path = Path(program.words[0])
    if path.is_absolute() and path.is_relative_to(request.folder):
        words = (str(path.relative_to(request.folder)), *program.words[1:])
        return dataclasses.replace(program, words=words)
    if target == "skypilot" and (path.is_absolute() or ".." in path.parts):
        raise CallerMistake(
            f"{path} is not in this folder, and SkyPilot takes only this folder along",
            expected=f"a script in {request.folder}",
            remedy="cd to the folder that the job's code is in",
        )
    return program


def _settings(settings: Settings, target: Target) -> Settings:
    for name, pattern in _VALUES.items():
        value = getattr(settings, name)
        if value and not re.fullmatch(pattern, value, re.ASCII if name != "checkpoints" else 0):
            raise _bad_value(name, value)
    if target == "kubernetes":
        if not settings.image:
            raise CallerMistake(
                "no --image was given",
                expected="an image with torch, Flatout and the job's code, which the cluster can fetch",
                remedy="--image team/train:1",
            )
        return dataclasses.replace(settings, checkpoints=str(Path(settings.workdir, settings.checkpoints)))
    if target == "skypilot":
        if not settings.image and not settings.setup:
            raise CallerMistake(
                "neither --image nor --setup was given",
                expected="an image with torch and Flatout, or what installs them: machines start bare",
                remedy="--setup 'pip install -r requirements.txt'",
            )
        if settings.setup and not settings.setup.endswith("\n"):
            return dataclasses.replace(settings, setup=settings.setup + "\n")
    return settings


def _insist_on_time(request: LaunchRequest) -> None:
    if request.time_s is not None and request.time_s <= request.grace_s + 60:
        raise CallerMistake(
            f"--time is {request.time_s} s, and {request.grace_s} s of it are for saving",
            expected="more than a minute between the start and the word to save",
            remedy=f"--time {-(-(request.grace_s + 120) // 60)}m, or a shorter --grace",
        )


def _insist_on_protection(request: LaunchRequest, nodes: int, target: Target) -> None:
    if request.is_protected and nodes > 1:
        raise CallerMistake(
            f"--protect was given for {nodes} nodes",
            expected="one node: what several save has not been tried",
            remedy="flatout.Checkpointer in the script saves on any number of nodes",
        )
    if request.is_protected and target == "skypilot" and not request.settings.bucket:
        raise CallerMistake(
            "--protect was given, and no --bucket",
            expected="a place that survives the machine, for what is saved",
            remedy="--bucket NAME",
        )


def _name(request: LaunchRequest, program: Program) -> str:
    if request.name is None:
        stem = Path(program.words[0]).name.removesuffix(".py").rpartition(".")[2]
        name = re.sub(r"[^a-z0-9]+", "-", stem.lower())[:40].strip("-")
        return name if _NAME.fullmatch(name) else f"job-{name}"[:40].strip("-")
    if not _NAME.fullmatch(request.name):
        raise CallerMistake(
            f"the name {request.name!r} cannot be given to pods and jobs",
            expected="at most 40 small letters, digits and dashes, a letter first",
            remedy="--name gpt-1b",
        )
    return request.name


def _environment(pairs: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not _VARIABLE.fullmatch(name):
            raise CallerMistake(
                f"--env {pair!r} sets nothing", expected="NAME=VALUE", remedy="--env NCCL_DEBUG=INFO"
            )
        found[name] = value
    reserved = [name for name in found if name.startswith("PET_")]
    if reserved:
        raise CallerMistake(
            f"--env {reserved[0]} would tell torchrun otherwise than the file does",
            expected="variables of the job's own",
            remedy="--nodes and --gpus say how many processes there are",
        )
    return found


def _bad_value(name: str, value: str) -> CallerMistake:
    return CallerMistake(
        f"--{name} {value!r} has characters that it cannot have",
        expected="a name as the cluster has it" + (", from the root on" if name == "workdir" else ""),
        remedy="check the spelling",
    )


def insist_on_options_of(target: str, given: Mapping[str, str]) -> None:
    """`given` are the options that the user typed; one that has no use there is refused, not dropped."""
    for name, option in given.items():
        targets, why = ONLY_FOR.get(name, (TARGETS, ""))
        if target not in targets:
            raise CallerMistake(
                f"{option} has no meaning for {target}",
                expected=f"it with --to {' or '.join(targets)}: {why}",
                remedy=f"leave {option} away",
            )


def _notes(job: LaunchJob) -> tuple[str, ...]:
    script = Path(job.program.words[0])
    if job.program.kind != "script":
        return ()
    if not script.is_file():
        return (f"there is no {script} here: the image must have it",)
    if not job.is_under_torchrun or _KNOWS_RANKS.search(script.read_text(encoding="utf-8", errors="replace")):
        return ()
    count = job.nodes * job.processes_per_node
    return (f"{script} does not look as if it knew of other ranks: {count} processes would do the same work",)
