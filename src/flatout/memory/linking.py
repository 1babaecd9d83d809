"""Which figure stands for the link between GPUs: what was given, what was measured here, what is rated."""

import contextlib
from collections.abc import Sequence

from flatout.hardware.catalogue import rated_for
from flatout.hardware.machine import default_sources
from flatout.limits.measure import torch_version
from flatout.limits.store import LimitsStore
from flatout.memory.planning import Budget
from flatout.memory.spreading import Link
from flatout.records.device import Device
from flatout.records.errors import FlatoutError
from flatout.records.limits import Limits
from flatout.records.link import RanksLink
from flatout.records.rated import RatedGpu


class Links:
    """Answers for one kind of GPU after the other; this machine is looked at once."""

    def __init__(
        self,
        gpus: int,
        given_bytes_per_s: float | None = None,
        *,
        devices: Sequence[Device] | None = None,
        store: LimitsStore | None = None,
    ) -> None:
        self._gpus = gpus
        self._given = given_bytes_per_s
        self._devices = devices
        self._store = store or LimitsStore()

    def link_for(self, budget: Budget) -> Link:
        """The link between GPUs of a kind, and who says so."""
        if self._given is not None:
            return Link(self._given, "given")
        if not isinstance(budget, RatedGpu):
            return Link(None, "")
        measured = [found for device in self._own(budget) if (found := self._measured(device)) is not None]
        if not measured:
            return rated_link(budget)
        limits, link = max(measured, key=lambda one: (one[1].ranks, one[0].measured_at))
        if link.ranks < self._gpus or link.bus_bytes_per_s is None:
            # Another machine is meant than this one, and it may be wired otherwise.
            rated = rated_link(budget)
            return Link(rated.bytes_per_s, f"{rated.source}; measured here between {link.ranks} alone")
        day = limits.measured_at.strftime("%Y-%m-%d")
        return Link(link.bus_bytes_per_s, f"measured between {link.ranks} on this machine, {day}")

    def _own(self, gpu: RatedGpu) -> list[Device]:
        """This machine's cards of that kind."""
        if self._devices is None:
            self._devices = _devices_here()
        found = [(device, rated_for(device)) for device in self._devices]
        return [device for device, entry in found if entry is not None and entry.id == gpu.id]

    def _measured(self, device: Device) -> tuple[Limits, RanksLink] | None:
        # A file that cannot be read is no reason not to answer: the rated figure is there.
        with contextlib.suppress(FlatoutError):
            limits = self._store.load(device, torch_version())
            link = limits.link if limits is not None else None
            if limits is not None and link is not None and link.bus_bytes_per_s and link.backend == "nccl":
                return limits, link
        return None


def rated_link(gpu: RatedGpu) -> Link:
    """Between two of them, or through the host where they have no link of their own."""
    if gpu.gpu_link_bytes_per_s is not None:
        return Link(gpu.gpu_link_bytes_per_s / 2, f"{gpu.gpu_link}, rated")  # both directions together
    return Link(gpu.host_link_bytes_per_s, f"{gpu.host_link}, rated")


def _devices_here() -> list[Device]:
    sources = default_sources()
    try:
        return [device for source in sources for device in source.discover().devices]
    finally:
        for source in sources:
            source.close()
