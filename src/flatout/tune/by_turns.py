"""How a plan should go by what its levers gave by turns, where nobody waited for a process of its own."""

import dataclasses
import math
from collections.abc import Sequence

from flatout.records.plan import Choice
from flatout.records.tuning import Pace
from flatout.tune.conclusions import WORTH
from flatout.tune.pace import faster
from flatout.tune.search import Finder


def pace_by_turns(
    chosen: Sequence[Choice], finder: Finder, as_written: Pace, input_wait: float
) -> Pace | None:
    """What its parts gave, multiplied; None where that is nothing. How much memory it takes is not known.

    `input_wait` is the share of a step in which the job waits for data, and no arm did: no lever shortens it.
    """
    of_the_loader = math.prod(_gain(choice, finder) for choice in chosen if choice.id == "loader")
    of_levers = math.prod(_gain(choice, finder) for choice in chosen if choice.id != "loader")
    speedup = of_the_loader / (input_wait + (1 - input_wait) / of_levers)
    if speedup < 1 + WORTH:
        return None
    pace = faster(as_written, speedup, as_written)
    return dataclasses.replace(pace, gpu_busy_share=None, peak_bytes=None, unknown={})


def _gain(choice: Choice, finder: Finder) -> float:
    """On its rung, else when it was tried."""
    words = choice.words()
    rung = next((rung.gain for rung in finder.ladder if rung.lever == words), None)
    trial = finder.conclusions.trials.get(words)
    tried = trial.measured_speedup if trial is not None else None
    return rung or tried or choice.measured_speedup or 1.0
