"""The scale of a GradScaler, read now and then without waiting for the device that it lies on."""

from typing import TYPE_CHECKING, Any

from flatout.inside.deferred import Slot

if TYPE_CHECKING:
    from flatout.inside.session import Session


class LossScale:
    """One copy is under way at a time; it is read once the device has passed it."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._under_way: tuple[Slot, Any] | None = None

    def look(self, scaler: Any) -> None:
        """A scaler has stepped; only steps that are looked at closely ask."""
        session = self._session
        if session.on_gpu and session.torch.cuda.is_current_stream_capturing():
            return
        if self._under_way is not None:
            slot, event = self._under_way
            if not event.query():
                return
            self._under_way = None
            self._tell(slot.read())
        scale = getattr(scaler, "_scale", None)  # `get_scale()` would wait
        if scale is None:
            return
        value = session.gpu.deferred.value_of(scale)
        if isinstance(value, Slot):
            event = session.torch.cuda.Event()
            event.record(session.torch.cuda.current_stream(session.device))
            self._under_way = (value, event)
        else:
            self._tell(value)

    def _tell(self, value: float | int | None) -> None:
        if value is not None:
            self._session.facts["loss_scale"] = float(value)
