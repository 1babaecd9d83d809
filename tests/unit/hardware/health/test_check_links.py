"""PCIe below what the card can do, and NVLinks that are down."""

import pytest

from flatout.records.device import GpuLink
from flatout.records.machine import Machine
from tests.fakes.machines import healthy_h200, with_device, with_sample, without_gpu
from tests.unit.hardware.health.looking import look, only


def linked(*active: bool) -> Machine:
    links = tuple(GpuLink(link=number, active=up) for number, up in enumerate(active))
    return with_sample(healthy_h200(), gpu_links=links)


# --- link.pcie --------------------------------------------------------------------------------------------


def test_a_card_on_half_its_lanes_warns_even_when_idle() -> None:
    result = only("link.pcie", with_sample(healthy_h200(), pcie_width=8, kernel_running_share=0.0))

    assert (result.status, result.device_index) == ("warn", 0)
    assert "8 lanes: the card can do 16 lanes" in result.evidence
    assert result.fix.startswith("nvidia-smi -q -d PCIE ")


def test_a_low_generation_under_load_warns() -> None:
    result = only("link.pcie", with_sample(healthy_h200(), pcie_generation=3, kernel_running_share=0.2))

    assert result.status == "warn"
    assert "generation 3" in result.evidence
    assert "generation 5" in result.evidence


def test_a_low_generation_of_an_idle_gpu_is_how_it_saves_power() -> None:
    result = only("link.pcie", with_sample(healthy_h200(), pcie_generation=1, kernel_running_share=0.19))

    assert result.status == "ok"
    assert "idle" in result.evidence


def test_a_low_generation_is_not_called_idle_when_the_load_is_not_known() -> None:
    result = only("link.pcie", with_sample(healthy_h200(), pcie_generation=1, kernel_running_share=None))

    assert result.status == "unknown"
    assert "generation 5" in result.evidence


def test_a_full_link_is_fine_whatever_the_load() -> None:
    machine = with_sample(healthy_h200(), kernel_running_share=None)

    result = only("link.pcie", machine)

    assert (result.status, result.evidence) == ("ok", "PCIe generation 5, 16 lanes")


def test_a_width_that_cannot_be_read_is_unknown_with_the_drivers_reason() -> None:
    machine = with_sample(healthy_h200(), pcie_width=None, unknown={"pcie_width": "not supported"})

    result = only("link.pcie", machine)

    assert (result.status, result.evidence) == ("unknown", "not supported")


@pytest.mark.parametrize(
    "machine",
    [
        with_sample(healthy_h200(), pcie_generation=None),
        with_device(healthy_h200(), pcie_generation_max=None),
        with_device(healthy_h200(), pcie_width_max=None),
    ],
)
def test_half_a_comparison_is_unknown(machine: Machine) -> None:
    assert only("link.pcie", machine).status == "unknown"


def test_other_vendors_mig_instances_and_lost_gpus_without_a_width_stay_silent() -> None:
    blind = with_sample(healthy_h200(), pcie_width=None)
    assert look("link.pcie", with_device(blind, vendor="apple")) == []
    assert look("link.pcie", with_device(blind, parent_uuid="GPU-parent")) == []
    assert look("link.pcie", with_sample(blind, state="down")) == []
    assert look("link.pcie", without_gpu()) == []


# --- link.nvlink ------------------------------------------------------------------------------------------


def test_one_link_down_warns_with_the_count() -> None:
    result = only("link.nvlink", linked(*[True] * 17, False))

    assert (result.status, result.device_index) == ("warn", 0)
    assert result.evidence == "17 of 18 links are up"
    assert result.fix.startswith("nvidia-smi nvlink --status -i 0 ")


def test_all_links_up_is_fine() -> None:
    assert only("link.nvlink", healthy_h200()).evidence == "all 18 links are up"


def test_a_card_without_bridge_or_switch_is_no_fault() -> None:
    result = only("link.nvlink", linked(False, False))

    assert result.status == "ok"
    assert "none of 2 links" in result.evidence


@pytest.mark.parametrize("links", [None, ()])
def test_without_link_readings_nothing_is_said(links: tuple[GpuLink, ...] | None) -> None:
    assert look("link.nvlink", with_sample(healthy_h200(), gpu_links=links)) == []
