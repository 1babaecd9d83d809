"""Capturing a CUDA graph, such that a process goes on where it fails.

torch leaves three things behind when a capture breaks off: its allocator waits for the end of it, and ends
the process when its cache is emptied; random numbers are drawn as if it went on, which raises; and the
thread stays on the stream of the capture.

And such that the graph goes on working: products have a workspace, which torch keeps by stream. One from
before the capture is anybody's memory as soon as somebody gives workspaces back, as each recording of
torch.compile does, and the graph would go on to write there.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch


def on_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Streams, graphs and clocks are this device's, whatever the thread's own is; a CPU has none of them."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@functools.cache
def _aside(index: int) -> Any:
    """A stream for captures; torch would take that of the device which captured first in this process.

    Always the same: of one pool, graphs share only what was allocated on one stream.
    """
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def capturing(graph: Any, device: torch.device, pool: Any, stream: Any = None) -> Iterator[None]:
    """What is launched here goes into the graph; raises what went wrong, and leaves nothing behind."""
    index = torch.cuda.current_device() if device.index is None else device.index
    stream = stream or _aside(index)
    generator = torch.cuda.default_generators[index]
    drawn = generator.get_state()
    torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - one is made in the capture: the graph's own
    try:
        with (
            torch.cuda.stream(torch.cuda.current_stream(device)),
            # Others may pin memory in threads of their own meanwhile: that must not spoil it.
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            yield
    except BaseException:
        with contextlib.suppress(Exception):  # newer ones have ended it
            torch._C._cuda_endAllocateToPool(index, pool)  # noqa: SLF001
        with contextlib.suppress(Exception):
            fresh: Any = torch.Generator(torch.device("cuda", index))
            fresh.set_state(drawn)
            generator.graphsafe_set_state(fresh.graphsafe_get_state())
        raise
    finally:
        torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - nobody else works in the graph's
