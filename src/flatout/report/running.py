"""`run` for a terminal: a word before, and a few lines after the script's own."""

from collections.abc import Sequence

from rich.console import Console

from flatout.records.finite import Updates
from flatout.records.plan import Plan
from flatout.records.protection import Protected
from flatout.records.running import JobRun
from flatout.records.words import duration, memory_size, percent, three_digits
from flatout.report.cost_words import cost_lines, throttling_line
from flatout.report.plain import inert, line
from flatout.report.ranks import draw_ranks


def words_before(plan: Plan, differences: Sequence[str]) -> list[str]:
    """What is applied, and where the plan was made for something else."""
    levers = ", ".join(choice.words() for choice in plan.levers)
    found = [f"flatout: with {levers}" if levers else "flatout: as written"]
    found += [f"flatout: about this plan: {difference}" for difference in differences]
    return found


def draw_run(done: JobRun, console: Console) -> None:
    """A few lines."""
    steps = f"{done.steps:,} steps" if done.steps is not None else "an unknown number of steps"
    parts = [f"{steps} in {done.took_s:.0f} s"]
    if done.samples_per_s is not None:
        rate = f"{three_digits(done.samples_per_s)} samples/s in steady steps"
        if done.promised_samples_per_s:
            share = done.samples_per_s / done.promised_samples_per_s
            rate += f", {share:.0%} of what the plan promised"
        parts.append(rate)
    if done.mfu is not None:
        parts.append(f"MFU {percent(done.mfu)}")
    if done.epoch_s is not None:
        parts.append(f"a pass over the data takes {duration(done.epoch_s)}")
    if done.signal is not None:
        parts.append(f"ended by signal {done.signal}")
    elif done.exit_code:
        parts.append(f"ended with exit code {done.exit_code}")
    console.print(line(f"flatout: {'; '.join(parts)}"))
    if done.guard is not None and done.guard.verdict != "unknown":
        words = {"inside": "learns as it did while tuning", "left": "does NOT learn as it did while tuning"}
        how = f"{words[done.guard.verdict]}, first {done.guard.steps} steps: {inert(done.guard.reason)}"
        console.print(line(f"flatout: {how}"))
    draw_ranks(done.ranks, console)
    if done.straggler is not None:
        console.print(line(f"flatout: {inert(done.straggler.words())}"))
    slower = sum(alarm.what == "slower" for alarm in done.alarms)
    if slower:
        console.print(
            line(f"flatout: steps became slower {slower} time{'s' if slower > 1 else ''}, see above")
        )
    if done.recordings:
        last = done.recordings[-1]
        console.print(line(f"flatout: {len(done.recordings)} recordings; flatout trace {inert(last)}"))
    for one in done.logged_to:
        how = f"off, {one.failure}" if one.failure else f"{one.points:,} points"
        lost = f", {one.dropped:,} lost" if one.dropped else ""
        console.print(line(f"flatout: logged to {inert(one.target)}: {inert(how)}{lost}"))
    if done.cleanups.evaluations:
        freed, times = memory_size(done.cleanups.freed_bytes), done.cleanups.evaluations
        console.print(line(f"flatout: gave {freed} of cached memory back before {times} evaluations"))
    if done.protection is not None:
        console.print(line(f"flatout: {inert(_protection(done, done.protection))}"))
    if done.ended_workers:
        pids = ", ".join(map(str, done.ended_workers))
        console.print(line(f"flatout: workers that it left behind were stuck, and are ended: {pids}"))
    for text in (*_words_on_cost(done), *_words_on_numbers(done)):
        console.print(line(f"flatout: {inert(text)}"))
    for name, what in done.debug.items():
        if what != "on":
            console.print(line(f"flatout: debug {name} {inert(what)}"))
    for path in done.memory_histories:
        console.print(line(f"flatout: memory history, for pytorch.org/memory_viz: {inert(path)}"))
    for lever, reason in done.dropped_levers.items():
        console.print(line(f"flatout: dropped {lever}: {inert(reason)}"))
    for note in done.notes:
        console.print(line(f"flatout: note: {inert(note)}"))


def _protection(done: JobRun, found: Protected) -> str:
    """Whether the work is safe, what is not, and what to do next."""
    left_out = f"; not saved: {', '.join(found.left_out)}" if found.left_out else ""
    return _whether_safe(done, found) + left_out


def _whether_safe(done: JobRun, found: Protected) -> str:
    if found.problem:
        return f"protection: {found.problem}"
    if done.exit_code == 0:
        times = f"saved {found.saved} times on the way" if found.saved else "too short to be saved on the way"
        return f"protected: {times}; it has ended, and nothing is kept"
    if found.saved_at is None and found.resumed_at is None:
        return "it ended before anything was saved"
    at = found.saved_at if found.saved_at is not None else found.resumed_at
    return f"start the same command again to go on from update {at}"


def _words_on_cost(done: JobRun) -> list[str]:
    """Of jobs on GPUs."""
    found = cost_lines(done.cost) if done.cost is not None else []
    held_down = throttling_line(done.throttling) if done.throttling is not None else ""
    return [*found, *([held_down] if held_down else [])]


def _words_on_numbers(done: JobRun) -> list[str]:
    """Losses and gradients that were not finite; nothing of those that were."""
    found = []
    if done.updates is not None and _is_news(done.updates):
        found.append(done.updates.words())
    if done.losses_not_finite and done.updates is None:
        seen = f"the loss was not finite in {done.losses_not_finite:,} of the steps that were looked at"
        found.append(f"{seen}; flatout run --on-nan skip leaves such updates out")
    if done.not_finite is not None:
        found.append(f"stopped: {done.not_finite.headline()}")
        found += [f"  {text}" for text in done.not_finite.lines()]
        found.append(f"  try: {done.not_finite.remedy()}")
    return found


def _is_news(updates: Updates) -> bool:
    return bool(updates.skipped or updates.let_through or updates.not_looked_at or updates.rollbacks)
