"""torch's cross entropy, with what levers put around it.

Scripts call it outside of the model, where no lever sees it otherwise. Several levers may want to stand
around it at once, and come and go in any order: torch's function is replaced once, by one of ours that calls
through those that are on.
"""

import functools
from collections.abc import Callable
from typing import Any

from flatout.levers.lever import Call

Around = Callable[[Call], Call]


class LossFunction:
    """The place of `torch.nn.functional.cross_entropy` in one process."""

    def __init__(self, torch: Any) -> None:
        self._owner = torch.nn.functional
        self._is_compiling = torch.compiler.is_compiling
        # Outermost first.
        self._on: list[tuple[int, str, Around]] = []
        self._real: Any = None
        self._replacement: Any = None
        self._replaced: Any = None
        self._composed: Any = None
        self._stays = False

    def stand_by(self) -> None:
        """Stand there before any lever does, and for good.

        Where the model is called among the arguments, as in `cross_entropy(model(x), y)`, the script has
        looked the function up before the call in which levers come on.
        """
        self._stays = True
        self._replace()

    def put(self, lever: str, layer: int, around: Around) -> None:
        """Stand around it; higher layers further out."""
        self.take(lever)
        self._on = sorted([*self._on, (layer, lever, around)], key=lambda one: -one[0])
        self._replace()
        self._compose()

    def take(self, lever: str) -> None:
        """Stand there no longer; with the last one, torch's own function is back."""
        self._on = [one for one in self._on if one[1] != lever]
        if self._on:
            self._compose()
        elif self._stays:
            self._composed = None
        elif self._real is not None:
            if self._owner.cross_entropy is self._replacement:  # else somebody else's stands there: it stays
                self._owner.cross_entropy = self._real
            self._real = self._composed = None

    def _replace(self) -> None:
        if self._real is None:
            self._real = self._owner.cross_entropy
            if self._replacement is None or self._replaced is not self._real:
                # The same one each time: models that call it are compiled with it, and would be again.
                self._replacement, self._replaced = self._ours(self._real), self._real
            self._owner.cross_entropy = self._replacement

    def _compose(self) -> None:
        call = self._real
        for _, _, around in reversed(self._on):
            call = around(call)
        self._composed = call

    def _ours(self, real: Any) -> Any:
        place, is_compiling = self, self._is_compiling

        @functools.wraps(real)
        def cross_entropy(*args: Any, **kwargs: Any) -> Any:
            # The compiler folds the question into a constant, and sees torch's own function.
            if is_compiling() or place._composed is None:
                return real(*args, **kwargs)
            return place._composed(*args, **kwargs)

        return cross_entropy


@functools.cache
def loss_function(torch: Any) -> LossFunction:
    """The one of this process."""
    return LossFunction(torch)
