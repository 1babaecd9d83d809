"""What a launch costs: below some size, an operation takes as long as asking for it."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from flatout.learn.bench import Bench
from flatout.learn.lesson import Lesson, Setting
from flatout.learn.saying import paragraphs, rated_rows, sentence
from flatout.records.learn import (
    Advice,
    BarPicture,
    CurvePicture,
    LearnBar,
    LearnCurve,
    LearnFigure,
    Taught,
)
from flatout.records.words import duration, memory_size, three_digits

_ROUNDS = 20
_SIZES = tuple(4**power for power in range(13))
# An update of a model with many small tensors, as most have.
_TENSORS, _TENSOR_SIDE = 200, 32
# Elements at which work outweighs the launch: the call takes this many times the least.
_OUTWEIGHS = 2.0
# A launch as a share of this many is a launch-bound step.
_STEP_KERNELS = 1000


@dataclasses.dataclass(frozen=True)
class CallPoint:
    """An operation on so many numbers."""

    count: int
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchMeasured:
    """Calls by size; the same update in many calls and in few; what a launch and a synchronization cost."""

    points: tuple[CallPoint, ...]
    # Ways of one optimizer update, in seconds.
    updates_s: dict[str, float]
    launch_s: float
    item_s: float
    graph_node_s: float | None


def measure(bench: Bench) -> LaunchMeasured:
    """Add one to more and more numbers; then update many small tensors, one by one and together."""
    with bench.one_core():
        with bench.torch.inference_mode():
            points = tuple(_calls(bench))
        updates = dict(_updates(bench))
    return LaunchMeasured(
        points=points,
        updates_s=updates,
        launch_s=bench.launch_s,
        item_s=bench.item_s,
        graph_node_s=bench.graph_node_s,
    )


def _calls(bench: Bench) -> Iterator[CallPoint]:
    for count in _SIZES:
        bench.say(f"an operation on {count:,} numbers")
        numbers = bench.torch.ones(count, device=bench.device)
        call: Callable[[], object] = partial(numbers.mul_, 1.0)
        yield CallPoint(count, bench.seconds(call, at_most_s=0.2))


def _updates(bench: Bench) -> Iterator[tuple[str, float]]:
    ways: dict[str, dict[str, Any]] = {
        "one by one (foreach=False)": {"foreach": False},
        "together (foreach=True)": {"foreach": True},
        "one kernel for all (fused=True)": {"fused": True},
    }
    torch = bench.torch
    for name, switches in ways.items():
        bench.say(f"an update, {name}")
        parameters = [torch.nn.Parameter(torch.ones(_TENSOR_SIDE, _TENSOR_SIDE, device=bench.device))]
        parameters += [torch.nn.Parameter(parameters[0].detach().clone()) for _ in range(_TENSORS - 1)]
        for one in parameters:
            one.grad = torch.full_like(one, 1e-3)
        try:
            optimizer = torch.optim.AdamW(parameters, lr=1e-4, **switches)
            # Python asks for every kernel here: the host's clock, until the device is done, is what counts.
            taken_s = _host_seconds(bench, optimizer.step)
        except (RuntimeError, ValueError):
            continue  # this device has no such way
        yield name, taken_s


def _host_seconds(bench: Bench, call: Callable[[], object]) -> float:
    if bench.on_cpu:
        return bench.seconds(call)
    call()
    taken = []
    for _ in range(_ROUNDS):
        bench.watch.synchronize()
        started = time.perf_counter()
        call()
        bench.watch.synchronize()
        taken.append(time.perf_counter() - started)
    return min(taken)


def _outweighed_at(found: LaunchMeasured) -> int | None:
    least = min(point.seconds for point in found.points)
    return next((p.count for p in found.points if p.seconds > _OUTWEIGHS * least), None)


def teach(found: LaunchMeasured, setting: Setting) -> Taught:
    """What a launch costs here, and what to do about many of them."""
    least = min(point.seconds for point in found.points)
    slowest, fastest = max(found.updates_s.values()), min(found.updates_s.values())
    enough = _outweighed_at(found)
    until = f"up to about {enough:,} numbers" if enough else "at every size that was tried"
    return Taught(
        id=LESSON.id,
        title=LESSON.title,
        question=LESSON.question,
        answer=sentence(
            """The smallest operation takes {launch} here, and {until} a larger one takes about as long:
            what is paid for is the launch.""",
            launch=duration(found.launch_s),
            until=until,
        ),
        pictures=(_sizes(found), _ways(found)),
        seen=_seen(found, slowest / fastest),
        rated=rated_rows(
            f"What other hardware could do in one launch of {duration(found.launch_s)}",
            ("memory moved", "operations in bf16"),
            [
                (
                    gpu,
                    (
                        memory_size(gpu.memory_bandwidth_bytes_per_s * found.launch_s),
                        f"{three_digits(gpu.dense_flops_per_s['bf16'] * found.launch_s / 1e9)} GFLOP",
                    ),
                )
                for gpu in setting.compared
                if "bf16" in gpu.dense_flops_per_s
            ],
        ),
        advice=(
            Advice(
                command="flatout profile train.py",
                why="'idle between launches' is this; lines that wait for the device are named",
            ),
            Advice(
                command="flatout tune train.py",
                why="tries the fused optimizer, compile and CUDA graphs, which launch less",
            ),
            Advice(command="flatout batch train.py", why="more work for each launch"),
        ),
        figures=(
            LearnFigure(name="launch", value=found.launch_s, unit="s"),
            LearnFigure(name="read a number back", value=found.item_s, unit="s"),
            LearnFigure(
                name="kernel in a recorded graph",
                value=found.graph_node_s,
                unit="s",
                note="" if found.graph_node_s is not None else "graphs are CUDA's",
            ),
            LearnFigure(name="least time of a call", value=least, unit="s"),
            LearnFigure(
                name="numbers that outweigh a launch",
                value=float(enough) if enough else None,
                unit="number",
                note="" if enough else "none that was tried",
            ),
            *(
                LearnFigure(name=f"update, {name}", value=taken, unit="s")
                for name, taken in found.updates_s.items()
            ),
        ),
        notes=("A launch depends on the host's processor, not on the device's peaks: nobody rates it.",),
    )


_SEEN = """
Each operation is first asked for: Python calls torch, torch looks at shapes and types, chooses a kernel and
hands it over. With a GPU, that happens on the CPU while the GPU works on what it was asked for before; if
its kernels are shorter than this, it waits.

A step of {kernels} operations cannot take less than {thousand} on this host, on whatever device. A faster
GPU does not help a job that is launch-bound; fewer and larger operations do.

The second picture is one AdamW update of {tensors} small tensors. The arithmetic is the same; in fewer
calls it is {times} times faster.

Reading one number back (loss.item(), print, an if on a tensor) takes {item} when there is nothing to wait
for. On a GPU it also empties the queue: the host cannot ask ahead, and every launch after it is paid in
full.
"""
_GRAPH = """
A recorded CUDA graph asks once for all: a kernel in it takes {node} instead of {launch}.
"""


def _seen(found: LaunchMeasured, times: float) -> tuple[str, ...]:
    words = paragraphs(
        _SEEN,
        kernels=_STEP_KERNELS,
        thousand=duration(_STEP_KERNELS * found.launch_s),
        tensors=_TENSORS,
        times=three_digits(times),
        item=duration(found.item_s),
    )
    if found.graph_node_s is not None:
        node, launch = duration(found.graph_node_s), duration(found.launch_s)
        words += paragraphs(_GRAPH, node=node, launch=launch)
    return words


def _sizes(found: LaunchMeasured) -> CurvePicture:
    return CurvePicture(
        title="How long one operation takes, by how many numbers it is for",
        x_label="numbers",
        x_unit="number",
        y_label="a call",
        y_unit="s",
        curves=(
            LearnCurve(name="measured", points=tuple((float(p.count), p.seconds) for p in found.points)),
        ),
        caption=f"Flat is the launch, rising is work; the last moves {memory_size(8.0 * _SIZES[-1])}.",
    )


def _ways(found: LaunchMeasured) -> BarPicture:
    return BarPicture(
        title=f"One AdamW update of {_TENSORS} tensors of {_TENSOR_SIDE} x {_TENSOR_SIDE}",
        unit="s",
        bars=tuple(LearnBar(label=name, value=taken) for name, taken in found.updates_s.items()),
    )


LESSON = Lesson(
    id="launch",
    title="What a launch costs",
    question="Why does a faster GPU not always help? Each operation has to be asked for.",
    seconds=6,
    record=LaunchMeasured,
    measure=measure,
    teach=teach,
)
