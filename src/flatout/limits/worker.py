"""The child process that measures devices with torch and reports each stage on a pipe, as JSON lines.

A crash in a driver, an out-of-memory or a hang ends this process and not the user's command.
"""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from flatout.limits.host_link import measure_host_link
from flatout.limits.launch import graph_node_seconds, item_seconds, launch_seconds
from flatout.limits.matmul import (
    CPU_SHAPES,
    GPU_SHAPES,
    SUSTAINED_DTYPES,
    CannotMultiply,
    measure_dtype,
    sustained,
    why_not,
)
from flatout.limits.memory import measure_memory
from flatout.limits.timing import Stopwatch
from flatout.records.limits import MatmulResult, Measured
from flatout.records.rated import Dtype

_SUSTAIN_S = 0.8
_PARENT_CHECK_S = 0.5
_ONLY_ON_GPU = "the CPU is the host: there is no link to measure"


class DeviceOrder(msgspec.Struct, frozen=True):
    """One device to measure, and the precisions to try on it."""

    device: str
    dtypes: tuple[Dtype, ...]


class Measurement:
    """Collects one device's ceilings stage by stage; a stage that fails leaves its fields unknown."""

    def __init__(self, torch: Any, device: str, send: Callable[[dict[str, Any]], None]) -> None:
        self._torch = torch
        self._device = device
        self._watch = Stopwatch(torch, device)
        self._send = send
        self._matmuls: list[MatmulResult] = []
        self._best: dict[Dtype, float] = {}
        self._sustained: dict[Dtype, float] = {}
        self._fields: dict[str, float] = {}
        self._unknown: dict[str, str] = {}

    def run(self, dtypes: tuple[Dtype, ...]) -> None:
        """Every stage, then the result."""
        started = time.perf_counter()
        stages: list[tuple[str, Callable[[], None]]] = [
            ("launch cost", self._launch),
            ("host link", self._host_link),
            ("memory bandwidth", self._memory),
            *((f"{dtype} products", lambda d=dtype: self._matmul(d)) for dtype in dtypes),
            ("launch cost again", self._launch),
        ]
        for done, (name, stage) in enumerate(stages):
            self._send({"event": "stage", "name": name, "done": done, "total": len(stages)})
            stage()
            self._free()
        measured = Measured(
            matmul_flops_per_s=self._best,
            matmul_sustained_flops_per_s=self._sustained,
            unknown=self._unknown,
            **self._fields,
        )
        self._send(
            {
                "event": "done",
                "measured": measured,
                "matmuls": self._matmuls,
                "took_s": time.perf_counter() - started,
            }
        )

    def _matmul(self, dtype: Dtype) -> None:
        reason = why_not(self._torch, self._device, dtype)
        on_cpu = self._watch.on_cpu
        if reason:
            self._unknown[f"matmul_flops_per_s.{dtype}"] = reason
            return
        try:
            results = list(
                measure_dtype(
                    self._torch, self._device, self._watch, dtype, CPU_SHAPES if on_cpu else GPU_SHAPES
                )
            )
        except CannotMultiply as error:
            self._unknown[f"matmul_flops_per_s.{dtype}"] = str(error)
            return
        self._matmuls += results
        best = max(results, key=lambda result: result.flops_per_s)
        self._best[dtype] = best.flops_per_s
        if dtype in SUSTAINED_DTYPES and not on_cpu:
            with contextlib.suppress(RuntimeError):  # for example out of memory: the burst figure stands
                self._sustained[dtype] = sustained(self._torch, self._device, self._watch, best, _SUSTAIN_S)

    def _memory(self) -> None:
        names = ("memory_copy_bytes_per_s", "memory_read_bytes_per_s", "memory_triad_bytes_per_s")
        self._take((*names, "memory_bytes_per_s"), self._read_memory)

    def _read_memory(self) -> dict[str, float]:
        rates = dict(measure_memory(self._torch, self._device, self._watch))
        return {**rates, "memory_bytes_per_s": max(rates.values())}

    def _host_link(self) -> None:
        names = tuple(
            f"{way}_{kind}_bytes_per_s" for way in ("h2d", "d2h") for kind in ("pinned", "pageable")
        )
        if self._watch.on_cpu:
            self._unknown.update(dict.fromkeys(names, _ONLY_ON_GPU))
            return
        self._take(names, lambda: dict(measure_host_link(self._torch, self._device, self._watch)))

    def _launch(self) -> None:
        """Measured at the start and at the end: a busy moment of the host passes, and the lower one stays."""
        for field, read in (("launch_s", launch_seconds), ("item_s", item_seconds)):
            self._take((field,), partial(self._lower, field, read))
        if self._device.startswith("cuda"):
            self._take(("graph_node_s",), partial(self._lower, "graph_node_s", graph_node_seconds))
        else:
            self._unknown["graph_node_s"] = "graphs are CUDA's"

    def _lower(self, field: str, read: Callable[[Any, str, Stopwatch], float]) -> dict[str, float]:
        now = read(self._torch, self._device, self._watch)
        return {field: min(self._fields.get(field, math.inf), now)}

    def _take(self, names: tuple[str, ...], read: Callable[[], dict[str, float]]) -> None:
        try:
            self._fields.update(read())
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self._unknown.update(dict.fromkeys(names, lines[0]))
        # What another pass has measured stays known.
        for name in self._fields.keys() & self._unknown.keys():
            del self._unknown[name]

    def _free(self) -> None:
        kind = self._device.split(":", maxsplit=1)[0]
        if kind in ("cuda", "xpu", "mps"):
            getattr(self._torch, kind).empty_cache()


def measurable(torch: Any, device: str) -> str:
    """Why torch cannot use `device` here; empty when it can."""
    if device == "cpu":
        return ""
    kind = device.split(":", maxsplit=1)[0]
    module = torch.backends.mps if kind == "mps" else getattr(torch, kind)
    return "" if module.is_available() else f"torch {torch.__version__} cannot use {kind} here"


def follow_parent(parent: int) -> None:
    """End when the command that asked for this is gone, however it went: nobody would read the result."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)


def main(pipe: int, orders: list[DeviceOrder]) -> None:
    """Measure one device after the other and write JSON lines to the file descriptor `pipe`."""

    def send(event: dict[str, Any]) -> None:
        os.write(pipe, msgspec.json.encode(event) + b"\n")

    threading.Thread(target=follow_parent, args=(os.getppid(),), daemon=True).start()
    send({"event": "stage", "name": "import torch", "done": 0, "total": 0})
    import torch

    for order in orders:
        refusal = measurable(torch, order.device)
        if refusal:
            send({"event": "refused", "reason": refusal})
            return
        with torch.inference_mode():
            Measurement(torch, order.device, send).run(order.dtypes)


if __name__ == "__main__":
    main(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=list[DeviceOrder]))
