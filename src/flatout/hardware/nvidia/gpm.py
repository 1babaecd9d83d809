"""Streaming-multiprocessor and tensor-core activity from NVML's GPM counters (Hopper and newer).

GPM counts between two samples, so the first reading of a device has nothing to compare with.
"""

import math
import time
from collections.abc import Callable
from typing import Any

_METRICS: dict[str, int] = {
    "sm_active_share": 2,
    "sm_occupancy_share": 3,
    "tensor_active_share": 5,
    "memory_bandwidth_share": 10,
}
FIELDS = tuple(_METRICS)


class GpmReader:
    """Keeps the last GPM sample of one device and turns the next one into shares."""

    def __init__(self, library: Any, handle: Any, now_s: Callable[[], float] = time.monotonic) -> None:
        self._library = library
        self._handle = handle
        self._now_s = now_s
        self._previous: Any = None
        self._shares: dict[str, float] = {}
        self._compared_at_s = -math.inf
        support = library.nvmlGpmQueryDeviceSupport(handle)
        self.supported = bool(support.isSupportedDevice)

    @property
    def ready(self) -> bool:
        """Whether there is a sample to compare the next one with."""
        return self._previous is not None

    def read(self, *, at_most_every_s: float = 0.0) -> dict[str, float]:
        """Shares since the call before, or nothing at the first one; those of before where it is too soon."""
        if self._shares and self._now_s() - self._compared_at_s < at_most_every_s:
            return self._shares
        sample = self._library.nvmlGpmSampleAlloc()
        try:
            self._library.nvmlGpmSampleGet(self._handle, sample)
            shares = self._compare(self._previous, sample) if self._previous is not None else {}
        except self._library.NVMLError:
            self._library.nvmlGpmSampleFree(sample)
            raise
        self._drop()
        self._previous, self._shares, self._compared_at_s = sample, shares, self._now_s()
        return shares

    def close(self) -> None:
        """Free the sample that is still held."""
        self._drop()

    def _drop(self) -> None:
        if self._previous is not None:
            self._library.nvmlGpmSampleFree(self._previous)
            self._previous, self._shares = None, {}

    def _compare(self, first: Any, second: Any) -> dict[str, float]:
        request = self._library.c_nvmlGpmMetricsGet_t()
        request.version = self._library.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_METRICS)
        request.sample1, request.sample2 = first, second
        for position, metric in enumerate(_METRICS.values()):
            request.metrics[position].metricId = metric
        self._library.nvmlGpmMetricsGet(request)
        return {
            field: request.metrics[position].value / 100
            for position, field in enumerate(_METRICS)
            if request.metrics[position].nvmlReturn == 0 and 0 <= request.metrics[position].value <= 100
        }
