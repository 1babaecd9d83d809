"""Where the memory of training goes: what parameters bring with them, and what the batch brings."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from flatout.learn.bench import Bench
from flatout.learn.lesson import Lesson, Setting
from flatout.learn.saying import count_words, paragraphs, rated_rows, sentence
from flatout.learn.small_gpt import loss_of, small_gpt, tokens_of
from flatout.records.learn import (
    Advice,
    BarPicture,
    CurvePicture,
    LearnBar,
    LearnCurve,
    LearnFigure,
    Taught,
)
from flatout.records.words import memory_size, percent, three_digits

_WIDTH, _LAYERS, _LENGTH = 256, 4, 128
_BATCHES = (1, 2, 4, 8, 16)


@dataclasses.dataclass(frozen=True)
class BatchPoint:
    """What the backward pass needs to be kept, at one batch size."""

    batch: int
    activation_bytes: int
    # The most that torch had allocated in a step; None on the CPU, where nobody counts.
    peak_bytes: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingMeasured:
    """Bytes of a small training, by who holds them."""

    parameters: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    points: tuple[BatchPoint, ...]


def measure(bench: Bench) -> TrainingMeasured:
    """Train a small GPT with AdamW and count what stays in memory."""
    torch = bench.torch
    torch.manual_seed(0)
    model = small_gpt(torch, width=_WIDTH, layers=_LAYERS, length=_LENGTH).to(bench.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with bench.one_core():
        points = tuple(_points(bench, model, optimizer))
    states = [value for state in optimizer.state.values() for value in state.values()]
    return TrainingMeasured(
        parameters=sum(one.numel() for one in model.parameters()),
        parameter_bytes=_bytes(model.parameters()),
        gradient_bytes=_bytes(one.grad for one in model.parameters()),
        optimizer_bytes=_bytes(value for value in states if torch.is_tensor(value)),
        points=points,
    )


def _points(bench: Bench, model: Any, optimizer: Any) -> Iterator[BatchPoint]:
    torch = bench.torch
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}
    for batch in _BATCHES:
        bench.say(f"a step with batch {batch}")
        kept: dict[int, int] = {}

        def keep(tensor: Any, kept: dict[int, int] = kept) -> Any:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        tokens = tokens_of(torch, batch, _LENGTH, bench.device)
        if bench.on_cuda:
            torch.cuda.reset_peak_memory_stats()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = loss_of(model(tokens), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=batch != _BATCHES[-1])
        peak = int(torch.cuda.max_memory_allocated()) if bench.on_cuda else None
        yield BatchPoint(batch, sum(kept.values()), peak)


def _bytes(tensors: Any) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)


def teach(found: TrainingMeasured, setting: Setting) -> Taught:
    """Who holds what, and what that makes of the reader's own model."""
    fixed = found.parameter_bytes + found.gradient_bytes + found.optimizer_bytes
    each = fixed / found.parameters
    last = found.points[-1]
    needed = each * setting.params
    return Taught(
        id=LESSON.id,
        title=LESSON.title,
        question=LESSON.question,
        answer=sentence(
            """Each parameter holds {each} bytes before the first sample comes; {count} of them {needed}. The
            batch comes on top.""",
            each=f"{each:.1f}",
            count=count_words(setting.params),
            needed=memory_size(needed),
        ),
        pictures=(_who(found, last), _growth(found, fixed)),
        seen=_seen(found, fixed),
        rated=rated_rows(
            f"Training {count_words(setting.params)} parameters with AdamW in fp32, before any batch",
            ("memory", "parameters that fit", "GPUs at least, if all is sharded"),
            [
                (
                    gpu,
                    (
                        memory_size(gpu.usable_bytes),
                        count_words(gpu.usable_bytes / each),
                        f"{-(-needed // gpu.usable_bytes):.0f}",
                    ),
                )
                for gpu in setting.compared
            ],
        ),
        advice=(
            Advice(
                command="flatout fit --gpu rtx4090,h100-80gb-sxm train.py",
                why="the peak of your own script, by part and by line, without a GPU",
            ),
            Advice(
                command="flatout tune --goal memory train.py",
                why="computes activations again instead of keeping them, where that is worth it",
            ),
            Advice(
                command="flatout learn parallel", why="what it costs to spread parameters over several GPUs"
            ),
        ),
        figures=(
            LearnFigure(name="parameters", value=float(found.parameters), unit="number"),
            LearnFigure(name="parameter bytes", value=float(found.parameter_bytes), unit="bytes"),
            LearnFigure(name="gradient bytes", value=float(found.gradient_bytes), unit="bytes"),
            LearnFigure(name="optimizer bytes", value=float(found.optimizer_bytes), unit="bytes"),
            *(
                LearnFigure(
                    name=f"activations, batch {p.batch}", value=float(p.activation_bytes), unit="bytes"
                )
                for p in found.points
            ),
            LearnFigure(name="bytes a parameter", value=each, unit="number", origin="computed"),
            LearnFigure(
                name=f"{count_words(setting.params)} parameters",
                value=needed,
                unit="bytes",
                origin="computed",
            ),
        ),
    )


_SEEN = """
A parameter in fp32 is {parameter} bytes. Training adds its gradient ({gradient}) and AdamW's two averages
({optimizer}), for each of them. Inference needs none of that: what loads and answers may still be far from
training.

Activations are what the forward pass keeps for the backward pass: {activations} at batch {batch}, {share}
of all. They grow with the batch and with the length of samples; the rest does not. So a smaller batch helps
against activations alone, and sharding against the rest alone.

bf16 autocast leaves parameters, gradients and averages in fp32; it halves much of the activations.
"""
_PEAK = """
torch's own peak in that step was {peak}, {more} times the sum of the parts: gradients of activations and
workspace come and go.
"""


def _seen(found: TrainingMeasured, fixed: int) -> tuple[str, ...]:
    last = found.points[-1]
    words = paragraphs(
        _SEEN,
        parameter=f"{found.parameter_bytes / found.parameters:.0f}",
        gradient=f"{found.gradient_bytes / found.parameters:.0f}",
        optimizer=f"{found.optimizer_bytes / found.parameters:.0f}",
        activations=memory_size(last.activation_bytes),
        batch=last.batch,
        share=percent(last.activation_bytes / (fixed + last.activation_bytes)),
    )
    if last.peak_bytes is not None:
        more = three_digits(last.peak_bytes / (fixed + last.activation_bytes))
        words += paragraphs(_PEAK, peak=memory_size(last.peak_bytes), more=more)
    return words


def _who(found: TrainingMeasured, last: BatchPoint) -> BarPicture:
    return BarPicture(
        title=f"Who holds what: {count_words(found.parameters)} parameters, AdamW, batch {last.batch}",
        unit="bytes",
        bars=(
            LearnBar(label="parameters", value=float(found.parameter_bytes)),
            LearnBar(label="gradients", value=float(found.gradient_bytes)),
            LearnBar(label="optimizer", value=float(found.optimizer_bytes)),
            LearnBar(label="activations", value=float(last.activation_bytes)),
        ),
    )


def _growth(found: TrainingMeasured, fixed: int) -> CurvePicture:
    return CurvePicture(
        title="Activations grow with the batch, the rest does not",
        x_label="batch size",
        x_unit="number",
        y_label="bytes",
        y_unit="bytes",
        y_scale="linear",
        curves=(
            LearnCurve(
                name="activations",
                points=tuple((float(p.batch), float(p.activation_bytes)) for p in found.points),
            ),
            LearnCurve(
                name="parameters, gradients, optimizer",
                points=tuple((float(p.batch), float(fixed)) for p in found.points),
            ),
        ),
    )


LESSON = Lesson(
    id="training",
    title="Where the memory of training goes",
    question="Why does a model that loads with ease not train?",
    seconds=4,
    record=TrainingMeasured,
    measure=measure,
    teach=teach,
)
