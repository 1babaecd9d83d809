"""`flatout` alone: what it sees in a folder, and the command that it suggests there."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flatout.cli.next_step import scripts as scripts_room
from flatout.cli.next_step.look import look_here
from flatout.cli.next_step.machine import MachineLook
from flatout.hardware.cpu import CpuSource
from flatout.hardware.nvidia.source import NvidiaSource
from flatout.hardware.protocol import Discovery
from flatout.records.autopsy import Autopsy, OutOfMemory
from flatout.records.device import Device, DeviceSample
from flatout.records.next_step import NextStep
from flatout.records.plan import Choice, Plan
from flatout.records.running import JobRun
from flatout.records.runs import RunFolder
from flatout.runtime.checkpoint.store import name_of
from flatout.runtime.command import job_command
from flatout.runtime.protecting import Refuge
from flatout.tune.fingerprints import fingerprint
from flatout.tune.journal import COMPARISONS_FILE, write_job
from tests.fakes.nvml import FakeNvml

TRAINING = """import torch
model = torch.nn.Linear(4, 1)
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
"""
ROOT = Path(".flatout")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    return tmp_path


def look() -> NextStep:
    return look_here(MachineLook([CpuSource()]))


def commands(found: NextStep) -> list[str]:
    return [found.suggestion.command, *(one.command for one in found.others)]


def a_run(*arguments: str, killed: bool = False, **documents: Any) -> RunFolder:
    """A run folder as that command leaves it."""
    folder = RunFolder.create(ROOT, command=arguments[0], arguments=arguments)
    if killed:
        return folder
    with folder.writing():
        for name, body in documents.items():
            folder.write(name, 1, body)
    return folder


def a_job(exit_code: int | None, **more: Any) -> JobRun:
    return JobRun(run="r", steps=7, exit_code=exit_code, took_s=1.0, levers=(), dropped_levers={}, **more)


def a_plan(*words: str, device: str = "cpu", run: str = "") -> Plan:
    job = fingerprint(job_command(words), None, {})
    changed = {name: getattr(job, name) for name in ("script", "script_sha256", "arguments")}
    plan = Plan(
        job=type(job)(**changed, device=device),
        levers=(Choice(id="bf16"), Choice(id="compile")),
        speedup=1.5,
        run=run,
    )
    plan.write(Path("flatout.toml"))
    return plan


# A folder without anything


def test_an_empty_folder_leads_to_the_doctor(folder: Path) -> None:
    found = look()
    assert found.suggestion.command == "flatout doctor"
    assert len(found.others) <= 3
    assert found.folder == str(folder)
    assert (found.scripts, found.plan, found.last_run, found.runs) == ((), None, None, 0)


def test_looking_leaves_nothing_behind(folder: Path) -> None:
    look()
    assert list(folder.iterdir()) == []


def test_a_model_without_a_script_is_weighed(folder: Path) -> None:
    (folder / "model.safetensors").touch()
    assert look().suggestion.command == "flatout fit --load model.safetensors"


def test_a_folder_that_was_deleted_is_no_end(folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    found = look()
    os.chdir(folder)
    assert found.folder == "(deleted)"
    assert found.suggestion.command == "flatout doctor"


# Scripts


def test_a_script_without_a_plan_is_checked_first(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    found = look()
    assert [(one.path, one.kind, one.likelihood) for one in found.scripts] == [
        ("train.py", "training", "likely")
    ]
    assert commands(found)[:3] == [
        "flatout check train.py",
        "flatout profile train.py",
        "flatout tune train.py",
    ]


def test_what_was_done_is_not_suggested_again_and_its_arguments_are_kept(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    a_run("check", "--cpu", "train.py", "--lr", "3e-4")
    assert look().suggestion.command == "flatout profile train.py --lr 3e-4"
    a_run("profile", "train.py", "--lr", "3e-4")
    assert look().suggestion.command == "flatout tune train.py --lr 3e-4"


def test_a_script_that_ran_to_its_end_needs_no_check(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    a_run("run", "train.py", job=a_job(0))
    assert look().suggestion.command == "flatout profile train.py"


def test_of_several_scripts_the_one_that_is_called_train_comes_first(folder: Path) -> None:
    for name in ("a.py", "train.py", "z.py"):
        (folder / name).write_text(TRAINING)
    (folder / "below").mkdir()
    (folder / "below" / "train.py").write_text(TRAINING)
    (folder / "model.py").write_text("import torch\nclass Net(torch.nn.Module):\n    pass\n")
    found = look()
    assert [one.path for one in found.scripts] == ["train.py", "a.py", "z.py", "below/train.py"]
    assert commands(found) == [f"flatout check {one.path}" for one in found.scripts]


def test_what_measures_the_project_comes_behind_its_own_jobs(folder: Path) -> None:
    for place in ("benchmarks/train.py", "examples/job.py"):
        (folder / place).parent.mkdir()
        (folder / place).write_text(TRAINING)
    assert commands(look())[:2] == ["flatout check examples/job.py", "flatout check benchmarks/train.py"]


def test_after_a_tuning_without_gain_the_job_is_run(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    a_run("tune", "train.py")
    assert commands(look())[0] == "flatout run train.py"
    assert "flatout tune train.py" not in commands(look())


def test_a_script_that_infers_is_tuned_as_one(folder: Path) -> None:
    (folder / "predict.py").write_text(
        "import torch\nwith torch.inference_mode():\n    print(torch.nn.Linear(2, 2)(torch.ones(1, 2)))\n"
    )
    assert look().suggestion.command == "flatout tune --infer predict.py"


def test_a_name_with_a_space_can_be_pasted(folder: Path) -> None:
    (folder / "my train.py").write_text(TRAINING)
    assert look().suggestion.command == "flatout check 'my train.py'"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"import torch\nfor x in:\n", "train.py is no Python"),
        (b"import torch\n\xff\xfe", "train.py cannot be read as Python"),
        (b"import torch\n" + b"(" * 5000, "train.py"),
        (b"import torch\0\n", "train.py"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_left_out(folder: Path, data: bytes, said: str) -> None:
    (folder / "train.py").write_bytes(data)
    found = look()
    assert found.scripts == ()
    assert any(said in note for note in found.notes), found.notes


def test_a_file_that_may_not_be_opened_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "train.py").symlink_to(folder / "nowhere.py")
    os.mkfifo(folder / "pipe.py")  # whoever opened it would wait for ever
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    (folder / "closed.py").write_text(TRAINING)
    (folder / "closed.py").chmod(0)
    if os.geteuid() == 0:  # nothing is closed to root: what others are told is planted
        really = Path.open

        def refuse(path: Path, *words: Any, **more: Any) -> Any:
            if path.name == "closed.py":
                raise PermissionError(13, "Permission denied", str(path))
            return really(path, *words, **more)

        monkeypatch.setattr(Path, "open", refuse)
    found = look()
    assert found.scripts == ()
    assert "closed.py cannot be read: Permission denied" in found.notes


def test_a_huge_folder_costs_no_more_than_its_budget(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts_room, "_MOST_ENTRIES", 50)
    monkeypatch.setattr(scripts_room, "_LONGEST_S", 60.0)
    listed = Counted(os.scandir)
    monkeypatch.setattr(scripts_room.os, "scandir", listed)
    (folder / "data").mkdir()
    for number in range(200):
        (folder / "data" / f"{number}.bin").touch()
    (folder / "train.py").write_text(TRAINING)
    found = scripts_room.scripts_in(Path())
    assert [one.path for one in found.found] == ["train.py"]
    assert listed.entries <= 52
    assert found.notes == ("this folder is large: the look at it ended after 50 files and folders",)


def test_only_so_many_files_are_parsed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts_room, "_MOST_PARSED", 3)
    monkeypatch.setattr(scripts_room, "_LONGEST_S", 60.0)
    for number in range(9):
        (folder / f"{number}.py").write_text(TRAINING)
    found = scripts_room.scripts_in(Path())
    assert len(found.found) == 3
    assert found.notes == ("this folder is large: the look at it ended after 3 files that name torch",)


def test_the_first_files_are_looked_at_however_long_that_takes_and_the_rest_is_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts_room, "_LONGEST_S", -1.0)
    (folder / "train.py").write_text(TRAINING)
    few = scripts_room.scripts_in(Path())
    assert ([one.path for one in few.found], few.notes) == (["train.py"], ())
    for number in range(100):
        (folder / f"{number}.bin").touch()
    assert "the look at it ended after -1 s" in scripts_room.scripts_in(Path()).notes[0]


def test_environments_and_tests_are_not_looked_into(folder: Path) -> None:
    for name in ("tests", ".hidden", "env"):
        (folder / name).mkdir()
        (folder / name / "train.py").write_text(TRAINING)
    (folder / "env" / "pyvenv.cfg").touch()
    (folder / "test_train.py").write_text(TRAINING)
    assert look().scripts == ()


class Counted:
    """os.scandir, with how many entries were really taken from it."""

    def __init__(self, real: Callable[[Any], Any]) -> None:
        self._real, self.entries = real, 0

    def __call__(self, where: Any) -> "Counted":
        self._listing = self._real(where)
        return self

    def __enter__(self) -> Iterator[Any]:
        return self._count()

    def __exit__(self, *_: object) -> None:
        self._listing.close()

    def _count(self) -> Iterator[Any]:
        for entry in self._listing:
            self.entries += 1
            yield entry


# Plans


def test_a_fresh_plan_leads_to_the_run(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    a_plan("train.py", "--lr", "3e-4")
    found = look()
    assert found.plan is not None
    assert found.plan.state == "fresh", found.plan.differences
    assert commands(found)[:2] == ["flatout run train.py --lr 3e-4", "flatout patch"]
    assert "1.50x with bf16, compile" in found.suggestion.why


def test_a_plan_of_another_time_leads_to_tuning_again(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    a_plan("train.py")
    (folder / "train.py").write_text(TRAINING + "print('more')\n")
    found = look()
    assert found.plan is not None
    assert (found.plan.state, found.plan.differences) == ("stale", ("the script has changed since",))
    assert commands(found)[:2] == ["flatout tune train.py", "flatout run train.py"]


def test_a_plan_of_another_gpu_does_not_hold(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    a_plan("train.py", device="NVIDIA H200")
    here = look()
    assert here.plan is not None
    assert here.plan.differences == ("it was made on device NVIDIA H200, not cpu",)
    there = look_here(MachineLook([NvidiaSource(FakeNvml()), CpuSource()]))
    assert there.plan is not None
    assert there.plan.state == "fresh"


def test_a_plan_whose_script_is_gone_says_so_and_does_not_name_it(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    a_plan("train.py")
    (folder / "train.py").rename("other.py")
    found = look()
    assert found.plan is not None
    assert found.plan.differences == ("its script train.py is not here",)
    assert found.suggestion.command == "flatout check other.py"


def test_a_launcher_comes_back_from_the_run_that_tuned(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    tuned = a_run("tune", "--", "python", "train.py", "--lr", "1")
    a_plan("python", "train.py", "--lr", "1", run=tuned.manifest.id)
    assert look().suggestion.command == "flatout run -- python train.py --lr 1"


def test_a_plan_that_cannot_be_read_is_no_end(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    (folder / "flatout.toml").write_text("version = [")
    found = look()
    assert found.plan is not None
    assert found.plan.state == "unreadable"
    assert found.suggestion.command == "flatout check train.py"


# Runs


def test_after_an_out_of_memory_it_is_asked_what_would_fit(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    note = OutOfMemory(message="CUDA out of memory", on_gpu=True, updates=3)
    autopsy = Autopsy(run="r", command=("python", "train.py"), rank=0, found=note)
    run = a_run("run", "train.py", "--size", "9", job=a_job(1), autopsy=autopsy)
    found = look()
    assert found.last_run is not None
    assert found.last_run.outcome == "out of memory"
    assert commands(found)[:2] == ["flatout fit train.py --size 9", f"flatout report {run.manifest.id}"]


def test_a_job_that_fitted_the_second_time_is_done(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    note = OutOfMemory(message="CUDA out of memory", on_gpu=True)
    autopsy = Autopsy(run="r", command=("python", "train.py"), rank=0, found=note)
    a_run("run", "train.py", job=a_job(0), autopsy=autopsy)
    found = look()
    assert found.last_run is not None
    assert found.last_run.outcome == "done"


def an_interrupted_tuning(*words: str) -> RunFolder:
    run = a_run("tune", "--budget", "2m", "--resume=latest", *words, killed=True)
    (run.path / COMPARISONS_FILE).write_bytes(b"{}\n")
    write_job(run.path, fingerprint(job_command(words), None, {}), ())
    return run


def test_an_interrupted_tuning_goes_on(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    run = an_interrupted_tuning("train.py", "--lr", "1")
    found = look()
    assert found.last_run is not None
    assert found.last_run.outcome == "interrupted"
    assert found.suggestion.command == f"flatout tune --resume {run.manifest.id} --budget 2m train.py --lr 1"


def test_an_interrupted_tuning_of_a_script_that_changed_begins_anew(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    an_interrupted_tuning("train.py")
    (folder / "train.py").write_text(TRAINING + "\n")
    found = look()
    assert found.suggestion.command == "flatout tune train.py"
    assert "the script has changed since" in found.suggestion.why


def test_a_tuning_that_was_killed_before_it_compared_anything_has_nothing_to_go_on_from(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    a_run("tune", "train.py", killed=True)
    found = look()
    assert found.last_run is not None
    assert found.last_run.outcome == "killed"
    assert not any("--resume" in command for command in commands(found))


@pytest.mark.parametrize("options", [("--protect",), ("--fresh", "--protect", "--save-every", "20")])
def test_a_protected_job_that_was_killed_goes_on(folder: Path, options: Sequence[str]) -> None:
    (folder / "train.py").write_text(TRAINING)
    a_run("run", *options, "train.py", "--lr", "1", killed=True)
    saved(job_command(("train.py", "--lr", "1")), update=40)
    found = look()
    kept = " ".join(option for option in options if option != "--fresh")
    assert found.suggestion.command == f"flatout run {kept} train.py --lr 1"
    assert "after update 40" in found.suggestion.why


def test_ranks_have_a_checkpoint_of_their_own(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    a_run("run", "--protect", "--nproc-per-node", "2", "train.py", killed=True)
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "train.py")
    saved(job_command(torchrun), update=5)
    assert look().suggestion.command == "flatout run --protect --nproc-per-node 2 train.py"


def test_a_protected_job_whose_script_changed_begins_anew(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    a_run("run", "--protect", "train.py", killed=True)
    saved(job_command(("train.py",)), update=40)
    (folder / "train.py").write_text(TRAINING + "\n")
    found = look()
    assert found.suggestion.command == "flatout run --fresh --protect train.py"
    assert "has changed since update 40" in found.suggestion.why


def saved(command: Any, *, update: int) -> None:
    now = fingerprint(command, None, {})
    refuge = Refuge(ROOT, command, now.script, now.script_sha256)
    refuge.begin(fresh=False)
    (refuge.path / name_of(update)).mkdir()


@pytest.mark.parametrize(
    ("job", "outcome", "suggested"),
    [
        (a_job(3), "failed", "flatout check train.py"),
        (a_job(None, signal=signal.SIGTERM), "stopped", "flatout run --protect train.py"),
        (a_job(None, signal=signal.SIGSEGV), "killed", "flatout run --protect train.py"),
        (a_job(1, ended_by_us="no step for 90 s"), "hung", "flatout report"),
    ],
)
def test_each_bad_end_leads_somewhere(folder: Path, job: JobRun, outcome: str, suggested: str) -> None:
    (folder / "train.py").write_text(TRAINING)
    a_run("run", "train.py", job=job)
    found = look()
    assert found.last_run is not None
    assert found.last_run.outcome == outcome
    assert found.suggestion.command.startswith(suggested)


def test_while_a_job_runs_it_is_watched_and_nothing_else_started(folder: Path) -> None:
    (folder / "train.py").write_text(TRAINING)
    run = RunFolder.create(ROOT, command="tune", arguments=("tune", "train.py"))
    with run.writing():
        found = look()
    assert [one.id for one in found.running] == [run.manifest.id]
    assert commands(found) == ["flatout watch", "flatout ps", f"flatout stop {run.manifest.id}"]


def test_a_run_that_cannot_be_read_is_named(folder: Path) -> None:
    run = a_run("run", "train.py")
    (run.path / "run.json").write_text("{")
    found = look()
    assert found.suggestion.command == "flatout doctor"
    assert any("run.json" in note for note in found.notes), found.notes


# The machine


class Stuck:
    """A driver that never answers."""

    vendor = "nvidia"

    def __init__(self, until: threading.Event) -> None:
        self._until = until

    def discover(self) -> Discovery:
        self._until.wait()
        return Discovery()

    def sample(self, devices: Sequence[Device], *, thoroughly: bool = True) -> list[DeviceSample]:
        return []

    def close(self) -> None:
        pass


def test_a_driver_that_does_not_answer_is_told_of_and_not_waited_for(folder: Path) -> None:
    until = threading.Event()
    try:
        found = look_here(MachineLook([Stuck(until)], longest_s=0.05))  # type: ignore[list-item]
    finally:
        until.set()
    assert found.machine.problems == ("a driver has not answered within 0.05 s",)
    assert found.suggestion.command == "flatout doctor"
    assert "has not answered" in found.suggestion.why


def test_a_gpu_is_named_with_its_memory(folder: Path) -> None:
    machine = look_here(MachineLook([NvidiaSource(FakeNvml()), CpuSource()])).machine
    assert [gpu.name for gpu in machine.gpus] == ["NVIDIA H200"]
    assert machine.gpus[0].memory_total_bytes
    assert machine.cores


def test_without_torch_the_folders_own_environment_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.metadata as metadata

    def none(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", none)
    (folder / "train.py").write_text(TRAINING)
    assert "pip install 'torch" in look().suggestion.command
    (folder / ".venv/lib/python3.12/site-packages/torch-2.12.1.dist-info").mkdir(parents=True)
    (folder / ".venv/bin").mkdir()
    (folder / ".venv/bin/python").touch(0o755)
    found = look()
    assert (found.machine.torch, found.machine.python) == ("2.12.1", ".venv/bin/python")
    assert found.suggestion.command == "flatout check --python .venv/bin/python train.py"
