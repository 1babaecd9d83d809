"""The states of one optimizer: on the device for an update, on the host otherwise."""

import weakref
from typing import Any

from flatout.levers.offloading import Away, FromHost, ToHost, host_has_room, is_plain

# Counts of steps and the like stay where they are.
_FEWEST_BYTES = 1 << 12


class States:
    """The states of one optimizer, at home on the host."""

    def __init__(self, torch: Any, device: Any, optimizer: Any, *, fewest_bytes: int = _FEWEST_BYTES) -> None:
        self._torch = torch
        self._device = torch.device(device)
        self._optimizer = optimizer
        self._fewest = fewest_bytes
        self._out, self._back = ToHost(torch, self._device, window_bytes=None), FromHost(torch, self._device)
        # By parameter and name: where each waits, and used again for the next stay.
        self._homes: dict[tuple[Any, str], Away] = {}
        self._handles = [
            optimizer.register_step_pre_hook(lambda *_: self._come()),
            optimizer.register_step_post_hook(lambda *_: self._leave()),
            optimizer.register_state_dict_pre_hook(lambda *_: self.finish()),
        ]
        _taken.add(self)
        self._leave()

    @property
    def is_leaving(self) -> bool:
        """Whether some are on their way out and held until they are there."""
        return self._out.is_busy

    def let_go(self, share: float) -> None:
        """Of those on their way out, so many are gone once what is launched next begins."""
        self._out.let_go(share)

    def belong_to(self, optimizer: Any) -> bool:
        """Whether they are this optimizer's."""
        return self._optimizer is optimizer

    def finish(self) -> None:
        """Whoever reads them on the host next finds them whole."""
        self._out.finish()

    def give_back(self) -> None:
        """Everything is as it was."""
        for handle in self._handles:
            handle.remove()
        _taken.discard(self)
        self._come()
        self._out.let_go(1.0)
        self._homes.clear()

    def _come(self) -> None:
        events = []
        for parameter, name, value in self._states():
            home = self._homes.get((parameter, name))
            if home is not None and value is home.host:
                tensor, arrived = self._back.fetch(home)
                self._optimizer.state[parameter][name] = tensor
                events.append(arrived)
            elif home is not None and value.device != self._device:  # a copy that somebody has put there
                self._optimizer.state[parameter][name] = value.to(self._device)
        for event in events:
            self._back.wait_for(event)

    def _leave(self) -> None:
        for parameter, name, value in self._states():
            if value.device != self._device or value.nbytes < self._fewest:
                continue
            home = self._homes.get((parameter, name))
            if home is None and not (is_plain(self._torch, value) and host_has_room(value.nbytes)):
                continue
            self._homes[parameter, name] = home = self._out.send(value, home)
            self._optimizer.state[parameter][name] = home.host

    def _states(self) -> list[tuple[Any, str, Any]]:
        return [
            (parameter, name, value)
            for parameter, state in self._optimizer.state.items()
            for name, value in state.items()
            if isinstance(value, self._torch.Tensor)
        ]


_taken: weakref.WeakSet[States] = weakref.WeakSet()


def wait_for_states(optimizer: Any) -> None:
    """For whoever reads `optimizer.state` itself: `state_dict()` does it by itself."""
    for states in [one for one in _taken if one.belong_to(optimizer)]:
        states.finish()
