"""What was made ready for a model is kept with the model, and goes with it.

Compiled steps and captured graphs know where weights lie. A model that was moved or cast since is made ready
anew, and so is one that is called under another autocast: keys and values come in other dtypes there.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

from flatout.infer.generating.generator import Generator
from flatout.infer.generating.mode import Mode
from flatout.infer.generating.planning import rows_that_fit
from flatout.infer.generating.proving import refusal_by_settings, refusal_by_trial

# Rooms grow by steps, so that requests of all lengths share one.
_STEP = 256
_PLACE = "_flatout_generator"
_giving_out = threading.Lock()


class Kept:
    """What a model carries: copies and files of the model get nothing of it."""

    def __init__(self) -> None:
        # One thread at a time makes it ready and drives it; which one does at the moment.
        self.turn = threading.Lock()
        self.driver: int | None = None
        # Where its weights lay, and how products were cast; None before the first trial has ended.
        self.places: tuple[Any, ...] | None = None
        # Why its logits are not to be trusted our way, or nothing; and for how many rows it was made.
        self.refusal = ""
        self.generator: Generator | None = None
        self.wanted_rows = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, ()

    def clear(self) -> None:
        """Nothing of it holds any more; its memory may be needed for what comes."""
        self.places, self.generator, self.refusal, self.wanted_rows = None, None, "", 0


@contextlib.contextmanager
def turn_at(model: Any, *, rows: int, length: int) -> Iterator[Generator | str]:
    """One with room for this, for this thread alone until the end; or why there is none.

    Other threads wait for their turn. Who asks again from within a turn would wait for ever, and would
    disturb what is under way if it did not.
    """
    why = refusal_by_settings(model, length)
    if why:
        yield why
        return
    kept = _kept(model)
    if kept.driver == threading.get_ident():
        yield "it is called from within another call, which has not ended"
        return
    with kept.turn:
        kept.driver = threading.get_ident()
        try:
            yield generator_for(model, rows=rows, length=length)
        finally:
            kept.driver = None


def generator_for(model: Any, *, rows: int, length: int) -> Generator | str:
    """One with room for this, made now or before; or why there is none. Threads take turns with `turn_at`."""
    why = refusal_by_settings(model, length)
    if why:
        return why
    kept = _kept(model)
    _prove(kept, model)
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
    with _giving_out:
        known = model.__dict__.get(_PLACE)
        if not isinstance(known, Kept):
            known = model.__dict__[_PLACE] = Kept()
        return known


def _prove(kept: Kept, model: Any) -> None:
    """Whether the model can be driven our way, unless that is known of it as it is now."""
    places = (Mode.of_caller(model), *((one.data_ptr(), one.dtype) for one in model.parameters()))
    if kept.places == places:
        return
    kept.clear()
    kept.refusal = refusal_by_trial(model)
    kept.places = places  # only now: a trial that was broken off has shown nothing
