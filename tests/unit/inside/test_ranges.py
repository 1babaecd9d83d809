"""NVTX ranges, and the sign to a profiler outside: at the step that was ordered, never at a job's cost."""

from typing import Any

import pytest

from flatout.inside.ranges import Ranges


class Cuda:
    """Writes down what is asked of it; without a device, CUDA's own calls raise."""

    def __init__(self, *, device: bool = True) -> None:
        self.said: list[str] = []
        self.nvtx = self.profiler = self
        self._device = device

    def mark(self, text: str) -> None:
        self.said.append(text)

    def range_start(self, text: str) -> str:
        self.said.append(f"({text}")
        return text

    def range_end(self, handle: str) -> None:
        self.said.append(f"{handle})")

    def synchronize(self) -> None:
        if not self._device:
            raise RuntimeError("no CUDA")

    def start(self) -> None:
        self.said.append("begin")

    def stop(self) -> None:
        self.said.append("end")


class Torch:
    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda


@pytest.mark.parametrize("device", [True, False])
def test_a_recording_begins_before_its_step_and_ends_before_the_next_is_closed(device: bool) -> None:
    cuda = Cuda(device=device)
    ranges = Ranges(Torch(cuda), capture_from=3)
    for number in (2, 3, 4):
        ranges.step(number)
    ranges.end_capture()
    ranges.end_capture()
    seen = ["flatout", "(step 2", "step 2)", "begin", "(step 3", "step 3)", "(step 4", "end"]
    assert cuda.said == [text for text in seen if device or text not in ("begin", "end")]


def test_without_an_order_nothing_is_begun() -> None:
    cuda = Cuda()
    ranges = Ranges(Torch(cuda))
    ranges.step(2)
    ranges.end_capture()
    ranges.close()
    assert cuda.said == ["flatout", "(step 2", "step 2)"]
