"""Which tensors are alive, as Python's collector knows them, and how large they are.

A look walks everything that the collector keeps: tens of milliseconds where much is loaded. So it is taken
seldom, and keeps nothing alive: sizes, and weak references, for an address is soon taken over by another.
"""

import dataclasses
import gc
import weakref
from typing import Any

References = tuple["weakref.ref[Any]", ...]


@dataclasses.dataclass(frozen=True)
class Mark:
    """What was alive after a step, without parameters and gradients."""

    step: int
    # In bytes, by address.
    sizes: dict[int, int]
    alive: References
    # Of these, what had not been there at the mark before.
    new: References
    # Where autograd's numbering of nodes stood.
    sequence: int


def take_mark(torch: Any, step: int, device: str, before: Mark | None) -> Mark:
    """What is alive now on a kind of device."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
        found = [one for one in living_tensors(torch) if is_on(one, device)]
        left_out = _parameters_and_gradients(found)
        known = {id(one) for one in still_alive(before.alive)} if before is not None else left_out
        alive = {id(one): weakref.ref(one) for one in found if id(one) not in left_out}
        return Mark(
            step=step,
            sizes={id(one): size_of(one)[1] for one in found},
            alive=tuple(alive.values()),
            new=tuple(one for address, one in alive.items() if address not in known) if before else (),
            sequence=torch.autograd._get_sequence_nr(),  # noqa: SLF001
        )


def living_tensors(torch: Any) -> list[Any]:
    """Every tensor that has a Python object; what graphs hold for themselves has none."""
    kinds, to_come = set(), [torch.Tensor]
    while to_come:
        kind = to_come.pop()
        if kind not in kinds:
            kinds.add(kind)
            to_come += type.__subclasses__(kind)
    objects = gc.get_objects()
    return [one for one, kind in zip(objects, map(type, objects), strict=True) if kind in kinds]


def still_alive(references: References) -> list[Any]:
    """Of what was alive, what is so now."""
    found = [one for reference in references if (one := reference()) is not None]
    for one in found:
        one._fix_weakref()  # noqa: SLF001 - as torch's own weak references do
    return found


def _parameters_and_gradients(alive: list[Any]) -> set[int]:
    """By address: torch swaps them when a module moves, and refuses to where there is a weak reference."""
    parameters = [one for one in alive if one.is_leaf and one.requires_grad]
    return {id(one) for both in parameters for one in (both, both.grad)}


def is_on(tensor: Any, device: str) -> bool:
    """Whether it takes memory on that kind of device."""
    try:
        return bool(tensor.device.type == device)
    except Exception:  # noqa: BLE001 - a subclass of the user's own
        return False


def size_of(tensor: Any) -> tuple[int, int]:
    """What tells its storage from others, and its bytes."""
    try:
        storage = tensor.untyped_storage()
        return int(storage._cdata), int(storage.nbytes())  # noqa: SLF001
    except Exception:  # noqa: BLE001 - sparse ones and the like have none
        return id(tensor), 0
