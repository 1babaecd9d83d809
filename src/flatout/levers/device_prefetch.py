"""Batches copied to the device ahead of time."""

import functools
import importlib
import weakref
from typing import Any

from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Lever, Refused, Scene, Settings
from flatout.levers.prefetching import Ahead, Mover, workers_have_one

_WORTH_TRYING = 0.005


class DevicePrefetch(Lever):
    """The next batch travels to the GPU while it works on this one.

    On a stream of its own, awaited by the device and not by the host; the script's own `.to(device)` then
    finds the tensor there. Only for tensors of which the baseline and the source of the loop show that the
    first and only use is that copy, and that the copy takes the name; only for the loader that trains, and
    while the model trains. Needs a DataLoader with workers: without, nothing can be ready ahead of time.
    """

    id = "device-prefetch"
    title = "device prefetch"
    safety = "exact"

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs a GPU, workers, and batches that the loop does nothing with but copy them."""
        if not job.on_gpu:
            return "the job does not train on a GPU"
        uses = job.habit("batch_uses") or {}
        if not uses.get("copied"):
            return str(uses.get("reason") or "no batch was seen on its way from a DataLoader to the GPU")
        if not any(loader.get("num_workers") for loader in job.loaders):
            return "the DataLoader has no workers: nothing could be ready ahead of time"
        if (job.device_shares or job.host_shares).get("copies", 0.0) < _WORTH_TRYING:
            return "copies to the GPU take less than 0.5 % of a step"
        return ""

    @classmethod
    def variants(cls, job: JobFacts) -> tuple[Settings, ...]:
        """The tensors to move, and whose."""
        uses = job.habit("batch_uses") or {}
        return ({"_leaves": list(uses.get("copied", ())), "_data_set": uses.get("data_set", "")},)

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """No copy at all."""
        shares = job.device_shares or job.host_shares
        return amdahl(min(0.9, shares.get("copies", 0.0)), 10.0)

    def __init__(self, scene: Scene, settings: Settings) -> None:
        super().__init__(scene, settings)
        self._looking = False
        self._mover: Mover | None = None
        # By iterator: the epoch, known by its sampler's iterator, and what looks ahead in it.
        self._ahead: weakref.WeakKeyDictionary[Any, tuple[Any, Ahead]] = weakref.WeakKeyDictionary()
        # The class whose method is replaced, and the method.
        self._patched: tuple[Any, Any] | None = None

    def apply(self) -> None:
        """Look ahead from the next batch on."""
        if self.scene.device.type != "cuda":
            raise Refused("the job does not train on a GPU")
        self._looking = True
        if self._mover is None:
            paths = frozenset(self.settings.get("_leaves", ()))
            self._mover = Mover(self.scene.torch, self.scene.device, paths)
        kind: Any = importlib.import_module("torch.utils.data.dataloader")._MultiProcessingDataLoaderIter  # noqa: SLF001
        if self._patched is None:
            self._patched = (kind, vars(kind)["_next_data"])
            kind._next_data = self._next_data(self._patched[1])  # noqa: SLF001

    def undo(self) -> None:
        """Look ahead no more; what was fetched is still handed out, and then the method is put back."""
        self._looking = False
        self._put_back_when_empty()

    def _put_back_when_empty(self) -> None:
        if self._patched is not None and not any(ahead.has_one for _, ahead in self._ahead.values()):
            kind, real = self._patched
            kind._next_data = real  # noqa: SLF001
            self._patched = None

    def _next_data(self, real: Any) -> Any:
        lever = self

        @functools.wraps(real)
        def _next_data(iterator: Any) -> Any:
            epoch, ahead = lever._ahead.get(iterator, (None, None))
            now = iterator._sampler_iter  # noqa: SLF001
            if ahead is not None and epoch is not now:
                ahead = None  # an iterator with lasting workers begins a new epoch: what was fetched is old
            if ahead is None:
                if not lever._looking or lever._mover is None or not lever._is_ours(iterator):
                    lever._ahead.pop(iterator, None)
                    return real(iterator)
                own = weakref.ref(iterator)  # or it would keep itself alive through us
                ahead = Ahead(lever._mover, lambda: real(own()), lambda: workers_have_one(own()))
                lever._ahead[iterator] = (now, ahead)
            batch = ahead.next(look_ahead=lever._looking and lever._trains())
            if not lever._looking:
                lever._put_back_when_empty()
            return batch

        return _next_data

    def _trains(self) -> bool:
        return self.scene.infers or all(root.training for root in self.scene.roots())

    def _is_ours(self, iterator: Any) -> bool:
        wanted = self.settings.get("_data_set", "")
        return not wanted or wanted == data_set_name(iterator._dataset)  # noqa: SLF001


def data_set_name(data_set: Any) -> str:
    """What a data set is known by from one run to the next."""
    kind = type(data_set)
    try:
        size = f" of {len(data_set)}"
    except Exception:  # noqa: BLE001 - it need not know its length
        size = ""
    return f"{kind.__module__}.{kind.__qualname__}{size}"
