"""What was made ready for a model is kept with the model, and goes with it.

Compiled steps and captured graphs know where weights lie. A model that was moved or cast since is made ready
anew.
"""

import gc
from typing import Any

from flatout.infer.generating.generator import Generator
from flatout.infer.generating.planning import rows_that_fit
from flatout.infer.generating.proving import refusal_by_settings, refusal_by_trial

# Rooms grow by steps, so that requests of all lengths share one.
_STEP = 256
_PLACE = "_flatout_generator"


class Kept:
    """What a model carries: copies and files of the model get nothing of it."""

    def __init__(self, places: tuple[Any, ...]) -> None:
        self.places = places
        # Why its logits are not to be trusted our way, or nothing; and for how many rows it was made.
        self.refusal = ""
        self.generator: Generator | None = None
        self.wanted_rows = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, ()


def generator_for(model: Any, *, rows: int, length: int) -> Generator | str:
    """One with room for this, made now or before; or why there is none."""
    why = refusal_by_settings(model, length)
    if why:
        return why
    kept = _kept(model)
    if kept.refusal:
        return kept.refusal
    made = kept.generator
    if made is not None and kept.wanted_rows >= rows and made.decoder.length >= length:
        return made
    # Whoever asks by turns for more rows and for longer ones would else have it made each time.
    room = -(-max(length, made.decoder.length if made is not None else 0) // _STEP) * _STEP
    kept.wanted_rows = max(rows, kept.wanted_rows)
    kept.generator = made = None
    gc.collect()  # what was made refers to itself, and its cache would count as taken
    kept.generator = Generator(model, rows=rows_that_fit(model, kept.wanted_rows, room), length=room)
    return kept.generator


def _kept(model: Any) -> Kept:
    places = tuple((one.data_ptr(), one.dtype) for one in model.parameters())
    known = model.__dict__.get(_PLACE)
    if isinstance(known, Kept) and known.places == places:
        return known
    # Dropped before anything is made: its memory may be needed.
    model.__dict__.pop(_PLACE, None)
    del known
    kept = Kept(places)
    kept.refusal = refusal_by_trial(model)
    model.__dict__[_PLACE] = kept  # only now: a trial that was broken off has shown nothing
    return kept
