"""Limits that a command which was killed left changed: found and put back by whatever command comes next."""

from collections.abc import Callable, Sequence
from pathlib import Path

from flatout.hardware.power_limits import PowerControls, default_controls
from flatout.monitor.power.claims import Purpose, read_claims, take_news
from flatout.monitor.power.custody import COMMAND_LOCK
from flatout.monitor.power.restoring import restore_all
from flatout.monitor.power.watchdog import WATCHDOG_LOCK
from flatout.records.errors import FlatoutError
from flatout.records.lock import folder_lock, is_locked
from flatout.records.places import SYSTEM_POWER_FOLDER, power_folder
from flatout.records.power import LimitRestored


def tell_and_restore(notice: Callable[[str], None], controls: PowerControls | None = None) -> None:
    """Put back what nobody is at work on, and tell what happened since the last command. Never raises."""
    folder = power_folder()
    try:
        for text in take_news(folder):
            notice(text)
        if read_claims(folder)[0] and not _is_at_work(folder):
            own = controls or default_controls()
            outcomes, problems = restored_now(folder, own)
            own.close()
            for text in (*(found.words() for found in outcomes), *problems):
                notice(text)
        if (
            folder != SYSTEM_POWER_FOLDER
            and not _is_at_work(SYSTEM_POWER_FOLDER)
            and read_claims(SYSTEM_POWER_FOLDER)[0]
        ):
            notice(
                "a power limit is still changed by a command that was killed: sudo flatout power --restore"
            )
    except (FlatoutError, OSError) as error:
        notice(f"power limits could not be looked after: {error}")


def restored_now(
    folder: Path, controls: PowerControls, purposes: Sequence[Purpose] = ("claim",)
) -> tuple[tuple[LimitRestored, ...], list[str]]:
    """Put back everything, unless a command or its watchdog is at it: then nothing is touched."""
    if not any(any(read_claims(folder, purpose)) for purpose in purposes):
        return (), []
    if _is_at_work(folder):
        return (), ["another command holds power limits at this moment, and will put them back itself"]
    try:
        with folder_lock(folder, name=COMMAND_LOCK):
            done = [restore_all(folder, controls, purpose=purpose) for purpose in purposes]
            return tuple(one for found, _ in done for one in found), [
                text for _, said in done for text in said
            ]
    except FlatoutError as error:
        return (), [error.received]


def _is_at_work(folder: Path) -> bool:
    return any(is_locked(folder, name=name) for name in (COMMAND_LOCK, WATCHDOG_LOCK))
