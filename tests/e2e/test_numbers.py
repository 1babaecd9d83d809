"""`flatout run --on-nan` and `--debug` on unmodified scripts: real processes, real ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.records.plan import Choice, Fingerprint, Plan
from tests.e2e.conftest import Run
from tests.e2e.jobs import QUICK, QUICK_SGD

ZOO = Path(__file__).parent / "zoo"
SPOILED = (
    QUICK_SGD
    + """
torch.manual_seed(7)
model = torch.nn.Linear(4, 1)
optimizer = Sgd(model.parameters())
spoiled = [int(word) for word in sys.argv[1].split(",")]
for step in range(12):
    loss = model(torch.randn(8, 4)).square().mean()
    (loss * float("nan") if step in spoiled else loss).backward()
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None
print("finite", bool(torch.isfinite(model.weight).all()))
"""
)
RANKS = (
    QUICK_SGD
    + """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
spoiled = [int(word) for word in sys.argv[1].split(",")]
torch.manual_seed(7)
model = torch.nn.Linear(4, 1)
optimizer = Sgd(model.parameters())
for step in range(8):
    model(torch.randn(8, 4)).square().mean().backward()
    if step in spoiled and rank == 1:
        model.weight.grad[0, 0] = float("nan")
    before = model.weight.detach().clone()
    optimizer.step()
    if torch.equal(before, model.weight):
        os.write(1, f"rank {rank} skipped {step}\\n".encode())  # in one piece: ranks share a pipe
    for parameter in model.parameters():
        parameter.grad = None
gathered = [torch.zeros(1, 4) for _ in range(2)]
dist.all_gather(gathered, model.weight.detach())
os.write(1, f"same {torch.equal(*gathered)}\\n".encode())
dist.destroy_process_group()
"""
)


def job(place: Path) -> dict[str, object]:
    [path] = place.glob(".flatout/runs/*/job.json")
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_bad_updates_are_left_out_and_counted(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPOILED)
    done = flatout("run", "--as-written", "--on-nan", "skip", "train.py", "2,5,6")
    assert done.returncode == 0
    assert done.stdout == "finite True\n"
    assert "update 3 is skipped" in done.stderr
    assert "3 of 12 updates were skipped" in done.stderr
    updates = job(tmp_path)["updates"]
    assert isinstance(updates, dict)
    assert (updates["made"], updates["skipped"], updates["most_in_a_row"]) == (9, 3, 2)


def test_a_job_is_stopped_with_its_diagnosis_in_the_last_lines(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPOILED)
    done = flatout("run", "--as-written", "--on-nan", "skip", "--patience", "3", "train.py", "5,6,7,8")
    assert done.returncode == 4
    assert done.stdout == ""
    assert "stopped: 3 updates in a row (6 to 8) have gradients" in done.stderr.replace("\n", " ")
    assert "the loss of update 6 was not finite" in done.stderr.replace("\n", " ")
    found = job(tmp_path)["not_finite"]
    assert isinstance(found, dict)
    assert (found["update"], found["in_a_row"], found["loss_is_finite"]) == (6, 3, False)
    assert found["parameters"] == ["weight", "bias"]


@pytest.mark.full
def test_without_the_option_losses_are_watched_and_told_of(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPOILED)
    done = flatout("run", "--as-written", "train.py", "9")
    assert done.stdout == "finite False\n"
    assert "the loss was not finite in 3 of the steps" in done.stderr.replace("\n", " ")
    assert job(tmp_path)["updates"] is None


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py")


@pytest.mark.timeout(600)
def test_a_nan_on_one_rank_is_left_out_by_all(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    done = flatout("run", "--as-written", "--on-nan", "skip", "--", *TORCHRUN, "3")
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(done.stdout.splitlines()) == [
        "rank 0 skipped 3",
        "rank 1 skipped 3",
        "same True",
        "same True",
    ]


@pytest.mark.timeout(600)
def test_ranks_go_back_together(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    options = ("--as-written", "--on-nan", "rollback", "--patience", "2")
    done = flatout("run", *options, "--", *TORCHRUN, "3,4")
    assert done.returncode == 0, done.stderr[-2000:]
    # The update after which they go back moves weights: to where they were.
    assert sorted(done.stdout.splitlines()) == [
        "rank 0 skipped 3",
        "rank 1 skipped 3",
        "same True",
        "same True",
    ]
    assert done.stderr.count("back to what it was after update 2") == 1


# Shapes of scripts whose updates are looked at, and how many those are.
HEALTHY = {
    "accumulation": (6, 0),
    "gan": (10, 0),
    "grad_scaler": (5, 1),
    "lbfgs": (3, 0),
    "sam": (6, 0),
    "two_optimizers": (14, 0),
    "module_compile": (5, 0),
    "mp_spawn_ddp": (6, 0),
    "lightning_trainer": (8, 0),
    "hf_trainer": (5, 0),
}


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("script", HEALTHY)
def test_healthy_scripts_learn_what_they_learn_bare(flatout: Run, tmp_path: Path, script: str) -> None:
    path = str(ZOO / f"{script}.py")
    bare = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=tmp_path, timeout=250)
    done = flatout("run", "--as-written", "--on-nan", "skip", path)
    assert (done.returncode, done.stdout) == (bare.returncode, bare.stdout)
    updates = job(tmp_path)["updates"]
    assert isinstance(updates, dict)
    assert (updates["made"], updates["skipped"]) == HEALTHY[script]


@pytest.mark.full
def test_updates_that_nobody_can_look_at_are_counted(flatout: Run, tmp_path: Path) -> None:
    done = flatout("run", "--as-written", "--on-nan", "skip", str(ZOO / "optimizer_in_backward.py"), "2")
    assert done.returncode == 0
    assert "more, in backward passes, in graphs" in " ".join(done.stderr.split())


def test_a_job_goes_back_to_a_good_state_and_on_to_its_end(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPOILED)
    options = ("--as-written", "--on-nan", "rollback", "--patience", "3")
    done = flatout("run", *options, "train.py", "5,6,7")
    assert done.returncode == 0
    assert done.stdout == "finite True\n"
    said = " ".join(done.stderr.split())
    assert "3 updates in a row (6 to 8) have gradients that are not finite: back to what it was after" in said
    assert "went back to a good state 1 time" in said
    updates = job(tmp_path)["updates"]
    assert isinstance(updates, dict)
    assert (updates["skipped"], updates["rollbacks"]) == (3, 1)


SWITCHED = (
    QUICK
    + """
import os
def switches():
    return torch.is_anomaly_enabled(), torch.are_deterministic_algorithms_enabled()
seen = {switches()}
for _ in range(4):
    update()
    seen.add(switches())
print(seen, os.environ.get("CUBLAS_WORKSPACE_CONFIG"), sys.argv[1:])
"""
)


@pytest.mark.full
def test_switches_are_on_in_the_job_and_no_lever_undoes_them(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SWITCHED)
    fingerprint = Fingerprint(
        script="train.py", script_sha256="0", arguments=(), device="cpu", torch="", flatout=""
    )
    levers = (Choice(id="debug-modes"), Choice(id="garbage-collector"))
    Plan(job=fingerprint, levers=levers).write(tmp_path / "plan.toml")
    done = flatout(
        *("run", "--plan", "plan.toml", "--debug", "anomaly,deterministic,sync", "--cpu"),
        *("train.py", "--debug", "help"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "{(True, True)} :4096:8 ['--debug', 'help']\n"
    assert "debug anomaly: the operation whose backward pass made a NaN" in done.stderr
    assert "debug sync: does nothing here" in done.stderr
    assert "left out debug-modes: it would undo --debug anomaly" in done.stderr
    assert job(tmp_path)["debug"] == {"anomaly": "on", "deterministic": "on"}
    assert job(tmp_path)["levers"] == ["garbage-collector"]


def test_a_bare_debug_is_what_it_is_everywhere(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SWITCHED)
    done = flatout("run", "--as-written", "--debug", "train.py", "--lr", "3")
    assert done.stdout == "{(False, False)} None ['--lr', '3']\n"


IN_ONE_LINE = """
import torch
from torch.nn import functional as F


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(64, 8), torch.nn.Linear(8, 8192, bias=False)

    def forward(self, x):
        return self.head(self.words(x))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tokens = torch.randint(64, (8200,))
for _ in range(3):
    loss = F.cross_entropy(model(tokens), tokens)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))
"""


@pytest.mark.full
def test_a_loss_in_chunks_counts_from_the_first_step_where_the_model_is_called_in_its_line(
    flatout: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(IN_ONE_LINE)
    job_of = Fingerprint(script="train.py", script_sha256="0")
    Plan(job=job_of, levers=(Choice(id="linear-cross-entropy"),)).write(tmp_path / "plan.toml")
    written = flatout("run", "--as-written", "train.py")
    done = flatout("run", "--plan", "plan.toml", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == written.stdout
    assert "nan" not in done.stdout
    newest = max(tmp_path.glob(".flatout/runs/*/job.json"), key=lambda path: path.stat().st_mtime)
    assert json.loads(newest.read_text())["levers"] == ["linear-cross-entropy"]
