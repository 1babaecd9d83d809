"""What others want of the keeper: an order on its input, and the end, by closing that or by a signal."""

import os
import select
import signal

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_INPUT = 0


class Wishes:
    """Listens from its construction on; a signal that comes between two waits ends the next one at once."""

    def __init__(self) -> None:
        self.end = False
        self._poll = select.poll()
        self._signals, wakeup = os.pipe()
        os.set_blocking(self._signals, False)
        os.set_blocking(wakeup, False)
        # The handlers do nothing, but a signal without one wakes nobody.
        signal.signal(signal.SIGCHLD, _nothing)
        for number in _ENDING:
            # Ignored from the start, as under nohup, means that it is to stay without effect.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _nothing)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        self._poll.register(self._signals, select.POLLIN)
        self._poll.register(_INPUT, select.POLLIN)

    def first_line(self) -> bytes | None:
        """The first line of the input; None when the end was wanted before it was whole."""
        line = b""
        while not self.end:
            line += self._waited(None)
            if b"\n" in line:
                return line.split(b"\n", 1)[0]
        return None

    def wait(self, timeout_s: float | None) -> None:
        """Return when a child ended, when the end is wanted, or when the time is over."""
        self._waited(timeout_s)

    def _waited(self, timeout_s: float | None) -> bytes:
        read = b""
        for descriptor, _ in self._poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000):
            if descriptor == self._signals:
                self.end |= any(number in _ENDING for number in os.read(self._signals, 4096))
                continue
            read = os.read(_INPUT, 1 << 16)
            if not read:
                self.end = True
                self._poll.unregister(_INPUT)
        return read


def _nothing(_number: int, _frame: object) -> None:
    pass
