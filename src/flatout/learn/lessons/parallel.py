"""What each parallel strategy moves and holds: counted on real ranks, reckoned for the reader's model."""

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from flatout.learn.bench import Bench
from flatout.learn.jobs.ranks import BATCH, LAYERS, LENGTH, STRATEGIES, WIDTH, RankCount
from flatout.learn.lesson import Lesson, Setting
from flatout.learn.saying import count_words, paragraphs, rated_rows, sentence
from flatout.learn.spread import Moved, Shape, compute_seconds, moved, shape_of
from flatout.learn.wire import can_count
from flatout.records.errors import ChildFailed, EnvironmentProblem
from flatout.records.learn import (
    Advice,
    BarPicture,
    LearnBar,
    LearnFigure,
    TablePicture,
    Taught,
)
from flatout.records.rated import RatedGpu
from flatout.records.words import byte_rate, duration, memory_size, percent, three_digits

_RANKS = 2
_DEADLINE_S = 150.0
_POLL_S = 0.1
_NETWORK_BYTES_PER_S = 100e9 / 8
_MOVES = {
    "ddp": "gradients, summed",
    "fsdp": "weights to everyone, twice; gradients to their owners",
    "tensor": "activations, several times a block",
    "pipeline": "activations to the next stage, gradients back",
}

_DIFFERENCES = sentence(
    """gloo sums everywhere before it hands each rank its part, where NCCL sends half as much: FSDP counts
    more here. Query, key and value are three layers in this model: tensor sums six times a block, not
    four."""
)
_COUNTED = sentence(
    """Bytes are those that the kernel counted on the connections of the ranks (gloo, over loopback). GPUs
    send the same ones, but for how NCCL sums."""
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelMeasured:
    """What ranks sent and held, as a mean over them, by strategy; and the model's size."""

    ranks: int
    parameters: int
    counts: tuple[RankCount, ...]


def measure(bench: Bench) -> ParallelMeasured:
    """Start ranks that train a small GPT by every strategy; the kernel counts what they send."""
    if not can_count():
        raise EnvironmentProblem(
            f"{sys.platform} does not say how much a connection has sent",
            expected="Linux, whose kernel counts it",
            remedy="flatout learn parallel in a container or on the machine that trains",
        )
    with tempfile.TemporaryDirectory(dir=bench.scratch) as name:
        folder = Path(name)
        _run(bench, folder)
        found = {
            strategy: [
                msgspec.json.decode((folder / f"{strategy}.{rank}.json").read_bytes(), type=RankCount)
                for rank in range(_RANKS)
            ]
            for strategy in STRATEGIES
        }
    counts = tuple(
        RankCount(
            strategy=strategy,
            sent_bytes=sum(one.sent_bytes for one in ranks) / _RANKS,
            held_bytes=round(sum(one.held_bytes for one in ranks) / _RANKS),
            step_s=max(one.step_s for one in ranks),
        )
        for strategy, ranks in found.items()
    )
    whole = next(one for one in counts if one.strategy == "ddp")
    return ParallelMeasured(ranks=_RANKS, parameters=whole.held_bytes // 16, counts=counts)


def _run(bench: Bench, folder: Path) -> None:
    """All ranks to their end; where one fails, the others are ended and its last words are told."""
    # Traffic does not depend on the device: ranks are on the CPU, and leave the GPUs alone.
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    bench.say(f"starting {_RANKS} ranks")
    ranks = []
    try:
        for rank in range(_RANKS):
            with (folder / f"said.{rank}").open("wb") as said:
                words = [*("-P", "-m", "flatout.learn.jobs.ranks"), str(rank), str(_RANKS), str(folder)]
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, *words],
                        stdout=said,
                        stderr=said,
                        stdin=subprocess.DEVNULL,
                        env=environment,
                    )
                )
        _wait(bench, ranks, folder)
    finally:
        for one in ranks:
            one.kill()
            one.wait()


def _wait(bench: Bench, ranks: list["subprocess.Popen[bytes]"], folder: Path) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    told = ""
    while any(one.poll() is None for one in ranks):
        failed = [rank for rank, one in enumerate(ranks) if one.poll() not in (None, 0)]
        if failed or time.monotonic() > deadline:
            raise _failure(failed, folder)
        current = next((one for one in STRATEGIES if not (folder / f"{one}.0.json").exists()), "")
        if current != told:
            bench.say(f"{_RANKS} ranks train by {current}" if current else "the ranks take leave")
            told = current
        time.sleep(_POLL_S)
    failed = [rank for rank, one in enumerate(ranks) if one.returncode]
    if failed:
        raise _failure(failed, folder)


def _failure(failed: list[int], folder: Path) -> ChildFailed:
    rank = failed[0] if failed else 0
    lines = (folder / f"said.{rank}").read_text(errors="replace").strip().splitlines()
    how = "failed" if failed else f"made no end within {_DEADLINE_S:g} s"
    return ChildFailed(
        f"rank {rank} {how}" + (f": {lines[-1]}" if lines else ""),
        expected="ranks that train a few steps on this machine, over its loopback",
        remedy="flatout doctor   # is torch.distributed there, and memory free?",
    )


def teach(found: ParallelMeasured, setting: Setting) -> Taught:
    """What moved here, and what would move for the reader's own model."""
    here = Shape(
        parameters=found.parameters, width=WIDTH, layers=LAYERS, tokens=BATCH * LENGTH, bytes_a_number=4
    )
    by_name = {one.strategy: one for one in found.counts}
    mine = shape_of(setting.params, float(setting.tokens * setting.gpus))
    plan = moved(mine, setting.gpus)
    ddp, fsdp = by_name["ddp"], by_name["fsdp"]
    return Taught(
        id=LESSON.id,
        title=LESSON.title,
        question=LESSON.question,
        answer=sentence(
            """On {ranks} ranks here, DDP sent {sent} a step and held all; FSDP sent {times} times as much
            and held {part} of it: traffic is paid for memory.""",
            ranks=found.ranks,
            sent=_mega(ddp.sent_bytes),
            times=three_digits(fsdp.sent_bytes / ddp.sent_bytes),
            part=percent(fsdp.held_bytes / ddp.held_bytes),
        ),
        pictures=(_sent(found), _held(found), _checked(found, here), _own(plan, mine, setting)),
        seen=_seen(plan, setting),
        rated=_links(mine, plan, setting),
        advice=(
            Advice(
                command=f"flatout fit --gpus {setting.gpus} --gpu h100-80gb-sxm train.py",
                why="the same for your own script: what each GPU holds and sends, and what to choose",
            ),
            Advice(
                command='flatout.parallel("fsdp", model=model, optimizer=optimizer, loader=loader)',
                why="in Python: the strategy applied, the loop as it is",
            ),
            Advice(
                command=f"flatout run --nproc-per-node {min(setting.gpus, 8)} train.py",
                why="the job on all GPUs of a machine, watched; slow ranks and links are named",
            ),
        ),
        figures=_figures(found, plan),
        notes=(_COUNTED,),
    )


def _mega(count: float) -> str:
    return f"{three_digits(count / 1e6)} MB" if count < 1e9 else f"{three_digits(count / 1e9)} GB"


def _sent(found: ParallelMeasured) -> BarPicture:
    return BarPicture(
        title=f"What each of {found.ranks} ranks sent in a step; {count_words(found.parameters)} parameters",
        unit="bytes",
        bars=tuple(
            LearnBar(
                label=one.strategy,
                value=one.sent_bytes,
                words=f"{_mega(one.sent_bytes)}: {_MOVES[one.strategy]}",
            )
            for one in found.counts
        ),
    )


def _held(found: ParallelMeasured) -> BarPicture:
    return BarPicture(
        title="What each held between steps: weights, gradients, optimizer",
        unit="bytes",
        bars=tuple(
            LearnBar(label=one.strategy, value=float(one.held_bytes), words=_mega(one.held_bytes))
            for one in found.counts
        ),
    )


def _checked(found: ParallelMeasured, here: Shape) -> TablePicture:
    reckoned = {one.strategy: one for one in moved(here, found.ranks)}
    return TablePicture(
        title="Counted here, against what arithmetic says",
        header=("strategy", "counted", "rings would send", "counted over reckoned"),
        rows=tuple(
            (
                one.strategy,
                _mega(one.sent_bytes),
                _mega(reckoned[one.strategy].sent_bytes),
                three_digits(one.sent_bytes / reckoned[one.strategy].sent_bytes),
            )
            for one in found.counts
        ),
        caption=_DIFFERENCES,
    )


def _own(plan: tuple[Moved, ...], mine: Shape, setting: Setting) -> TablePicture:
    return TablePicture(
        title=sentence(
            "The same for {count} parameters on {gpus} GPUs, {tokens} tokens on each",
            count=count_words(setting.params),
            gpus=setting.gpus,
            tokens=f"{setting.tokens:,}",
        ),
        header=("strategy", "each GPU holds", "each GPU sends a step", "over 100 Gbit/s"),
        rows=tuple(
            (
                one.strategy,
                memory_size(one.held_bytes),
                _mega(one.sent_bytes),
                duration(one.sent_bytes / _NETWORK_BYTES_PER_S),
            )
            for one in plan
        ),
        origin="computed",
        caption=sentence(
            """A transformer, {width} wide and {layers} deep; it trains in fp32 with AdamW, and numbers
            travel in bf16. Activations come on top of what is held. Change it with --params, --gpus and
            --tokens.""",
            width=f"{mine.width:,.0f}",
            layers=f"{mine.layers:.0f}",
        ),
    )


_SEEN = """
DDP gives each rank its own samples and the whole model; before the update they need the sum of all
gradients, so each sends nearly twice the gradients' bytes, whatever the batch. A larger batch on each rank
therefore makes the same traffic matter less.

FSDP divides weights, gradients and averages, and fetches the weights of a block when they are needed, in
the forward and again in the backward pass: half as much again as DDP, for a fraction of its memory.

Tensor parallel divides each product. Every block must then sum activations over all ranks, and waits for
it: traffic grows with the tokens and the layers. For your model that is {tensor}; it belongs on the fastest
link there is, inside of one machine.

Pipeline gives each rank some of the blocks. Only what crosses from one to the next moves, which is little;
the price is ranks that wait while the pipeline fills and empties, and parts of a batch to fill it.

On your {count} parameters and {gpus} GPUs, DDP holds {all} on each of them, and the others {part}.
"""


def _seen(plan: tuple[Moved, ...], setting: Setting) -> tuple[str, ...]:
    by_name = {one.strategy: one for one in plan}
    more = by_name["tensor"].sent_bytes / by_name["ddp"].sent_bytes
    return paragraphs(
        _SEEN,
        tensor=f"{three_digits(more)} times what DDP sends"
        if more >= 1
        else f"{percent(more)} of what DDP sends",
        count=count_words(setting.params),
        gpus=setting.gpus,
        all=memory_size(by_name["ddp"].held_bytes),
        part=memory_size(by_name["fsdp"].held_bytes),
    )


def _links(mine: Shape, plan: tuple[Moved, ...], setting: Setting) -> TablePicture | None:
    rows: list[tuple[RatedGpu, tuple[str, ...]]] = []
    for gpu in setting.compared:
        # The catalogue's link between GPUs is both directions together.
        link = gpu.gpu_link_bytes_per_s / 2 if gpu.gpu_link_bytes_per_s else gpu.host_link_bytes_per_s
        peak = gpu.dense_flops_per_s.get("bf16")
        if link is None or peak is None:
            continue
        rows.append(
            (
                gpu,
                (
                    f"{byte_rate(link)} {gpu.gpu_link or gpu.host_link}".strip(),
                    duration(compute_seconds(mine, setting.gpus, peak)),
                    *(duration(one.sent_bytes / link) for one in plan),
                ),
            )
        )
    return rated_rows(
        "How long that travels at the least, beside a step's arithmetic",
        ("link, one way", "arithmetic", *(one.strategy for one in plan)),
        rows,
    )


def _figures(found: ParallelMeasured, plan: tuple[Moved, ...]) -> tuple[LearnFigure, ...]:
    figures = [LearnFigure(name="parameters", value=float(found.parameters), unit="number")]
    for one in found.counts:
        figures.append(LearnFigure(name=f"{one.strategy}, sent a step", value=one.sent_bytes, unit="bytes"))
        figures.append(LearnFigure(name=f"{one.strategy}, held", value=float(one.held_bytes), unit="bytes"))
        figures.append(LearnFigure(name=f"{one.strategy}, a step", value=one.step_s, unit="s"))
    for own in plan:
        name = f"{own.strategy}, your model, sent a step"
        figures.append(LearnFigure(name=name, value=own.sent_bytes, unit="bytes", origin="computed"))
    return tuple(figures)


LESSON = Lesson(
    id="parallel",
    title="What each parallel strategy moves",
    question="DDP, FSDP, tensor or pipeline: what does each send in a step, and what does it save?",
    seconds=15,
    record=ParallelMeasured,
    measure=measure,
    teach=teach,
    on_device=False,
)
