"""The shipped figures: plausible, dense, and found for the right device only."""

import datetime as dt

import pytest

from flatout.hardware.catalogue import catalogue, price_table, rated_for, select
from flatout.records.device import Device
from flatout.records.errors import UnknownName
from flatout.records.rated import RatedGpu

GIB = 1 << 30
SINCE_AMPERE = {"ampere", "ada", "hopper", "blackwell", "blackwell-ultra"}
ENTRIES = catalogue()
MODERN = [
    entry
    for entry in ENTRIES
    if entry.vendor == "nvidia" and entry.segment == "datacenter" and entry.architecture in SINCE_AMPERE
]

every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)


def device_of(entry: RatedGpu, name: str) -> Device:
    """A device as its driver would report an entry's card."""
    return Device(
        index=0,
        vendor=entry.vendor,
        name=name,
        memory_total_bytes=entry.memory_bytes,
        core_count=entry.match_cores,
    )


def rated(name: str, memory_bytes: int | None = None, **more: object) -> str | None:
    device = Device(index=0, vendor="nvidia", name=name, memory_total_bytes=memory_bytes, **more)
    found = rated_for(device)
    return found.id if found else None


def test_the_catalogue_loads_with_unique_ids() -> None:
    ids = [entry.id for entry in ENTRIES]
    assert len(ids) == len(set(ids)) > 100
    assert {entry.vendor for entry in ENTRIES} == {"nvidia", "amd", "apple", "intel"}


@every_entry
def test_every_name_leads_to_its_own_entry_and_no_other(entry: RatedGpu) -> None:
    assert entry.matches
    for name in entry.matches:
        assert rated_for(device_of(entry, name)) == entry


@every_entry
def test_rates_and_bandwidths_are_plausible(entry: RatedGpu) -> None:
    assert 5e10 <= entry.memory_bandwidth_bytes_per_s <= 2e13
    assert 2**31 <= entry.memory_bytes <= 2**40
    for dtype, rate in entry.dense_flops_per_s.items():
        assert 1e10 < rate < 2e16, dtype
    assert entry.source_url.startswith("https://")
    assert 2015 <= entry.released <= 2030


def test_there_are_modern_data_centre_cards_to_look_at() -> None:
    assert {"h200-sxm", "b200-sxm", "a100-80gb-sxm", "l40s"} <= {entry.id for entry in MODERN}


@pytest.mark.parametrize("entry", MODERN, ids=lambda entry: entry.id)
def test_no_figure_is_a_sparse_one(entry: RatedGpu) -> None:
    rates = entry.dense_flops_per_s
    assert rates["fp16"] == rates["bf16"]
    assert rates["fp16"] <= 2.05 * rates["tf32"]
    if "fp8" in rates:
        assert rates["fp8"] <= 2.05 * rates["fp16"]


@pytest.mark.parametrize(
    ("entry_id", "dtype", "dense"),
    [("h200-sxm", "bf16", 989.4e12), ("h100-80gb-sxm", "fp8", 1978.9e12), ("a100-80gb-sxm", "tf32", 156e12)],
)
def test_well_known_figures_are_the_dense_ones(entry_id: str, dtype: str, dense: float) -> None:
    (entry,) = select([entry_id])
    assert entry.dense_flops_per_s[dtype] == pytest.approx(dense, rel=0.01)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("Tesla V100-SXM2-16GB", "v100-16gb-sxm"),
        ("Tesla V100-SXM2-32GB", "v100-32gb-sxm"),
    ],
)
def test_an_exact_name_leads_to_its_entry(name: str, expected: str) -> None:
    assert rated(name) == expected


@pytest.mark.parametrize(
    ("name", "memory_bytes", "expected"),
    [
        ("NVIDIA GeForce RTX 4060 Ti", 16 * GIB, "rtx4060ti-16gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 8 * GIB, "rtx4060ti-8gb"),
        ("NVIDIA GeForce RTX 3080", 12 * GIB, "rtx3080-12gb"),
        ("NVIDIA GeForce RTX 3080", 10 * GIB, "rtx3080-10gb"),
        ("NVIDIA GeForce RTX 3080", None, None),
    ],
)
def test_cards_of_one_name_are_told_apart_by_their_memory(
    name: str, memory_bytes: int | None, expected: str | None
) -> None:
    assert rated(name, memory_bytes) == expected


@pytest.mark.parametrize(
    ("cores", "expected"), [(40, "m3-max-40"), (30, "m3-max-30"), (31, None), (None, None)]
)
def test_chips_of_one_name_are_told_apart_by_their_cores(cores: int | None, expected: str | None) -> None:
    found = rated_for(Device(index=0, vendor="apple", name="Apple M3 Max", core_count=cores))
    assert (found.id if found else None) == expected


@pytest.mark.parametrize(
    "name", ["", "NVIDIA", "NVIDIA H200 ", "nvidia h200", "NVIDIA H2000", "NVIDIA H200 MIG 1g.18gb"]
)
def test_a_name_that_is_not_in_the_catalogue_has_no_peak(name: str) -> None:
    assert rated(name) is None


def test_the_name_of_one_vendor_is_not_looked_up_for_another() -> None:
    assert rated_for(Device(index=0, vendor="amd", name="NVIDIA H200")) is None


def test_a_mig_instance_has_no_rated_peak() -> None:
    assert rated("NVIDIA H200", parent_uuid="GPU-parent") is None
    assert rated("NVIDIA H200") == "h200-sxm"


def test_select_without_names_is_everything() -> None:
    assert select([]) == list(ENTRIES)


def test_select_takes_an_exact_id_alone_even_when_others_begin_with_it() -> None:
    assert [entry.id for entry in select(["rtx-pro-6000"])] == ["rtx-pro-6000"]


def test_select_takes_every_id_that_begins_with_a_name() -> None:
    found = [entry.id for entry in select(["a100"])]
    assert set(found) == {"a100-80gb-sxm", "a100-40gb-sxm", "a100-80gb-pcie", "a100-40gb-pcie"}


def test_select_ignores_case_and_lists_nothing_twice() -> None:
    assert [entry.id for entry in select(["H200-SXM", "h200-sxm", "h200"])] == ["h200-sxm", "h200-nvl"]


def test_select_refuses_an_unknown_name_and_offers_the_nearest() -> None:
    with pytest.raises(UnknownName) as refused:
        select(["h200", "h201-sxm"])
    assert refused.value.exit_code == 2
    assert refused.value.remedy == "did you mean 'h200-sxm'?"


def test_the_shipped_prices_load_and_every_gpu_exists() -> None:
    table = price_table(environment={})
    known = {entry.id for entry in ENTRIES}
    assert table.price
    assert {row.gpu for row in table.price} <= known
    assert table.as_of > dt.date(2025, 1, 1)
    for row in table.price:
        assert 0.01 < row.usd_per_gpu_hour < 100, row
        assert row.source_url.startswith("https://")


def test_the_cheapest_price_of_a_gpu_is_found_and_none_is_made_up() -> None:
    table = price_table(environment={})
    offers = [row.usd_per_gpu_hour for row in table.price if row.gpu == "h200-sxm"]
    cheapest = table.cheapest("h200-sxm")
    assert cheapest is not None
    assert cheapest.usd_per_gpu_hour == min(offers)
    assert table.cheapest("m1-7") is None
