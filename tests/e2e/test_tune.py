"""`tune` and `run` on small real jobs: a plan that helps, files untouched, failures with their verdict."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flatout.records.plan import Choice, Fingerprint, Plan
from tests.e2e.jobs import Place, digests, document, place_in

pytest.importorskip("torch")

# Each starts its script several times, on a machine that is busy with other tests.
pytestmark = pytest.mark.timeout(600)

# Many small parameters: most of a step is the optimizer, whose fused implementation is several times faster.
JOB = """
import sys, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.randn(4)) for _ in range(200)])
    def forward(self, x):
        return x * torch.cat(list(self.parts))
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
{setup}
for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 100000):
    x = torch.randn(8, 800)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {extra}
torch.save(model.state_dict(), "model.pt")
print("done", step + 1, loss.item().hex())
"""
ONLY = ("--only", "fused-optimizer", "--budget", "40s")


def job(place: Place, *, setup: str = "", extra: str = "pass") -> None:
    place.script(JOB.format(setup=setup, extra=extra))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as place:
        yield place


def run(place: Place, *words: str) -> "subprocess.CompletedProcess[str]":
    """`flatout run`, where temporary files are the script's own business."""
    own = place.home / "tmp"
    own.mkdir(exist_ok=True)
    return place.flatout("run", *words, TMPDIR=str(own))


def test_a_job_is_tuned_and_then_run_under_its_plan(place: Place) -> None:
    job(place)
    place.script("mine", "model.pt")
    before = digests(place)
    done = place.flatout("tune", "--json", *ONLY, "train.py")
    found = document(done)
    assert done.returncode == 0
    assert digests(place) == before
    [kept] = [trial for trial in found["trials"] if trial["verdict"] == "kept"]
    assert (kept["lever"], kept["class"]) == ("fused-optimizer", "numeric")
    assert found["speedup"] > 1.05
    assert found["best"]["samples_per_s"] / found["baseline"]["samples_per_s"] == pytest.approx(
        found["speedup"]
    )
    assert found["guard"]["verdict"] == "same"
    assert found["guard"]["paired"]
    assert [rung["lever"] for rung in found["ladder"]] == ["fused-optimizer"]
    assert '[[lever]]\nid = "fused-optimizer"' in (place.work / "flatout.toml").read_text()
    # The whole job, under the plan: its files are its own now.
    ran = run(place, "--json", "train.py", "60")
    figures = document(ran)
    assert (figures["exit_code"], figures["steps"], figures["dropped_levers"]) == (0, 60, {})
    assert figures["levers"] == ["fused-optimizer"]
    [last] = [line for line in ran.stderr.splitlines() if line.startswith("done 60")]
    assert (place.work / "model.pt").read_bytes() != b"mine"
    assert any("arguments" in note for note in figures["notes"])
    # And without Flatout: the patch does the same, to the last bit.
    shown = place.flatout("patch")
    assert (shown.returncode, shown.stderr) == (0, "flatout: in the diff: fused-optimizer\n")
    assert shown.stdout == (place.work / found["patch"]).read_text()
    subprocess.run(["git", "apply", "-"], input=shown.stdout, text=True, cwd=place.work, check=True)
    assert "lr=1e-3, fused=True)" in (place.work / "train.py").read_text()
    assert last in place.bare("train.py", "60").stdout
    again = place.flatout("patch")
    assert again.returncode == 2
    assert "has changed since" in again.stderr


@pytest.mark.full
def test_ctrl_c_keeps_the_best_so_far(place: Place) -> None:
    job(place)
    # The second lever takes its time, so that there is something to interrupt.
    command = (
        sys.executable,
        "-m",
        "flatout",
        "tune",
        "--json",
        "--only",
        "fused-optimizer",
        "--only",
        "compile",
    )
    tuning = subprocess.Popen(
        (*command, "--budget", "200s", "train.py"),
        cwd=place.work,
        env=place.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not list(place.work.glob(".flatout/runs/*/comparisons.jsonl")):
        assert tuning.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    tuning.send_signal(signal.SIGINT)
    out, _ = tuning.communicate(timeout=250)
    found = json.loads(out)
    assert tuning.returncode == 0
    assert "Ctrl-C" in " ".join(found["notes"])
    assert found["guard"]["verdict"] == "same"
    assert [trial["lever"] for trial in found["trials"] if trial["verdict"] == "kept"] == ["fused-optimizer"]
    assert (place.work / "flatout.toml").exists()


def test_a_lever_that_kills_the_job_has_failed_and_tuning_goes_on(place: Place) -> None:
    job(place, extra='optimizer.param_groups[0]["fused"] and __import__("os").abort()')
    found = document(place.flatout("tune", "--json", *ONLY, "train.py"))
    [trial] = [trial for trial in found["trials"] if trial["lever"] == "fused-optimizer"]
    assert trial["verdict"] == "failed"
    assert "signal 6" in trial["reason"]
    assert (found["speedup"], found["plan"]) == (1.0, None)
    assert found["summary"].startswith("nothing to gain")
    assert not (place.work / "flatout.toml").exists()


def test_a_lever_that_changes_what_is_learned_is_unsafe(place: Place) -> None:
    # A script whose gradients go wrong as soon as the optimizer is fused, and which is surely faster then.
    wrong = "torch._foreach_mul_([p.grad for p in model.parameters()], 0.5)"
    slow = '__import__("time").sleep(0.005)'
    line = f'{wrong} if optimizer.param_groups[0]["fused"] else {slow}'
    script = JOB.format(setup="", extra="pass").replace(
        "    optimizer.step()", f"    {line}\n    optimizer.step()"
    )
    place.script(script)
    found = document(place.flatout("tune", "--json", *ONLY, "train.py"))
    [trial] = [trial for trial in found["trials"] if trial["lever"] == "fused-optimizer"]
    assert trial["verdict"] == "unsafe"
    assert "0.5" in trial["reason"]
    assert found["guard"]["verdict"] == "unsafe"
    assert not (place.work / "flatout.toml").exists()


@pytest.mark.full
def test_a_job_that_ends_before_the_trial_says_so(place: Place) -> None:
    job(place)
    done = place.flatout("tune", "--json", *ONLY, "train.py", "3")
    found = document(done)
    text = json.dumps(found)
    assert done.returncode in (0, 4)
    assert "3 updates" in text or "too few" in text


def test_a_script_that_fails_is_told_as_such(place: Place) -> None:
    job(place, extra='step == 4 and exit("no more")')
    done = place.flatout("tune", *ONLY, "train.py")
    assert done.returncode == 4
    assert "ended" in done.stderr


def test_a_plan_is_applied_to_another_script_only_where_it_is_named(place: Place) -> None:
    job(place)
    source = (place.work / "train.py").read_text()
    place.script(f"{source}\n# another", "other.py")
    plan = Plan(
        job=Fingerprint(script="train.py", script_sha256=hashlib.sha256(source.encode()).hexdigest()),
        levers=(Choice(id="fused-optimizer"),),
    )
    plan.write(place.work / "flatout.toml")
    alone = run(place, "--json", "other.py", "5")
    assert (alone.returncode, document(alone)["levers"]) == (0, [])
    assert "was made for another script, train.py, and is left alone" in alone.stderr
    named = run(place, "--json", "--plan", "flatout.toml", "other.py", "5")
    assert (named.returncode, document(named)["levers"]) == (0, ["fused-optimizer"])
    assert "it was made for another script: train.py" in named.stderr


OF_ANOTHER_MACHINE = """
import torch
from torch import nn

torch.manual_seed(0)
model = torch.compile(nn.Linear(64, 64), backend="eager")
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(6):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (model(torch.randn(8, 64)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_levers_of_a_plan_from_elsewhere_are_checked_where_it_runs(place: Place) -> None:
    place.script(OF_ANOTHER_MACHINE)
    names = ("bf16", "tf32", "fused-optimizer", "channels-last", "compile", "allocator", "garbage-collector")
    plan = Plan(
        job=Fingerprint(script="train.py", script_sha256="", device="NVIDIA H200"),
        levers=tuple(Choice(id=name) for name in names),
        samples_per_s=800.0,
    )
    plan.write(place.work / "flatout.toml")
    done = run(place, "--json", "--plan", "flatout.toml", "train.py")
    found = document(done)
    assert found["levers"] == ["garbage-collector"]
    assert found["dropped_levers"] == {
        "bf16": "the script autocasts itself, to bfloat16",
        "tf32": "the job does not train on a GPU",
        "fused-optimizer": "the script uses it already",
        "channels-last": "the model has no two-dimensional convolution",
        "compile": "the script compiles itself",
        "allocator": "the job does not train on a GPU",
    }
    assert found["promised_samples_per_s"] is None
    assert "it was made on device NVIDIA H200, not cpu" in found["notes"]


def test_what_a_script_says_and_how_it_ends_is_its_own_under_run(place: Place) -> None:
    job(place, extra='step == 4 and (print("out of 5"), exit(7))')
    levers = '[[lever]]\nid = "fused-optimizer"\n[[lever]]\nid = "from-the-future"\n'
    head = 'version = 1\n[job]\nscript = "train.py"\nscript_sha256 = "00"\n'
    (place.work / "flatout.toml").write_text(head + levers)
    done = run(place, "train.py")
    assert done.returncode == 7
    assert done.stdout == "out of 5\n"
    assert "dropped from-the-future" in done.stderr
    assert "the script has changed since" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("tune", "--only", "bf61", "train.py"), "bf16"),
        (("tune", "--budget", "soon", "train.py"), "no duration"),
        (("tune", "none.py"), "no script"),
        (("tune", "--only", "batch-size", "train.py"), "--allow batch-size"),
        (("run", "--plan", "none.toml", "train.py"), "no such file"),
        (("run", "--as-written", "--plan", "broken.toml", "train.py"), "take one of them out"),
        (("run", "--plan", "broken.toml", "train.py"), "broken.toml"),
        (("run", "--plan", "future.toml", "train.py"), "version 99"),
        (("patch", "--plan", "broken.toml"), "broken.toml"),
        (("tune", "--allow", "bf16", "train.py"), "batch-size"),
        (("tune", "--max-memory", "much", "train.py"), "no size"),
        (("tune", "--goal", "fame", "train.py"), "throughput"),
        (("tune", "--resume", "latest", "train.py"), "no earlier tuning"),
    ],
)
def test_mistakes_are_named(place: Place, words: tuple[str, ...], says: str) -> None:
    job(place)
    place.script("version = 1\n[job\n", "broken.toml")
    place.script("version = 99\n", "future.toml")
    done = place.flatout(*words)
    assert done.returncode == 2
    assert says in done.stderr
