"""What holds for every test."""

import signal


def pytest_configure() -> None:
    """Under `nohup`, children would inherit that hangups are ignored; tests send them in earnest."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
