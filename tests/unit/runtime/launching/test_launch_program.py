"""Words of a command line, taken apart: scripts, modules, torchrun, and what cannot be launched."""

import pytest

from flatout.records.errors import CallerMistake
from flatout.runtime.launching.program import typed
from tests.unit.runtime.launching.conftest import Make


@pytest.mark.parametrize(
    ("words", "kind", "program"),
    [
        (["train.py", "--lr", "1"], "script", ("train.py", "--lr", "1")),
        (["python", "train.py", "x"], "script", ("train.py", "x")),
        (["python3", "-m", "pkg.train", "x"], "module", ("pkg.train", "x")),
        (["accelerate", "launch", "train.py"], "command", ("accelerate", "launch", "train.py")),
        (["run.sh", "x"], "command", ("run.sh", "x")),
    ],
)
def test_programs_are_known_by_their_words(words: list[str], kind: str, program: tuple[str, ...]) -> None:
    found = typed(words, as_module=False)
    assert (found.program.kind, found.program.words) == (kind, program)
    assert not found.program.wants_torchrun


def test_what_torchrun_was_told_is_kept_apart_from_the_script() -> None:
    words = [
        "torchrun",
        "--standalone",
        "--nnodes",
        "2",
        "--nproc_per_node=4",
        "--max-restarts",
        "1",
        "-t",
        "3",
    ]
    found = typed([*words, "train.py", "--nnodes", "9", "--standalone"], as_module=False)
    assert (found.nodes, found.processes_per_node) == (2, 4)
    assert found.program.words == ("train.py", "--nnodes", "9", "--standalone")
    assert found.program.torchrun_options == ("--max-restarts", "1", "-t", "3")
    assert found.program.wants_torchrun


def test_torchrun_by_its_module_starts_a_module() -> None:
    found = typed(["python", "-m", "torch.distributed.run", "-m", "pkg.train", "-x"], as_module=False)
    assert (found.program.kind, found.program.words) == ("module", ("pkg.train", "-x"))


def test_a_flag_of_the_old_launcher_takes_no_script_for_its_value() -> None:
    found = typed(["python", "-m", "torch.distributed.launch", "--use_env", "train.py"], as_module=False)
    assert (found.program.words, found.program.torchrun_options) == (("train.py",), ())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["torchrun", "--rdzv-endpoint=a:1", "train.py"], "--rdzv-endpoint"),
        (["torchrun", "--nnodes", "1:4", "train.py"], "--nnodes=1:4"),
        (["torchrun", "--nproc-per-node", "2"], "no script"),
        (["srun", "train.py"], "begins with srun"),
        (["flatout", "run", "train.py"], "begins with flatout"),
        (["train.py", "\udce4"], "no text in UTF-8"),
    ],
)
def test_what_cannot_be_launched_is_refused_with_its_reason(words: list[str], said: str) -> None:
    with pytest.raises(CallerMistake, match=said):
        typed(words, as_module=False)


def test_processes_come_from_gpus_or_from_torchrun(make_job: Make) -> None:
    assert make_job("slurm", gpus=8).processes_per_node == 8
    job = make_job("slurm", "torchrun", "--nproc-per-node", "4", "train.py")
    assert (job.gpus.per_node, job.processes_per_node, job.is_under_torchrun) == (4, 4, True)
    on_cpus = make_job("slurm", "torchrun", "--nproc-per-node", "4", "train.py", gpus=0)
    assert (on_cpus.gpus.per_node, on_cpus.processes_per_node) == (0, 4)
    assert not make_job("slurm").is_under_torchrun


@pytest.mark.parametrize(
    ("words", "options", "said"),
    [
        (("torchrun", "--nproc-per-node", "4", "train.py"), {"gpus": 8}, "torchrun was told 4"),
        (("torchrun", "--nnodes", "4", "train.py"), {"nodes": 2}, "--nodes says 2"),
        (("accelerate", "launch", "train.py"), {"nodes": 2}, "accelerate cannot be started on 2 nodes"),
        (("tran.py",), {}, "no script 'tran.py'"),
        (("train.py",), {"name": "Über"}, "the name"),
        (("train.py",), {"environment": ("PET_NNODES=4",)}, "PET_NNODES"),
        (("train.py",), {"environment": ("=x",)}, "sets nothing"),
        (("train.py",), {"time_s": 100}, "for saving"),
        (("train.py",), {"nodes": 2, "is_protected": True}, "--protect was given for 2 nodes"),
        (("train.py",), {"gpus": 0, "gpu": "h100"}, "--gpus 0"),
        (("train.py",), {"gpu": "h1000"}, "unknown GPU"),
        (("train.py",), {"gpu": "m"}, "may be any of"),
        (("train.py",), {"plan": "nix.toml"}, "no such file"),
        (("train.py",), {"settings": {"partition": "a b"}}, "--partition"),
    ],
)
def test_contradictions_are_the_callers_mistake(
    make_job: Make, words: tuple[str, ...], options: dict[str, object], said: str
) -> None:
    with pytest.raises(CallerMistake, match=said):
        make_job("slurm", *words, **options)


def test_a_name_comes_from_the_script(make_job: Make) -> None:
    assert make_job("slurm").name == "train"
    assert make_job("slurm", "-m", "x", as_module=True).name  # odd, but a name
    assert make_job("kubernetes", "3D_Net (final).py").name == "job-3d-net-final"
