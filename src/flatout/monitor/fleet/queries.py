"""What the server is asked. It adds up history itself: the answers stay as small as the fleet.

History is looked at in a bounded number of steps, through comparisons that also
leave out what is not a number.
"""

import dataclasses
from collections.abc import Iterable

from flatout.monitor.fleet.policy import (
    DOWN_S,
    HELD_BYTES,
    IDLE_SHARE,
    KNOWN_S,
    LEAST_STEP_S,
    RANKS_OF_ONE_JOB,
    RANKS_SHOWN,
    RECENT_S,
    RECENT_STEP_S,
    SILENT_S,
    STEPS,
    UNWANTED_REASONS,
)

_MIB = 1 << 20
_BY = "instance, uuid, gpu"
_DEVICE_NOW = (
    *("info", "up", "memory_used_bytes", "memory_total_bytes", "power_watts", "power_limit_watts"),
    *("power_limit_default_watts", "throttled", "xid_total", "xid_last", "ecc_uncorrected_total"),
    *("processes", "usd_per_hour"),
)
_JOB_NOW = (
    *("info", "state", "device", "updates_total", "updates_planned", "recent_step_seconds", "mfu_ratio"),
    *("headroom_ratio", "data_wait_ratio", "usd_per_hour", "checkpoint_timestamp_seconds"),
    *("started_timestamp_seconds", "written_timestamp_seconds", "hangs_total", "lives"),
)
_DCGM_NOW = (
    *("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_TOTAL", "DCGM_FI_DEV_POWER_USAGE"),
    *("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_GPU_UTIL"),
)
_FLATOUT_MATCH = "flatout_device_info"
_DCGM_MATCH = "DCGM_FI_DEV_FB_USED"


def quoted(value: str) -> str:
    """A label's value as PromQL writes it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def selector(metric: str, matchers: Iterable[str] = (), **labels: str) -> str:
    """A metric with these labels: `flatout_device_up{gpu="3"}`."""
    parts = [*matchers, *(f"{name}={quoted(value)}" for name, value in labels.items() if value)]
    return f"{metric}{{{', '.join(parts)}}}" if parts else metric


@dataclasses.dataclass(frozen=True, kw_only=True)
class Questions:
    """All queries for one window, restricted to series with these labels."""

    over_s: float
    # Ready-made matchers: `cluster="a"`.
    where: tuple[str, ...] = ()
    dcgm: bool = False

    @property
    def step_s(self) -> int:
        """How far apart the looks at the window are."""
        return max(LEAST_STEP_S, round(self.over_s / STEPS))

    def first(self) -> dict[str, str]:
        """What is there at this moment."""
        return {
            "devices": self._all(f"flatout_device_({'|'.join(_DEVICE_NOW)})"),
            "told_at": f"timestamp({self._of('flatout_device_info')})",
            "nodes": self._of("flatout_node_info"),
            "jobs": self._all(f"flatout_job_({'|'.join(_JOB_NOW)})"),
            "dcgm": self._all("|".join(_DCGM_NOW)),
        }

    def history(self) -> dict[str, str]:
        """What was before, added up by the server; where needed, of dcgm-exporter's metrics as well."""
        running = self._running()
        unwanted = self._throttled()
        clock = self._by(self._of("flatout_device_clock_compute_hertz"))
        rated = self._by(self._of("flatout_device_clock_compute_max_hertz"))
        lost = f"clamp_min(1 - {clock} / {rated}, 0) * {running} * {unwanted}"
        return {
            "running": self._recent("avg", running),
            "sm": self._recent("avg", self._ratio("sm_active_ratio", "DCGM_FI_PROF_SM_ACTIVE")),
            "tensor": self._recent(
                "avg", self._ratio("tensor_active_ratio", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE")
            ),
            "recently_seen": self._recent("count", self._up()),
            "lately_up": self._by(f"max_over_time({self._of('flatout_device_up')}[{DOWN_S}s])"),
            "xid_then": self._xid_then(),
            "recently_held": self._recent("min", self._held()),
            "present_s": f"{self.step_s} * {self._window('count', self._up())}",
            "down_s": f"{self.step_s} * {self._window('count', self._down())}",
            "idle_s": f"{self.step_s} * {self._window('sum', f'1 - {running}')}",
            "idle_held_s": f"{self.step_s} * {self._window('sum', f'(1 - {running}) * {self._held()}')}",
            "last_busy": self._window("max", f"timestamp({running} > {IDLE_SHARE})"),
            "limited_s": self._limited(),
            "lost_s": f"{self.step_s} * {self._window('sum', lost)}",
            "losing": self._recent("avg", lost),
            "gone": self._gone(),
            "targets": self._targets(),
        }

    def jobs(self) -> dict[str, str]:
        """How jobs went: their ranks, their idle GPUs, and whether anybody still writes of them."""
        written = self._of("flatout_job_written_timestamp_seconds")
        steps = self._rank_steps()
        return {
            "rank_slowest": f"topk by (run) ({RANKS_SHOWN}, {steps})",
            "rank_median": f"quantile by (run) (0.5, {steps})",
            "rank_fastest": f"min by (run) ({steps})",
            "rank_count": f"count by (run) ({steps})",
            "written_changes": f"sum by (run) (changes({written}[{SILENT_S}s]))",
            "written_ago": f"max by (run) (timestamp({written}) - {written})",
            "told_before": f"count by (run) ({written} offset {SILENT_S}s)",
            "job_device_s": self._job_grown("flatout_job_device_seconds_total"),
            "job_idle_s": self._job_grown("flatout_job_device_idle_seconds_total"),
        }

    def ranks_of(self, run: str) -> str:
        """The ranks of one job, slowest first, and no more than can be read."""
        return f"topk({RANKS_OF_ONE_JOB}, {self._rank_steps(run=run)})"

    def _rank_steps(self, **labels: str) -> str:
        metric = selector("flatout_job_rank_step_seconds", self.where, **labels)
        return f"max by (run, rank, instance) (avg_over_time(({metric} > 0)[{RECENT_S}s:{RECENT_STEP_S}s]))"

    def _job_grown(self, metric: str) -> str:
        return f"sum by (run) (increase({self._of(metric)}[{self.over_s:.0f}s:{self.step_s}s]))"

    def _of(self, metric: str, *more: str) -> str:
        return selector(metric, (*self.where, *more))

    def _all(self, pattern: str) -> str:
        return selector("", (f"__name__=~{quoted(pattern)}", *self.where))

    def _by(self, expression: str) -> str:
        return f"max by ({_BY}) ({expression})"

    def _dcgm_by(self, expression: str) -> str:
        renamed = f'label_replace({expression}, "uuid", "$1", "UUID", "(.*)")'
        return self._by(renamed)

    def _either(self, ours: str, theirs: str) -> str:
        return f"({self._by(ours)} or {self._dcgm_by(theirs)})" if self.dcgm else self._by(ours)

    def _ratio(self, ours: str, theirs: str) -> str:
        return self._either(
            f"{self._of(f'flatout_device_{ours}')} >= 0 <= 1", f"{self._of(theirs)} >= 0 <= 1"
        )

    def _running(self) -> str:
        ours = f"{self._of('flatout_device_kernel_running_ratio')} >= 0 <= 1"
        return self._either(ours, f"{self._of('DCGM_FI_DEV_GPU_UTIL')} / 100 >= 0 <= 1")

    def _up(self) -> str:
        return self._either(f"{self._of('flatout_device_up')} == 1", f"{self._of(_DCGM_MATCH)} >= 0")

    def _down(self) -> str:
        return self._by(f"{self._of('flatout_device_up')} == 0")

    def _xid_then(self) -> str:
        then = f"offset {self.over_s:.0f}s"
        theirs = f"{self._of('DCGM_FI_DEV_XID_ERRORS')} {then}"
        return self._either(f"{self._of('flatout_device_xid_total')} {then}", theirs)

    def _held(self) -> str:
        """1 where somebody holds a device, 0 where nobody does."""
        theirs = f"{self._of(_DCGM_MATCH)} > bool {HELD_BYTES // _MIB}"
        return self._either(f"{self._of('flatout_device_processes')} > bool 0", theirs)

    def _throttled(self) -> str:
        reasons = f"reason=~{quoted('|'.join(UNWANTED_REASONS))}"
        return self._by(f"{self._of('flatout_device_throttled', reasons)} > bool 0")

    def _limited(self) -> str:
        metric = self._of("flatout_device_throttled_seconds_total")
        return f"sum by ({_BY}, reason) (increase({metric}[{self.over_s:.0f}s:{self.step_s}s])) > 0"

    def _gone(self) -> str:
        """When each was last seen that is no longer there: told by nobody, whatever its machine is called."""
        over_s = max(self.over_s, KNOWN_S)
        step_s = max(LEAST_STEP_S, round(over_s / STEPS))
        seen = f"max_over_time(timestamp({self._named()})[{over_s:.0f}s:{step_s}s])"
        return f"{seen} unless on (uuid) {self._named()}"

    def _named(self) -> str:
        """Every device that is told of, with the name of its model."""
        ours = f"max by ({_BY}, name) ({self._of(_FLATOUT_MATCH)})"
        if not self.dcgm:
            return ours
        theirs = f'label_replace({self._of(_DCGM_MATCH)}, "uuid", "$1", "UUID", "(.*)")'
        theirs = f'label_replace({theirs}, "name", "$1", "modelName", "(.*)")'
        return f"({ours} or max by ({_BY}, name) ({theirs}))"

    def _targets(self) -> str:
        """Whether those who told of devices within the window still answer."""
        span = f"[{max(self.over_s, KNOWN_S):.0f}s:{self.step_s}s]"
        names = self._all(f"{_FLATOUT_MATCH}|{_DCGM_MATCH}" if self.dcgm else _FLATOUT_MATCH)
        return f"up and on (instance, job) count by (instance, job) (max_over_time({names}{span}))"

    def _recent(self, function: str, expression: str) -> str:
        return f"{function}_over_time(({expression})[{RECENT_S}s:{RECENT_STEP_S}s])"

    def _window(self, function: str, expression: str) -> str:
        return f"{function}_over_time(({expression})[{self.over_s:.0f}s:{self.step_s}s])"
