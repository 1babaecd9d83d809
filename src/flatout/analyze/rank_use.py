"""Each rank's own step: how long it takes, and what it does in it."""

from flatout.analyze.parts import device_parts, host_parts
from flatout.analyze.steps import RankSteps
from flatout.analyze.window import step_times, window_of
from flatout.records.ranks import RankUse


def rank_use(rank: RankSteps) -> RankUse:
    """Of its steady steps; the host's clock says nothing of what a GPU waits for."""
    window = window_of(rank)
    step = step_times(window)
    device = rank.about.get("device")
    on_gpu = str(device).startswith("cuda")
    return RankUse(
        rank=rank.rank,
        pid=rank.pid,
        device=device,
        step_ms=step.p50 if step else None,
        updates=len(rank.steps),
        parts=device_parts(window.watched) if on_gpu else host_parts(window.watched),
        unknown={} if device else {"device": "its session ended without a word"},
    )
