"""Buffers that passes write to (a batch norm's statistics), as they were before a batch that was skipped.

A forward pass is over before anybody knows that its gradients are not finite: what it has written into
buffers would stay. So the last finite values of each are kept on its device, and where an update is skipped,
a buffer that is not finite gets them back.

Followed are the statistics of torch's norms, which their kernels write to without a trace, and whatever else
is seen to change; tables and masks that never do cost nothing. On a GPU that takes, for all buffers of one
type together, about six launches an update and the memory of one copy, and nobody waits; on a CPU one copy
and one norm.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from flatout.runtime.finite.gradients import brought, marks_of

# A module, by its name of the buffer.
Place = tuple[weakref.ref[Any], str]


class Buffers:
    """The last finite values of buffers that change."""

    def __init__(self, torch: Any, models: Callable[[], Sequence[Any]]) -> None:
        self._torch = torch
        self._models = models
        self._groups: list[_Group] = []
        self._updates = 0
        # Of each buffer when it was last looked at: the tensor, and how often it had been written to.
        self._seen: dict[tuple[int, str], tuple[weakref.ref[Any], int]] = {}
        self._changing: set[tuple[int, str]] = set()
        self.take()

    def take(self) -> None:
        """What they are now is good: where training begins, and after a state was loaded."""
        self._updates = 0
        self._groups = []
        self._seen.clear()
        self._follow()

    def updated(self, flag: Any) -> None:
        """After the passes of an update; where its flag is set, what is not finite becomes what it was."""
        with self._torch.no_grad():
            self._updates += 1
            if self._updates == 1:
                # Whoever loads a state leaves a trace: what was kept is of another one then.
                self._groups = [group for group in self._groups if not group.was_written_to()]
            are_there = [group.updated(flag) for group in self._groups]
            # At first often: a module may only now have its buffers, or begin to write to them.
            if not all(are_there) or not self._updates & (self._updates - 1):
                self._follow()

    def _follow(self) -> None:
        grouped: dict[Any, list[Place]] = {}
        for module, name, tensor in _buffers_of(self._torch, self._models()):
            if self._is_to_be_followed(module, name, tensor):
                key = (tensor.device, tensor.dtype)
                grouped.setdefault(key, []).append((weakref.ref(module), name))
        self._groups = [_Group(self._torch, places, self._groups) for places in grouped.values()]

    def _is_to_be_followed(self, module: Any, name: str, tensor: Any) -> bool:
        if isinstance(module, self._torch.nn.modules.batchnorm._NormBase):  # noqa: SLF001
            return True
        if not self._updates:  # a state may yet be loaded: that is no change
            return False
        key = (id(module), name)
        then, written = self._seen.get(key, (None, 0))
        self._seen[key] = (weakref.ref(tensor), tensor._version)  # noqa: SLF001
        if then is not None and (written != tensor._version or then() is not tensor):  # noqa: SLF001
            self._changing.add(key)
        return key in self._changing


class _Group:
    """Buffers of one device and type, in one piece."""

    def __init__(self, torch: Any, places: list[Place], before: Iterable["_Group"]) -> None:
        self._torch = torch
        self.places = places
        now = self._now()
        self.shapes = [tensor.shape for tensor in now]
        self.counts = [tensor.numel() for tensor in now]
        self._versions = [tensor._version for tensor in now]  # noqa: SLF001
        first = now[0]
        numbers = torch.arange(len(now), dtype=torch.int32, device="cpu")
        counts = torch.tensor(self.counts, device="cpu")
        # Which buffer each number belongs to.
        self._owner = torch.repeat_interleave(numbers, counts).to(first.device)
        self.kept = _packed(torch, now)
        self.is_bad = marks_of(torch, now) != 0
        self._take_over(before)

    def _take_over(self, before: Iterable["_Group"]) -> None:
        """What is not finite now may have been before, as somebody else knows."""
        known = {place: (group, at) for group in before for at, place in enumerate(group.places)}
        kept = self.kept.split(self.counts)
        for at, place in enumerate(self.places):
            group, there = known.get(place, (None, 0))
            if group is None or group.shapes[there] != self.shapes[at]:
                continue
            if group.kept.dtype == self.kept.dtype and group.kept.device == self.kept.device:
                kept[at].copy_(group.kept.split(group.counts)[there])
                self.is_bad[at] = group.is_bad[there]

    def was_written_to(self) -> bool:
        """Since they were kept, by anything but a norm's kernels."""
        return [tensor._version for tensor in self._now()] != self._versions  # noqa: SLF001

    def updated(self, flag: Any) -> bool:
        """Keep what is finite, and give back where the flag is set; False where they are others by now."""
        torch, now = self._torch, self._now()
        device = self.kept.device
        if [one.shape for one in now] != self.shapes or any(
            one.device != device or one.dtype != self.kept.dtype for one in now
        ):
            return False
        packed = _packed(torch, now)
        if device.type == "cpu" and bool(torch.isfinite(torch.linalg.vector_norm(packed.float()))):
            self.kept, self.is_bad = packed, torch.zeros_like(self.is_bad)
            return True
        is_bad = marks_of(torch, now) != 0
        # What was never finite is meant to be as it is.
        is_taken = (~is_bad | self.is_bad).index_select(0, self._owner)
        self.is_bad = is_bad & self.is_bad
        self.kept = torch.where(is_taken, packed, self.kept)
        is_skipped = brought(flag, device).reshape(()) > 0
        if device.type != "cpu" or bool(is_skipped):
            values = torch.where(is_skipped, self.kept, packed).split(self.counts)
            shaped = [one.view(shape) for one, shape in zip(values, self.shapes, strict=True)]
            # Past autograd's count: a graph that is still under way has used what they were.
            torch._foreach_copy_([one.data for one in now], shaped)
        return True

    def _now(self) -> list[Any]:
        """The tensors that are there under these names now, as far as there are any."""
        modules = [(reference(), name) for reference, name in self.places]
        found = [None if module is None else module._buffers.get(name) for module, name in modules]  # noqa: SLF001
        return [one for one in found if one is not None]


def _packed(torch: Any, tensors: Sequence[Any]) -> Any:
    return torch.cat([one.detach().reshape(-1) for one in tensors])


def _buffers_of(torch: Any, models: Sequence[Any]) -> Iterator[tuple[Any, str, Any]]:
    """Those with numbers that a copy can hold, each once."""
    seen = set[int]()
    for module in (module for model in models for module in model.modules()):
        for name, tensor in module._buffers.items():  # noqa: SLF001
            if tensor is not None and id(tensor) not in seen and _is_plain(torch, tensor):
                seen.add(id(tensor))
                yield module, name, tensor


def _is_plain(torch: Any, tensor: Any) -> bool:
    """Dense, of this rank alone, and there."""
    if torch.nn.parameter.is_lazy(tensor) or hasattr(tensor, "to_local") or tensor.is_inference():
        return False
    is_dense = tensor.layout == torch.strided and tensor.numel() > 0 and tensor.device.type != "meta"
    return is_dense and tensor.is_floating_point() and tensor.element_size() > 1 and 0 not in tensor.stride()


def saved_buffers(torch: Any, models: Iterable[Any]) -> dict[tuple[Any, str], Any]:
    """Buffers that a model's state has, by model and name."""
    found = {}
    for model in models:
        for path, module in model.named_modules():
            for name, tensor in module._buffers.items():  # noqa: SLF001
                is_saved = name not in module._non_persistent_buffers_set  # noqa: SLF001
                if tensor is not None and is_saved and not torch.nn.parameter.is_lazy(tensor):
                    found[model, f"{path}.{name}" if path else name] = tensor
    return found
