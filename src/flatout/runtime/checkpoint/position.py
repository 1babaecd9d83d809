"""Where a training stands in its data, and going on from there: the same batches, in the same order.

A DataLoader is followed from outside: what its sampler draws from, how many batches the loop has had, and
where the random numbers of each worker stood when it had made the last of them. To go on, the sampler draws
as it did and leaves out what the loop has had, without loading it, and each worker goes on with the numbers
of the one whose turn it would have been.
"""

import collections
import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from flatout.records.errors import CallerMistake
from flatout.runtime.checkpoint.carrying import Carried, Workers, opened_of
from flatout.runtime.checkpoint.followed import prefetched, unwrapped
from flatout.runtime.checkpoint.own_numbers import own_generators, put_back_states, states_of
from flatout.runtime.checkpoint.passes import Left, Pass, handled, is_to_stop
from flatout.runtime.checkpoint.random_states import put_back, random_states

__all__ = ["Carried", "Loader", "Numbers"]


class Loader:
    """A DataLoader that knows where it stands. What is not here is the loader's own."""

    def __init__(self, torch: Any, loader: Any) -> None:
        self._torch = torch
        loader, self._device = unwrapped(torch, loader)
        self._loader = loader
        self._numbers = Numbers(torch, loader)
        self._sampler = _follow_sampler(torch, loader, self._numbers)
        self._workers = Workers(torch, loader)
        # Batches of this pass that the loop has had, and passes that are over.
        self._batches = 0
        self._passes = 0
        # Random numbers when this pass began.
        self._at_start: dict[str, Any] | None = None
        self._to_resume: dict[str, Any] | None = None
        # The pass that the loop is in, and its batches with what came with them.
        self._current: object = None
        self._source: Iterator[tuple[Any, Any]] | None = None
        # Resumed between two passes, through which workers would have lived on.
        self._had_workers = False
        # Where it stood when the loop left the last pass.
        self._left_at: Left | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def batches(self) -> int:
        """How many batches of this pass the loop has had."""
        return self._batches

    @property
    def passes(self) -> int:
        """How many passes are over."""
        return self._passes

    def __iter__(self) -> Pass:
        return Pass(self._begin, self._leave)

    def _begin(self, begun: object) -> Iterator[Any]:
        if self._current is not None:  # the loop has begun another before it dropped that one
            self._leave(self._current)
        self._current, self._left_at = begun, None
        resumed, self._to_resume = self._to_resume, None
        if resumed is not None and resumed["nothing_left"]:
            # The loop has had all of it, and not yet done what it does after a pass.
            self._end()
            return iter(())
        if resumed is None:
            self._batches, self._at_start = 0, self._numbers.now()
            self._workers.begin_a_pass()
            if self._had_workers:
                # Only in this life they are started here, for which a number is drawn.
                self._sampler.resume({"sampler": self._at_start, "batches": 0}, empty=0)
            batches = iter(self._loader)
            self._had_workers = False
            self._sampler.has_begun()
            self._workers.have_begun()
        else:
            batches = self._again(resumed)
        self._source = self._as_wished(batches)
        return self._handed_out(self._source)

    def _again(self, resumed: dict[str, Any]) -> Iterator[Any]:
        """The loader's own batches, from where this state was."""
        self._batches, self._at_start = resumed["batches"], resumed["at_start"]
        now = random_states(self._torch)
        self._numbers.put_back(resumed["at_start"])
        again = resumed["batches"]  # nobody but an iterable data set knows what comes next
        if self._sampler.can_skip:
            again = self._workers.resume(resumed)
            self._sampler.resume(resumed, empty=again)
        batches: Iterator[Any] = iter(self._loader)
        self._sampler.has_begun()
        self._workers.have_begun()
        for _ in range(again):
            self._workers.note(next(batches))
        self._numbers.put_back({**now, "generators": resumed["generators"]})
        return batches

    def _as_wished(self, batches: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
        """Each batch, on its device where one was named, and what came with it."""
        opened = map(opened_of, batches)
        if self._device is None:
            return opened
        return prefetched(self._torch, self._device, opened, batches)

    def _handed_out(self, source: Iterator[tuple[Any, Any]]) -> Iterator[Any]:
        try:
            for batch, carried in source:
                self._workers.note(carried)
                self._batches += 1
                yield batch
        except Exception:  # the data's own: whoever begins anew has not left this pass
            self._current = self._source = None
            raise
        self._end()

    def _end(self) -> None:
        self._passes += 1
        self._batches, self._at_start, self._current, self._source = 0, None, None, None

    def _leave(self, left: object) -> None:
        """The loop has left the pass, which is over; unless training is to stop there."""
        if left is not self._current:
            return
        self._left_at = Left(self.state_dict(), is_to_stop(self._torch), handled())
        if not self._left_at.is_to_stop:
            self._let_workers_finish()
        self._end()

    def _let_workers_finish(self) -> None:
        """Those that live on make what they were asked for; then they stand where the next pass begins."""
        if not self._loader.persistent_workers or not self._sampler.can_skip or self._source is None:
            return
        self._sampler.stop()
        with contextlib.suppress(Exception):  # of workers that an interrupt has ended, too
            for _, carried in self._source:
                self._workers.note(carried)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: between two batches.

        A pass that the loop has left is over, and a new one comes next; but where an exception, or somebody
        who asked training to stop, had it left, it is saved as it was then, to go on in the middle.
        """
        if self._to_resume is not None:
            return {name: one for name, one in self._to_resume.items() if name != "nothing_left"}
        if self._left_at is not None and self._left_at.goes_on:
            return self._left_at.state
        return {
            "passes": self._passes,
            "batches": self._batches,
            "is_over": bool(self._batches) and self._batches == self._length(),
            "at_start": self._at_start,
            "generators": self._numbers.now()["generators"],
            "batch_size": self._loader.batch_size,
            "sampler": self._sampler.state(),
            "workers": self._workers.state(),
        }

    def _length(self) -> int | None:
        try:
            return len(self._loader)
        except TypeError:  # an iterable data set need not know
            return None

    def load_state_dict(self, state: dict[str, Any], *, as_many_ranks: bool = True) -> None:
        """Go on from there: the next pass begins in the middle. Raises CallerMistake where it could not."""
        self._passes, self._batches = state["passes"], 0
        self._current = self._source = self._left_at = self._to_resume = None
        is_the_same = as_many_ranks and state["batch_size"] == self._loader.batch_size
        if not state["batches"]:
            self._numbers.put_back({**random_states(self._torch), "generators": state["generators"]})
            if self._loader.persistent_workers:
                self._workers.insist_on_the_same(state["workers"])
                self._workers.resume(state)
                self._had_workers = state["passes"] > 0
            return
        if not is_the_same and not state["is_over"]:
            raise CallerMistake(
                f"the loader's batches have {self._loader.batch_size} samples, and had {state['batch_size']}",
                expected="the same size in the middle of a pass",
                remedy="resume with the old size until the pass is over",
            )
        if is_the_same:
            self._workers.insist_on_the_same(state["workers"])
        self._batches = state["batches"]
        self._to_resume = {**state, "nothing_left": not is_the_same}


class _Sampler:
    """Stands before a loader's own sampler: remembers what it drew from, and leaves out batches when told.

    `makes_batches`: it yields lists, of which an empty one is a batch that no sample is loaded for.
    """

    can_skip = True

    def __init__(self, sampler: Any, numbers: "Numbers", *, makes_batches: bool) -> None:
        self._real = sampler
        self._numbers = numbers
        self._makes_batches = makes_batches
        self._is_stopped = False
        self._state: dict[str, Any] = {}
        self._to_resume: tuple[dict[str, Any], int] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __len__(self) -> int:
        return len(self._real)

    def __iter__(self) -> Iterator[Any]:
        if self._to_resume is None:
            return self._drawn()
        resumed, empty = self._to_resume
        # Now, and not when the first batch is asked for: the loop's own random numbers come later.
        before = self._numbers.now()
        drawn = self._drawn(resumed["sampler"])
        had: collections.deque[Any] = collections.deque(maxlen=empty)
        for _ in range(resumed["batches"]):
            had.extend([*itertools.islice(drawn, 1)])
        self._numbers.put_back(before)
        return itertools.chain(([] for _ in range(empty)) if self._makes_batches else had, drawn)

    def _drawn(self, as_then: dict[str, Any] | None = None) -> Iterator[Any]:
        if as_then is not None:
            self._numbers.put_back(as_then)
        self._state = self._numbers.now()
        self._is_stopped = False
        for one in self._real:
            yield one
            if self._is_stopped:
                return

    def stop(self) -> None:
        """Draw no more in this pass."""
        self._is_stopped = True

    def resume(self, state: dict[str, Any], *, empty: int) -> None:
        """Begin as in this state, with so many empty batches before, however often the loader asks."""
        self._to_resume = (state, empty) if state["sampler"] else None

    def has_begun(self) -> None:
        """The next pass begins as it would."""
        self._to_resume = None

    def state(self) -> dict[str, Any]:
        """What this pass was drawn from."""
        return self._state


class _NoSampler:
    """An iterable data set has none."""

    can_skip = False

    def stop(self) -> None:
        """Nothing to draw."""

    def resume(self, state: dict[str, Any], *, empty: int) -> None:
        """Nothing to draw."""

    def has_begun(self) -> None:
        """Nothing to draw."""

    def state(self) -> dict[str, Any]:
        """Nothing was drawn."""
        return {}


class Numbers:
    """Random numbers of the process, and of generators that the loader, its sampler and its data set have.

    A data set that workers load from draws there: its numbers come with their batches.
    """

    def __init__(self, torch: Any, loader: Any) -> None:
        self._torch = torch
        self._data_set = None if getattr(loader, "num_workers", 0) else getattr(loader, "dataset", None)
        generators = [getattr(owner, "generator", None) for owner in (loader, *_samplers(loader))]
        self._own = list({id(one): one for one in generators if one is not None}.values())

    def now(self) -> dict[str, Any]:
        """Where they stand."""
        states = states_of(self._torch, self._generators())
        return {**random_states(self._torch), "generators": states}

    def put_back(self, numbers: dict[str, Any]) -> None:
        """To where they stood."""
        put_back(self._torch, numbers)
        self.put_back_own(numbers["generators"])

    def put_back_own(self, states: list[Any]) -> None:
        """Those of the loader, its sampler and its data set alone."""
        put_back_states(self._torch, self._generators(), states)

    def _generators(self) -> list[Any]:
        """The data set is looked at each time: it may make its generator anew in every pass."""
        of_data = own_generators(self._torch, self._data_set) if self._data_set is not None else []
        return list({id(one): one for one in (*self._own, *of_data)}.values())


def _samplers(loader: Any) -> Iterator[Any]:
    """All that draw for a loader: one that shuffles may stand behind those that make batches."""
    yield getattr(loader, "sampler", None)
    found, seen = [getattr(loader, "batch_sampler", None)], set[int]()
    while found:
        one = found.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        found += [getattr(one, "sampler", None), getattr(one, "batch_sampler", None)]


def _follow_sampler(torch: Any, loader: Any, numbers: Numbers) -> "_Sampler | _NoSampler":
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return _NoSampler()
    name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    sampler = _Sampler(getattr(loader, name), numbers, makes_batches=name == "batch_sampler")
    # DataLoader refuses to have it set: what it guards against is another number of batches.
    vars(loader)[name] = sampler
    return sampler
