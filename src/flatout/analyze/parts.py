"""Where the time of the steady steps went, as far as taps can tell; every table sums to 100 %.

On the host each instant has one owner. On a GPU the step is the time between two events at optimizer updates;
events at the borders of its parts split it. What a kernel-level trace would tell apart stays "unattributed".
"""

import statistics
from collections.abc import Sequence
from typing import Any

from flatout.analyze.steps import NS_PER_MS
from flatout.records.step import Share, StepTimes

_HOST = ("loader", "copy", "forward", "backward", "clipping", "optimizer")
_HOST_WORDS = {"loader": "input", "copy": "copies"}
_DEVICE = {
    "between": "before forward",
    "copy": "copies",
    "forward": "forward",
    "loss": "loss",
    "backward": "backward",
    "after_backward": "after backward",
    "optimizer": "optimizer",
}

Step = dict[str, Any]


def host_parts(steps: Sequence[Step]) -> tuple[Share, ...]:
    """What the launching thread did, in milliseconds a step."""
    total = sum(step["ended_ns"] - step["started_ns"] - step["evaluation_ns"] for step in steps)
    if total <= 0:
        return ()
    own = {_HOST_WORDS.get(name, name): sum(step[f"{name}_ns"] for step in steps) for name in _HOST}
    own["other"] = max(0, total - sum(own.values()))
    return _shares({name: ns / len(steps) / NS_PER_MS for name, ns in own.items()})


def device_parts(steps: Sequence[Step]) -> tuple[Share, ...]:
    """The device's time between events, in milliseconds a step, over the steps that had events inside."""
    detailed = [step for step in steps if step.get("device_parts_ms") and not step["evaluations"]]
    if not detailed:
        return ()
    means = _mean_parts(detailed)
    return _shares({word: means[name] for name, word in _DEVICE.items() if name in means})


def waterfall(steps: Sequence[Step], step: StepTimes | None, *, on_gpu: bool) -> tuple[Share, ...]:
    """The parts that the design names, in milliseconds of the mean step."""
    if step is None or not steps:
        return ()
    return _on_gpu(steps, step) if on_gpu else _on_cpu(steps)


def _on_cpu(steps: Sequence[Step]) -> tuple[Share, ...]:
    own = {share.part: share.ms for share in host_parts(steps)}
    if not own:
        return ()
    compute = own["copies"] + own["forward"] + own["backward"] + own["clipping"]
    return _shares(
        {
            "input_wait": own["input"],
            "optimizer": own["optimizer"],
            "host_compute": compute,
            "unattributed": own["other"],
        }
    )


def _on_gpu(steps: Sequence[Step], step: StepTimes) -> tuple[Share, ...]:
    detailed = [one for one in steps if one.get("device_parts_ms") and not one["evaluations"]]
    if not detailed:
        return _shares({"unattributed": step.mean})
    means = _mean_parts(detailed)
    scale = step.mean / sum(means.values()) if sum(means.values()) > 0 else 0.0
    waited = statistics.fmean(one["loader_ns"] / NS_PER_MS for one in detailed)
    # The device idles before a forward for as long as the loop waits, as far as its queue had run dry.
    found = {
        "input_wait": scale * min(means.get("between", 0.0), waited),
        "host_to_device": scale * means.get("copy", 0.0),
        "optimizer": scale * means.get("optimizer", 0.0),
    }
    found["unattributed"] = max(0.0, step.mean - sum(found.values()))
    return _shares(found)


def _mean_parts(detailed: Sequence[Step]) -> dict[str, float]:
    names = {name for one in detailed for name in one["device_parts_ms"]}
    return {
        name: statistics.fmean(one["device_parts_ms"].get(name, 0.0) for one in detailed) for name in names
    }


def _shares(parts: dict[str, float]) -> tuple[Share, ...]:
    total = sum(parts.values())
    return tuple(
        Share(part=name, ms=ms, share=ms / total if total > 0 else 0.0) for name, ms in parts.items()
    )
