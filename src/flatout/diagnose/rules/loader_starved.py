"""The training loop waits for its DataLoader.

The device has nothing to do meanwhile. Seen by the time that the loop spends in the loader's `next`, on the
device's own clock where there is one. The gain is what Amdahl's law gives when nearly all of the wait goes
away; more workers give that as long as there are cores, faster loading code always. Where settings were tried
in the job itself, the gain is what the best of them measured, and there is no finding where none was faster.
It can be wrong for a loader that is slow only in the first batches of an epoch: such steps are not steady,
and not counted.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen, without
from flatout.records.finding import Finding
from flatout.records.profile import LoaderSweep

_ADVICE = "flatout tune tries the DataLoader's settings; flatout profile --loader shows them all"


def look(seen: Seen) -> Finding | None:
    """Wait over the policy's share."""
    share = seen.share("input_wait")
    if share < policy.WAITS_FOR_DATA:
        return None
    sweep = seen.profile.loader_sweep
    if sweep is not None and sweep.best is None and _rates(sweep):
        return None
    loader = max(seen.profile.loaders, key=lambda one: one.wait_ms, default=None)
    evidence = f"{share:.0%} of a step passes waiting for data"
    if loader is not None:
        workers = loader.settings.get("num_workers")
        evidence += f": {loader.wait_ms:.1f} ms for a batch of {loader.data_set}, with {workers} workers"
        if loader.load_ms is not None:
            evidence += f"; making one takes {loader.load_ms + (loader.collate_ms or 0.0):.1f} ms"
    speedup, arithmetic = without(share)
    fix = _ADVICE
    if sweep is not None:
        why = next((row.reason for row in sweep.rows if row.reason), sweep.reason)
        fix = f"no other setting of the loader could be measured ({why}): less work for each sample"
        rates = _rates(sweep)
        if sweep.best is not None and rates:
            before, after = rates
            speedup = after / before
            arithmetic = f"measured: {after:,.0f} / {before:,.0f} samples a second = {speedup:.2f}"
            fix = f"DataLoader(..., {', '.join(f'{name}={value}' for name, value in sweep.best.items())})"
    return RULE.finding(evidence, fix, speedup=speedup, arithmetic=arithmetic)


def _rates(sweep: LoaderSweep) -> tuple[float, float] | None:
    """Samples a second as it was, which comes first, and with the fastest other setting, if known."""
    before, *others = (row.samples_per_s for row in sweep.rows) if sweep.rows else (None,)
    after = max((rate for rate in others if rate), default=None)
    return (before, after) if before and after is not None else None


RULE = Rule("F101", "the loop waits for data", look, ("loader",), needs_only_a_trace=True)
