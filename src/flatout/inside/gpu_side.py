"""What a step leaves on the GPU: events at its borders and between its parts, losses and norms on their way.

Nothing here waits for the device. If its clock fails once, the session goes on without.
"""

from typing import TYPE_CHECKING, Any

from flatout.inside.deferred import Deferred, Slot, leave_to_the_parent
from flatout.inside.device import DeviceClock, Mark, room_for_a_mark
from flatout.inside.loss_scale import LossScale

if TYPE_CHECKING:
    from flatout.inside.session import Session


class GpuSide:
    """The clock of the device that trains, once that is known, and what waits for the end of the step."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._start_empty()

    def _start_empty(self) -> None:
        self.deferred = Deferred(self._session.torch)
        self.scale = LossScale(self._session)
        self._clock: DeviceClock | None = None
        self._marks: list[Mark] = []
        self._losses: list[Any] = []
        self._norms: list[Any] = []

    def find(self, device: Any) -> None:
        """The first update is done: where the parameters lie that it changed is where the job runs."""
        session = self._session
        session.device = device
        session.facts["device"] = str(session.device)
        session.on_gpu = session.device is not None and session.device.type == "cuda"
        if session.on_gpu:
            properties = session.torch.cuda.get_device_properties(session.device)
            session.facts["device_name"] = properties.name
            session.facts["device_uuid"] = str(getattr(properties, "uuid", "")) or None
            if "device" in session.order.taps:
                self._clock = DeviceClock(session.torch, session.device, session.log.add)
                session.log.add(("clock", True))

    def mark(self, kind: str) -> None:
        """An event at this point of the device's stream, in steps that are looked at in detail."""
        if self._clock is not None and room_for_a_mark(self._marks):
            try:
                self._marks.append((kind, self._clock.mark()))
            except Exception as error:  # noqa: BLE001 - observing never breaks a job
                self._lose_the_clock(error)

    def _wants_detail(self, updates: int) -> bool:
        """Where levers take turns only whole steps count, and looking closer weighs on the fastest most."""
        return self._session.bench is None and DeviceClock.wants_detail(updates)

    def loss(self, tensor: Any) -> Any:
        """A loss: its value where it lies in host memory, else a slot that comes with the step."""
        if self._session.bench is not None:
            return None
        value = self.deferred.value_of(tensor)
        if isinstance(value, Slot):
            self._losses.append(value)
        return value

    def norm(self, tensor: Any) -> Any:
        """A gradient norm, likewise."""
        if self._session.bench is not None:
            return None
        value = self.deferred.value_of(tensor)
        if isinstance(value, Slot):
            self._norms.append(value)
        return value

    def open(self, updates: int) -> None:
        """After steps that nobody looked at comes one that is looked at."""
        if self._clock is not None:
            try:
                self._clock.open()
            except Exception as error:  # noqa: BLE001 - observing never breaks a job
                self._lose_the_clock(error)
            else:
                self._session.detailed = self._wants_detail(updates)

    def close(self, updates: int, *, late: bool) -> None:
        """The end of a step, with everything that it left; and whether the next is looked at in detail."""
        if self._clock is None:
            return
        marks, losses, norms = self._marks, self._losses, self._norms
        self._marks, self._losses, self._norms = [], [], []
        try:
            opens_next = self._session.watching and not late
            self._clock.close(updates, marks, losses, norms, opens_next=opens_next)
        except Exception as error:  # noqa: BLE001 - observing never breaks a job
            self._lose_the_clock(error)
        self._session.detailed = self._session.watching and self._wants_detail(updates)

    def drain(self) -> None:
        """The process ends: wait a little for what is on its way."""
        if self._clock is not None:
            self._clock.drain()

    def leave_to_the_parent(self) -> None:
        """In a forked child: what lies on the device is the parent's, and so is freeing it."""
        leave_to_the_parent((self._clock, self._marks, self._losses, self._norms, self.deferred, self.scale))
        self._session.detailed = False
        self._start_empty()

    def _lose_the_clock(self, error: Exception) -> None:
        self._clock, self._session.detailed = None, False
        self._session.log.add(("clock", False))
        self._session.fail("device", error)
