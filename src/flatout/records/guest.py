"""Guests of a session: what other rooms need inside of the user's process.

The session imports none of them: `entry` hands them over, and this is all that they see of it.
"""

from pathlib import Path
from typing import Any, Protocol

from flatout.records.session import Order


class Host(Protocol):
    """A session, as its guests see it."""

    torch: Any
    order: Order
    # What there is to know of the process, beside its steps; written to the run folder now and then.
    facts: dict[str, Any]

    def folder(self) -> Path:
        """Where this process leaves what it has seen."""

    def roots(self) -> list[Any]:
        """The modules that train."""

    def fail(self, name: str, error: Exception) -> None:
        """Note that something of ours does not work, and why."""
