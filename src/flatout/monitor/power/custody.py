"""Holding the limits of some devices: taken, changed, and put back exactly as they were found.

The order of things makes it safe to be killed at any instant: a note on the disk, then the change. The note
goes only after the limit was put back. While the command lives it does that itself; when it dies its watchdog
does; when both die, the next command of Flatout's.
"""

import contextlib
import dataclasses
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from flatout.hardware.power_limits import PowerControls, PowerLimits, PowerRefused
from flatout.monitor.power.claims import (
    boot_id,
    drop_claim,
    path_of,
    read_claim,
    read_claims,
    write_claim,
)
from flatout.monitor.power.restoring import restore, restore_all, same
from flatout.monitor.power.watchdog import BEAT, DONE, READY, SILENCE_S, WATCHDOG_LOCK
from flatout.records.device import Device
from flatout.records.errors import CannotWrite, ChildFailed, EnvironmentProblem, LockHeld
from flatout.records.lock import folder_lock, is_locked
from flatout.records.places import power_folder
from flatout.records.power import LimitRestored, PowerClaim

COMMAND_LOCK = "command.lock"
_READY_WITHIN_S = 30.0
_WATCHDOG_ENDS_WITHIN_S = 30.0
_LOOK_S = 0.1


class SomebodyElse(Exception):
    """The limit is not what we left it at: it belongs to somebody else now."""

    def __init__(self, device: Device, expected_mw: int, now_mw: int, *, watchdog: bool = False) -> None:
        who = "our own watchdog, which had not heard of us for long or was told to end," if watchdog else ""
        super().__init__(
            f"GPU {device.index}: {who or 'somebody else'} set the power limit to {now_mw / 1000:g} W, where "
            f"it was {expected_mw / 1000:g} W; it stays at that"
        )


@dataclasses.dataclass
class _Held:
    device: Device
    claim: PowerClaim
    now_mw: int


class PowerCustody:
    """A context in which limits can be changed. One at a time on a machine."""

    def __init__(
        self,
        controls: PowerControls,
        *,
        folder: Path | None = None,
        notice: Callable[[str], None] = lambda _text: None,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._controls = controls
        self._folder = folder or power_folder()
        self._notice = notice
        self._silence_s = silence_s
        self._held: dict[str, _Held] = {}
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.ExitStack()
        self.restored: tuple[LimitRestored, ...] = ()

    def __enter__(self) -> "PowerCustody":
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotWrite(
                self._folder, error, remedy="set FLATOUT_CACHE_DIR to another folder"
            ) from error
        try:
            self._stack.enter_context(folder_lock(self._folder, name=COMMAND_LOCK))
        except LockHeld as held:
            raise EnvironmentProblem(
                f"another command changes power limits on this machine: {held.received}",
                expected="one at a time: each would take the other's limits for those that it found",
                remedy="wait until it has ended, or stop it with Ctrl-C, which puts its limits back",
            ) from held
        try:
            self._wait_for_an_older_watchdog()
            outcomes, problems = restore_all(self._folder, self._controls)
            for text in (*(found.words() for found in outcomes), *problems):
                self._notice(text)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with _undisturbed():
            try:
                self.put_back()
            finally:
                self._dismiss()
                self._stack.close()

    def take(self, device: Device) -> PowerLimits:
        """See whether this device's limit may be set, by setting it to what it is. Raises PowerRefused."""
        uuid = device.uuid or ""
        control = self._controls.for_device(device)
        limits = control.limits(uuid)
        self._ensure_watchdog()
        claim = PowerClaim(
            uuid=uuid,
            vendor=device.vendor,
            index=device.index,
            name=device.name,
            found_mw=limits.limit_mw,
            boot_id=boot_id(),
            pid=os.getpid(),
            made_at_unix_s=time.time(),
            command=control.command_for(uuid, limits.limit_mw),
        )
        write_claim(self._folder, claim)
        self._held[uuid] = _Held(device, claim, limits.limit_mw)
        control.set_limit(uuid, limits.limit_mw)
        return limits

    def set(self, device: Device, limit_mw: int) -> None:
        """Change a limit that was taken. Raises PowerRefused, or SomebodyElse where it is not ours now."""
        held = self._held[device.uuid or ""]
        control = self._controls.for_device(device)
        self.check(device)
        self._ensure_watchdog()
        self._note_ours(held, limit_mw)
        control.set_limit(held.claim.uuid, limit_mw)
        held.now_mw = now_mw = control.limits(held.claim.uuid).limit_mw
        if not same(now_mw, limit_mw):
            self._note_ours(held, now_mw)  # what a driver made of our wish is ours to put back, too
            raise PowerRefused("other", f"set to {limit_mw / 1000:g} W, the device says {now_mw / 1000:g} W")

    def check(self, device: Device) -> None:
        """See that the limit is still what we left it at. Raises SomebodyElse, or PowerRefused."""
        held = self._held[device.uuid or ""]
        now_mw = self._controls.for_device(device).limits(held.claim.uuid).limit_mw
        if not same(now_mw, held.now_mw):
            gone = not path_of(self._folder, held.claim.uuid, "claim").exists()
            raise SomebodyElse(device, held.now_mw, now_mw, watchdog=gone)

    def beat(self) -> None:
        """Tell the watchdog that all is well; called every few seconds."""
        self._ensure_watchdog()
        if self._watchdog is not None:
            _say(self._watchdog, BEAT)

    def keep(self, device: Device, limit_mw: int) -> None:
        """Set this limit for good, with a note of what was before for `flatout power --restore`."""
        held = self._held[device.uuid or ""]
        earlier = read_claim(self._folder, held.claim.uuid, "kept")
        # Kept once more: what was before the first time is what --restore goes back to.
        again = earlier is not None and any(same(mine, held.claim.found_mw) for mine in earlier.ours_mw)
        original = earlier.found_mw if earlier is not None and again else held.claim.found_mw
        control = self._controls.for_device(device)
        kept = dataclasses.replace(
            held.claim,
            found_mw=original,
            ours_mw=(limit_mw,),
            command=control.command_for(held.claim.uuid, original),
        )
        with _undisturbed():
            self.set(device, limit_mw)
            write_claim(self._folder, kept, "kept")
            drop_claim(self._folder, held.claim.uuid)
            del self._held[held.claim.uuid]

    def put_back(self) -> tuple[LimitRestored, ...]:
        """Every limit that was taken and not kept. What cannot be put back keeps its note."""
        found = []
        for uuid, held in list(self._held.items()):
            found.append(restore(self._folder, held.claim, self._controls))
            del self._held[uuid]
        self.restored = (*self.restored, *found)
        return tuple(found)

    def _note_ours(self, held: _Held, limit_mw: int) -> None:
        """Have it on the disk; also where nothing is new in it: a watchdog may have dropped the note."""
        ours = held.claim.ours_mw
        held.claim = dataclasses.replace(held.claim, ours_mw=ours if limit_mw in ours else (*ours, limit_mw))
        write_claim(self._folder, held.claim)

    def _ensure_watchdog(self) -> None:
        if self._watchdog is not None and self._watchdog.poll() is None:
            return
        if self._watchdog is not None:
            _close(self._watchdog)
            self._notice("the process that watches over the power limits was killed; another one was started")
        self._watchdog = self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "flatout.monitor.power.watchdog", str(self._folder)]
        watchdog = subprocess.Popen(
            [*command, f"{self._silence_s:g}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            cwd="/",
        )
        if not _says_ready(watchdog):
            watchdog.kill()
            _close(watchdog)
            raise ChildFailed(
                "the process that puts power limits back did not start",
                expected="one that outlives this command, before any limit is changed",
                remedy="try again   # nothing was changed by this attempt",
            )
        return watchdog

    def _dismiss(self) -> None:
        """Let the watchdog go; where a limit is not back yet, it goes on trying without us."""
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is None:
            return
        unfinished = bool(read_claims(self._folder)[0])
        if not unfinished and watchdog.poll() is None:
            _say(watchdog, DONE)
        _close(watchdog, wait=not unfinished)

    def _wait_for_an_older_watchdog(self) -> None:
        """One that is putting limits back at this moment must have finished before we look at them."""
        deadline = time.monotonic() + _WATCHDOG_ENDS_WITHIN_S
        while is_locked(self._folder, name=WATCHDOG_LOCK):
            if time.monotonic() > deadline:
                raise EnvironmentProblem(
                    "another command's limits are still being put back",
                    expected="that to have ended, so that what is found is what there was",
                    remedy="try again in a minute",
                )
            time.sleep(_LOOK_S)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that would end us wait until limits are back."""
    waiting = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waiting)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _says_ready(watchdog: "subprocess.Popen[bytes]") -> bool:
    if watchdog.stdout is None:
        return False
    with selectors.DefaultSelector() as selector:
        selector.register(watchdog.stdout, selectors.EVENT_READ)
        return bool(selector.select(_READY_WITHIN_S)) and watchdog.stdout.readline() == READY


def _say(watchdog: "subprocess.Popen[bytes]", what: bytes) -> None:
    if watchdog.stdin is not None:
        with contextlib.suppress(OSError):  # it is gone, which is noticed elsewhere
            watchdog.stdin.write(what)


def _close(watchdog: "subprocess.Popen[bytes]", *, wait: bool = True) -> None:
    for stream in (watchdog.stdin, watchdog.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    if wait:
        with contextlib.suppress(subprocess.TimeoutExpired):
            watchdog.wait(timeout=10)
