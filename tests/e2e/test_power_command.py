"""`flatout power` as a user meets it, on a fake GPU whose limits can be set; nothing real is touched."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.fakes.nvml import NO_PERMISSION, NOT_SUPPORTED
from tests.fakes.nvml_with_limits import NvmlWithLimits
from tests.pages import parsed

ROOT = Path(__file__).parents[2]
FLATOUT = (sys.executable, "-m", "flatout")
FOUND_MW = 612_000
QUICK = ("--window", "0.3s", "--settle", "0.1s", "--gpu", "0")


@pytest.fixture
def machine(tmp_path: Path) -> NvmlWithLimits:
    fake = NvmlWithLimits(tmp_path / "nvml.json")
    fake.set_by_others(FOUND_MW)
    # Over windows as short as these, a counter says more about the tests' own pauses than about power.
    fake.plant("nvmlDeviceGetTotalEnergyConsumption", NOT_SUPPORTED)
    return fake


@pytest.fixture
def environment(tmp_path: Path, machine: NvmlWithLimits) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tests" / "fakes" / "as_pynvml"),
        "FAKE_NVML_FILE": str(tmp_path / "nvml.json"),
        "FLATOUT_CACHE_DIR": str(tmp_path / "cache"),
    }


@pytest.fixture
def job() -> Iterator[str]:
    """Any process will do: a pid is taken at its word, and the GPU is named."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield str(process.pid)
    process.kill()
    process.wait()


@pytest.fixture
def flatout(tmp_path: Path, environment: dict[str, str]) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*FLATOUT, *words], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=250
        )

    return run


@pytest.fixture
def capped(
    tmp_path: Path, environment: dict[str, str], machine: NvmlWithLimits, job: str
) -> Iterator["subprocess.Popen[str]"]:
    """A sweep in the middle of its only cap."""
    # The limit as found is measured for so short a time that the cap comes at once.
    words = ("power", job, "--gpu", "0", "--caps", "400", "--window", "0.2s", "--settle", "100s")
    process = subprocess.Popen(
        [*FLATOUT, *words],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert until(lambda: machine.limit_mw() == 400_000)
        yield process
    finally:
        process.kill()
        process.communicate()


def until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    return true()


def watchdog_of(process: "subprocess.Popen[str]") -> int:
    children = psutil.Process(process.pid).children()
    return next(one.pid for one in children if "monitor.power.watchdog" in " ".join(one.cmdline()))


def test_a_sweep_tells_the_best_cap_and_leaves_the_limit_as_found(
    tmp_path: Path,
    machine: NvmlWithLimits,
    flatout: Callable[..., "subprocess.CompletedProcess[str]"],
    job: str,
) -> None:
    done = flatout("power", job, *QUICK, "--caps", "500,300", "--json", "--html", "power.html")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["schema"] == "flatout.power/1"
    assert told["best_mw"] == 500_000
    assert [point["cap_mw"] for point in told["points"]] == [FOUND_MW, 500_000, 300_000]
    assert told["pace_source"] == "memory traffic"
    assert machine.limit_mw() == FOUND_MW
    page = parsed((tmp_path / "power.html").read_text())
    assert any("500 W" in text for text in page.texts)


def test_apply_keeps_the_cap_and_restore_puts_it_back(
    machine: NvmlWithLimits, flatout: Callable[..., "subprocess.CompletedProcess[str]"], job: str
) -> None:
    done = flatout("power", job, *QUICK, "--caps", "500", "--apply")
    assert done.returncode == 0, done.stderr
    assert machine.limit_mw() == 500_000
    assert "612 W before" in flatout("power").stdout
    # Other commands leave it alone.
    assert flatout("gpus").stderr == ""
    assert machine.limit_mw() == 500_000
    assert "612 W again" in flatout("power", "--restore").stdout
    assert machine.limit_mw() == FOUND_MW
    assert "nothing to put back" in flatout("power", "--restore").stdout


def test_without_permission_it_measures_and_says_what_to_type(
    machine: NvmlWithLimits, flatout: Callable[..., "subprocess.CompletedProcess[str]"], job: str
) -> None:
    machine.plant("nvmlDeviceSetPowerManagementLimit", NO_PERMISSION)
    done = flatout("power", job, *QUICK)
    assert done.returncode == 0, done.stderr
    assert "this user may not set it" in done.stdout
    assert f"sudo nvidia-smi -i {machine.uuid()} -pl 490" in " ".join(done.stdout.split())
    assert machine.sets() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_puts_the_limit_back_itself(
    machine: NvmlWithLimits, capped: "subprocess.Popen[str]", number: int
) -> None:
    capped.send_signal(number)
    capped.communicate(timeout=60)
    assert capped.returncode == (130 if number == signal.SIGINT else -number)
    assert machine.limit_mw() == FOUND_MW


def test_a_sweep_that_was_killed_with_its_watchdog_is_put_right_by_any_command(
    machine: NvmlWithLimits,
    flatout: Callable[..., "subprocess.CompletedProcess[str]"],
    capped: "subprocess.Popen[str]",
) -> None:
    watchdog = watchdog_of(capped)
    capped.send_signal(signal.SIGSTOP)  # it would start another
    os.kill(watchdog, signal.SIGKILL)
    capped.kill()
    capped.wait()
    assert machine.limit_mw() == 400_000
    done = flatout("gpus", "h200", "--json")
    assert done.returncode == 0
    assert "the power limit is 612 W again, as it was found" in done.stderr
    assert json.loads(done.stdout)
    assert machine.limit_mw() == FOUND_MW
    assert flatout("gpus", "h200").stderr == ""


def test_a_sweep_that_was_killed_is_put_right_by_its_watchdog_and_told_later(
    machine: NvmlWithLimits,
    flatout: Callable[..., "subprocess.CompletedProcess[str]"],
    capped: "subprocess.Popen[str]",
) -> None:
    watchdog = watchdog_of(capped)
    capped.kill()
    capped.wait()
    assert until(lambda: machine.limit_mw() == FOUND_MW)
    assert until(lambda: not Path(f"/proc/{watchdog}/fd/0").exists())
    assert "the command that had changed it is gone" in flatout("gpus", "h200").stderr


def test_two_sweeps_at_once_are_refused(
    machine: NvmlWithLimits,
    flatout: Callable[..., "subprocess.CompletedProcess[str]"],
    capped: "subprocess.Popen[str]",
    job: str,
) -> None:
    done = flatout("power", job, *QUICK)
    assert done.returncode == 3
    assert "another command changes power limits" in done.stderr
    done = flatout("power", "--restore")
    assert (done.returncode, "will put them back itself" in done.stdout) == (1, True)
    assert machine.limit_mw() == 400_000


def test_the_guard_watches_until_ctrl_c(
    tmp_path: Path, environment: dict[str, str], machine: NvmlWithLimits
) -> None:
    guard = subprocess.Popen(
        [*FLATOUT, "power", "--guard", "cap", "--json"],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert guard.stderr is not None
    assert "watching 1 GPUs" in guard.stderr.readline()
    time.sleep(1.5)
    guard.send_signal(signal.SIGINT)
    said, _ = guard.communicate(timeout=60)
    told = json.loads(said)
    assert (told["mode"], told["warnings"]) == ("cap", 0)
    assert machine.limit_mw() == FOUND_MW


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("power", "nosuch"), "no job 'nosuch'"),
        (("power", "--apply"), "no job was named"),
        (("power", "--restore", "--guard", "cap"), "at once"),
        (("power", "--gpu", "7"), "no GPU 7"),
        (("power", "1", "--caps", "many"), "no list of watts"),
    ],
)
def test_mistakes_are_said(
    flatout: Callable[..., "subprocess.CompletedProcess[str]"], words: tuple[str, ...], said: str
) -> None:
    done = flatout(*words)
    assert done.returncode == 2
    assert said in done.stderr


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [*FLATOUT, "power"],
        env={**os.environ, "FLATOUT_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0
    assert "no GPU can be seen here" in done.stdout or "draws" in done.stdout
