"""The switches that were asked for, in the user's process."""

import functools
from typing import TYPE_CHECKING

from flatout.inside.debugging.catalogue import BY_NAME
from flatout.inside.debugging.switch import Switch

if TYPE_CHECKING:
    from flatout.inside.session import Session

NO_CUDA = "does nothing here: torch sees no GPU"


class DebugTap:
    """Turns them on when torch is there, and off again."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._on: list[Switch] = []

    def install(self) -> None:
        """On, each for itself: what became of them is known by the session."""
        session = self._session
        told: dict[str, str] = {}
        session.facts["debug"] = told
        for name in session.order.debug:
            kind = BY_NAME.get(name)
            if kind is None:
                continue
            if kind.needs_cuda and not session.torch.cuda.is_available():
                told[name] = NO_CUDA
                continue
            switch = kind(session.torch, session.folder)
            switch.tell = functools.partial(self._tell, told, name)
            told[name] = "on"
            try:
                switch.turn_on()
            except Exception as error:  # noqa: BLE001 - a switch may fail alone
                switch.tell(error)
            else:
                self._on.append(switch)

    @staticmethod
    def _tell(told: dict[str, str], name: str, error: Exception) -> None:
        told[name] = f"does not work here: {type(error).__name__}: {error}"

    def remove(self) -> None:
        """Off."""
        while self._on:
            self._on.pop().turn_off()

    def close(self) -> None:
        """The process ends."""
        for switch in self._on:
            switch.close()
