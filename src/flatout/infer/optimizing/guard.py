"""Whether a way of running a module gives its outputs still, as far as rounding lets one tell."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from flatout.infer.optimizing.answers import numbers_in
from flatout.infer.optimizing.calling import Arguments
from flatout.infer.optimizing.others import others_like
from flatout.infer.optimizing.twins import Rounding, with_noisy_weights
from flatout.infer.optimizing.ways import QUANTIZED, Way

_TWINS = 3
# Times what the worst of the twins shows: three draws are few, and rounding inside of fused operations is not
# in them. On the whole, honest ways were seen between 0.2 and 1.4 on models of all kinds, and single numbers
# up to 2.4.
_MARGIN, _MARGIN_OF_ONE = 2.0, 3.0
# A float's own noise floor, of the spread of an output: differences below it are nothing.
_NOTHING = 1e-6
_PERTURBED = 2
# Where no twin chose otherwise, of so many choices a few may be others by chance; of fewer one, or none.
_MANY_CHOICES, _SOME_CHOICES = 30, 10
# Outputs with so many numbers a row, in so few dimensions, are scores of which people take the largest.
_FEWEST_SCORES, _MOST_DIMENSIONS = 3, 3


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Whether it passes, why not, and the largest error beside what is allowed there."""

    refusal: str
    error: float | None = None
    allowed: float | None = None


@dataclasses.dataclass(frozen=True)
class _Apart:
    """How far one output is from the reference: on the whole, at the worst place, and in what it chooses.

    Also in where it has no numbers: of what is infinite in one and not in the other, there is no distance.
    """

    whole: float
    worst: float
    other_choices: float
    choices: int
    other_places: float = 0.0

    def most(self, other: "_Apart") -> "_Apart":
        return _Apart(
            max(self.whole, other.whole),
            max(self.worst, other.worst),
            max(self.other_choices, other.other_choices),
            max(self.choices, other.choices),
            max(self.other_places, other.other_places),
        )


class Guard:
    """Knows the baseline's outputs on some inputs, and how far rounding moves them."""

    def __init__(self, module: torch.nn.Module, examples: Sequence[Arguments], dtype: torch.dtype) -> None:
        self._module = module
        self._dtype = dtype
        self._cases = list(examples)
        self._wanted = [self._outputs(module, case) for case in examples]
        for number in range(_PERTURBED):
            for one in examples:
                self._add_one_like(one, seed=number + 1)
        finite = [all(_is_finite(one) for one in outputs) for outputs in self._wanted]
        # What the module itself has no numbers for says nothing of anybody; the examples stay.
        keep = [place for place in range(len(self._cases)) if finite[place] or place < len(examples)]
        self._cases = [self._cases[place] for place in keep]
        self._wanted = [self._wanted[place] for place in keep]
        self._rounding: dict[Any, list[list[_Apart]]] = {}

    def _add_one_like(self, example: Arguments, seed: int) -> None:
        """Other inputs of the same kind that the module takes."""
        for other in others_like(example, self._module, seed):
            try:
                outputs = self._outputs(self._module, other)
            except Exception:  # noqa: BLE001, S112 - what it means by its inputs, the module alone knows
                continue
            self._cases.append(other)
            self._wanted.append(outputs)
            return

    @property
    def another(self) -> Arguments:
        """Inputs other than the example's, where there are any."""
        return self._cases[-1]

    @property
    def cases(self) -> int:
        """How many inputs are compared."""
        return len(self._cases)

    def judge(self, call: Callable[..., Any], way: Way) -> Judgement:
        """Hold the outputs of a way against the baseline's."""
        allowed = self._allowed(way)
        worst = Judgement("")
        for number, (case, wanted) in enumerate(zip(self._cases, self._wanted, strict=True)):
            found = self._outputs(call, case)
            if len(found) != len(wanted):
                return Judgement(f"it has {len(found)} outputs, and the module {len(wanted)}")
            for one, other, limit in zip(found, wanted, allowed[number], strict=True):
                judged = _judged(one, other, limit, is_exact=way == Way())
                if judged.refusal:
                    return judged
                if worst.error is None or _tightness(judged) > _tightness(worst):
                    worst = judged
        return worst

    def _allowed(self, way: Way) -> list[list[_Apart]]:
        """By case and output: the farthest that a twin went."""
        key: Any = way.precision if way.precision in QUANTIZED else way.roundoff(self._dtype)
        if key not in self._rounding:
            self._rounding[key] = self._measured(way)
        return self._rounding[key]

    def _measured(self, way: Way) -> list[list[_Apart]]:
        found = [[_Apart(0.0, 0.0, 0.0, 1) for _ in outputs] for outputs in self._wanted]
        for seed in range(_TWINS):
            module: Callable[..., Any] = self._module
            if way.precision in QUANTIZED:
                module = with_noisy_weights(self._module, way.precision, seed)
            for number, (case, wanted) in enumerate(zip(self._cases, self._wanted, strict=True)):
                with Rounding(way.roundoff(self._dtype), seed), _operation_by_operation():
                    outputs = self._outputs(module, case)
                for place, (one, other) in enumerate(zip(outputs, wanted, strict=True)):
                    found[number][place] = found[number][place].most(_apart(one, other))
        return found

    @staticmethod
    @torch.no_grad()
    def _outputs(call: Callable[..., Any], case: Arguments) -> list[torch.Tensor]:
        with _same_random_numbers():
            return [one.detach().clone() for one in numbers_in(case.copied().of(call))]


def _judged(found: torch.Tensor, wanted: torch.Tensor, limit: _Apart, *, is_exact: bool) -> Judgement:
    if found.shape != wanted.shape:
        return Judgement(f"an output has the shape {tuple(found.shape)}, not {tuple(wanted.shape)}")
    if found.dtype != wanted.dtype:
        return Judgement(f"an output is in {found.dtype}, not in {wanted.dtype}")
    if _is_finite(wanted) and not _is_finite(found):
        return Judgement("an output is not finite where the module's is")
    apart = _apart(found, wanted)
    for here, allowed, words in (
        (apart.whole, _MARGIN * limit.whole + _NOTHING, "outputs are"),
        (apart.worst, _MARGIN_OF_ONE * limit.worst + _NOTHING, "at its worst place an output is"),
    ):
        if not here <= allowed:
            return Judgement(f"{words} off by {here:.2g}, and rounding explains {allowed:.2g}", here, allowed)
    if apart.other_places > limit.other_places + _by_chance(limit.other_places, wanted.numel(), 0.0):
        return Judgement("an output is finite where the module's is not, or the other way round")
    none_seen = 0.0 if is_exact else _of_so_many(limit.choices)
    spare = _by_chance(limit.other_choices, limit.choices, none_seen)
    if apart.other_choices > limit.other_choices + spare:
        share, explained = 100 * apart.other_choices, 100 * (limit.other_choices + spare)
        return Judgement(f"{share:.1f} % of its choices are others, and rounding explains {explained:.1f} %")
    return Judgement("", apart.whole, _MARGIN * limit.whole + _NOTHING)


def _by_chance(share: float, count: int, none_seen: float) -> float:
    """How far beyond a share that was seen in so many it may go; where none was seen, that is given."""
    return 3 * math.sqrt(share / count) if share else none_seen


def _of_so_many(choices: int) -> float:
    allowed = 3 if choices >= _MANY_CHOICES else 1 if choices >= _SOME_CHOICES else 0
    return allowed / choices


def _apart(found: torch.Tensor, wanted: torch.Tensor) -> _Apart:
    if found.shape != wanted.shape:
        return _Apart(math.inf, math.inf, 1.0, 1)
    if not wanted.numel():
        return _Apart(0.0, 0.0, 0.0, 1)
    if not wanted.is_floating_point():
        # Numbers of classes or tokens: another one is another choice.
        return _Apart(0.0, 0.0, float((found != wanted).float().mean()), wanted.numel())
    mine, own = found.double(), wanted.double()
    other_places = float((_kinds(mine) != _kinds(own)).double().mean())
    difference = torch.where(mine.isfinite() & own.isfinite(), mine - own, 0.0)
    own = torch.where(own.isfinite(), own, 0.0)
    # Of the spread around the mean where there is one: a large offset would hide everything.
    spread = float(own.std(correction=0)) or float(own.abs().max()) or 1.0
    whole = float(difference.square().mean().sqrt()) / spread
    worst = float(difference.abs().max()) / spread
    if not _are_scores(wanted):
        return _Apart(whole, worst, 0.0, 1, other_places)
    choices = wanted[..., 0].numel()
    others = float((mine.argmax(-1) != wanted.argmax(-1)).double().mean())
    return _Apart(whole, worst, others, choices, other_places)


def _kinds(numbers: torch.Tensor) -> torch.Tensor:
    """Finite, infinite to either side, or no number."""
    return numbers.isnan() * 3 + numbers.isposinf() * 2 + numbers.isneginf() * 1


def _are_scores(output: torch.Tensor) -> bool:
    return 2 <= output.dim() <= _MOST_DIMENSIONS and output.shape[-1] >= _FEWEST_SCORES


def _is_finite(one: torch.Tensor) -> bool:
    return not one.is_floating_point() or bool(one.isfinite().all())


def _tightness(judged: Judgement) -> float:
    return (judged.error or 0.0) / judged.allowed if judged.allowed else 0.0


@contextlib.contextmanager
def _operation_by_operation() -> Iterator[None]:
    """torch's encoder layers compute all at once where they can, and nothing inside would be rounded."""
    found = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(found)


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(list(devices)):
        torch.manual_seed(0)
        yield
