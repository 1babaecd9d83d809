"""NVTX ranges for epoch, step, data, copy, forward, loss, backward, optimizer, evaluation; only on request.

Nsight Systems shows them above the kernels. Ranges that may overlap (epoch, step, loss) are start/end ranges;
the others nest. A profiler that waits outside for CUDA's sign to begin gets it at the step that was ordered.
"""

import contextlib
from typing import Any


class Ranges:
    """Speaks to NVTX; raises on a torch without it, which turns this tap off and nothing else."""

    def __init__(self, torch: Any, *, capture_from: int | None = None) -> None:
        self._cuda = torch.cuda
        self._nvtx = torch.cuda.nvtx
        self._nvtx.mark("flatout")
        self._capture_from = capture_from
        self._capturing = False
        self._epochs = 0
        self._open: dict[str, Any] = {}

    def push(self, kind: str) -> None:
        """A span begins."""
        if kind == "backward":
            self.end("loss")
        self._nvtx.range_push(kind)

    def pop(self) -> None:
        """The innermost span is over."""
        self._nvtx.range_pop()

    def start(self, name: str, text: str = "") -> None:
        """A range that others may overlap."""
        self.end(name)
        self._open[name] = self._nvtx.range_start(text or name)

    def end(self, name: str) -> None:
        """Close a range where it is open."""
        handle = self._open.pop(name, None)
        if handle is not None:
            self._nvtx.range_end(handle)

    def step(self, number: int) -> None:
        """A step begins, and with it what a profiler outside is to see."""
        self.end("step")
        if number == self._capture_from:
            with contextlib.suppress(Exception):  # no device, so nothing for it to see
                self._cuda.synchronize()
                self._cuda.profiler.start()
                self._capturing = True
        self.start("step", f"step {number}")

    def end_capture(self) -> None:
        """The process is about to leave without its handlers: the profiler must get all that it has seen.

        The step that has just begun stays open, for it is none.
        """
        if self._capturing:
            with contextlib.suppress(Exception):
                self._cuda.synchronize()
                self._cuda.profiler.stop()
            self._capturing = False

    def epoch(self) -> None:
        """A training loader starts over."""
        self._epochs += 1
        self.start("epoch", f"epoch {self._epochs}")

    def close(self) -> None:
        """Close what is open."""
        for name in list(self._open):
            self.end(name)
