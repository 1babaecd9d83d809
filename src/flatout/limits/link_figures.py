"""Puts together what ranks report of the link between them; what never came has a reason."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from flatout.records.link import AllReduceRate, PairRate, RanksLink, judged

_SETTINGS = ("NCCL_", "RCCL_", "GLOO_", "TORCH_NCCL_")
_LACKING = ("bus_bytes_per_s", "small_s", "pair_median_bytes_per_s")


class LinkFigures:
    """Takes the events of the first rank, one after the other, and gives a record at any time."""

    def __init__(self) -> None:
        self.reason = ""
        self._figures: dict[str, float] = {}
        self._sizes: list[AllReduceRate] = []
        self._pairs: list[PairRate] = []
        self._lacking: dict[str, str] = {}

    def take(self, event: dict[str, Any]) -> None:
        """One event; stages tell nothing."""
        kind = event["event"]
        if kind == "small":
            self._figures["small_s"] = event["seconds"]
        elif kind == "bus":
            self._figures["bus_bytes_per_s"] = event["bytes_per_s"]
        elif kind == "size":
            self._sizes.append(msgspec.convert(event["rate"], AllReduceRate))
        elif kind == "pair":
            self._pairs.append(msgspec.convert(event["rate"], PairRate))
        elif kind == "lacking":
            self._lacking[event["field"]] = event["reason"]
        elif kind == "failed":
            self.reason = event["reason"]

    def link(
        self,
        *,
        backend: Literal["nccl", "gloo"],
        members: tuple[str, ...],
        settings: tuple[str, ...],
        took_s: float,
        nodes: int = 1,
        disturbed: str = "",
    ) -> RanksLink:
        """The record of what has come so far."""
        # A median of the pairs that came before the end would depend on which came.
        middle, slow = judged(self._pairs) if not self.reason else (None, ())
        lacking = dict(self._lacking)
        if self.reason:
            known = {**self._figures, "pair_median_bytes_per_s": middle}
            lacking |= {name: self.reason for name in _LACKING if known.get(name) is None}
        return RanksLink(
            backend=backend,
            ranks=len(members),
            nodes=nodes,
            members=members,
            bus_bytes_per_s=self._figures.get("bus_bytes_per_s"),
            small_s=self._figures.get("small_s"),
            sizes=tuple(self._sizes),
            pairs=tuple(self._pairs),
            pair_median_bytes_per_s=middle,
            slow_pairs=slow,
            settings=settings,
            took_s=took_s,
            disturbed=disturbed,
            unknown=lacking,
        )


def settings_in(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that change how ranks reach each other."""
    return tuple(
        f"{name}={value}" for name, value in sorted(environment.items()) if name.startswith(_SETTINGS)
    )
