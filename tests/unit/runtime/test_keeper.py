"""Whichever way Flatout, the keeper or the job dies, no process of the job and no scratch folder stays."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flatout.records.session import KEEPER_VARIABLE
from flatout.runtime.keeper import EXIT_NOT_STARTED
from tests.fakes.processes import wait_until_gone
from tests.unit.runtime.house import (
    MARK,
    SOURCE,
    WAIT_S,
    House,
    Kept,
    Who,
    make_job,
    shield_refusal,
    shielding,
    wait_for,
)

Keep = Callable[..., Kept]

# A main process that ignores polite signals, with a child, a grandchild in a session of its own, and a daemon
# that has forked twice and left everything behind.
STUBBORN = """
import os, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import subprocess, sys, time\\n"
    "print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True); time.sleep(600)"],
    stdout=subprocess.PIPE, text=True)
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(writing, str(os.getpid()).encode())
        os.closerange(0, 100)
        time.sleep(600)
    os._exit(0)
daemon = os.read(reading, 100).decode()
with open(os.environ["HOUSE"] + "/run/pids", "w") as pids:
    print(os.getpid(), child.pid, child.stdout.readline().strip(), daemon, file=pids)
time.sleep(600)
"""


@pytest.fixture
def who(myself: Who) -> Who:
    return myself


@pytest.fixture(params=["plain", "shielded"])
def shielded(request: pytest.FixtureRequest, who: Who, house: House) -> dict[str, object]:
    """The same with and without a shield: what a job is to be started with."""
    if request.param == "plain":
        return {}
    if refusal := shield_refusal(who):
        pytest.skip(f"this machine allows no overlay: {refusal}")
    return {"shield": shielding(house)}


def started(kept: Kept) -> int:
    if kept.job.shield is not None:
        kept.shielded()
    pid: int = kept.event("started")["pid"]
    return pid


def pids_of(house: House) -> list[int]:
    return [int(word) for word in wait_for(house.run / "pids").split()]


def assert_gone(pids: list[int]) -> None:
    for pid in pids:
        assert wait_until_gone(pid), f"{pids.index(pid)} of {pids}"


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_the_exit_code_is_passed_on(keep: Keep, who: Who, house: House) -> None:
    kept = keep(who, house, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    started(kept)
    event = kept.ended()
    assert (event["exit_code"], event["signal"]) == (7, None)
    assert (event["killed"], event["left"], event["not_removed"]) == ([], [], [])


def test_the_signal_is_passed_on(keep: Keep, who: Who, house: House) -> None:
    kept = keep(who, house, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    started(kept)
    event = kept.ended()
    assert (event["exit_code"], event["signal"]) == (None, signal.SIGSEGV)


def test_the_job_gets_what_was_ordered_and_nothing_else(keep: Keep, who: Who, house: House) -> None:
    job = (
        "import json, os, signal, sys\n"
        "ignored = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]\n"
        "seen = [os.getcwd(), dict(os.environ), sys.stdin.read(), os.getsid(0) == os.getpid(), ignored]\n"
        "print(json.dumps([*seen, sorted(os.listdir('/proc/self/fd'))]))"
    )
    (house.run / "out").write_text("before\n")

    def ignore_hangups() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    kept = keep(who, house, job, preexec=ignore_hangups)
    started(kept)
    kept.ended()
    before, said = kept.said().splitlines()
    cwd, environment, read, leads_a_session, ignored, descriptors = json.loads(said)
    assert before == "before"
    assert cwd == str(house.work)
    assert environment.pop(KEEPER_VARIABLE) == f"{kept.pid}:{MARK}"
    environment.pop("LC_CTYPE", None)  # Python's own
    assert environment == kept.job.environment
    assert read == ""
    assert leads_a_session
    # Python ignores these itself.
    assert set(ignored) <= {signal.SIGPIPE, signal.SIGXFSZ}
    # The three, and the one that lists them.
    assert descriptors == ["0", "1", "2", "3"]


def test_a_closed_pipe_ends_every_process(
    keep: Keep, who: Who, house: House, shielded: dict[str, object]
) -> None:
    kept = keep(who, house, STUBBORN, **shielded)
    main = started(kept)
    pids = pids_of(house)
    assert pids[0] == main
    assert all(alive(pid) for pid in pids)
    kept.let_go()
    event = kept.ended()
    assert event["signal"] == signal.SIGKILL
    assert {process["pid"] for process in event["killed"]} == set(pids[1:])
    assert_gone(pids)
    assert not house.scratch.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_keeper_ends_every_process(
    keep: Keep, who: Who, house: House, number: signal.Signals
) -> None:
    kept = keep(who, house, STUBBORN, preexec=lambda: _heed(number))
    started(kept)
    pids = pids_of(house)
    kept.process.send_signal(number)
    assert kept.ended()["signal"] == signal.SIGKILL
    assert_gone(pids)
    assert not house.scratch.exists()


def _heed(number: int) -> None:
    # A shell may have started the tests with this signal ignored.
    signal.signal(number, signal.SIG_DFL)


def test_a_hangup_that_is_ignored_as_under_nohup_ends_nothing(keep: Keep, who: Who, house: House) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    kept = keep(who, house, "import time; time.sleep(0.5); print('done')", preexec=ignore)
    started(kept)
    kept.process.send_signal(signal.SIGHUP)
    assert kept.ended()["exit_code"] == 0
    assert kept.said() == "done\n"


HOLDER = """
import subprocess, sys, time
keeper = subprocess.Popen(
    [sys.executable, "-P", "-m", "flatout.runtime.keeper"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
keeper.stdin.write(sys.stdin.buffer.read())
keeper.stdin.flush()
print(keeper.pid, flush=True)
time.sleep(600)
"""


def test_the_death_of_the_process_that_holds_the_pipe_ends_every_process(
    who: Who, house: House, shielded: dict[str, object]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    ) as holder:
        try:
            assert holder.stdin is not None
            assert holder.stdout is not None
            holder.stdin.write(make_job(who, house, STUBBORN, **shielded).line())
            holder.stdin.close()
            keeper = int(holder.stdout.readline())
            pids = pids_of(house)
        finally:
            holder.kill()
        assert_gone([*pids, keeper])
    assert not house.scratch.exists()


def test_children_that_end_by_themselves_are_waited_for(keep: Keep, who: Who, house: House) -> None:
    job = "import subprocess; subprocess.Popen(['sh', '-c', 'sleep 0.3; echo late'])"
    kept = keep(who, house, job, grace_s=60.0)
    started(kept)
    event = kept.ended()
    assert (event["exit_code"], event["killed"]) == (0, [])
    assert kept.said() == "late\n"


def test_children_that_stay_are_killed_and_named(keep: Keep, who: Who, house: House) -> None:
    job = (
        "import os, subprocess\n"
        "for _ in range(2): print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    )
    kept = keep(who, house, job)
    started(kept)
    event = kept.ended()
    pids = [int(line) for line in kept.said().split()]
    assert event["exit_code"] == 0
    named = sorted((process["pid"], process["name"]) for process in event["killed"])
    assert named == sorted((pid, "sleep") for pid in pids)
    assert_gone(pids)


def test_a_job_that_breeds_faster_than_it_is_counted_is_ended(keep: Keep, who: Who, house: House) -> None:
    # Each process leaves a successor in a new session before it ends, so that a list of them is always old.
    job = (
        "import os, time\n"
        "end = time.monotonic() + 60\n"
        "if os.fork(): time.sleep(0.2); os._exit(0)\n"
        "while time.monotonic() < end:\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
        f"    open({str(house.run / 'last')!r}, 'w').write(str(os.getpid()))\n"
    )
    kept = keep(who, house, job)
    started(kept)
    event = kept.ended()
    assert event["left"] == []
    last = (house.run / "last").read_text()
    time.sleep(0.2)
    assert (house.run / "last").read_text() == last


def test_a_command_that_does_not_exist_is_a_reason(keep: Keep, who: Who, house: House) -> None:
    kept = keep(who, house, ["no-such-command", "argument"], environment={"PATH": "/usr/bin"})
    assert kept.event("failed")["reason"] == "no-such-command: No such file or directory"
    assert kept.process.wait(WAIT_S) == EXIT_NOT_STARTED
    assert not house.scratch.exists()


def test_a_folder_that_does_not_exist_is_a_reason(
    keep: Keep, who: Who, house: House, shielded: dict[str, object]
) -> None:
    kept = keep(who, house, "print('ran')", cwd=str(house.root / "missing"), **shielded)
    if shielded:
        kept.shielded()
    assert "No such file or directory" in kept.event("failed")["reason"]
    assert kept.process.wait(WAIT_S) == EXIT_NOT_STARTED
    assert kept.said() == ""
    assert not house.scratch.exists()


def test_an_output_that_cannot_be_written_is_a_reason(keep: Keep, who: Who, house: House) -> None:
    kept = keep(who, house, "print('ran')", stdout=str(house.root / "missing/out"))
    assert "missing/out" in kept.event("failed")["reason"]


@pytest.mark.parametrize("line", [b"not json\n", b"{}\n", b'{"command": []}\n', b"[1]\n"])
def test_an_order_that_makes_no_sense_is_a_reason(line: bytes) -> None:
    done = _keeper_alone(line)
    assert json.loads(done.stdout)["event"] == "failed"
    assert done.returncode == EXIT_NOT_STARTED


def test_an_order_that_is_cut_off_starts_nothing(who: Who, house: House) -> None:
    done = _keeper_alone(make_job(who, house, "print('ran')").line().rstrip(b"\n"))
    assert (done.stdout, done.returncode) == (b"", EXIT_NOT_STARTED)
    assert not (house.run / "out").exists()


def _keeper_alone(line: bytes) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-P", "-m", "flatout.runtime.keeper"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(command, input=line, stdout=subprocess.PIPE, env=environment, timeout=WAIT_S)


def test_a_huge_output_does_not_block(keep: Keep, who: Who, house: House) -> None:
    kept = keep(who, house, "import sys\nfor _ in range(400): sys.stdout.write('x' * 100_000)")
    started(kept)
    assert kept.ended()["exit_code"] == 0
    assert (house.run / "out").stat().st_size == 40_000_000


def test_a_listener_that_has_gone_does_not_stop_the_cleaning_up(
    keep: Keep, who: Who, house: House, shielded: dict[str, object]
) -> None:
    kept = keep(who, house, STUBBORN, **shielded)
    started(kept)
    pids = pids_of(house)
    assert kept.process.stdout is not None
    kept.process.stdout.close()
    kept.let_go()
    assert kept.process.wait(WAIT_S) == 0
    assert_gone(pids)
    assert not house.scratch.exists()


def test_a_folder_that_holds_what_is_kept_is_not_removed(keep: Keep, who: Who, house: House) -> None:
    if refusal := shield_refusal(who):
        pytest.skip(f"this machine allows no overlay: {refusal}")
    kept = keep(who, house, "pass", shield=shielding(house), cleanup=(str(house.root),))
    started(kept)
    assert kept.ended()["not_removed"] == [str(house.root)]
    assert house.work.exists()


def test_a_kept_folder_that_is_itself_to_go_goes(keep: Keep, who: Who, house: House) -> None:
    if refusal := shield_refusal(who):
        pytest.skip(f"this machine allows no overlay: {refusal}")
    aside = house.other / "aside"
    aside.mkdir()
    job = "open('../other/aside/file', 'w').close()"
    cleanup = (str(house.other), str(aside))
    kept = keep(who, house, job, shield=shielding(house, aside), cleanup=cleanup)
    started(kept)
    event = kept.ended()
    assert (event["exit_code"], event["not_removed"]) == (0, [])
    assert not house.other.exists()


def test_the_keeper_loads_nothing_slow() -> None:
    code = "import sys, flatout.runtime.keeper; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=WAIT_S)
    loaded = set(done.stdout.split())
    assert "flatout.runtime.keeper" in loaded
    assert not loaded & {"torch", "psutil", "msgspec", "rich", "click", "asyncio", "logging", "subprocess"}
