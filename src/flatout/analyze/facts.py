"""What a profile showed of a job, as levers and findings need to know it."""

from collections.abc import Mapping, Sequence
from typing import Any

from flatout.analyze.profile import Peaks
from flatout.levers.job import JobFacts
from flatout.records.profile import Profile

# What a cross entropy is made of.
_LOSS = ("aten::_log_softmax", "aten::_log_softmax_backward_data", "aten::nll_loss")


# Of a rated peak: what products of 8192 in a square were measured to reach on an H200 (75 to 84 %, by dtype).
_REACHED = 0.8


def job_facts(profile: Profile, about: Mapping[str, Any], peaks: Peaks) -> JobFacts:
    """From the baseline's profile, what its session learned, and the device's peaks."""
    habits = dict(about.get("habits") or {})
    step_ms = profile.step_ms.p50 if profile.step_ms is not None else 0.0
    habits["collector_share"] = profile.collector_ms / step_ms if step_ms else 0.0
    counted = about.get("flops") or {}
    habits["operators"] = counted.get("operators")
    habits["attention_shape"] = counted.get("attention") or ()
    habits["attention_calls"] = habits.get("attention_calls") or counted.get("attentions") or 0
    habits["loss_bytes"] = _loss_bytes(counted.get("moves") or ())
    if peaks.limits is not None:
        habits["bytes_per_s"] = peaks.limits.measured.memory_bytes_per_s
    habits["allocation_retries"] = profile.memory.allocation_retries
    capability = habits.get("capability")
    use = profile.device_use
    by_dtype: dict[str, float] = {}
    if peaks.rated is not None:
        by_dtype.update((dtype, _REACHED * rate) for dtype, rate in peaks.rated.dense_flops_per_s.items())
    if peaks.limits is not None:
        by_dtype.update(peaks.limits.measured.matmul_flops_per_s.items())
    host = {share.part: share.share for share in profile.host}
    waterfall = {share.part: share.share for share in profile.waterfall}
    return JobFacts(
        device=profile.device or "cpu",
        capability=(capability[0], capability[1]) if capability else None,
        step_ms=step_ms,
        host_shares=host | {"input_wait": waterfall.get("input_wait", host.get("input", 0.0))},
        device_shares={share.part: share.share for share in profile.device_parts},
        busy_share=use.kernel_running_share,
        flops_per_step=_of_one_device(profile),
        peaks=by_dtype,
        micro_batches=profile.micro_batches,
        habits=habits,
        loaders=tuple(loader.settings for loader in profile.loaders),
        ranks=len(profile.ranks),
    )


def _of_one_device(profile: Profile) -> float | None:
    """Operations of a step on each of the devices, whose peak they are held against."""
    of_all = profile.mfu.flops_per_step
    return of_all / max(1, len(profile.ranks)) if of_all is not None else None


def _loss_bytes(moves: Sequence[Any]) -> int:
    """What the softmax of a loss reads and writes in a step, forward and backward."""
    return sum(moved * calls for name, _, moved, _, calls in moves if name.startswith(_LOSS))
