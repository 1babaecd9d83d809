"""What autograd saves for the backward pass, sent to the host and fetched a little before it is asked for."""

import weakref
from typing import Any

from flatout.levers.offloading import Away, FromHost, ToHost, host_has_room, is_plain, window_of
from flatout.levers.outputs import memory_of

# Smaller ones are not worth a copy.
_FEWEST_BYTES = 1 << 20
# How much goes between two looks at what the host has left.
_LOOK_AT_THE_HOST_EVERY = 1 << 30


class SavedTensors:
    """What autograd saves in a forward pass: sent away, and fetched a little before it is asked for."""

    def __init__(
        self,
        torch: Any,
        device: Any,
        share: float,
        *,
        fewest_bytes: int = _FEWEST_BYTES,
        window_bytes: int | None = None,
    ) -> None:
        self._torch = torch
        self._device = torch.device(device)
        self._share = share
        self._fewest = fewest_bytes
        self._window = window_bytes if window_bytes is not None else window_of(torch, self._device)
        self._out, self._back = ToHost(torch, self._device, self._window), FromHost(torch, self._device)
        self._weights: set[int] = set()
        # In the order in which they were saved; who is not there any more is not needed any more.
        self._away: list[weakref.ref[Away]] = []
        # By place: the memory in which they lay, and where they are.
        self._sent: dict[Any, tuple[Any, weakref.ref[Away]]] = {}
        # On their way back, by number.
        self._coming: dict[int, tuple[Any, Any]] = {}
        # Of what was saved: seen, and sent.
        self._seen_bytes = self._sent_bytes = 0
        # In the pass before: what was saved last is needed first, and stays.
        self._all_bytes = 0
        self._looked_at = 0
        self._is_full = False

    def begin(self, root: Any) -> None:
        """A forward pass begins."""
        self._weights = {parameter.untyped_storage().data_ptr() for parameter in root.parameters()}
        if not any(one() is not None for one in self._away):
            self._away.clear()
            for _, arrived in self._coming.values():  # else their memory is others' while a copy still writes
                self._back.wait_for(arrived)
            self._coming.clear()
            self._sent.clear()
            self._all_bytes = self._seen_bytes
            self._seen_bytes = self._sent_bytes = self._looked_at = 0

    def pack(self, tensor: Any) -> Any:
        """A tensor that autograd saves: where it is from now on.

        One that stays is returned without its history: it would hold the very node that saves it.
        """
        if not self._may_go(tensor):
            return tensor.detach()
        self._seen_bytes += tensor.nbytes
        is_last = self._all_bytes and self._seen_bytes > self._all_bytes - self._window
        if is_last or self._sent_bytes + tensor.nbytes > self._share * self._seen_bytes or self._no_room():
            return tensor.detach()
        known = self._sent_before(tensor)
        if known is not None:
            return known
        away = self._out.send(tensor.detach())
        away.number = len(self._away)
        self._away.append(weakref.ref(away))
        self._sent[_place(tensor)] = (memory_of(tensor), self._away[-1])
        self._sent_bytes += tensor.nbytes
        return away

    def _sent_before(self, tensor: Any) -> Away | None:
        """What one operation saves as its output, the next saves as its input."""
        storage, away = self._sent.get(_place(tensor), (None, None))
        if storage is None or away is None or storage.expired():  # another may lie in its place by now
            return None
        return away()

    def unpack(self, saved: Any) -> Any:
        """A tensor that the backward pass needs."""
        if not isinstance(saved, Away):
            return saved
        self._out.let_go()
        coming = self._coming.pop(saved.number, None)
        tensor, arrived = coming if coming is not None else self._back.fetch(saved)
        self._fetch_ahead_of(saved.number)
        self._back.wait_for(arrived)
        return tensor

    def _fetch_ahead_of(self, number: int) -> None:
        """The ones saved before this one are needed next."""
        under_way = sum(tensor.nbytes for tensor, _ in self._coming.values())
        for earlier in range(number - 1, -1, -1):
            away = self._away[earlier]()
            if earlier in self._coming or away is None:
                continue
            under_way += away.nbytes
            if under_way > self._window:
                return
            self._coming[earlier] = self._back.fetch(away)

    def _may_go(self, tensor: Any) -> bool:
        return (
            tensor.device == self._device
            and tensor.nbytes >= self._fewest
            and is_plain(self._torch, tensor)
            and tensor.untyped_storage().data_ptr() not in self._weights
            and not self._is_cast_weight(tensor)
        )

    def _is_cast_weight(self, tensor: Any) -> bool:
        """What autocast made of a weight is kept by autocast, wherever a copy of it may be."""
        made_by = tensor.grad_fn
        while made_by is not None and type(made_by).__name__ in ("TBackward0", "TransposeBackward0"):
            made_by = made_by.next_functions[0][0]
        if type(made_by).__name__ != "ToCopyBackward0":
            return False
        return type(made_by.next_functions[0][0]).__name__ == "AccumulateGrad"

    def _no_room(self) -> bool:
        if not self._is_full and self._sent_bytes >= self._looked_at:
            self._looked_at = self._sent_bytes + _LOOK_AT_THE_HOST_EVERY
            self._is_full = not host_has_room(_LOOK_AT_THE_HOST_EVERY)
        return self._is_full


def _place(tensor: Any) -> tuple[Any, ...]:
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor._version)  # noqa: SLF001
