"""What the server is asked about jobs: ranks, idle GPUs, and whether anybody still writes of them."""

from flatout.monitor.fleet.policy import RANKS_OF_ONE_JOB, RANKS_SHOWN, RECENT_S, SILENT_S
from flatout.monitor.fleet.selecting import Scope, quoted


def job_questions(scope: Scope, over_s: float, step_s: int) -> dict[str, str]:
    """How all jobs went."""
    written = scope.of("flatout_job_written_timestamp_seconds")
    steps = _rank_steps(scope)

    def grown(metric: str) -> str:
        return f"sum by (run) (increase({scope.of(metric)}[{over_s:.0f}s:{step_s}s]))"

    return {
        "rank_slowest": f"topk by (run) ({RANKS_SHOWN}, {steps})",
        "rank_median": f"quantile by (run) (0.5, {steps})",
        "rank_fastest": f"min by (run) ({steps})",
        "rank_count": f"count by (run) ({steps})",
        "written_changes": f"sum by (run) (changes({written}[{SILENT_S}s]))",
        "written_ago": f"max by (run) (timestamp({written}) - {written})",
        "told_before": f"count by (run) ({written} offset {SILENT_S}s)",
        "job_device_s": grown("flatout_job_device_seconds_total"),
        "job_idle_s": grown("flatout_job_device_idle_seconds_total"),
    }


def ranks_of(scope: Scope, run: str) -> str:
    """The ranks of one job, slowest first, and no more than can be read."""
    return f"topk({RANKS_OF_ONE_JOB}, {_rank_steps(scope, f'run={quoted(run)}')})"


def _rank_steps(scope: Scope, *more: str) -> str:
    metric = scope.of("flatout_job_rank_step_seconds", *more)
    return f"(max by (run, rank, instance) (avg_over_time({metric}[{RECENT_S}s])) > 0)"
