"""A job that is started again when it ends badly: how often, after what pause, and when there is no point."""

import dataclasses
import signal
import time
from collections.abc import Callable

from flatout.records.running import JobRun

# The script's own word that it cannot be started so, and ours that it cannot go on from where it was.
_NOT_AGAIN = (2, 93)
_LONGEST_PAUSE_S = 60.0


@dataclasses.dataclass(frozen=True)
class Retries:
    """How often a job is started again."""

    most: int = 0
    first_pause_s: float = 1.0

    def pause_s(self, lives: int) -> float:
        """Twice as long each time, up to a minute."""
        return float(min(self.first_pause_s * 2 ** (lives - 1), _LONGEST_PAUSE_S))


def run_lives(
    run: Callable[[int], JobRun],
    retries: Retries,
    tell: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> JobRun:
    """Run a job until it ends well, is asked to end, or nothing is gained by another try."""
    life, before = 1, None
    while True:
        done = run(life)
        why_not = _why_not_again(done, before, life, retries)
        if why_not is not None:
            if why_not:
                tell(why_not)
            return dataclasses.replace(done, lives=life)
        pause_s = retries.pause_s(life)
        tell(f"it {_how(done)}; starting it again in {pause_s:.0f} s ({life} of {retries.most})")
        sleep(pause_s)
        life, before = life + 1, done


def _why_not_again(done: JobRun, before: JobRun | None, life: int, retries: Retries) -> str | None:
    """None: another life. A sentence, or "" where there is nothing to say."""
    if done.exit_code == 0 or not retries.most or done.exit_code in _NOT_AGAIN:
        return ""
    if done.asked is not None or done.signal == signal.SIGINT or done.exit_code == 128 + signal.SIGINT:
        return ""  # somebody wanted it to end
    if life > retries.most:
        return f"it {_how(done)}, and was started {life} times: no more"
    if before is not None and _how(done) == _how(before) and _is_no_further(done, before):
        return f"it {_how(done)} twice without coming further: starting it again would not help"
    return None


def _is_no_further(done: JobRun, before: JobRun) -> bool:
    """Where it is not known how far they came, another life may come further."""
    now, then = _came_to(done), _came_to(before)
    return now is not None and then is not None and now <= then


def _came_to(done: JobRun) -> int | None:
    """How far it came, over all its lives."""
    saved = done.protection.saved_at if done.protection is not None else None
    return saved if saved is not None else done.steps


def _how(done: JobRun) -> str:
    if done.ended_by_us:
        return f"was ended: {done.ended_by_us}"
    if done.signal is not None:
        return f"was killed by {signal.Signals(done.signal).name}"
    return f"ended with code {done.exit_code}"
