"""Autograd's own search for NaN."""

from flatout.inside.debugging.switch import Switch


class Anomaly(Switch):
    """The operation whose backward made a NaN is named, with the line of its forward."""

    name = "anomaly"
    shows = "the operation whose backward pass made a NaN, with the line of its forward pass"
    cost = "a stack for each operation and a look at each gradient: about twice as long, more on a GPU"
    against = ("debug-modes",)

    def turn_on(self) -> None:
        """On, with the search for NaN."""
        torch = self.torch
        self._found = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
        torch.autograd.set_detect_anomaly(True, check_nan=True)

    def turn_off(self) -> None:
        """As it was found."""
        self.torch.autograd.set_detect_anomaly(*self._found)
