"""What holds for every test."""

import signal


def pytest_configure() -> None:
    """Under `nohup` or in a background job children would ignore the signals that tests send in earnest."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
