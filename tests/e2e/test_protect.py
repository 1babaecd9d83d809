"""`flatout run --protect`: scripts that know nothing of it are killed, and go on where they were.

Each script prints what it computes, and kills itself at the places that LIVES names, one a life.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.records.plan import Choice, Fingerprint, Plan
from tests.e2e.conftest import Run

DIES = """
import os, random, signal, sys
import torch, torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0); random.seed(0); torch.set_num_threads(1)
def die_at(place):
    life, signals = os.environ.get("LIFE", "").split("@") if "@" in os.environ.get("LIFE", "") else ("", "9")
    if life == place:
        os.kill(os.getpid(), int(signals))
"""
LOOP = (
    DIES
    + """
class Noisy(Dataset):
    def __len__(self): return 40
    def __getitem__(self, place):
        x = torch.full((8,), place / 40) + 0.1 * torch.randn(8) + random.random() / 10
        return x, torch.tensor(place % 4)
workers = int(os.environ.get("WORKERS", "0"))
train = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
test = DataLoader(Noisy(), batch_size=16)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
log, best, saved = open("log.txt", "w"), 1e9, 0
def evaluate():
    model.eval()
    with torch.no_grad():
        found = sum(F.cross_entropy(model(x), y, reduction="sum").item() for x, y in test) / 40
    model.train()
    return found
for epoch in range(4):
    running = 0.0
    for number, (x, y) in enumerate(train):
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        running += loss.item()
        right = (out.argmax(1) == y).sum().item()
        print(f"{epoch}.{number} {loss.item()!r} {right} {optimizer.param_groups[0]['lr']!r}", flush=True)
        log.write(f"{epoch}.{number} {loss.item()!r}\\n"); log.flush()
        die_at(f"{epoch}.{number}")
    found = evaluate()
    if found < best:
        best, saved = found, saved + 1
        torch.save({"best": best, "weights": model.state_dict()}, "best.pt")
    schedule.step()
    print(f"{epoch} {running!r} {found!r} {best!r} {saved}", flush=True)
"""
)
# No loader, accumulated gradients, a schedule of its own, the next batch drawn ahead, a scaler that skips.
BY_HAND = (
    DIES
    + """
data = torch.randn(500, 8)
def batch():
    at = torch.randint(0, 490, (6,))
    return torch.stack([data[i] for i in at]), torch.stack([data[i + 1] for i in at])
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 8))
unused = torch.amp.GradScaler("cpu", enabled=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=4)
x, y = batch()
number, average = 0, None
while number < 20:
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * (1 - number / 20)
    for _ in range(2):
        loss = F.mse_loss(model(x), y) / 2
        x, y = batch()
        if number == 7:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    average = loss.detach() if average is None else 0.9 * average + 0.1 * loss.detach()
    print(f"{number} {loss.item()!r} {norm.item()!r} {scaler.get_scale()!r} {average.item()!r}", flush=True)
    die_at(str(number))
    number += 1
"""
)
# Two optimizers, an average of weights, a hidden state carried from step to step, a generator of its own.
TWO = (
    DIES
    + """
import copy
class Trainer:
    def __init__(self):
        self.generator = torch.nn.GRU(4, 8)
        self.judge = torch.nn.Linear(8, 1)
        self.average = copy.deepcopy(self.generator)
        self.first = torch.optim.Adam(self.generator.parameters(), lr=1e-2)
        self.second = torch.optim.SGD(self.judge.parameters(), lr=1e-2)
        self.numbers = torch.Generator().manual_seed(3)
    def run(self):
        hidden = torch.zeros(1, 5, 8)
        for number in range(12):
            noise = torch.randn(3, 5, 4, generator=self.numbers)
            made, hidden = self.generator(noise, hidden.detach())
            self.second.zero_grad()
            loss = F.softplus(-self.judge(made.detach())).mean()
            loss.backward()
            self.second.step()
            self.first.zero_grad()
            other = F.softplus(self.judge(made)).mean()
            other.backward()
            self.first.step()
            with torch.no_grad():
                for kept, new in zip(self.average.parameters(), self.generator.parameters()):
                    kept.lerp_(new, 0.1)
            of_average = sum(kept.sum() for kept in self.average.parameters())
            drawn = random.random()
            print(f"{number} {loss.item()!r} {other.item()!r} {of_average.item()!r} {drawn!r}", flush=True)
            die_at(str(number))
Trainer().run()
"""
)


# A loop that fetches a batch before it needs it, as Accelerate's loaders do.
AHEAD = (
    DIES
    + """
from torch.utils.data import TensorDataset
data = TensorDataset(torch.arange(40.0).view(40, 1).expand(40, 4) / 40, torch.arange(40) % 3)
loader = DataLoader(data, batch_size=4, shuffle=True)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def ahead():
    batches = iter(loader)
    current = next(batches)
    for following in batches:
        yield current
        current = following
    yield current
for epoch in range(2):
    for number, (x, y) in enumerate(ahead()):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(f"{epoch}.{number} {loss.item()!r}", flush=True)
        die_at(f"{epoch}.{number}")
"""
)

# Two ranks, each with its own part of the data and its own random numbers.
RANKS = (
    DIES
    + """
import torch.distributed as dist
from torch.utils.data import DistributedSampler, TensorDataset
dist.init_process_group("gloo")
rank = dist.get_rank()
data = TensorDataset(torch.arange(64.0).view(64, 1).expand(64, 8) / 64, torch.arange(64) % 4)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 4))
if os.environ["HOW"] == "fsdp":
    from torch.distributed.fsdp import fully_shard
    for layer in (model[0], model[2]): fully_shard(layer)
    fully_shard(model)
else:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(10 + rank)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for number, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0: print(f"{epoch}.{number} {total.item()!r}", flush=True)
        if rank == 1: die_at(f"{epoch}.{number}")
# torch's own DistributedDataParallel over gloo may abort at exit where it outlives its group.
del model, optimizer
dist.destroy_process_group()
"""
)


def bare(tmp_path: Path, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "train.py"],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **environment}, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def lives(
    flatout: Run, tmp_path: Path, *ends: str, every: str = "3", **environment: str
) -> list[tuple[list[str], str]]:
    """What each life printed, the last to its end; LIFE is where it kills itself and by which signal."""
    printed = []
    for end in (*ends, ""):
        done = flatout(
            "run", "--protect", "--no-rehearsal", "--save-every", every, "train.py", LIFE=end, **environment
        )
        told = done.stdout + done.stderr
        if not end:
            assert done.returncode == 0, told
        elif end.endswith("@15"):
            assert done.returncode in (143, -15), told
            assert "start the same command again" in done.stderr
        else:
            assert done.returncode == -9, told
        printed.append((done.stdout.splitlines(), done.stderr))
    return printed


def test_killed_and_stopped_it_prints_writes_and_saves_what_it_would_have(
    flatout: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    expected = bare(tmp_path)
    log, model = (tmp_path / "log.txt").read_text(), (tmp_path / "best.pt").read_bytes()
    first, second, third = lives(flatout, tmp_path, "1.2@9", "2.4@15")
    assert first[0] == expected[: len(first[0])]
    # Saved every three updates, killed after the eighth: the sixth is the last that is there.
    assert "goes on after update 6" in second[1]
    assert "come out the same" in second[1]
    at = expected.index(second[0][0])
    assert second[0] == expected[at : at + len(second[0])]
    assert third[0] == expected[-len(third[0]) :]
    assert at + len(second[0]) >= len(expected) - len(third[0])
    assert (tmp_path / "log.txt").read_text() == log
    assert (tmp_path / "best.pt").read_bytes() == model
    assert not list((tmp_path / ".flatout" / "protected").iterdir())


@pytest.mark.parametrize(
    ("script", "ends"),
    [
        pytest.param(BY_HAND, ("10@9", "14@15"), id="by-hand", marks=pytest.mark.full),
        pytest.param(TWO, ("6@9",), id="two-optimizers", marks=pytest.mark.full),
        pytest.param(AHEAD, ("0.4@9", "1.3@15"), id="fetches-ahead", marks=pytest.mark.full),
    ],
)
def test_other_shapes_go_on_as_they_would_have(
    flatout: Run, tmp_path: Path, script: str, ends: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text(script)
    expected = bare(tmp_path)
    printed = lives(flatout, tmp_path, *ends)
    for lines, told in printed[1:]:
        assert "goes on after update" in told
        assert "does not repeat" not in told
        assert lines == expected[expected.index(lines[0]) :][: len(lines)]
    assert printed[-1][0][-1] == expected[-1]


@pytest.mark.full
def test_under_a_plan_it_goes_on_with_its_levers(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    levers = (
        Choice(id="bf16"),
        Choice(id="fused-optimizer"),
        Choice(id="loader", settings={"num_workers": 1}),
    )
    job = Fingerprint(script="train.py", script_sha256="")
    Plan(job=job, levers=levers).write(tmp_path / "flatout.toml")
    whole = flatout("run", "--protect", "--no-rehearsal", "train.py").stdout.splitlines()
    printed = lives(flatout, tmp_path, "1.4@9", "2.3@15")
    for lines, told in printed[1:]:
        assert "with bf16, fused-optimizer" in told
        assert lines == whole[whole.index(lines[0]) :][: len(lines)]
    assert printed[-1][0][-1] == whole[-1]


@pytest.mark.full
def test_workers_go_on_with_their_own_random_numbers(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    expected = bare(tmp_path, WORKERS="2")
    printed = lives(flatout, tmp_path, "2.2@9", WORKERS="2")
    assert "come out the same" in printed[1][1]
    assert printed[1][0] == expected[-len(printed[1][0]) :]


@pytest.mark.full
def test_a_changed_script_and_one_that_resumes_by_itself(flatout: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(BY_HAND + "torch.save(model.state_dict(), 'own.pt')\n")
    lives_once = flatout("run", "--protect", "--no-rehearsal", "--save-every", "3", "train.py", LIFE="10@9")
    assert lives_once.returncode == -9
    script.write_text(BY_HAND + "print('changed')\n")
    refused = flatout("run", "--protect", "train.py")
    assert refused.returncode == 2
    assert "has changed since its update 9 was saved" in refused.stderr
    assert "--fresh" in refused.stderr
    fresh = flatout("run", "--protect", "--no-rehearsal", "--fresh", "train.py")
    assert fresh.returncode == 0
    assert fresh.stdout.splitlines()[-1] == "changed"
    assert len(fresh.stdout.splitlines()) == 21


@pytest.mark.full
def test_a_script_with_a_checkpoint_of_its_own_goes_its_own_way(flatout: Run, tmp_path: Path) -> None:
    own = BY_HAND.replace(
        "number, average = 0, None",
        "number, average = torch.load('own.pt')['number'] if os.path.exists('own.pt') else 0, None",
    ).replace("    number += 1\n", "    number += 1\n    torch.save({'number': number}, 'own.pt')\n")
    (tmp_path / "train.py").write_text(own)
    flatout("run", "--protect", "--no-rehearsal", "--save-every", "3", "train.py", LIFE="10@9")
    done = flatout("run", "--protect", "--no-rehearsal", "--save-every", "3", "train.py")
    assert done.returncode == 0, done.stderr
    assert "it goes on by itself" in done.stderr
    assert done.stdout.splitlines()[0].startswith("10 ")


@pytest.mark.full
def test_it_is_rehearsed_before_it_begins(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(BY_HAND.replace("number < 20", "number < 12"))
    good = flatout("run", "--protect", "--save-every", "3", "model.py")
    assert good.returncode == 0, good.stderr
    assert "rehearsed: the 4 updates that it had already made since then come out the same" in good.stderr


def test_what_cannot_be_brought_back_is_told_before_it_begins(flatout: Run, tmp_path: Path) -> None:
    in_backward = (
        DIES
        + """
model = torch.nn.Linear(4, 4)
optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
def update(p):
    optimizers[p].step()
    optimizers[p].zero_grad()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(update)
for number in range(12):
    model(torch.randn(3, 4)).square().mean().backward()
    print(number)
"""
    )
    (tmp_path / "train.py").write_text(in_backward)
    refused = flatout("run", "--protect", "train.py")
    assert refused.returncode == 2, refused.stderr
    assert "updates are made inside of passes backward" in refused.stderr
    assert refused.stdout == ""


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_all_ranks_come_back_together(flatout: Run, tmp_path: Path, how: str) -> None:
    """One of them is killed, then one is asked to stop."""
    (tmp_path / "train.py").write_text(RANKS)
    run = ("run", "--protect", "--no-rehearsal", "--save-every", "3", "--nproc-per-node", "2", "train.py")
    whole = flatout(*run, HOW=how).stdout.splitlines()
    assert len(whole) == 16
    flatout(*run, HOW=how, LIFE="1.3@9")
    stopped = flatout(*run, HOW=how, LIFE="2.2@15")
    assert stopped.stderr.count("goes on after update 6") == 2, stopped.stderr
    assert stopped.returncode == 143
    last = flatout(*run, HOW=how)
    assert last.returncode == 0, last.stderr
    for done in (stopped, last):
        lines = done.stdout.splitlines()
        assert lines == whole[whole.index(lines[0]) :][: len(lines)]
    assert last.stdout.splitlines()[-1] == whole[-1]


# It handles SIGTERM itself: it leaves at once, or saves what it likes and leaves after the step.
OWN_HANDLER = BY_HAND.replace(
    "number, average = 0, None",
    """
is_told = False
def own(number, frame):
    global is_told
    print("own", flush=True)
    is_told = True
    if os.environ["HOW"] == "at-once":
        sys.exit(0)
number, average = 0, None
if os.environ["WHEN"] == "before":
    signal.signal(signal.SIGTERM, own)
""",
).replace(
    "    number += 1\n",
    """    number += 1
    if number == 2 and os.environ["WHEN"] == "after":
        signal.signal(signal.SIGTERM, own)
    if is_told:
        open("left.txt", "w").write(str(number))
        break
""",
)


@pytest.mark.parametrize(
    ("how", "when"),
    [
        ("flag", "before"),
        pytest.param("at-once", "before", marks=pytest.mark.full),
        pytest.param("flag", "after", marks=pytest.mark.full),
        pytest.param("at-once", "after", marks=pytest.mark.full),
    ],
)
def test_a_script_that_handles_the_signal_itself_leaves_as_it_likes_and_what_is_saved_stays(
    flatout: Run, tmp_path: Path, how: str, when: str
) -> None:
    (tmp_path / "train.py").write_text(OWN_HANDLER)
    expected = bare(tmp_path, HOW=how, WHEN=when)
    run = ("run", "--protect", "--no-rehearsal", "--save-every", "3", "train.py")
    first = flatout(*run, LIFE="10@15", HOW=how, WHEN=when)
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[-1] == "own"
    assert (tmp_path / "left.txt").exists() == (how == "flag")
    told = " ".join(first.stderr.split())
    assert "was asked to stop, and ended with code 0: what was saved at update 9 is kept" in told
    second = flatout(*run, HOW=how, WHEN=when)
    assert second.returncode == 0, second.stderr
    assert "goes on after update 9" in second.stderr
    assert second.stdout.splitlines()[-1] == expected[-1]
    assert not list((tmp_path / ".flatout" / "protected").iterdir())


def test_a_script_that_had_resumed_from_its_own_checkpoint_resumes_from_the_newer_one(
    flatout: Run, tmp_path: Path
) -> None:
    own = BY_HAND.replace(
        "number, average = 0, None",
        """
number, average = 0, None
if os.path.exists("last.pt"):
    kept = torch.load("last.pt")
    number = kept["number"]
    model.load_state_dict(kept["model"])
""",
    ).replace(
        "    number += 1\n",
        """    number += 1
    if number % 2 == 0:
        torch.save({"number": number, "model": model.state_dict()}, "last.pt")
""",
    )
    (tmp_path / "train.py").write_text(own)
    run = ("run", "--protect", "--no-rehearsal", "--save-every", "3", "train.py")
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env={**os.environ, "LIFE": "4@9"}, timeout=250)
    first = flatout(*run, LIFE="12@9")
    assert first.stdout.splitlines()[0].startswith("4 ")
    second = flatout(*run)
    assert second.returncode == 0, second.stderr
    assert "it goes on by itself" in second.stderr
    steps = [int(line.split()[0]) for line in second.stdout.splitlines()]
    assert steps == list(range(12, 20))


# Averages of weights, kept where scripts keep them.
AVERAGES = (
    DIES
    + """
model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(140)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
listed = [one.detach().clone() for one in model.parameters()]
keyed = {one: one.detach().clone() for one in model.parameters()}
class Slots:
    __slots__ = ("average",)
slots = Slots()
slots.average = torch.zeros(4)
def averaging():
    hidden = torch.zeros(4)
    return lambda new: hidden.mul_(0.9).add_(new)
average = averaging()
too_many = [torch.zeros(20).mul_(1) for _ in range(5000)]
for number in range(12):
    loss = model(torch.randn(3, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    with torch.no_grad():
        bias = model[-1].bias
        for kept, (one, other) in zip(listed, keyed.items()):
            kept.lerp_(one, 0.1)
            other.lerp_(one, 0.2)
        slots.average.lerp_(bias, 0.1)
        found = [sum(kept.sum() for kept in of) for of in (listed, keyed.values())]
        found += [slots.average.sum(), average(bias).sum()]
    print(number, *(one.item() for one in found), flush=True)
    die_at(str(number))
"""
)


def test_averages_come_back_wherever_they_are_kept_and_what_does_not_is_named(
    flatout: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(AVERAGES)
    expected = bare(tmp_path)
    _, (lines, told) = lives(flatout, tmp_path, "7@9")
    assert "goes on after update 6" in told
    assert lines == expected[5:]  # from within the sixth update
    assert "not saved, and begins anew after a kill: train.py.too_many\n" in told
