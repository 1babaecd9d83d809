"""Trials of batch sizes: real training steps, timed, their peak read, and everything put back afterwards."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from flatout.inside.out_of_memory import is_out_of_memory
from flatout.memory.agreeing import Ranks, Replicas, refuse_what_strands
from flatout.memory.batch_search import BatchSize, Search, TriedSize, why
from flatout.memory.microbatching import as_module, check_loss, failed_elsewhere
from flatout.memory.restoring import Training, free_what_failed, modules_of, parameters_in
from flatout.memory.splitting import samples_in
from flatout.records.errors import CallerMistake

# The optimizer's states come with the first step: only the second shows the peak.
_FEWEST_STEPS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wish:
    """What to try, and within what."""

    step: Callable[[Any], Any]
    make_batch: Callable[[int], Any]
    optimizer: Any = None
    longest: Callable[[int], Any] | None = None
    evaluate: Callable[[], Any] | None = None
    headroom: float = 0.1
    budget_bytes: int | None = None
    memory: Callable[[], int] | None = None
    most: int = 65536
    first: int = 8
    steps: int = 4

    def check(self) -> None:
        """Refuse what makes no sense."""
        for name, value, least in (
            ("most", self.most, 1),
            ("first", self.first, 1),
            ("steps", self.steps, 2),
        ):
            if value < least:
                raise CallerMistake(
                    f"{name}={value}", expected=f"{least} or more", remedy="leave it out for the default"
                )
        if not 0 <= self.headroom < 1:
            raise CallerMistake(
                f"headroom={self.headroom:g}",
                expected="the share of memory to leave free, at least 0 and less than 1",
                remedy="leave it out for 0.1",
            )


def find(wish: Wish, model: Any) -> BatchSize:
    """Search, and put everything back whatever happens."""
    wish.check()
    module, own = as_module(model)
    refuse_what_strands(module)
    modules = modules_of(module)
    parameters = own or parameters_in(modules)
    meter = _Meter(wish, parameters[0].device)
    before = Training(parameters, modules, wish.optimizer)
    try:
        trials = _Trials(wish, module, before, meter)
        limit = trials.limit_bytes
        search = Search(trials.run, limit_bytes=limit, most=wish.most, first=wish.first)
        chosen = search.find()
        evaluation = trials.evaluate()
    finally:
        before.put_back()
        free_what_failed()
    tried = tuple(search.tried)
    words = why(chosen, search.tried, limit, search.all_samples)
    return BatchSize(chosen.size, tried, len(tried), words, evaluation)


class _Meter:
    """How much memory there is, and how much a trial took of it."""

    def __init__(self, wish: Wish, device: Any) -> None:
        import torch

        self._memory = wish.memory
        self._device = device
        self._cuda: Any = torch.cuda if device.type == "cuda" else None
        if wish.budget_bytes is not None and wish.memory is None and self._cuda is None:
            raise CallerMistake(
                f"budget_bytes on {device.type}, where torch cannot say what a step takes",
                expected="a CUDA device, or `memory`: a function that returns the peak of the last trial",
                remedy="give `memory`, or leave `budget_bytes` out",
            )
        self.budget_bytes = wish.budget_bytes
        if self.budget_bytes is None and self._cuda is not None:
            free, _ = self._cuda.mem_get_info(device)
            # What torch holds is ours already; what others hold is not.
            self.budget_bytes = free + self._cuda.memory_reserved(device)

    def begin(self) -> None:
        """Forget earlier peaks."""
        if self._cuda is not None:
            self._cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int | None:
        """Since `begin`; with what torch keeps beside tensors, since nobody else can have that."""
        if self._memory is not None:
            return int(self._memory())
        return int(self._cuda.max_memory_reserved(self._device)) if self._cuda is not None else None

    def wait(self) -> None:
        """Until the device has done its work."""
        import torch

        if self._cuda is not None:
            self._cuda.synchronize(self._device)  # which need not be the current one
        else:
            torch.get_device_module(self._device).synchronize()


@dataclasses.dataclass
class _Took:
    """What a trial took on this rank: seconds a step, whether memory ran out, and what else went wrong."""

    samples: int
    seconds: float = 0.0
    ran_out: bool = False
    error: Exception | None = None


class _Trials:
    """Runs one size after the other, on all ranks the same."""

    def __init__(self, wish: Wish, module: Any, before: Training, meter: _Meter) -> None:
        self._wish = wish
        self._module = module
        self._before = before
        self._meter = meter
        self._ranks = Ranks(getattr(module, "process_group", None))
        self.limit_bytes: int | None = None
        if meter.budget_bytes is not None:
            mine = int(meter.budget_bytes * (1 - wish.headroom))
            self.limit_bytes = -self._ranks.largest([-mine])[0]

    def run(self, size: int) -> TriedSize:
        """What the slowest rank took, and the fullest."""
        self._before.gradients.clear()
        free_what_failed()
        self._meter.begin()
        with Replicas(self._module).apart():
            took = self._train(size)
        peak = None if took.ran_out or took.error else self._meter.peak_bytes()
        failed = self._ranks.rank + 1 if took.error is not None else 0
        missing = size - took.samples
        figures = [
            failed,
            int(took.ran_out),
            missing,
            round(took.seconds * 1e9),
            -1 if peak is None else peak,
        ]
        failed, any_ran_out, missing, nanoseconds, most_bytes = self._ranks.largest(figures)
        if failed:
            raise took.error or failed_elsewhere(failed - 1)
        size -= missing
        if any_ran_out:
            return TriedSize(size, None, None, fits=False)
        peak = None if most_bytes < 0 else most_bytes
        fits = peak is None or self.limit_bytes is None or peak <= self.limit_bytes
        return TriedSize(size, size / max(nanoseconds * 1e-9, 1e-9), peak, fits)

    def _train(self, size: int) -> "_Took":
        """Some steps; nothing of them stays in memory."""
        took = _Took(samples=size)
        try:
            batch = self._wish.make_batch(size)
            took.samples = size - self._missing(batch, size)
            self._step(batch)
            self._meter.wait()
            began = time.perf_counter()
            for _ in range(max(_FEWEST_STEPS, self._wish.steps) - 1):
                self._step(batch)
            self._meter.wait()
            took.seconds = (time.perf_counter() - began) / (max(_FEWEST_STEPS, self._wish.steps) - 1)
            if self._wish.longest is not None:
                self._step(self._wish.longest(took.samples))
                self._meter.wait()
        except Exception as error:
            took.ran_out = is_out_of_memory(error)
            if not took.ran_out:
                if self._ranks.alone:
                    raise
                took.error = error
        return took

    def _missing(self, batch: Any, size: int) -> int:
        """How many samples fewer than asked for there are; none where that cannot be told."""
        found = _counted(batch)
        if found is None or found >= size:
            return 0
        # What comes first need not be the samples: it may be their length, and the same for one of them.
        return size - found if _counted(self._wish.make_batch(1)) == 1 else 0

    def _step(self, batch: Any) -> None:
        loss = self._wish.step(batch)
        check_loss(loss)
        loss.backward()
        if self._wish.optimizer is not None:
            self._wish.optimizer.step()
        self._before.gradients.clear()

    def evaluate(self) -> str | None:
        """Whether the evaluation fits beside what training keeps. It never changes the size."""
        if self._wish.evaluate is None:
            return None
        free_what_failed()
        try:
            self._wish.evaluate()
            self._meter.wait()
            return "fits"
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return f"ran out of memory: {str(error).partition(chr(10))[0]}"


def _counted(batch: Any) -> int | None:
    """Samples in a batch; None where nobody can tell."""
    try:
        return samples_in(batch)
    except CallerMistake:
        return None
