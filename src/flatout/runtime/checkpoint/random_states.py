"""Random numbers: where every generator stands, and putting them there again."""

import random
import sys
from typing import Any


def random_states(torch: Any) -> dict[str, Any]:
    """Python's, NumPy's, torch's, and those of every GPU that was used: plain data, which can be compared."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": as_bytes(torch.get_rng_state())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = (name, keys.tolist(), *rest)
    if torch.cuda.is_initialized():  # to ask whether there is any would wake the driver
        devices = range(torch.cuda.device_count())
        states["cuda"] = [as_bytes(torch.cuda.get_rng_state(device)) for device in devices]
    return states


def put_back(torch: Any, states: dict[str, Any]) -> str:
    """All of them; a word where a GPU's could not be, since there are fewer."""
    random.setstate(states["python"])
    torch.set_rng_state(as_state(torch, states["torch"]))
    if "numpy" in states:
        import numpy as np

        np.random.set_state(states["numpy"])
    cuda = states.get("cuda", ())
    count = torch.cuda.device_count() if cuda and torch.cuda.is_available() else 0
    for device, state in enumerate(cuda[:count]):
        torch.cuda.set_rng_state(as_state(torch, state), device)
    return f"random numbers of {len(cuda)} GPUs, and there are {count}" if count < len(cuda) else ""


def as_bytes(state: Any) -> bytes:
    """A generator's state as plain data."""
    return bytes(state.tolist())  # a hundred times as fast as its storage, which is read byte by byte


def as_state(torch: Any, state: bytes) -> Any:
    """And as the tensor that generators want."""
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
