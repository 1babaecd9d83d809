"""Tries ways of running a module, one lever after the other, and keeps what is measured to help."""

import contextlib
import dataclasses
import gc
import time
from collections.abc import Sequence
from typing import Any

import torch

from flatout.infer.failing import words_of
from flatout.infer.optimizing.calling import Arguments
from flatout.infer.optimizing.deadline import TooLong, quiet_within, within
from flatout.infer.optimizing.facts import Facts
from flatout.infer.optimizing.guard import Guard, Judgement
from flatout.infer.optimizing.preparing import Call, Prepared
from flatout.infer.optimizing.racing import MATTERS, Race, Raced
from flatout.infer.optimizing.ways import Precision, Way
from flatout.records.inference import TriedWay, WayVerdict

# A trial without a compiler in it takes seconds; what takes longer than this hangs.
_TRIAL_S = 60.0
# Left at the end for the last comparison.
_RESERVE_S = 3.0
# Until one was compiled, nobody knows how long it takes: with less time than this it is not begun.
_COMPILES_IN_S = 15.0
# Autotuning takes longer than compiling alone, by about these factors: convolutions have most ways to be run.
_MORE_EFFORT, _MORE_FOR_IMAGES = 3.0, 5.0
# How long what a given-up compilation had begun may take to end.
_RESTS_IN_S = 10.0
# Half floats overflow where bfloat16 does not: they must be worth it.
_FP16_MATTERS = 0.03
_ATTENTION = ("cudnn", "flash", "efficient")


@dataclasses.dataclass
class Candidate:
    """A way that runs."""

    way: Way
    prepared: Prepared
    run: Call


class Search:
    """One search: the best way so far, and what was tried."""

    def __init__(
        self,
        module: torch.nn.Module,
        example: Arguments,
        facts: Facts,
        race: Race,
        budget_s: float,
    ) -> None:
        self._module, self._example, self._facts = module, example, facts
        self._race = race
        self._ends = time.monotonic() + budget_s
        # The longest that was seen: the compiler's caches make later ones short.
        self._compile_s = 0.0
        self._compiler_hangs = False
        self.tried: list[TriedWay] = []
        first = Prepared(module, Way(), facts.device, facts.backend)
        self.baseline = self.best = Candidate(Way(), first, first.eager)

    def run(self, allow: Sequence[Precision], guard: Guard) -> Candidate:
        """Everything that may help here, cheap things first; then what is compiled, for what was kept."""
        self._guard = guard
        self._try("inference-mode", inference_mode=True)
        if self._facts.on_gpu:
            self._try("cuda-graph", cuda_graph=True)
        for precision in self._facts.precisions:
            self._try(precision, precision=precision)
        if self._facts.has_images:
            self._try("channels-last", channels_last=True)
            if self._facts.on_gpu:
                self._try("cudnn-autotune", cudnn_autotune=True)
        if self._facts.has_attention and self._facts.on_gpu:
            for kernel in _ATTENTION:
                self._try(f"attention:{kernel}", attention=kernel)
        for precision in allow:
            self._try(precision, precision=precision)
        self._compile()
        return self.best

    def _compile(self) -> None:
        """On what was best without; then on what the compiler may make more of; then with more effort."""
        eager = self.best.way
        self._try("compile", compile="default")
        if self._facts.on_gpu and not self.best.way.cuda_graph:
            # Few launches may be left to save, graphs were no use as long as there were many kernels, or what
            # could not be captured is gone.
            self._try("cuda-graph", cuda_graph=True)
        captures = self._facts.on_gpu and self._last("cuda-graph") not in ("failed", "unsafe")
        others = []
        if self._facts.has_images:  # the compiler has kernels of its own for either
            others.append(dataclasses.replace(eager, channels_last=not eager.channels_last))
        if eager.precision in ("", "tf32") or eager.precision.endswith("autocast"):
            lower = next((one for one in self._facts.precisions if one.endswith("-weights")), None)
            if lower is not None and not self._was_unsafe(lower):
                others.append(dataclasses.replace(eager, precision=lower))
        elif eager.precision.startswith(("bf16", "fp16")) and not self._facts.on_gpu:
            others.append(dataclasses.replace(eager, precision=""))
        for other in others:
            name = "compile, " + (" + ".join(other.names()) or "as written")
            self._try_way(dataclasses.replace(other, compile="default", cuda_graph=captures), name)
        if self.best.way.compile:
            self._try("compile:max-autotune", compile="max-autotune")

    def _last(self, lever: str) -> str:
        return next((one.verdict for one in reversed(self.tried) if one.lever == lever), "")

    def _was_unsafe(self, precision: str) -> bool:
        return any(one.verdict == "unsafe" for one in self.tried if one.lever == precision)

    def _try(self, lever: str, **changes: Any) -> None:
        self._try_way(dataclasses.replace(self.best.way, **changes), lever)

    def _try_way(self, way: Way, lever: str) -> None:
        if way == self.best.way or any(one.way == way.names() for one in self.tried):
            return
        left = self._ends - time.monotonic() - _RESERVE_S
        if way.compile and self._compiler_hangs:
            self._note(way, lever, "skipped", "the compiler did not come back the last time")
        elif left < self._expected_s(way):
            self._note(way, lever, "skipped", f"{max(left, 0.0):.0f} s are left of the time it may take")
        else:
            self._trial(way, lever, left)
        self._tidy()

    def _expected_s(self, way: Way) -> float:
        if not way.compile or self._is_best_but_for_graph(way):
            return 1.0
        effort = _MORE_FOR_IMAGES if self._facts.has_images else _MORE_EFFORT
        return (self._compile_s or _COMPILES_IN_S) * (effort if way.compile == "max-autotune" else 1.0)

    def _is_best_but_for_graph(self, way: Way) -> bool:
        return way.cuda_graph and dataclasses.replace(way, cuda_graph=False) == self.best.way

    def _trial(self, way: Way, lever: str, left_s: float) -> None:
        began = time.monotonic()
        limit_s = left_s if way.compile else min(left_s, _TRIAL_S)
        try:
            candidate, judged, ready_s = within(limit_s, lambda: self._ready(way))
        except TooLong as late:
            # What still compiles would be measured with whatever comes next.
            is_gone = late.is_gone and (not way.compile or quiet_within(_RESTS_IN_S))
            self._compiler_hangs |= bool(way.compile) and not is_gone
            verdict: WayVerdict = "skipped" if way.compile and is_gone else "failed"
            self._note(way, lever, verdict, str(late), ready_s=time.monotonic() - began)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the module runs without this lever
            self._note(way, lever, "failed", words_of(error), ready_s=time.monotonic() - began)
            if way.compile and way.cuda_graph and not self._is_best_but_for_graph(way):
                self._try_way(dataclasses.replace(way, cuda_graph=False), f"{lever}, without a graph")
            return
        if way.compile and not self._is_best_but_for_graph(way):
            self._compile_s = max(self._compile_s, ready_s, 1.0)
        if judged.refusal:
            self._note(way, lever, "unsafe", judged.refusal, judged=judged, ready_s=ready_s)
            return
        self._compare(candidate, lever, judged, ready_s)

    def _compare(self, candidate: Candidate, lever: str, judged: Judgement, ready_s: float) -> None:
        # In the thread that will call it: others have pools of their own. It ran for the guard already.
        try:
            raced = self.compared(self.best, candidate)
        except Exception as error:  # noqa: BLE001
            self._note(candidate.way, lever, "failed", words_of(error), judged=judged, ready_s=ready_s)
            return
        risky = candidate.way.precision.startswith("fp16") and self.best.way.precision.startswith("bf16")
        if raced.is_faster(by=_FP16_MATTERS if risky else MATTERS):
            words = f"{raced.first_ms:.3f} -> {raced.second_ms:.3f} ms"
            self._note(candidate.way, lever, "kept", words, raced=raced, judged=judged, ready_s=ready_s)
            self.best = candidate
        else:
            doubt = raced.speedup >= 1 + MATTERS and raced.low <= 1.0
            sure = f"not certain ({raced.low:.2f} to {raced.high:.2f})" if doubt else "no faster"
            words = f"{sure}: {raced.first_ms:.3f} -> {raced.second_ms:.3f} ms"
            self._note(candidate.way, lever, "refused", words, raced=raced, judged=judged, ready_s=ready_s)

    def _ready(self, way: Way) -> tuple[Candidate, Judgement, float]:
        began = time.monotonic()
        if self._is_best_but_for_graph(way):  # what is compiled is compiled
            prepared = self.best.prepared.captured_too(way)
            run = prepared.captured(self.best.run, self._example)
        else:
            prepared = Prepared(self._module, way, self._facts.device, self._facts.backend)
            run = prepared.for_example(self._example)
        ready_s = time.monotonic() - began
        return Candidate(way, prepared, run), self._guard.judge(run, way), ready_s

    def compared(self, first: Candidate, second: Candidate) -> Raced:
        """Both by turns on the example."""
        return self._race.run(lambda: self._example.of(first.run), lambda: self._example.of(second.run))

    def _note(
        self,
        way: Way,
        lever: str,
        verdict: WayVerdict,
        reason: str,
        *,
        raced: Raced | None = None,
        judged: Judgement | None = None,
        ready_s: float = 0.0,
    ) -> None:
        self.tried.append(
            TriedWay(
                way=way.names(),
                lever=lever,
                verdict=verdict,
                reason=reason,
                call_ms=raced.second_ms if raced else None,
                measured_speedup=raced.speedup if raced else None,
                low=raced.low if raced else None,
                high=raced.high if raced else None,
                error=judged.error if judged else None,
                allowed_error=judged.allowed if judged else None,
                ready_s=ready_s,
            )
        )

    def _tidy(self) -> None:
        """What lost is dropped with its graphs and weights: the next one may need the room."""
        gc.collect()
        if self._facts.on_gpu:
            with contextlib.suppress(RuntimeError):  # a trial that was left behind may be capturing
                torch.cuda.empty_cache()
