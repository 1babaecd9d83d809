"""Measures the link between ranks: starts a process for each, listens to all, and ends them whatever happens.

A rank that dies or hangs leaves the others waiting: it is named, all are killed, and what they had measured
until then is kept, with the reason for the rest.
"""

import contextlib
import dataclasses
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from flatout.hardware.command import end_child
from flatout.limits.disturbance import Disturbance
from flatout.limits.link_figures import LinkFigures, settings_in
from flatout.limits.measure import OnStage
from flatout.limits.peers import Peers
from flatout.limits.ranks import RankOrder
from flatout.records.link import RanksLink

# No stage takes this long; importing torch from a slow disk, eight times at once, may come near.
QUIET_S = 90.0
WHOLE_S = 300.0
# After the first rank ends, the others' complaints follow from it: who was first is decided after this.
_GRACE_S = 1.0


@dataclasses.dataclass(frozen=True)
class Deadlines:
    """How long no rank may say anything, and how long all of it may take."""

    quiet_s: float = QUIET_S
    whole_s: float = WHOLE_S


def measure_link(
    peers: Peers,
    disturbance: Disturbance | None = None,
    *,
    on_stage: OnStage = lambda _stage, _done, _total: None,
    deadlines: Deadlines = Deadlines(),
) -> RanksLink:
    """The link between `peers`; never raises for what a rank does."""
    began = time.monotonic()
    disturbance = disturbance or Disturbance()
    figures = LinkFigures()
    try:
        with _started(peers) as ranks:
            figures.reason = _follow(ranks, figures, on_stage, deadlines)
    except OSError as error:  # no process or no place for a file is to be had
        figures.reason = f"the ranks could not be started: {error}"
    return figures.link(
        backend=peers.backend,
        members=peers.members,
        settings=settings_in(os.environ),
        took_s=time.monotonic() - began,
        disturbed=disturbance.words(),
    )


class _Rank:
    """One rank's process, seen from here."""

    def __init__(self, number: int, member: str, process: "subprocess.Popen[bytes]", events: int, said: Path):
        self.number = number
        self.member = member
        self.process = process
        self.events = events
        self.stage = "its start"
        self.steps = 0
        self.done = False
        self.complaint = ""
        self._said = said
        self._rest = b""

    def read(self) -> list[dict[str, Any]] | None:
        """What it has sent by now; None when it will send no more."""
        data = os.read(self.events, 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        events: list[dict[str, Any]] = [msgspec.json.decode(line) for line in lines]
        for event in events:
            self._note(event)
        return events

    def _note(self, event: dict[str, Any]) -> None:
        if event["event"] == "stage":
            self.stage, self.steps = event["name"], self.steps + 1
        elif event["event"] == "failed":
            self.complaint = event["reason"]
        elif event["event"] == "done":
            self.done = True

    @property
    def killed(self) -> bool:
        """Whether a signal ended it, and nothing that it could have told."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout=_GRACE_S) < 0
        return False

    def words(self) -> str:
        """Its end in a sentence."""
        who = f"rank {self.number} ({self.member})"
        if self.killed:
            return f"{who} died of signal {-self.process.returncode} at {self.stage!r}"
        lines = self._said.read_text(errors="replace").strip().splitlines()
        why = self.complaint or (lines[-1] if lines else f"it ended with {self.process.poll()}")
        return f"{who} failed at {self.stage!r}: {why}"


@contextlib.contextmanager
def _started(peers: Peers) -> Iterator[list[_Rank]]:
    """A process for each rank; none is left afterwards."""
    ranks: list[_Rank] = []
    with tempfile.TemporaryDirectory(prefix="flatout-link-") as folder:
        try:
            for number in range(len(peers.members)):
                ranks.append(_start(number, peers, Path(folder)))  # noqa: PERF401 - those before a failure are ended
            yield ranks
        finally:
            for rank in ranks:
                end_child(rank.process)
                os.close(rank.events)


def _start(number: int, peers: Peers, folder: Path) -> _Rank:
    order = RankOrder(
        rank=number,
        ranks=len(peers.members),
        backend=peers.backend,
        device=peers.torch_devices[number],
        store=str(folder / "store"),
    )
    said = folder / f"said-{number}"
    reader, writer = os.pipe()
    try:
        with said.open("wb") as errors:
            process = subprocess.Popen(
                # -P: a statistics.py or torch.py in the user's folder is not ours to import.
                [
                    *(sys.executable, "-P", "-m", "flatout.limits.ranks", str(writer)),
                    msgspec.json.encode(order).decode(),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, **peers.environment, "RANK": str(number), "LOCAL_RANK": str(number)},
                pass_fds=(writer,),
                start_new_session=True,
            )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return _Rank(number, peers.members[number], process, reader, said)


def _follow(ranks: list[_Rank], figures: LinkFigures, on_stage: OnStage, deadlines: Deadlines) -> str:
    """Until all are done; else the reason why they are not."""
    last = time.monotonic() + deadlines.whole_s
    fallen: list[_Rank] = []
    with selectors.DefaultSelector() as waiting:
        for rank in ranks:
            waiting.register(rank.events, selectors.EVENT_READ, rank)
        while waiting.get_map():
            ready = waiting.select(timeout=max(0.0, min(deadlines.quiet_s, last - time.monotonic())))
            if not ready or time.monotonic() > last:
                break
            for key, _ in ready:
                if not _hear(key.data, figures, on_stage):
                    waiting.unregister(key.fileobj)
                    if not key.data.done:
                        fallen.append(key.data)
                        last = min(last, time.monotonic() + _GRACE_S)
    if fallen:
        return min(fallen, key=lambda rank: not rank.killed).words()
    return _who_hangs(ranks, deadlines.whole_s if time.monotonic() > last else deadlines.quiet_s)


def _hear(rank: _Rank, figures: LinkFigures, on_stage: OnStage) -> bool:
    """Take what a rank says; False when it says no more."""
    events = rank.read()
    if events is None:
        return False
    for event in events if rank.number == 0 else ():
        figures.take(event)
        if event["event"] == "stage":
            on_stage(f"link: {event['name']}", event["done"], event["total"])
    return True


def _who_hangs(ranks: list[_Rank], patience_s: float) -> str:
    """Ranks go in step: the one that came least far is the one that the others wait for."""
    waiting = [rank for rank in ranks if not rank.done]
    if not waiting:
        return ""
    least = min(rank.steps for rank in waiting)
    behind = [rank for rank in waiting if rank.steps == least]
    names = ", ".join(f"rank {rank.number} ({rank.member})" for rank in behind[:3])
    more = f" and {len(behind) - 3} more" if len(behind) > 3 else ""
    return f"{names}{more} came no further than {behind[0].stage!r} within {patience_s:g} s"
