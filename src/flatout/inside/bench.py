"""Several arms in one process, by turns: a block of steps under some levers, then a block under others.

The parent names the arms in a file, and may name others while the job runs. What an arm gives is compared
with its neighbours in time, on the same machine in the same mood.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.inside.tap import clock
from flatout.records.session import ARM_FILE, ARMS_FILE

if TYPE_CHECKING:
    from flatout.inside.scene import Scene
    from flatout.inside.session import Session


class Bench:
    """Follows the parent's file of arms, and changes levers at step boundaries."""

    def __init__(self, session: "Session", scene: "Scene") -> None:
        self._session = session
        self._scene = scene
        self._path = Path(session.order.folder) / ARMS_FILE
        self._mark = Path(session.order.folder) / ARM_FILE
        self._stamp = 0
        self._next: dict[str, Any] | None = None
        # Each with its number and the updates of a block: arms that are over keep theirs.
        self._arms: list[tuple[int, int, list[dict[str, Any]]]] = []
        self._generation = 0
        self._arm = -1
        self._left = 0

    def look(self) -> None:
        """In the writer's thread: has the parent named other arms?"""
        try:
            stamp = self._path.stat().st_mtime_ns
            if stamp != self._stamp:
                self._stamp = stamp
                self._next = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return  # not there yet: it is written whole, by renaming

    def _may_change_to(self, plan: dict[str, Any]) -> bool:
        """Other arms begin at once; fewer of the same when each has had its turn."""
        whole_cycle = self._arm == len(self._arms) - 1 and self._left <= 1
        return bool(plan["generation"] != self._generation or whole_cycle or not self._arms)

    def step(self) -> None:
        """A step boundary, in the thread that trains."""
        # All ranks change at the same update: levers change what they say to each other.
        plan = self._next
        if plan is not None and self._session.updates >= plan["from_update"] and self._may_change_to(plan):
            if self._next is plan:
                self._next = None
            self._generation = plan["generation"]
            self._arms = list(zip(plan["numbers"], plan["block_updates"], plan["arms"], strict=True))
            self._arm, self._left = -1, 0
        if not self._arms:
            return
        if self._left:
            self._left -= 1
        if not self._left:
            self._arm = (self._arm + 1) % len(self._arms)
            number, self._left, levers = self._arms[self._arm]
            # Written at once: an arm that ends the process must be known by name.
            self._mark.write_text(f"{self._generation} {number}")
            self._scene.switch(levers)
            self._session.log.add(("arm", clock(), self._generation, number))
