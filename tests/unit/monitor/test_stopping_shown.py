"""Ending what was chosen in a view: the very job that was shown, or nobody."""

import os
import subprocess
import sys
import time

from flatout.monitor.stopping import stop_shown_job
from flatout.records.watched import JobRow
from tests.fakes.watching import job_here

SAVES = (
    "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); print(flush=True); time.sleep(600)"
)


def test_the_job_that_was_shown_is_asked_to_save_and_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", SAVES], stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        row = JobRow(job_here(child.pid, "train.py", age_s=0.1), None, time.time())
        # Its parent, this test, takes notice of its end only later.
        outcome = stop_shown_job(row, 60.0, lambda _words: None)
        assert child.wait(60) == 0
    assert "train.py has ended" in outcome


def test_a_younger_process_of_the_same_pid_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        row = JobRow(job_here(child.pid, "train.py", age_s=5000.0), None, time.time())
        assert "has ended already" in stop_shown_job(row, 1.0, lambda _words: None)
        assert child.poll() is None
        child.kill()


def test_a_process_that_has_grown_older_than_the_shown_one_was_is_left_alone_too() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        # Shown an hour ago, when it was 20 s old: whoever has its pid now came later.
        row = JobRow(job_here(child.pid, "train.py", age_s=20.0), None, time.time() - 3600)
        assert "has ended already" in stop_shown_job(row, 1.0, lambda _words: None)
        assert child.poll() is None
        child.kill()


def test_our_own_process_and_jobs_of_other_machines_are_refused() -> None:
    own = JobRow(job_here(os.getpid(), "train.py", age_s=0.0), None, time.time())
    assert "not to be ended" in stop_shown_job(own, 1.0, lambda _words: None)
    assert "not run on this machine" in stop_shown_job(
        JobRow(None, None, time.time()), 1.0, lambda _words: None
    )
