"""What `flatout power` finds and does: caps that were tried, the best of them, and limits put back."""

import dataclasses
from typing import Literal

from flatout.records.device import Vendor
from flatout.records.energy import EnergySource
from flatout.records.unknown import fill_reasons

CLAIM_KIND = "power_claim"
CLAIM_VERSION = 1

# Where the pace of a job is from: its own steps, or the bytes that its device moves, which are proportional.
PaceSource = Literal["steps", "memory traffic", "none"]

RestoreOutcome = Literal["restored", "as found already", "changed by others", "machine restarted", "failed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerClaim:
    """A note on the disk, made before a limit is changed: what it was, and what is ours since."""

    uuid: str
    vendor: Vendor
    index: int
    name: str
    found_mw: int
    # Every limit that may hold because of us; one of these is put back to `found_mw`, any other is not.
    ours_mw: tuple[int, ...] = ()
    boot_id: str = ""
    pid: int = 0
    made_at_unix_s: float = 0.0
    # What an administrator would type to put it back.
    command: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LimitRestored:
    """What became of one device's limit in the end."""

    uuid: str
    index: int
    found_mw: int
    now_mw: int | None
    outcome: RestoreOutcome
    reason: str = ""
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default=self.reason or "the device does not say")

    def words(self) -> str:
        """In a sentence."""
        which, was = f"GPU {self.index}", f"{self.found_mw / 1000:g} W"
        now = f"{self.now_mw / 1000:g} W" if self.now_mw is not None else "unknown"
        return {
            "restored": f"{which}: the power limit is {was} again, as it was found",
            "as found already": f"{which}: the power limit is {was}, as it was found",
            "changed by others": f"{which}: somebody else has set the power limit to {now} meanwhile; it was "
            f"left at that (it was found at {was})",
            "machine restarted": f"{which}: the machine was started anew since its power limit was changed; "
            f"it is {now} now, and was left at that",
            "failed": f"{which}: the power limit could not be put back to {was}: {self.reason}",
        }[self.outcome]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerNow:
    """One device: what it draws and may draw."""

    index: int
    uuid: str | None
    name: str
    draw_mw: int | None = None
    limit_mw: int | None = None
    default_mw: int | None = None
    min_mw: int | None = None
    max_mw: int | None = None
    temperature_c: int | None = None
    temperature_slowdown_c: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    # Set by `flatout power --apply`, which keeps what was before.
    kept_from_mw: int | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="the device does not say")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerPoint:
    """What a job did under one cap. Watts and clocks are means of one device."""

    cap_mw: int
    outcome: Literal["measured", "refused", "lost"] = "measured"
    reason: str = ""
    seconds: float = 0.0
    steps: int = 0
    step_s: float | None = None
    watts: float | None = None
    # All devices of the job together.
    joules_per_step: float | None = None
    samples_per_joule: float | None = None
    # How much longer a step takes than under the limit that was found: 0.02 is 2 %.
    slowdown: float | None = None
    # Energy for the same work, over that under the limit that was found.
    energy_ratio: float | None = None
    clock_hz: int | None = None
    temperature_max_c: int | None = None
    limited: tuple[str, ...] = ()
    energy_source: EnergySource = "none"
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default=self.reason or "not measured")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerSweep:
    """The whole document of `flatout power JOB`."""

    job: str
    devices: tuple[PowerNow, ...]
    pace_source: PaceSource
    slowdown_bound: float
    points: tuple[PowerPoint, ...]
    # The cap of the least energy within the bound; the limit that was found where no cap is better.
    best_mw: int | None = None
    best_reason: str = ""
    applied: bool = False
    # Whether limits could be set, why not, and what an administrator would type.
    permitted: bool = True
    refusal: str = ""
    admin_commands: tuple[str, ...] = ()
    restored: tuple[LimitRestored, ...] = ()
    # How much the job's own pace moved between the first and the last look at the limit that was found.
    drift: float | None = None
    # Why the sweep ended before its end, where it did.
    ended_early: str = ""
    notes: tuple[str, ...] = ()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default=self.best_reason or "not measured")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerHere:
    """The document of `flatout power` without a job, and of --restore."""

    devices: tuple[PowerNow, ...] = ()
    restored: tuple[LimitRestored, ...] = ()
    notes: tuple[str, ...] = ()
