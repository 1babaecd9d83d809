"""The session on a real GPU: device times, losses and memory are right, nothing waits, and graphs still work.

Every script runs in a process of its own. What it can measure itself (events, losses) it prints as JSON in
its last line, and that is compared with what the session saw of the same run.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from flatout.analyze.profile import Peaks, build_profile
from flatout.analyze.steps import RankSteps, read_ranks
from flatout.records.session import SESSION_VARIABLE, Order
from flatout.records.trial import Shield, Trial

SOURCE = Path(__file__).parents[2] / "src"

# A loop that keeps the device busy: the host runs ahead of it, and neither waits for the other.
TRAINING = """
    import json, sys, torch
    from torch import nn

    def model_of(width, layers):
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
        return nn.Sequential(*blocks).cuda()

    def pinned_batches(count, batch, width):
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(count, batch, width, generator=generator).pin_memory()
        y = torch.randn(count, batch, width, generator=generator).pin_memory()
        return [(x[place], y[place]) for place in range(count)]

    def tell(**found):
        print(json.dumps(found))
"""

TIMED = (
    TRAINING
    + """
    STEPS, BATCH, WIDTH = 40, 512, 4096
    model = model_of(WIDTH, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = pinned_batches(4, BATCH, WIDTH)
    losses, norms, marks = [], [], []
    for number in range(STEPS):
        x, y = batches[number % len(batches)]
        x, y = x.to("cuda", non_blocking=True), y.cuda(non_blocking=True)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        marks.append(mark)
        losses.append(loss.detach())
    torch.cuda.synchronize()
    tell(
        device_ms=[None] + [a.elapsed_time(b) for a, b in zip(marks, marks[1:])],
        losses=[loss.item() for loss in losses],
        norms=[norm.item() for norm in norms],
        copied_bytes=2 * batches[0][0].nbytes,
        samples=BATCH,
        parameters=sum(p.numel() for p in model.parameters()),
    )
"""
)

# Any synchronization that torch knows of raises; those that it does not know of are counted.
WITHOUT_WAITING = (
    TRAINING
    + """
    model = model_of(256, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = pinned_batches(4, 64, 256)

    def step(number):
        x, y = batches[number % len(batches)]
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    for number in range(4):
        step(number)
    waits = []

    def counted(owner, name):
        real = getattr(owner, name)

        def wait(*args, **kwargs):
            waits.append(f"{owner.__name__}.{name}")
            return real(*args, **kwargs)

        setattr(owner, name, wait)
        return lambda: setattr(owner, name, real)

    undo = [
        counted(torch.cuda, "synchronize"),
        counted(torch.cuda.Event, "synchronize"),
        counted(torch.cuda.Stream, "synchronize"),
    ]
    torch.cuda.set_sync_debug_mode("error")
    losses = [step(number) for number in range(600)]
    torch.cuda.set_sync_debug_mode("default")
    for put_back in undo:
        put_back()
    tell(waits=waits, losses=[loss.item() for loss in losses])
"""
)

# A loader of one's own that copies the next batch on a stream beside the training.
PREFETCHED = (
    TRAINING
    + """
    model = model_of(1024, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    # Copying takes longer than training: the side stream is still at work when a step ends.
    x = torch.randn(1 << 26).pin_memory()
    batches = pinned_batches(2, 128, 1024)
    side = torch.cuda.Stream()
    for number in range(40):
        with torch.cuda.stream(side):
            beside = x.to("cuda", non_blocking=True)
        a, b = batches[number % 2]
        a, b = a.to("cuda", non_blocking=True), b.to("cuda", non_blocking=True)
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    tell(bytes=x.nbytes + a.nbytes + b.nbytes)
"""
)

GRAPHED = (
    TRAINING
    + """
    inside = sys.argv[1] == "update-inside"
    model = model_of(256, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    batches = [(x.cuda(), y.cuda()) for x, y in pinned_batches(6, 32, 256)]
    x, y = (tensor.clone() for tensor in batches[0])

    def forward_and_backward():
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(7):  # with the captured one, as many updates as a session lets pass before it looks
            optimizer.zero_grad(set_to_none=True)
            forward_and_backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = forward_and_backward()
        if inside:
            optimizer.step()
    found = []
    for number in range(12):
        for static, fresh in zip((x, y), batches[number % len(batches)]):
            static.copy_(fresh)
        graph.replay()
        if not inside:
            optimizer.step()
        found.append(loss.item().hex())
    tell(losses=found)
"""
)

COMPILED = (
    TRAINING
    + """
    model = model_of(256, 3)
    compiled = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = pinned_batches(4, 32, 256)
    found = []
    for number in range(14):
        x, y = batches[number % len(batches)]
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        loss = nn.functional.mse_loss(compiled(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item().hex())
    tell(losses=found)
"""
)

SEEDED_BY_OTHERS = """
    import torch
    from torch import nn
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(5):
        x = torch.randn(32, 64, device="cuda")
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
"""


@dataclasses.dataclass(frozen=True)
class Seen:
    """A run as the script told it and as the session saw it."""

    told: dict[str, Any]
    rank: RankSteps
    folder: Path

    @property
    def steps(self) -> tuple[dict[str, Any], ...]:
        return self.rank.steps


def run(script: str, place: Path, *arguments: str, order: Path | None = None) -> dict[str, Any]:
    """Run a script, watched where there is an order; what it told in its last line."""
    place.mkdir(parents=True, exist_ok=True)
    path = place / "script.py"
    path.write_text(textwrap.dedent(script))
    environment = {name: value for name, value in os.environ.items() if name != SESSION_VARIABLE}
    # The same sums in every run, whichever streams they run on.
    environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(place.parent / "compiled")
    if order is not None:
        environment[SESSION_VARIABLE] = str(order)
        ways = [str(SOURCE / "flatout" / "entry" / "site"), str(SOURCE), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, ways))
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=place,
        env=environment,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if lines else {}


def watched(script: str, place: Path, *arguments: str, **order: Any) -> Seen:
    place.mkdir(parents=True)
    path, folder = place / "order.json", place / "run"
    Order(folder=str(folder), **order).write(path)
    told = run(script, place / "watched", *arguments, order=path)
    assert not path.with_name("order.json.failed").exists()
    [rank] = read_ranks(folder)
    # A tap that broke, or that was caught waiting, has turned itself off: the script would not tell.
    assert rank.about["failed_taps"] == {}
    return Seen(told, rank, folder)


def close(found: float, true: float) -> bool:
    """Within a tenth; between two events that follow each other there lie some microseconds of the host."""
    return abs(found - true) <= max(0.1 * true, 0.2)


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return watched(TIMED, tmp_path_factory.mktemp("timed") / "run")


# Times, losses, parts, copies, memory -----------------------------------------------------------------------


def test_every_update_is_a_step_of_a_known_device(timed: Seen) -> None:
    assert [step["update"] for step in timed.steps] == list(range(1, 41))
    assert timed.rank.about["device"] == "cuda:0"
    assert timed.rank.about["device_name"]
    assert timed.rank.about["device_uuid"]
    assert {step["samples"] for step in timed.steps} == {timed.told["samples"]}
    assert [step["device_reason"] for step in timed.steps if "device_reason" in step] == []


def test_device_times_are_those_of_the_scripts_own_events(timed: Seen) -> None:
    # The first update is only known to be one at the second: the first two have no time of their own.
    for number, step in enumerate(timed.steps[2:], start=2):
        assert close(step["device_ms"], timed.told["device_ms"][number]), number
    whole = sum(step["device_ms"] for step in timed.steps[2:])
    assert whole == pytest.approx(sum(timed.told["device_ms"][2:]), rel=0.02)


def test_losses_and_norms_are_those_of_the_script_bit_for_bit(timed: Seen) -> None:
    assert [step["losses"] for step in timed.steps] == [[loss] for loss in timed.told["losses"]]
    assert [step["gradient_norms"] for step in timed.steps] == [[norm] for norm in timed.told["norms"]]


def test_device_parts_are_there_and_sum_to_their_step(timed: Seen) -> None:
    detailed = [step for step in timed.steps if step.get("device_parts_ms")]
    assert len(detailed) >= 6
    for step in detailed:
        parts = step["device_parts_ms"]
        assert {"copy", "forward", "loss", "backward", "after_backward", "optimizer"} <= set(parts)
        assert min(parts.values()) >= 0
        assert sum(parts.values()) == pytest.approx(step["device_ms"], rel=0.01, abs=0.02)
    # Backward makes two products for each of forward's. Others may use the GPU too: by the median.
    usual = {
        name: statistics.median(step["device_parts_ms"][name] for step in detailed)
        for name in ("backward", "forward", "loss")
    }
    assert usual["backward"] > usual["forward"] > usual["loss"]


def test_copies_to_the_device_are_counted_with_their_bytes(timed: Seen) -> None:
    # The first step holds the model's own way to the device.
    assert {step["copies"] for step in timed.steps[1:]} == {2}
    assert {step["copy_bytes"] for step in timed.steps[1:]} == {timed.told["copied_bytes"]}


def test_memory_is_read_and_told_apart(timed: Seen) -> None:
    looked = [step for step in timed.steps if step.get("allocated_peak_bytes") is not None]
    assert {2, 3, 16, 32} <= {step["update"] for step in looked}
    holds = timed.rank.about["holds"]
    parameters = timed.told["parameters"]
    assert holds["parameters"] == parameters
    assert holds["parameter_bytes"] == holds["gradient_bytes"] == 4 * parameters
    assert holds["optimizer_bytes"] >= 8 * parameters
    for step in looked[1:]:
        assert step["allocated_peak_bytes"] >= 16 * parameters
        assert step["reserved_peak_bytes"] >= step["allocated_peak_bytes"]
        assert step["host_bytes"] > 0


def test_the_profile_stands_on_the_devices_clock_and_sums_to_the_whole(timed: Seen) -> None:
    trial = Trial(
        name="gpu",
        folder=str(timed.folder),
        command=("python", "script.py"),
        outcome="ended",
        updates=40,
        ranks=1,
        took_s=1.0,
        shield=Shield(kind="none"),
    )
    profile = build_profile("gpu", trial, timed.folder, Peaks(device_total_bytes=1 << 40))
    assert profile.step_ms is not None
    assert profile.step_ms.clock == "device"
    assert None not in profile.losses
    for table in (profile.host, profile.device_parts, profile.waterfall):
        assert sum(share.share for share in table) == pytest.approx(1)
        assert min(share.ms for share in table) >= 0
    assert sum(share.ms for share in profile.waterfall) == pytest.approx(profile.step_ms.mean)
    assert profile.memory.activation_bytes is not None
    assert profile.memory.activation_bytes > 0


# Nothing waits ----------------------------------------------------------------------------------------------


def test_nothing_of_ours_waits_for_the_device(tmp_path: Path) -> None:
    bare = run(WITHOUT_WAITING, tmp_path / "bare")
    assert bare["waits"] == []  # nor does the script itself
    seen = watched(WITHOUT_WAITING, tmp_path / "seen")
    assert seen.told == bare
    assert len(seen.steps) == 604
    # Long enough for every habit of the session: it looks at each step at first, and at some of them later.
    watched_steps = [step for step in seen.steps if step["watched"]]
    assert 256 <= len(watched_steps) < 300
    timed = [step for step in watched_steps[2:] if "device_ms" in step]
    assert len(timed) == len(watched_steps) - 2
    for step in watched_steps:
        if step["update"] > 4:
            assert step["losses"] == [bare["losses"][step["update"] - 5]]
            assert None not in step["gradient_norms"]


def test_copies_on_a_stream_of_their_own_disturb_neither_the_clock_nor_the_parts(tmp_path: Path) -> None:
    seen = watched(PREFETCHED, tmp_path / "seen")
    assert len(seen.steps) == 40
    assert {step["copy_bytes"] for step in seen.steps[1:]} == {seen.told["bytes"]}
    assert all(step["device_ms"] > 0 for step in seen.steps[2:])
    detailed = [step for step in seen.steps if step.get("device_parts_ms")]
    assert len(detailed) >= 6
    for step in detailed:
        assert min(step["device_parts_ms"].values()) >= 0
        whole = sum(step["device_parts_ms"].values())
        assert whole == pytest.approx(step["device_ms"], rel=0.01, abs=0.02)


# Graphs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["update-outside", "update-inside"])
def test_a_script_captures_its_graph_while_it_is_watched(tmp_path: Path, where: str) -> None:
    bare = run(GRAPHED, tmp_path / "bare", where)
    seen = watched(GRAPHED, tmp_path / "seen", where)
    assert seen.told == bare
    assert len(seen.told["losses"]) == 12
    if where == "update-inside":
        # A replay calls nothing in Python: seven updates to warm up, and the one that was captured.
        assert len(seen.steps) == 8
        assert seen.steps[-1]["device_reason"] == "a graph was being captured"
        assert seen.steps[-1]["losses"] == [None]
    else:
        assert len(seen.steps) == 7 + 12
        # One update follows each replay; no loss passes through `backward()` any more.
        assert all("device_ms" in step for step in seen.steps[8:])
        assert all(step["losses"] == [] for step in seen.steps[8:])


@pytest.mark.timeout(600)
def test_a_model_compiled_with_graphs_learns_the_same_while_it_is_watched(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    bare = run(COMPILED, tmp_path / "bare")
    seen = watched(COMPILED, tmp_path / "seen")
    assert seen.told == bare
    assert [step["losses"] for step in seen.steps] == [[float.fromhex(x)] for x in bare["losses"]]
    assert len(seen.steps) == 14
    assert sum(step["compiles"] for step in seen.steps) >= 1
    assert all("device_ms" in step for step in seen.steps[2:])


# Pairing ----------------------------------------------------------------------------------------------------


def test_equal_runs_have_equal_checksums_and_another_seed_has_others(tmp_path: Path) -> None:
    first, second, other = (
        watched(SEEDED_BY_OTHERS, tmp_path / name, seed=seed, pair_updates=3).rank
        for name, seed in (("first", 1), ("second", 1), ("other", 2))
    )
    pairing = first.about["pairing"]
    assert pairing == second.about["pairing"]
    assert len(pairing["parameters"]) == 1
    assert isinstance(pairing["parameters"][0], int)
    # That an optimizer leads, and so that an update was made, is known at its second.
    assert [update for update, _ in pairing["inputs"]] == [0, 0, 2]
    assert len({number for _, number in pairing["inputs"]}) == 3
    assert pairing["parameters"] != other.about["pairing"]["parameters"]
    assert pairing["inputs"] != other.about["pairing"]["inputs"]
    losses = [[step["losses"] for step in rank.steps] for rank in (first, second, other)]
    assert losses[0] == losses[1] != losses[2]
    # Our own sums are no copies of the script's.
    assert all(step["copies"] == 0 for step in first.steps[1:])
