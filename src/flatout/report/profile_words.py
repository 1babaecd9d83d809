"""A profile in sentences, the same in a terminal and on a page."""

from flatout.records.profile import LoaderUse, Profile
from flatout.records.step import StepTimes
from flatout.records.words import flop_rate, memory_size, percent, three_digits
from flatout.report.figures import count, milliseconds, number
from flatout.report.plain import inert
from flatout.report.trial import shield_notes

# Below this, a floor is as good as reached.
_NO_HEADROOM = 1.02
# Fewer steps say nothing of how much they vary.
_ENOUGH_TO_SPREAD = 3
# Rates and parts are of the mean, which is worth a word where it is so far from the median.
_SKEWED = 1.1


def headlines(profile: Profile) -> list[str]:
    """What trains on what, and its pace."""
    name = profile.device_name or profile.device or "an unknown device"
    ranks = f", {len(profile.ranks)} ranks" if len(profile.ranks) > 1 else ""
    size = f", {count(profile.parameters)} parameters" if profile.parameters else ""
    roots = " + ".join(profile.roots) or "a model"
    optimizers = f", {' + '.join(profile.optimizers)}" if profile.optimizers else ""
    first = f"{roots}{size}{optimizers} on {name}{ranks}"
    step = profile.step_ms
    if step is None:
        return [first, f"{profile.updates} updates, too few for a step time"]
    pace = f"{milliseconds(step.p50)} a step ({spread(step, profile.steps)})"
    if profile.samples_per_s is not None:
        pace += f", {number(profile.samples_per_s)} samples/s"
    if profile.tokens_per_s is not None:
        pace += f", {number(profile.tokens_per_s)} tokens/s"
    return [first, pace]


def spread(step: StepTimes, steps: int) -> str:
    """How sure the median is, and what the mean is where a few steps are far longer than the others."""
    if steps < _ENOUGH_TO_SPREAD:
        return f"of {steps} steps" if steps > 1 else "of one step"
    half = milliseconds((step.high - step.low) / 2)
    mean = f"; mean {milliseconds(step.mean)}" if step.mean > _SKEWED * step.p50 else ""
    return f"± {half}; 95 % under {milliseconds(step.p95)}{mean}"


def floors_line(profile: Profile) -> str:
    """How fast a step could be at the device's limits, or why that is unknown."""
    floors, step = profile.floors, profile.step_ms
    if floors.as_written_ms is None or floors.fused_ms is None:
        missing = "as_written_ms" if floors.as_written_ms is None else "fused_ms"
        return f"floors: unknown ({floors.unknown[missing]})"
    found = []
    for words, ms in (("as written", floors.as_written_ms), ("ideally fused", floors.fused_ms)):
        faster = headroom(step.p50, ms) if step is not None else ""
        found.append(f"{milliseconds(ms)} {words}" + (f" ({faster})" if faster else ""))
    return f"floors: at the device's limits a step takes {', '.join(found)}"


def headroom(step_ms: float, floor_ms: float) -> str:
    """How much faster a step at its floor would be."""
    if not floor_ms > 0 or not step_ms > 0:
        return ""
    ratio = step_ms / floor_ms
    return f"{three_digits(ratio)}x faster" if ratio >= _NO_HEADROOM else "where it is"


def mfu_lines(profile: Profile) -> list[str]:
    """How much of the peak it reaches, or why that is unknown."""
    mfu = profile.mfu
    if mfu.flops_per_step is None or profile.step_ms is None:
        return [f"MFU: unknown ({mfu.reason})"]
    rate = flop_rate(mfu.flops_per_step / profile.step_ms.mean * 1000)
    parts = []
    if mfu.of_rated is not None and mfu.rated_flops_per_s is not None:
        parts.append(f"{percent(mfu.of_rated)} of the rated {mfu.peak_dtype} peak")
    if mfu.of_measured is not None and mfu.measured_flops_per_s is not None:
        peak = flop_rate(mfu.measured_flops_per_s)
        which = "one" if parts else f"{mfu.peak_dtype} peak"
        parts.append(f"{percent(mfu.of_measured)} of the measured {which} ({peak})")
    said = ", ".join(parts) or f"unknown ({mfu.unknown.get('of_measured', mfu.reason)})"
    lines = [f"MFU: {said}; {rate} of model work, {count(mfu.flops_per_step)} operations a step"]
    if mfu.typical and mfu.of_rated is not None:
        lines.append(f"     {mfu.typical}")
    if mfu.recomputed_flops_per_step:
        lines.append(f"     recomputed beside it: {count(mfu.recomputed_flops_per_step)} operations a step")
    if mfu.uncounted_operators:
        names = ", ".join(sorted(mfu.uncounted_operators)[:5])
        lines.append(f"     too low if these do model work, for they have no formula: {names}")
    return lines


def memory_lines(profile: Profile) -> list[str]:
    """The peak, and who holds it."""
    memory = profile.memory
    parts = [
        f"{word} {memory_size(size)}"
        for word, size in (
            ("parameters", memory.parameter_bytes),
            ("gradients", memory.gradient_bytes),
            ("optimizer", memory.optimizer_bytes),
            ("activations and the rest", memory.activation_bytes),
        )
        if size is not None
    ]
    held = f": {', '.join(parts)}" if parts else ""
    if memory.allocated_peak_bytes is not None and memory.reserved_peak_bytes is not None:
        total = f" of {memory_size(memory.device_total_bytes)}" if memory.device_total_bytes else ""
        peak = f"{memory_size(memory.allocated_peak_bytes)} at most"
        reserved = f"{memory_size(memory.reserved_peak_bytes)} reserved"
        lines = [f"memory: {peak} ({reserved}{total}){held}"]
        if memory.device_total_bytes and memory.reserved_peak_bytes > 0.9 * memory.device_total_bytes:
            lines.append("        more than 90 % of the device is taken: a longer batch may not fit")
        if memory.allocation_retries:
            lines.append(f"        the allocator had to flush its cache {memory.allocation_retries} times")
        return lines
    if memory.host_peak_bytes is not None:
        return [f"memory: the process held {memory_size(memory.host_peak_bytes)} at most{held}"]
    return []


def device_lines(profile: Profile) -> list[str]:
    """What the device's own counters said."""
    use = profile.device_use
    if not use.samples:
        return []
    parts = [
        f"{words} {percent(value)}"
        for words, value in (
            ("some kernel ran", use.kernel_running_share),
            ("SMs active", use.sm_active_share),
            ("tensor cores active", use.tensor_active_share),
            ("memory bandwidth", use.memory_bandwidth_share),
        )
        if value is not None
    ]
    if use.clock_compute_hz is not None:
        parts.append(f"{use.clock_compute_hz // 10**6} MHz")
    if use.power_draw_mw is not None:
        parts.append(f"{use.power_draw_mw / 1000:.0f} W")
    if use.throttle_reasons:
        parts.append(f"held down by {', '.join(use.throttle_reasons)}")
    source = f" ({use.source})" if use.source else ""
    return [f"device{source}: {', '.join(parts)}"]


def loader_line(loader: LoaderUse) -> str:
    """One loader: its settings, and what it costs."""
    settings = loader.settings
    size = settings.get("batch_size")
    batches = f"batch {size}" if size is not None else "batches of the script's own making"
    text = f"loader: {inert(loader.data_set.rpartition('.')[2])}, {batches}, "
    text += f"{settings.get('num_workers')} workers"
    text += ", pinned" if settings.get("pin_memory") else ""
    text += f"; the loop waits {milliseconds(loader.wait_ms)} a batch"
    if loader.load_ms is not None and loader.collate_ms is not None:
        load, collate = milliseconds(loader.load_ms), milliseconds(loader.collate_ms)
        text += f"; making one takes {load} to load and {collate} to collate"
    if loader.workers_busy_share is not None:
        text += f"; workers busy {percent(loader.workers_busy_share)} of the time"
    return text


def notes(profile: Profile) -> list[str]:
    """What to make of the figures."""
    found = [profile.disturbance] if profile.disturbance else []
    if profile.steady:
        clock = (
            "device events" if profile.step_ms and profile.step_ms.clock == "device" else "the host's clock"
        )
        steady = f"steady from step {profile.steady_from} ({profile.steady_reason})"
        found.append(f"{profile.steps} of {profile.updates} steps, {steady}, timed by {clock}")
    else:
        found.append(f"not steady yet: {profile.steady_reason}; take the figures with care")
    if profile.pace_shifted_at is not None:
        found.append(
            f"the pace shifted at step {profile.pace_shifted_at}: the job's own doing, or the machine's"
        )
    if profile.micro_batches > 1.01:
        found.append(f"{three_digits(profile.micro_batches)} micro-batches a step")
    if profile.skipped_updates:
        found.append(f"{profile.skipped_updates} updates were skipped by the GradScaler")
    compiled = profile.compile
    if compiled.compiles:
        again = f", {compiled.recompiles} of them again" if compiled.recompiles else ""
        found.append(f"compiled {compiled.compiles} times{again}, in {compiled.compile_s:.1f} s")
    if compiled.graph_breaks:
        worst = max(compiled.graph_breaks, key=compiled.graph_breaks.__getitem__)
        found.append(f"{sum(compiled.graph_breaks.values())} graph breaks; most often: {worst}")
    found += [f"{name} was not watched: {why}" for name, why in sorted(profile.trial.failed_taps.items())]
    trial = profile.trial
    if trial.outcome in ("failed", "killed", "silent"):
        left = f"exit code {trial.exit_code}" if trial.exit_code is not None else "it was cut short"
        how = {"failed": left, "killed": f"signal {trial.signal}", "silent": "it hung, and was ended"}
        said = trial.culprit or (trial.said[-1] if trial.said else "it said nothing")
        found.append(f"THE SCRIPT DID NOT END WELL ({how[trial.outcome]}): {said}")
    return found + shield_notes(trial)
