"""`profile` for a terminal: the step, where it goes, how far from the limit, memory, the loader."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from flatout.records.profile import LoaderSweep, LoaderUse, Profile, Share
from flatout.records.words import flop_rate, memory_size, percent, three_digits
from flatout.report.findings import draw_findings
from flatout.report.plain import inert, is_narrow, line
from flatout.report.trial import shield_notes

_BAR = 30


def draw_profile(profile: Profile, console: Console) -> None:
    """Print it all; below 80 columns without bars."""
    for text in _headlines(profile):
        # A terminal without Unicode would show an escape for each sign.
        plain = text.replace("±", "+/-") if console.options.ascii_only else text
        console.print(line(plain, "bold"))
    console.print()
    if profile.device_parts:
        draw_parts("on the device", profile.device_parts, console)
    draw_parts("on the host", profile.host, console)
    if profile.evaluations and profile.evaluation_ms is not None:
        each = _ms(profile.evaluation_ms)
        console.print(line(f"evaluation, beside the steps: {profile.evaluations} times, {each} each"))
        console.print()
    for text in (*_mfu_lines(profile), *_memory_lines(profile), *_device_lines(profile)):
        console.print(line(text))
    for loader in profile.loaders:
        console.print(line(_loader_line(loader)))
    if profile.loader_sweep is not None:
        console.print()
        _draw_sweep(profile.loader_sweep, console)
    draw_findings(profile.findings, console)
    notes = _notes(profile)
    if notes:
        console.print()
    for note in notes:
        console.print(line(note, "dim"))


def _headlines(profile: Profile) -> list[str]:
    name = profile.device_name or profile.device or "an unknown device"
    ranks = f", {len(profile.ranks)} ranks" if len(profile.ranks) > 1 else ""
    size = f", {_count(profile.parameters)} parameters" if profile.parameters else ""
    roots = " + ".join(profile.roots) or "a model"
    first = f"{roots}{size}, {' + '.join(profile.optimizers)} on {name}{ranks}"
    step = profile.step_ms
    if step is None:
        return [first, f"{profile.updates} updates, too few for a step time"]
    half = (step.high - step.low) / 2
    pace = f"{_ms(step.p50)} a step (± {_ms(half)}; 95 % under {_ms(step.p95)})"
    if profile.samples_per_s is not None:
        pace += f", {_number(profile.samples_per_s)} samples/s"
    if profile.tokens_per_s is not None:
        pace += f", {_number(profile.tokens_per_s)} tokens/s"
    return [first, pace]


def draw_parts(title: str, parts: Sequence[Share], console: Console) -> None:
    """Parts of a step as a table with bars."""
    parts = [share for share in parts if share.ms > 0]
    if not parts:
        return
    if is_narrow(console):
        console.print(line(title, "dim"))
        for share in parts:
            console.print(line(f"{share.part}: {_ms(share.ms)} ({percent(share.share)})"))
        console.print()
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(title, no_wrap=True, min_width=15)
    table.add_column("a step", justify="right", min_width=8)
    table.add_column("", justify="right", min_width=6)
    table.add_column("")
    block = "#" if console.options.ascii_only else "█"
    for share in parts:
        bar = block * round(_BAR * share.share)
        table.add_row(inert(share.part), _ms(share.ms), percent(share.share), bar)
    console.print(table)
    console.print()


def _mfu_lines(profile: Profile) -> list[str]:
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
    lines = [f"MFU: {said}; {rate} of model work, {_count(mfu.flops_per_step)} operations a step"]
    if mfu.recomputed_flops_per_step:
        lines.append(f"     recomputed beside it: {_count(mfu.recomputed_flops_per_step)} operations a step")
    if mfu.uncounted_operators:
        names = ", ".join(sorted(mfu.uncounted_operators)[:5])
        lines.append(f"     too low if these do model work, for they have no formula: {names}")
    return lines


def _memory_lines(profile: Profile) -> list[str]:
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


def _device_lines(profile: Profile) -> list[str]:
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


def _loader_line(loader: LoaderUse) -> str:
    settings = loader.settings
    text = f"loader: {inert(loader.data_set.rpartition('.')[2])}, batch {settings.get('batch_size')}, "
    text += f"{settings.get('num_workers')} workers"
    text += ", pinned" if settings.get("pin_memory") else ""
    text += f"; the loop waits {_ms(loader.wait_ms)} a batch"
    if loader.load_ms is not None and loader.collate_ms is not None:
        text += f"; making one takes {_ms(loader.load_ms)} to load and {_ms(loader.collate_ms)} to collate"
    if loader.workers_busy_share is not None:
        text += f"; workers busy {percent(loader.workers_busy_share)} of the time"
    return text


def _draw_sweep(sweep: LoaderSweep, console: Console) -> None:
    rows = [
        (
            ", ".join(f"{name}={value}" for name, value in row.settings.items()) or "as written",
            f"{_number(row.samples_per_s)} samples/s" if row.samples_per_s is not None else row.outcome,
            f"waits {_ms(row.wait_ms)}" if row.wait_ms is not None else row.reason,
        )
        for row in sweep.rows
    ]
    if is_narrow(console):
        for cells in rows:
            console.print(line("; ".join(cells)))
    elif rows:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("loader settings")
        table.add_column("", justify="right", no_wrap=True)
        table.add_column("a step")
        for cells in rows:
            table.add_row(*map(inert, cells))
        console.print(table)
    best = sweep.best
    if best is None:
        console.print(line(f"keep the loader as it is: {sweep.reason}", "bold"))
    else:
        chosen = ", ".join(f"{name}={value}" for name, value in best.items())
        console.print(line(f"best: DataLoader(..., {chosen}): {sweep.reason}", "bold"))


def _notes(profile: Profile) -> list[str]:
    notes = []
    if profile.steady:
        clock = (
            "device events" if profile.step_ms and profile.step_ms.clock == "device" else "the host's clock"
        )
        steady = f"steady from step {profile.steady_from} ({profile.steady_reason})"
        notes.append(f"{profile.steps} of {profile.updates} steps, {steady}, timed by {clock}")
    else:
        notes.append(f"not steady yet: {profile.steady_reason}; take the figures with care")
    if profile.pace_shifted_at is not None:
        notes.append(
            f"the pace shifted at step {profile.pace_shifted_at}: the job's own doing, or the machine's"
        )
    if profile.micro_batches > 1.01:
        notes.append(f"{three_digits(profile.micro_batches)} micro-batches a step")
    if profile.skipped_updates:
        notes.append(f"{profile.skipped_updates} updates were skipped by the GradScaler")
    compiled = profile.compile
    if compiled.compiles:
        again = f", {compiled.recompiles} of them again" if compiled.recompiles else ""
        notes.append(f"compiled {compiled.compiles} times{again}, in {compiled.compile_s:.1f} s")
    if compiled.graph_breaks:
        worst = max(compiled.graph_breaks, key=compiled.graph_breaks.__getitem__)
        notes.append(f"{sum(compiled.graph_breaks.values())} graph breaks; most often: {worst}")
    notes += [f"{name} was not watched: {why}" for name, why in sorted(profile.trial.failed_taps.items())]
    trial = profile.trial
    if trial.outcome in ("failed", "killed", "silent"):
        left = f"exit code {trial.exit_code}" if trial.exit_code is not None else "it was cut short"
        how = {"failed": left, "killed": f"signal {trial.signal}", "silent": "it hung, and was ended"}
        said = trial.culprit or (trial.said[-1] if trial.said else "it said nothing")
        notes.append(f"THE SCRIPT DID NOT END WELL ({how[trial.outcome]}): {said}")
    return notes + shield_notes(trial)


def _ms(value: float) -> str:
    if value >= 1000:
        return f"{three_digits(value / 1000)} s"
    return f"{three_digits(value)} ms" if value >= 0.1 else f"{value * 1000:.0f} us"


def _number(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:,.0f}" if value >= 1000 else three_digits(value)


def _count(value: int) -> str:
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{three_digits(value / size)} {unit}"
    return str(value)
