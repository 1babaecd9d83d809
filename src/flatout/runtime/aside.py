"""Threads beside the one that waits for a job and answers signals."""

import signal
import threading
from collections.abc import Callable

_FOR_THE_MAIN_THREAD = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def start_aside(target: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread that takes no signals: one that it took would not wake the main thread, which waits."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_MAIN_THREAD)
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return thread
