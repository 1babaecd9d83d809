"""The link between GPUs in a terminal and on the page: the figures, the slow pair, and what is missing."""

import dataclasses
import html

import pytest

from flatout.records.limits import Limits
from flatout.records.link import AllReduceRate, PairRate, RanksLink, judged
from flatout.report.roofline import limits_page
from tests.pages import parsed
from tests.unit.report.test_draw_limits import EVIL, drawn, limits

__all__ = ["limits"]

PAIRS = tuple(
    PairRate(source=a, target=b, bytes_per_s=9e10 if (a, b) == (3, 1) else 3.3e11)
    for a in range(4)
    for b in range(4)
    if a != b
)
SIZE = AllReduceRate(message_bytes=128 << 20, seconds=0.1, bus_bytes_per_s=4.05e11, spread_share=0.01)


def with_link(limits: Limits, **changes: object) -> Limits:
    middle, slow = judged(PAIRS)
    link = RanksLink(
        backend="nccl",
        ranks=4,
        members=tuple(f"GPU {at}" for at in range(4)),
        bus_bytes_per_s=4.05e11,
        small_s=1.8e-5,
        sizes=(SIZE,),
        pairs=PAIRS,
        pair_median_bytes_per_s=middle,
        slow_pairs=slow,
        took_s=9.0,
    )
    assert limits.rated is not None
    rated = dataclasses.replace(limits.rated, gpu_link="NVLink 4", gpu_link_one_way_bytes_per_s=4.5e11)
    return dataclasses.replace(limits, rated=rated, link=dataclasses.replace(link, **changes))  # type: ignore[arg-type]


def test_the_link_stands_beside_its_rated_figure_and_the_slow_pair_is_named(limits: Limits) -> None:
    text = drawn(with_link(limits), width=160)
    assert "Between 4 GPUs" in text
    assert "405 GB/s, 90 % of 450 GB/s (NVLink 4, rated, one way)" in text
    assert "128 MiB: 405 GB/s" in text
    assert "18.0 us" in text
    assert "SLOW: GPU 3 to GPU 1: 90.0 GB/s, 73 % below the median" in text
    assert text.count("SLOW") == 1


def test_a_share_above_the_whole_is_never_printed(limits: Limits) -> None:
    text = drawn(with_link(limits, bus_bytes_per_s=4.8e11), width=160)
    assert "480 GB/s, above 450 GB/s" in text
    assert "107 %" not in text


def test_what_failed_is_told_with_its_reason(limits: Limits) -> None:
    why = "rank 1 (GPU 1) died of signal 11"
    failed = with_link(
        limits,
        bus_bytes_per_s=None,
        small_s=None,
        sizes=(),
        pairs=(),
        slow_pairs=(),
        pair_median_bytes_per_s=None,
        unknown=dict.fromkeys(("bus_bytes_per_s", "small_s", "pair_median_bytes_per_s"), why),
    )
    assert drawn(failed).count(f"not measured: {why}") == 1
    assert f"not measured: {why}" in html.unescape(limits_page(failed))


def test_processes_are_not_taken_for_gpus_nor_compared_with_their_rated_link(limits: Limits) -> None:
    text = drawn(with_link(limits, backend="gloo"), width=160)
    assert "Between 4 processes over gloo: the host's memory and network, no GPU's link" in text
    assert "rated, one way" not in text
    assert "flatout fit" not in text


@pytest.mark.parametrize("width", [20, 60, 120])
def test_every_width_is_readable_in_ascii(limits: Limits, width: int) -> None:
    text = drawn(with_link(limits), width, "ascii")
    assert max(map(len, text.splitlines())) <= width
    assert "405 GB/s" in " ".join(text.split())


def test_the_page_has_every_pair_and_names_from_outside_are_inert(limits: Limits) -> None:
    page = limits_page(with_link(limits, members=(EVIL, "GPU 1", "GPU 2", "GPU 3")))
    assert page.count("330 GB/s</td>") == len(PAIRS) - 1
    assert "<strong>90.0 GB/s</strong>" in page
    assert "<script" not in page
    assert not [attrs for _, attrs in parsed(page).tags if "onload" in attrs]
