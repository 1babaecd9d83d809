"""NVTX ranges for epoch, step, data, copy, forward, loss, backward, optimizer, evaluation; only on request.

Nsight Systems shows them above the kernels. Ranges that may overlap (epoch, step, loss) are start/end ranges;
the others nest.
"""

from typing import Any


class Ranges:
    """Speaks to NVTX; raises on a torch without it, which turns this tap off and nothing else."""

    def __init__(self, torch: Any) -> None:
        self._nvtx = torch.cuda.nvtx
        self._nvtx.mark("flatout")
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

    def epoch(self) -> None:
        """A training loader starts over."""
        self._epochs += 1
        self.start("epoch", f"epoch {self._epochs}")

    def close(self) -> None:
        """Close what is open."""
        for name in list(self._open):
            self.end(name)
