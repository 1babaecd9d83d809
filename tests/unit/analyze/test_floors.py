"""Floors: every operator at its limit, and as if all were fused; shapes that tensor cores cannot take."""

import pytest

from flatout.analyze.floors import floors, product_shapes

# A product that needs its peak, one that needs its bytes, and an addition.
MOVES = [
    ["aten::mm", 8_000_000, 1_000, "bfloat16", 2],
    ["aten::mm", 1_000, 4_000_000, "bfloat16", 1],
    ["aten::add", 0, 2_000_000, "bfloat16", 3],
]
PEAKS = {"bf16": 1e9, "fp32": 1e8, "tf32": 5e8}
BANDWIDTH = 1e9


def test_each_operator_needs_its_peak_or_its_bytes_whichever_takes_longer() -> None:
    found = floors({"moves": MOVES}, {}, PEAKS, BANDWIDTH, tf32=False)
    assert found.as_written_ms == pytest.approx(2 * 8.0 + 4.0 + 3 * 2.0)
    assert found.fused_ms == pytest.approx(2 * 8.0 + 4.0)
    assert found.moving_share == pytest.approx(6 / 26)


def test_an_update_reads_everything_and_writes_all_but_the_gradients() -> None:
    holds = {"parameter_bytes": 1_000_000, "gradient_bytes": 1_000_000, "optimizer_bytes": 2_000_000}
    with_update = floors({"moves": MOVES}, holds, PEAKS, BANDWIDTH, tf32=False)
    assert with_update.as_written_ms == pytest.approx(26.0 + 7.0)
    assert with_update.fused_ms == pytest.approx(20.0 + 7.0)


@pytest.mark.parametrize(("tf32", "expected_ms"), [(False, 10.0), (True, 2.0)])
def test_float32_has_the_peak_that_the_job_allows(tf32: bool, expected_ms: float) -> None:
    moves = [["aten::mm", 1_000_000, 0, "float32", 1]]
    assert floors({"moves": moves}, {}, PEAKS, BANDWIDTH, tf32=tf32).fused_ms == pytest.approx(expected_ms)


def test_what_is_missing_is_named() -> None:
    assert "not seen" in floors({}, {}, PEAKS, BANDWIDTH, tf32=False).unknown["as_written_ms"]
    assert "bandwidth" in floors({"moves": MOVES}, {}, PEAKS, None, tf32=False).unknown["fused_ms"]
    assert "bfloat16" in floors({"moves": MOVES}, {}, {}, BANDWIDTH, tf32=False).unknown["fused_ms"]


def test_shapes_that_miss_say_what_to_pad_to() -> None:
    rows = [
        ["aten::mm", "bfloat16", 1, 4096, 50257, 768, 1],
        ["aten::mm", "bfloat16", 1, 4096, 3072, 768, 1],
        ["aten::mm", "float32", 1, 4096, 50257, 770, 1],
        # A handful of columns is what it is: no padding makes much of it.
        ["aten::mm", "bfloat16", 1, 4096, 2, 768, 1],
        ["aten::mm", "float64", 1, 4096, 50257, 769, 1],
    ]
    found = {(one.dtype, one.n): one.pad for one in product_shapes({"products": rows})}
    assert found["bfloat16", 50257] == {"n": 50264}
    assert found["bfloat16", 3072] == {}
    assert found["float32", 50257] == {"n": 50260, "k": 772}
    assert found["bfloat16", 2] == {}
    assert found["float64", 50257] == {}
    shapes = product_shapes({"products": rows})
    assert sum(one.share for one in shapes) == pytest.approx(1.0)
    assert [one.share for one in shapes] == sorted((one.share for one in shapes), reverse=True)
    assert product_shapes({}) == ()
