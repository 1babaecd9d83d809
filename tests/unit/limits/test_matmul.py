"""Products: the operations are counted right, the numbers are right, and what is missing is said."""

import pytest
import torch

from flatout.limits import matmul
from flatout.limits.matmul import CPU_DTYPES, CannotMultiply, measure_dtype, product, why_not
from flatout.limits.timing import Stopwatch, Timing
from flatout.records.rated import Dtype


@pytest.mark.parametrize("dtype", CPU_DTYPES)
def test_every_product_has_the_shape_that_is_counted(dtype: Dtype) -> None:
    result = product(torch, "cpu", dtype, (64, 32, 16))()
    assert isinstance(result, torch.Tensor)
    assert tuple(result.shape) == (64, 32)


class FixedWatch(Stopwatch):
    """A stopwatch for which every call takes one millisecond."""

    def __init__(self) -> None:
        super().__init__(torch, "cpu")
        self.measured = 0

    def measure(self, call: object, **schedule: float) -> Timing:  # type: ignore[override]
        self.measured += 1
        return Timing(median_s=1e-3, spread_share=0.0)


def test_two_operations_are_counted_per_multiply_and_add() -> None:
    [result] = measure_dtype(torch, "cpu", FixedWatch(), "fp32", ((8, 4, 2),))
    assert result.flops_per_s == 2 * 8 * 4 * 2 / 1e-3
    assert (result.m, result.n, result.k) == (8, 4, 2)


def test_a_shape_that_would_take_too_long_is_left_out() -> None:
    watch = FixedWatch()
    results = list(measure_dtype(torch, "cpu", watch, "fp32", ((8, 8, 8), (8, 8, 16), (800, 800, 800))))
    assert len(results) == watch.measured == 2


def test_a_precision_without_a_product_is_refused_with_the_first_of_torchs_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("fp8 needs compute capability 8.9\nException raised from somewhere deep")

    monkeypatch.setattr(matmul, "product", refuse)
    with pytest.raises(CannotMultiply, match=r"^fp8 needs compute capability 8.9$"):
        list(measure_dtype(torch, "cpu", Stopwatch(torch, "cpu"), "fp8", ((64, 64, 64),)))


def test_running_out_of_memory_at_a_large_shape_keeps_the_smaller_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = matmul.product

    def product_that_fits(torch_: object, device: str, dtype: Dtype, shape: matmul.Shape) -> object:
        if shape[0] > 8:
            raise torch.OutOfMemoryError("out of memory")
        return real(torch_, device, dtype, shape)

    monkeypatch.setattr(matmul, "product", product_that_fits)
    results = list(measure_dtype(torch, "cpu", FixedWatch(), "fp32", ((8, 8, 8), (16, 16, 16))))
    assert [result.m for result in results] == [8]


def test_tf32_is_not_tried_where_it_does_not_exist() -> None:
    assert "NVIDIA" in why_not(torch, "cpu", "tf32")
    assert why_not(torch, "cpu", "bf16") == ""
    assert why_not(torch, "mps", "fp8") != ""


class OldCard:
    """torch as it looks on a card of an old architecture."""

    class version:
        hip = None

    class cuda:
        @staticmethod
        def get_device_capability(_device: str) -> tuple[int, int]:
            return (7, 0)


@pytest.mark.parametrize(
    ("dtype", "there"), [("fp16", True), ("bf16", False), ("fp8", False), ("int8", False)]
)
def test_a_volta_card_has_fp16_tensor_cores_and_no_others(dtype: Dtype, there: bool) -> None:
    assert (why_not(OldCard, "cuda:0", dtype) == "") is there
