"""The link that `fit --gpus` reckons with: given, measured on this machine, or rated."""

import dataclasses
from pathlib import Path

import pytest

from flatout.hardware.catalogue import select
from flatout.limits.measure import torch_version
from flatout.limits.store import LimitsStore
from flatout.memory.linking import Links
from flatout.memory.planning import Budget
from flatout.records.link import RanksLink
from tests.unit.limits.test_store import GPU, some_limits
from tests.unit.memory.test_planning import Given

SECOND = dataclasses.replace(GPU, index=1, uuid="GPU-2")
[H200] = select(["h200-sxm"])
[T4] = select(["t4"])


@pytest.fixture
def store(tmp_path: Path) -> LimitsStore:
    return LimitsStore(tmp_path)


def keep(store: LimitsStore, *, ranks: int = 8, bus: float | None = 4e11, backend: str = "nccl") -> None:
    link = RanksLink(
        backend=backend,  # type: ignore[arg-type]
        ranks=ranks,
        members=tuple(f"GPU {at}" for at in range(ranks)),
        bus_bytes_per_s=bus,
        took_s=1.0,
    )
    store.save(SECOND, dataclasses.replace(some_limits(torch_version()), link=link, link_reason=""))


def link_of(
    store: LimitsStore, budget: Budget = H200, gpus: int = 8, given: float | None = None
) -> tuple[float | None, str]:
    found = Links(gpus, given, devices=(GPU, SECOND), store=store).link_for(budget)
    return found.bytes_per_s, found.source


def test_what_was_measured_between_this_machines_cards_comes_before_what_is_rated(store: LimitsStore) -> None:
    keep(store)
    assert link_of(store) == (4e11, "measured between 8 on this machine, 2026-11-15")
    assert link_of(store, gpus=4)[0] == 4e11


def test_what_is_given_comes_before_all(store: LimitsStore) -> None:
    keep(store)
    assert link_of(store, given=1e9) == (1e9, "given")


def test_another_card_is_rated(store: LimitsStore) -> None:
    keep(store)
    assert link_of(store, T4) == (T4.host_link_bytes_per_s, f"{T4.host_link}, rated")


def test_more_gpus_than_were_measured_are_another_machine(store: LimitsStore) -> None:
    keep(store, ranks=2)
    assert H200.gpu_link_bytes_per_s is not None
    rate, source = link_of(store)
    assert rate == H200.gpu_link_bytes_per_s / 2
    assert source == f"{H200.gpu_link}, rated; measured here between 2 alone"


@pytest.mark.parametrize("kept", [{"bus": None}, {"backend": "gloo"}])
def test_a_link_that_failed_or_was_of_the_host_does_not_count(store: LimitsStore, kept: dict) -> None:
    keep(store, **kept)
    assert link_of(store)[1] == f"{H200.gpu_link}, rated"


def test_nothing_kept_or_a_damaged_file_leaves_the_rated_figure(store: LimitsStore) -> None:
    assert link_of(store)[1] == f"{H200.gpu_link}, rated"
    keep(store)
    store.path_for(SECOND, torch_version()).write_bytes(b"{")
    assert link_of(store)[1] == f"{H200.gpu_link}, rated"


def test_so_much_memory_on_whatever_gpu_has_no_link(store: LimitsStore) -> None:
    keep(store)
    assert link_of(store, Given("24 GiB", 24 << 30)) == (None, "")
