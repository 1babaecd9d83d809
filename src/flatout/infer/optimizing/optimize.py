"""From a module and examples to one that is as fast as can be: facts, guard, search, shapes."""

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import torch

from flatout.infer.buckets import Buckets, Fitting, fitting
from flatout.infer.capturing import on_device
from flatout.infer.failing import words_of
from flatout.infer.optimizing.calling import Arguments, examples_of, opaque_in
from flatout.infer.optimizing.effects import effects_of
from flatout.infer.optimizing.facts import Facts, facts_of
from flatout.infer.optimizing.guard import Guard
from flatout.infer.optimizing.optimized import Optimized
from flatout.infer.optimizing.others import closer_together
from flatout.infer.optimizing.racing import Race
from flatout.infer.optimizing.search import Candidate, Search
from flatout.infer.optimizing.shapes import Shapes
from flatout.infer.optimizing.state import State
from flatout.infer.optimizing.ways import QUANTIZED, Precision, Way
from flatout.infer.sizes import halves
from flatout.records.errors import CallerMistake, UnknownName
from flatout.records.inference import Goal, OptimizeReport

_CHANGED_BY_TRAINING = ("BatchNorm", "Dropout", "InstanceNorm", "RReLU")


def make_optimized(
    module: torch.nn.Module,
    example_inputs: Any,
    goal: Goal,
    *,
    allow: Sequence[str],
    budget_s: float,
    buckets: Buckets | None,
    backend: str = "",
) -> Optimized:
    """What `flatout.optimize` does. `backend` names another compiler than Inductor."""
    began = time.monotonic()
    allowed = _checked(module, goal, allow, budget_s)
    examples = examples_of(example_inputs)
    training, notes = _into_eval(module)
    with _put_back_where_it_fails(training), contextlib.ExitStack() as stack:
        largest = max(examples, key=lambda one: sum(tensor.numel() for tensor in one.tensors()))
        example = largest.copied()  # the caller's own is not for calls that may write into it
        state = State(module)
        facts = facts_of(module, example, backend)
        stack.enter_context(on_device(facts.device))
        race = Race(facts.device, goal, most_s=max(1.0, min(6.0, budget_s / 10)))
        search = Search(module, example, facts, race, budget_s)
        best, shapes = search.baseline, None
        if has_effects := effects_of(module, example, state):
            notes.append(f"{has_effects}: it runs as it was written")
        else:
            guard = Guard(module, [example], facts.dtype)
            best = search.run(allowed, guard)
        final = search.compared(search.baseline, best) if best is not search.baseline else None
        if final is not None and final.low <= 1.0:
            notes.append(
                f"on the whole it was no faster ({final.speedup:.2f}x): the module runs as it was written"
            )
            best = search.baseline
        if best is not search.baseline:
            shapes = _shapes(best, example, examples, facts, guard, buckets, notes)
        report = _report(goal, facts, search, best, final, notes, began)
        if has_effects:
            state.put_back()
        state.changed()
    return Optimized(module, report, None if best is search.baseline else best, shapes, training)


@contextlib.contextmanager
def _put_back_where_it_fails(training: dict[torch.nn.Module, bool]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for part, was in training.items():
            part.training = was
        raise


def _report(
    goal: Goal, facts: Facts, search: Search, best: Candidate, final: Any, notes: list[str], began: float
) -> OptimizeReport:
    if best.way.inference_mode:
        notes.append("outputs are inference tensors: autograd takes a clone() of them, not themselves")
    if final is None:
        final = search.compared(search.baseline, search.baseline)
    as_it_was = best is search.baseline
    return OptimizeReport(
        goal=goal,
        device=torch.cuda.get_device_name(facts.device) if facts.on_gpu else str(facts.device),
        samples=facts.samples,
        baseline_ms=final.first_ms,
        best_ms=final.first_ms if as_it_was else final.second_ms,
        speedup=1.0 if as_it_was else final.speedup,
        low=1.0 if as_it_was else final.low,
        high=1.0 if as_it_was else final.high,
        chosen=best.way.names(),
        tried=tuple(search.tried),
        notes=tuple(notes),
        took_s=time.monotonic() - began,
    )


def _checked(module: Any, goal: str, allow: Sequence[str], budget_s: float) -> list[Precision]:
    if not isinstance(module, torch.nn.Module):
        raise CallerMistake(
            f"{type(module).__name__} is no module",
            expected="a torch.nn.Module",
            remedy="flatout.optimize(model, example_inputs)",
        )
    if goal not in get_args(Goal):
        raise UnknownName("goal", goal, get_args(Goal))
    if isinstance(allow, str):
        allow = (allow,)
    for name in allow:
        if name not in QUANTIZED:
            raise UnknownName("lever to allow", name, QUANTIZED)
    if not budget_s > 0:
        raise CallerMistake(
            f"budget_s={budget_s}", expected="seconds that the search may take", remedy="budget_s=120"
        )
    return [one for one in QUANTIZED if one in allow]


def _into_eval(module: torch.nn.Module) -> tuple[dict[torch.nn.Module, bool], list[str]]:
    """Evaluation mode, where something would behave otherwise; and what each part was in before."""
    parts = [one for one in module.modules() if one.training]
    if not parts:
        return {}, []
    found = {one: one.training for one in module.modules()}
    module.eval()
    kinds = sorted({type(one).__name__ for one in parts if _trains(one)})
    if not kinds:
        return found, ["the module was in training mode, and is in eval() now; close() puts it back"]
    words = (
        f"the module was in training mode ({', '.join(kinds)}) and was put into eval(); close() puts it back"
    )
    warnings.warn(f"flatout.optimize: {words}", stacklevel=4)
    return found, [words]


def _trains(part: torch.nn.Module) -> bool:
    name = type(part).__name__
    return any(word in name for word in _CHANGED_BY_TRAINING) and getattr(part, "p", 1.0) != 0.0


def _shapes(
    best: Candidate,
    example: Arguments,
    examples: list[Arguments],
    facts: Facts,
    guard: Guard,
    buckets: Buckets | None,
    notes: list[str],
) -> Shapes | None:
    """How calls of other shapes are answered; None where any shape will do."""
    if not best.way.depends_on_shapes:
        return None
    spec = buckets or Buckets()
    fits, why = _proven(best, example, guard, spec)
    if why:
        notes.append(f"calls of other shapes run without what is compiled: {why}")
    depends = _why_not_in_parts(best, example, facts, guard, fits) if fits is not None else ""
    if depends:
        notes.append(f"batches larger than any size it was made for run without what is compiled: {depends}")
    batches: set[int] = set(spec.batch or halves(facts.samples or 1))
    if not spec.batch and fits is not None:
        sizes = [fits.size_of(one.args, one.kwargs) for one in (example, *examples)]
        batches = set(halves(max(size[0] for size in sizes if size is not None)))
    return Shapes(best.prepared, example, best.run, fits, sorted(batches), spec.length, cuts=not depends)


@torch.no_grad()
def _why_not_in_parts(best: Candidate, example: Arguments, facts: Facts, guard: Guard, fits: Fitting) -> str:
    """Why a batch of twice the samples, all of them different, cannot be answered half by half."""
    module = best.prepared.module
    size = fits.size_of(example.args, example.kwargs)
    assert size is not None

    def in_parts(*args: Any, **kwargs: Any) -> Any:
        parts = fits.parts(Arguments(args, kwargs), size[0], 2 * size[0])
        return fits.joined([part.of(module) for part in parts])

    try:
        both = fits.beside(example, closer_together(guard.another))
        double = Guard(module, [both], facts.dtype)
        return double.judge(in_parts, Way()).refusal
    except Exception as error:  # noqa: BLE001 - the module takes no such batch, or memory does not
        return words_of(error)


@torch.no_grad()
def _proven(best: Candidate, example: Arguments, guard: Guard, spec: Buckets) -> tuple[Fitting | None, str]:
    """How to pad, where that was tried and changes nothing; else why not."""
    module = best.prepared.module
    made = fitting(module, example, spec)
    if isinstance(made, str):
        return None, made
    if kind := opaque_in(example.copied().of(module)):
        return None, f"an output holds a {kind}, and what is in it cannot be cut"
    found: Fitting = made
    size = found.size_of(example.args, example.kwargs)
    assert size is not None
    longer = (
        next((one for one in sorted(spec.length) if one > size[1]), size[1] + 1) if spec.length else size[1]
    )
    tests = {"a larger batch": (size[0] + max(1, size[0] // 2), size[1])}
    if spec.length:
        tests["a longer sequence"] = (size[0], longer)
    for words, larger in tests.items():

        def padded(*args: Any, larger: tuple[int, int] = larger, **kwargs: Any) -> Any:
            return found.cut(found.padded(Arguments(args, kwargs), larger).of(module), size)

        try:
            refusal = guard.judge(padded, Way()).refusal
        except Exception as error:  # noqa: BLE001 - the module takes no such input, or memory does not
            refusal = words_of(error)
        if refusal:
            return None, f"in {words}, {refusal}"
    if not spec.length:
        found = dataclasses.replace(found, by_length={}, cut_length=(None,) * len(found.cut_length))
    return found, ""
