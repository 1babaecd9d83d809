"""Levers in the user's process: which are on, what they put around the roots' calls, and what became of them.

Levers that need no process of their own come on with the first training call: by then the script has set its
switches, and everything that it made exists. A lever that fails is taken off, and the call is run as written.
"""

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flatout.inside.checked_again import CheckedAgain
from flatout.inside.seats import REPLICATED, Seat, inner_of, replicated
from flatout.inside.tap import unseen
from flatout.inside.updates import Updates
from flatout.levers.catalogue import BY_ID
from flatout.levers.compiled_graphs import graphs_compiled
from flatout.levers.lever import Broken, Call, Lever, Refused
from flatout.records.session import lever_key

if TYPE_CHECKING:
    from flatout.inside.session import Session

Wanted = Sequence[dict[str, Any]]


class Scene:
    """What levers see of the process, and the levers that are on."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self.torch = session.torch
        self.device: Any = None
        self._made: dict[str, Lever] = {}
        self._on: dict[str, Lever] = {}
        self._roots: list[Any] = []
        self._optimizers: list[weakref.ref[Any]] = []
        # By root: its call as written, and the calls that were composed around it so far.
        self._as_written: dict[int, Call] = {}
        self._composed: dict[tuple[int, tuple[str, ...]], Call] = {}
        self._dropped: set[str] = set()
        # Taken off for good, and not done with yet.
        self._gone: list[Lever] = []
        # Of these, the keys and names of what did not suit the roots that were known then.
        self._not_here: dict[str, str] = {}
        self._checked_again: CheckedAgain | None = None
        # How many the script itself had compiled when levers first came on.
        self._graphs_as_written: int | None = None
        self._wanted: Wanted = session.order.levers
        self._begun = False
        self._updates: Updates | None = None
        # Why no lever comes on, where the only root is one that none may touch.
        self._refusal = ""
        session.facts["levers"] = {}
        for one in self._wanted:
            if one["id"] in BY_ID:
                with contextlib.suppress(Exception):  # a lever may fail alone
                    BY_ID[one["id"]].stand_by(self.torch)

    # What levers see

    def optimizers(self) -> list[Any]:
        """Every optimizer of the process that lives."""
        return [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]

    def roots(self) -> list[Any]:
        """The modules that train."""
        return list(self._roots)

    def is_on(self, lever: str) -> Lever | None:
        """A lever that is on, by its id."""
        return next((one for one in self._on.values() if one.id == lever), None)

    def note(self, lever: str, text: str) -> None:
        """A part of a lever does not work here, and the rest of it does: for the user to know."""
        notes = self._session.facts["levers"].setdefault(lever, {}).setdefault("notes", [])
        if text not in notes:
            notes.append(text)

    @property
    def infers(self) -> bool:
        """Whether nothing trains here: calls without gradients are what the job is there for."""
        return self._session.order.infer

    @property
    def same_random(self) -> bool:
        """Whether this run must draw the random numbers that the script would draw as written."""
        return self._session.order.same_random

    # What the session tells

    def optimizer_made(self, optimizer: Any) -> None:
        """The script made an optimizer."""
        self._optimizers.append(weakref.ref(optimizer))
        for lever in list(self._on.values()):
            with self._dropping(lever):
                lever.on_optimizer(optimizer)

    def sit(self, root: Any) -> Seat | None:
        """A root is about to be called for training, for the first time: levers act on it from here on.

        Under DistributedDataParallel they belong inside: its hooks must see what they produce.
        """
        if replicated(root):
            self._refusal = REPLICATED
            self.switch(self._wanted)
            return None
        target = inner_of(root) or root
        seat = Seat(target, lambda as_written: self.call_of(target, as_written))
        self.begin(target)
        return seat

    def begin(self, root: Any) -> None:
        """One more that trains: levers come on with the first, and know of all of them."""
        self._roots.append(root)
        if self.device is None:
            self.device = next((parameter.device for parameter in root.parameters()), None)
        if not self._begun:
            self._begun = True
            if not self.infers:
                self._updates = Updates(self.torch, self._updated)
            self._graphs_as_written = graphs_compiled()
            self._look_around(self._wanted)
            self.switch(self._wanted)
        else:  # what changes the roots themselves must know of this one too
            wanted = self._wanted
            self.switch([])
            self._ask_again()
            self._look_around(wanted)
            self.switch(wanted)

    def _look_around(self, wanted: Wanted) -> None:
        """While nothing of ours is on; a look that fails leaves it to the levers themselves."""
        self._checked_again = None
        if wanted and self._session.order.check_levers:
            try:
                found = CheckedAgain(
                    self._session, self._roots, self.optimizers(), self.device, self._graphs_as_written
                )
            except Exception as error:  # noqa: BLE001 - a look may fail alone
                self._session.fail("checking levers", error)
            else:
                self._checked_again = found

    def _ask_again(self) -> None:
        """What was missing in one root may be in another."""
        for key, lever in self._not_here.items():
            self._dropped.discard(key)
            self._session.facts["levers"][lever].pop("dropped", None)
        self._not_here.clear()

    def switch(self, wanted: Wanted) -> None:
        """Between two steps: exactly these levers are on from here on."""
        self._wanted = wanted
        keys = {_key(one): one for one in wanted}
        for key in [key for key in reversed(self._on) if key not in keys]:  # who came last covers the others
            lever = self._on.pop(key)
            with self._dropping(lever):
                lever.undo()
        for key, one in keys.items():
            if key not in self._on and key not in self._dropped:
                self._turn_on(key, one)

    def call_of(self, root: Any, as_written: Call) -> Call:
        """The call of a root with whatever levers are on; evaluation runs as written, where that can be."""
        self._as_written[id(root)] = as_written
        grad_enabled, scene, infers = self.torch.is_grad_enabled, self, self.infers

        def call(*args: Any, **kwargs: Any) -> Any:
            if not scene._on:
                return as_written(*args, **kwargs)
            if scene._is_capturing() or (not infers and (not grad_enabled() or not root.training)):
                return scene._composed_for(root, remaking_alone=True)(*args, **kwargs)
            return scene._call(root, as_written, args, kwargs)

        return unseen(call)

    def end(self) -> None:
        """Nothing of ours is on any more, nor comes on again."""
        self.switch([])
        self.hear_no_more()

    def hear_no_more(self) -> None:
        """Of updates; levers stay as they are."""
        if self._updates is not None:
            self._updates.end()
            self._updates = None

    # How a lever comes on, works and goes

    def _updated(self, optimizer: Any) -> None:
        for lever in list(self._on.values()):
            with self._dropping(lever):
                lever.updated(optimizer)
        # The step in which these went is over. While levers take turns, others may share what they keep.
        while self._gone and self._session.order.check_levers:
            lever = self._gone.pop()
            self._composed = {
                place: call for place, call in self._composed.items() if not self._is_in(lever, place[1])
            }
            with contextlib.suppress(Exception):
                lever.let_go()

    def _is_in(self, lever: Lever, keys: Sequence[str]) -> bool:
        return any(self._made.get(key) is lever for key in keys)

    def _turn_on(self, key: str, one: dict[str, Any]) -> None:
        kind = BY_ID.get(one["id"])
        if kind is None:
            self._drop(key, one["id"], "this version of Flatout does not know it")
            return
        if self._refusal and not self._roots:
            self._drop(key, one["id"], self._refusal)
            return
        settings = dict(one.get("settings", {}))
        refusal = self._checked_again.refusal(kind, settings) if self._checked_again is not None else ""
        if refusal:
            self._drop(key, kind.id, refusal)
            self._not_here[key] = kind.id
            return
        lever = self._made.get(key)
        if lever is None:
            lever = self._made[key] = kind(self, settings)
        try:
            lever.apply()
        except Refused as refusal:
            self._drop(key, lever.id, str(refusal))
        except Exception as error:  # noqa: BLE001 - a lever may fail alone
            self._drop(key, lever.id, f"{type(error).__name__}: {error}")
        else:
            self._on[key] = lever
            self._session.facts["levers"].setdefault(lever.id, {})["applied"] = True

    @unseen
    def _call(self, root: Any, as_written: Call, args: Any, kwargs: Any) -> Any:
        random = self._random_state()
        try:
            result = self._composed_for(root)(*args, **kwargs)
            for lever in [one for one in self._on.values() if one.useless]:
                self._take_off(lever, lever.useless)
            return result
        except Exception as error:  # noqa: BLE001 - a lever may fail alone
            self._put_random_state_back(random)
            if any(lever.remakes for lever in self._on.values()):
                return self._call_a_remade(root, as_written, args, kwargs, error)
            result = as_written(*args, **kwargs)  # where this raises too, the error is the script's own
            self._blame(error)
            return result

    @unseen
    def _call_a_remade(self, root: Any, as_written: Call, args: Any, kwargs: Any, error: Exception) -> Any:
        """A call failed on a model that levers have remade: by them, or by others that are on?"""
        random = self._random_state()
        try:
            result = self._composed_for(root, remaking_alone=True)(*args, **kwargs)
        except Exception as second:  # noqa: BLE001 - a lever may fail alone
            self._put_random_state_back(random)
            for lever in [one for one in self._on.values() if one.remakes]:
                self._take_off(lever, _words(second))
            return as_written(*args, **kwargs)
        self._blame(error)
        return result

    def _composed_for(self, root: Any, *, remaking_alone: bool = False) -> Call:
        levers = sorted(
            (item for item in self._on.items() if item[1].layer and (item[1].remakes or not remaking_alone)),
            key=lambda item: item[1].layer,
        )
        key = (id(root), tuple(name for name, _ in levers))
        call = self._composed.get(key)
        if call is None:
            call = self._as_written[id(root)]
            for _, lever in levers:
                call = lever.around(root, call)
            self._composed[key] = call
        return call

    def _blame(self, error: Exception) -> None:
        """A call failed that goes well as written: whoever came on last is the first suspect."""
        if isinstance(error, Broken):
            named = self.is_on(error.lever)
            if named is not None:
                self._take_off(named, (str(error).strip().splitlines() or [""])[0])
                return
        suspects = [lever for lever in self._on.values() if lever.layer and not lever.remakes]
        if suspects:
            self._take_off(suspects[-1], _words(error))

    @contextlib.contextmanager
    def _dropping(self, lever: Lever) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a lever may fail alone
            self._take_off(lever, f"{type(error).__name__}: {error}")

    def _take_off(self, lever: Lever, reason: str) -> None:
        for key in [key for key, one in self._on.items() if one is lever]:
            self._on.pop(key)
            with contextlib.suppress(Exception):
                lever.undo()
        key = next((key for key, one in self._made.items() if one is lever), lever.id)
        self._drop(key, lever.id, reason)
        self._gone.append(lever)

    def _drop(self, key: str, lever: str, reason: str) -> None:
        """For good, with these settings; with others it may do better."""
        self._dropped.add(key)
        self._session.facts["levers"].setdefault(lever, {})["dropped"] = reason
        self._session.log.add(("dropped", key, reason))

    def _is_capturing(self) -> bool:
        """The script records a CUDA graph of its own: what fails inside could not be run once more."""
        return self._on_gpu() and bool(self.torch.cuda.is_current_stream_capturing())

    def _on_gpu(self) -> bool:
        return self.device is not None and self.device.type == "cuda"

    def _random_state(self) -> tuple[Any, Any]:
        torch = self.torch
        return torch.get_rng_state(), torch.cuda.get_rng_state(self.device) if self._on_gpu() else None

    def _put_random_state_back(self, state: tuple[Any, Any]) -> None:
        host, device = state
        self.torch.set_rng_state(host)
        if device is not None:
            self.torch.cuda.set_rng_state(device, self.device)


def _words(error: Exception) -> str:
    words = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {words[0][:300]}"


def _key(one: dict[str, Any]) -> str:
    return lever_key(one["id"], one.get("settings", {}))
