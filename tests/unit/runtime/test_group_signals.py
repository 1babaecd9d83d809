"""A signal to one process is told from one to all of its group, also where several come at once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

# Tells of each signal whether it came to all; ready once it listens.
LISTENS = """
import signal, sys, time
from flatout.runtime.group_signals import Lookout

lookout = Lookout()
def heard(number, _frame):
    print(signal.Signals(number).name, lookout.saw_it(number), flush=True)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
    signal.signal(number, heard)
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


@pytest.fixture
def listening() -> Iterator[Any]:
    process = subprocess.Popen(
        (sys.executable, "-c", LISTENS), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def to_all(process: Any, number: signal.Signals) -> None:
    os.killpg(process.pid, number)


def to_it_alone(process: Any, number: signal.Signals) -> None:
    os.kill(process.pid, number)


def heard(process: Any) -> str:
    return str(process.stdout.readline().strip())


def test_one_to_all_and_one_alone(listening: Any) -> None:
    for _ in range(2):
        to_it_alone(listening, signal.SIGTERM)
        assert heard(listening) == "SIGTERM False"
        to_all(listening, signal.SIGTERM)
        assert heard(listening) == "SIGTERM True"


def test_one_alone_after_another_to_all(listening: Any) -> None:
    to_all(listening, signal.SIGHUP)
    assert heard(listening) == "SIGHUP True"
    to_it_alone(listening, signal.SIGTERM)
    assert heard(listening) == "SIGTERM False"


def test_one_alone_just_before_another_to_all(listening: Any) -> None:
    to_it_alone(listening, signal.SIGTERM)
    time.sleep(0.05)
    to_all(listening, signal.SIGUSR2)
    assert sorted((heard(listening), heard(listening))) == ["SIGTERM False", "SIGUSR2 True"]
    to_it_alone(listening, signal.SIGUSR2)
    assert heard(listening) == "SIGUSR2 False"
