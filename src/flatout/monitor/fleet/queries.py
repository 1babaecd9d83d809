"""What the server is asked about GPUs. It adds up history itself: answers stay as small as the fleet.

A window is looked at in a bounded number of steps, through comparisons that also leave out what is not a
number. What is dear to ask is asked only about the few devices that a first look could not settle.
"""

import dataclasses

from flatout.monitor.fleet.policy import (
    DOWN_S,
    HELD_BYTES,
    IDLE_SHARE,
    KNOWN_S,
    LEAST_STEP_S,
    RECENT_S,
    RECENT_STEP_S,
    STEPS,
    UNWANTED_REASONS,
)
from flatout.monitor.fleet.selecting import BY, Scope, any_of, quoted

_MIB = 1 << 20
_DEVICE_NOW = (
    *("info", "up", "memory_used_bytes", "memory_total_bytes", "power_watts", "power_limit_watts"),
    *("power_limit_default_watts", "throttled", "xid_total", "xid_last", "ecc_uncorrected_total"),
    *("processes", "usd_per_hour"),
)
_JOB_NOW = (
    *("info", "state", "device", "position_updates", "updates_planned", "recent_step_seconds"),
    *("mfu_ratio", "headroom_ratio", "data_wait_ratio", "usd_per_hour", "checkpoint_timestamp_seconds"),
    *("started_timestamp_seconds", "written_timestamp_seconds"),
)
_DCGM_NOW = (
    *("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_TOTAL", "DCGM_FI_DEV_POWER_USAGE"),
    *("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_GPU_UTIL"),
)
# Whatever else an exporter tells, it tells these of each device.
_OURS, _THEIRS = "flatout_device_info", "DCGM_FI_DEV_FB_USED"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Questions:
    """All queries about devices for one window."""

    over_s: float
    scope: Scope

    @property
    def step_s(self) -> int:
        """How far apart the looks at the window are."""
        return max(LEAST_STEP_S, round(self.over_s / STEPS))

    def first(self) -> dict[str, str]:
        """What is there at this moment."""
        return {
            "devices": self.scope.all_of(f"flatout_device_({'|'.join(_DEVICE_NOW)})"),
            "told_at": f"timestamp({self.scope.of(_OURS)})",
            "nodes": self.scope.of("flatout_node_info"),
            "jobs": self.scope.all_of(f"flatout_job_({'|'.join(_JOB_NOW)})"),
            "dcgm": self.scope.all_of("|".join(_DCGM_NOW)),
        }

    def history(self) -> dict[str, str]:
        """What was before, of every device."""
        running, held, up = self._running(), self._held(), self._up()
        sm = self._ratio("sm_active_ratio", "DCGM_FI_PROF_SM_ACTIVE")
        tensor = self._ratio("tensor_active_ratio", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")
        return {
            "running": self._recent("avg", running),
            "sm": self._recent("avg", sm),
            "tensor": self._recent("avg", tensor),
            "recently_seen": self._recent("sum", up),
            "recently_held": self._recent("min", held),
            "lately_up": f"max by ({BY}) (max_over_time({self.scope.of('flatout_device_up')}[{DOWN_S}s]))",
            "xid_then": self._then(),
            "present": self._window("sum", up),
            "running_mean": self._window("avg", running),
            "held_mean": self._window("avg", held),
            "limited": f"sum by ({BY}) ({self._throttled_seconds()}) > 0",
            "gone": self._gone(),
        }

    def of_mixed(self) -> dict[str, str]:
        """Idle looks at devices that were held for a part of the window."""
        (ours, theirs), (held, theirs_held) = self._running(), self._held()
        return {
            "idle_held": self._window(
                "sum", (f"(1 - {ours}) * ({held})", f"(1 - {theirs}) * ({theirs_held})")
            )
        }

    def of_idle(self) -> dict[str, str]:
        """When each last did something."""
        ours, theirs = self._running()
        busy = (f"timestamp({ours} > {IDLE_SHARE})", f"timestamp({theirs} > {IDLE_SHARE})")
        return {"last_busy": self._window("max", busy)}

    def of_down(self) -> dict[str, str]:
        """For how many looks each was down; dcgm-exporter tells of none that is."""
        down = f"{self.scope.of('flatout_device_up')} == 0"
        return {"down": f"max by ({BY}) ({self.scope.over('count', down, self.over_s, self.step_s)})"}

    def of_limited(self) -> dict[str, str]:
        """How long clocks were held down, and what they lacked meanwhile, in the window and lately."""
        lost = self._lost()
        grown = f"increase({self._throttled_seconds()}[{self.over_s:.0f}s:{self.step_s}s])"
        scope = self.scope
        return {
            "limited_s": f"sum by ({BY}, reason) ({grown}) > 0",
            "lost": f"max by ({BY}) ({scope.over('sum', lost, self.over_s, self.step_s)})",
            "losing": f"max by ({BY}) ({scope.over('avg', lost, RECENT_S, RECENT_STEP_S)})",
        }

    def of_gone(self, instances: tuple[str, ...]) -> dict[str, str]:
        """When each was last told of, and whether those who told still answer."""
        span_s = max(self.over_s, KNOWN_S)
        step_s = max(LEAST_STEP_S, round(span_s / STEPS))
        told = (f"timestamp({self.scope.of(_OURS)})", f"timestamp({self.scope.of(_THEIRS)})")
        seen = [self.scope.over("max", one, span_s, step_s) for one in told]
        return {
            "last_seen": self.scope.either(*seen),
            "targets": f"min by (instance) (up{{instance=~{any_of(instances)}}})",
        }

    def _ratio(self, ours: str, theirs: str) -> tuple[str, str]:
        return (
            f"({self.scope.of(f'flatout_device_{ours}')} >= 0 <= 1)",
            f"({self.scope.of(theirs)} >= 0 <= 1)",
        )

    def _running(self) -> tuple[str, str]:
        ours = f"({self.scope.of('flatout_device_kernel_running_ratio')} >= 0 <= 1)"
        return ours, f"(({self.scope.of('DCGM_FI_DEV_GPU_UTIL')} >= 0 <= 100) / 100)"

    def _up(self) -> tuple[str, str]:
        return self.scope.of("flatout_device_up"), f"{self.scope.of(_THEIRS)} >= bool 0"

    def _held(self) -> tuple[str, str]:
        """1 where somebody holds a device, 0 where nobody does."""
        theirs = f"{self.scope.of(_THEIRS)} > bool {HELD_BYTES // _MIB}"
        return f"{self.scope.of('flatout_device_processes')} > bool 0", theirs

    def _then(self) -> str:
        then = f"offset {self.over_s:.0f}s"
        ours = f"{self.scope.of('flatout_device_xid_total')} {then}"
        return self.scope.either(ours, f"{self.scope.of('DCGM_FI_DEV_XID_ERRORS')} {then}")

    def _throttled_seconds(self) -> str:
        return self.scope.of("flatout_device_throttled_seconds_total", self._unwanted())

    def _unwanted(self) -> str:
        return f"reason=~{quoted('|'.join(UNWANTED_REASONS))}"

    def _lost(self) -> str:
        """The share of a device's work that low clocks cost, while it worked and somebody held them down."""
        clock, rated = (
            f"max by ({BY}) ({self.scope.of(f'flatout_device_clock_compute_{name}')})"
            for name in ("hertz", "max_hertz")
        )
        limited = f"max by ({BY}) ({self.scope.of('flatout_device_throttled', self._unwanted())} > bool 0)"
        running, _ = self._running()
        return f"clamp_min(1 - {clock} / {rated}, 0) * max by ({BY}) ({running}) * {limited}"

    def _gone(self) -> str:
        """What was told of in the window and is by nobody now, whatever its machine is called."""
        span = f"[{max(self.over_s, KNOWN_S):.0f}s]"
        ours = f"max by ({BY}, name) (last_over_time({self.scope.of(_OURS)}{span}))"
        now = self.scope.either(self.scope.of(_OURS), self.scope.of(_THEIRS))
        if not self.scope.dcgm:
            return f"{ours} unless on (uuid) ({now})"
        renamed = (
            f'label_replace(last_over_time({self.scope.of(_THEIRS)}{span}), "uuid", "$1", "UUID", "(.*)")'
        )
        named = f'label_replace({renamed}, "name", "$1", "modelName", "(.*)")'
        return f"({ours} or max by ({BY}, name) ({named})) unless on (uuid) ({now})"

    def _recent(self, function: str, expressions: tuple[str, str]) -> str:
        looks = [self.scope.over(function, one, RECENT_S, RECENT_STEP_S) for one in expressions]
        return self.scope.either(*looks)

    def _window(self, function: str, expressions: tuple[str, str]) -> str:
        looks = [self.scope.over(function, one, self.over_s, self.step_s) for one in expressions]
        return self.scope.either(*looks)
