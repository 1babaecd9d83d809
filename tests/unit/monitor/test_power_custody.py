"""A power limit that was changed is put back exactly as it was found, whoever is killed, in every order."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flatout.hardware.nvidia.power import NvidiaPowerControl
from flatout.hardware.power_limits import PowerControls
from flatout.monitor.power.claims import boot_id, read_claims, take_news, write_claim
from flatout.monitor.power.restoring import restore_all
from flatout.monitor.power.unfinished import restored_now
from flatout.records.power import PowerClaim
from tests.fakes.nvml import GPU_IS_LOST, NO_PERMISSION
from tests.fakes.nvml_with_limits import NvmlWithLimits

ROOT = Path(__file__).parents[3]
SET = "nvmlDeviceSetPowerManagementLimit"
# Neither the maximum nor the default: who restores one of those is found out.
FOUND_MW, CAP_MW = 612_000, 450_000


@pytest.fixture
def machine(tmp_path: Path) -> NvmlWithLimits:
    fake = NvmlWithLimits(tmp_path / "nvml.json")
    fake.set_by_others(FOUND_MW)
    return fake


class Holder:
    """The program of `tests/fakes/holds_a_limit.py` in a process of its own."""

    def __init__(self, folder: Path, nvml: Path, *, silence_s: float = 60.0) -> None:
        fakes = ROOT / "tests" / "fakes"
        self.process = subprocess.Popen(
            [sys.executable, str(fakes / "holds_a_limit.py"), str(folder), str(CAP_MW), f"{silence_s:g}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": f"{fakes / 'as_pynvml'}",
                "FAKE_NVML_FILE": str(nvml),
                "FLATOUT_CACHE_DIR": str(folder),
            },
        )
        self.heard: list[str] = []
        self.watchdog = int(self.line("holding").split()[1])

    def line(self, beginning: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.heard.append(line)
            if line.startswith(beginning):
                return line
        self.close()
        raise AssertionError(f"never said {beginning!r}: {self.heard}")

    def order(self, words: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        while answer.startswith("the process that watches"):
            self.heard.append(answer)
            answer = self.process.stdout.readline()
        return answer

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(timeout=60)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def hold(tmp_path: Path, machine: NvmlWithLimits) -> Iterator[Callable[..., Holder]]:
    started: list[Holder] = []

    def start(**how: float) -> Holder:
        assert machine.limit_mw() == FOUND_MW
        started.append(Holder(tmp_path / "claims", tmp_path / "nvml.json", **how))
        # Not what it is now: whoever is to be silent for a second only may have been, by now.
        assert (0, CAP_MW) in machine.sets()
        return started[-1]

    yield start
    for one in started:
        one.close()


def until(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    return true()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def next_command(tmp_path: Path, machine: NvmlWithLimits) -> list[str]:
    """What the start of any other command of Flatout's does."""
    controls = PowerControls([NvidiaPowerControl(machine)])
    outcomes, problems = restore_all(tmp_path / "claims", controls)
    return [*(found.outcome for found in outcomes), *problems]


def test_at_the_end_the_limit_is_what_was_found(machine: NvmlWithLimits, hold: Callable[..., Holder]) -> None:
    holder = hold()
    assert holder.order("set 300000").startswith("did")
    assert "as it was found" in holder.order("end")
    assert machine.limit_mw() == FOUND_MW
    assert until(lambda: gone(holder.watchdog))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGSEGV])
def test_the_command_dies_and_its_watchdog_restores(
    tmp_path: Path, machine: NvmlWithLimits, hold: Callable[..., Holder], number: int
) -> None:
    holder = hold()
    holder.kill(number)
    assert until(lambda: machine.limit_mw() == FOUND_MW)
    assert until(lambda: gone(holder.watchdog))
    assert read_claims(tmp_path / "claims") == ([], [])
    if number == signal.SIGKILL:
        assert any("as it was found" in line for line in take_news(tmp_path / "claims"))


def test_the_watchdog_dies_and_the_command_starts_another(
    machine: NvmlWithLimits, hold: Callable[..., Holder]
) -> None:
    holder = hold()
    os.kill(holder.watchdog, signal.SIGKILL)
    assert until(lambda: gone(holder.watchdog))
    assert machine.limit_mw() == CAP_MW  # the command goes on
    second = int(holder.order("beat").split()[1])
    assert second not in (0, holder.watchdog)
    holder.kill()
    assert until(lambda: machine.limit_mw() == FOUND_MW)
    assert until(lambda: gone(second))


@pytest.mark.parametrize("first", ["watchdog", "command"])
def test_both_die_and_the_next_command_restores(
    tmp_path: Path, machine: NvmlWithLimits, hold: Callable[..., Holder], first: str
) -> None:
    holder = hold()
    if first == "command":
        os.kill(holder.watchdog, signal.SIGSTOP)  # it would be quicker than us
        holder.kill()
    os.kill(holder.watchdog, signal.SIGKILL)
    holder.kill()
    assert until(lambda: gone(holder.watchdog))
    assert machine.limit_mw() == CAP_MW
    assert next_command(tmp_path, machine) == ["restored"]
    assert machine.limit_mw() == FOUND_MW
    assert next_command(tmp_path, machine) == []


def test_killed_between_the_note_and_the_change_nothing_is_touched(
    tmp_path: Path, machine: NvmlWithLimits
) -> None:
    claim = PowerClaim(
        uuid=machine.uuid(),
        vendor="nvidia",
        index=0,
        name="H200",
        found_mw=FOUND_MW,
        ours_mw=(CAP_MW,),
        boot_id=boot_id(),
    )
    write_claim(tmp_path / "claims", claim)
    assert next_command(tmp_path, machine) == ["as found already"]
    assert machine.sets() == []


def test_after_a_restart_of_the_machine_the_limit_is_not_ours(
    tmp_path: Path, machine: NvmlWithLimits
) -> None:
    machine.set_by_others(CAP_MW)
    claim = PowerClaim(
        uuid=machine.uuid(),
        vendor="nvidia",
        index=0,
        name="H200",
        found_mw=FOUND_MW,
        ours_mw=(CAP_MW,),
        boot_id="another",
    )
    write_claim(tmp_path / "claims", claim)
    assert next_command(tmp_path, machine) == ["machine restarted"]
    assert machine.limit_mw() == CAP_MW


def test_what_somebody_else_set_meanwhile_stays_and_is_told(
    tmp_path: Path, machine: NvmlWithLimits, hold: Callable[..., Holder]
) -> None:
    holder = hold()
    machine.set_by_others(500_000)
    assert holder.order("set 300000").startswith(
        "SomebodyElse: GPU 0: somebody else set the power limit to 500 W"
    )
    assert "somebody else has set the power limit to 500 W" in holder.order("end")
    assert machine.limit_mw() == 500_000
    assert read_claims(tmp_path / "claims") == ([], [])


def test_the_watchdog_does_not_overwrite_others_either(
    tmp_path: Path, machine: NvmlWithLimits, hold: Callable[..., Holder]
) -> None:
    holder = hold()
    machine.set_by_others(500_000)
    holder.kill()
    assert until(lambda: gone(holder.watchdog))
    assert machine.limit_mw() == 500_000
    assert any("left at that" in line for line in take_news(tmp_path / "claims"))


def test_permission_that_goes_midway_leaves_a_note_and_what_to_type(
    tmp_path: Path, machine: NvmlWithLimits, hold: Callable[..., Holder]
) -> None:
    holder = hold()
    machine.plant(SET, NO_PERMISSION)
    assert holder.order("set 300000").startswith("PowerRefused: this user may not set it")
    said = holder.order("end")
    assert "could not be put back to 612 W" in said
    assert f"sudo nvidia-smi -i {machine.uuid()} -pl 612" in said
    assert until(lambda: gone(holder.watchdog))
    assert machine.limit_mw() == CAP_MW
    machine.heal_file()
    assert next_command(tmp_path, machine) == ["restored"]
    assert machine.limit_mw() == FOUND_MW


def test_a_gpu_that_was_lost_and_comes_back_is_restored(
    machine: NvmlWithLimits, hold: Callable[..., Holder]
) -> None:
    holder = hold()
    machine.plant("*", GPU_IS_LOST, gpu=0)
    assert holder.order("set 300000").startswith("PowerRefused")
    assert "could not be put back" in holder.order("end")
    machine.heal_file()
    # The watchdog stays behind and asks again.
    assert until(lambda: machine.limit_mw() == FOUND_MW)
    assert until(lambda: gone(holder.watchdog))


def test_a_command_that_is_stopped_loses_its_limits(
    machine: NvmlWithLimits, hold: Callable[..., Holder]
) -> None:
    holder = hold(silence_s=1.0)
    holder.process.send_signal(signal.SIGSTOP)
    assert until(lambda: machine.limit_mw() == FOUND_MW)
    holder.process.send_signal(signal.SIGCONT)
    assert "our own watchdog" in holder.order("set 300000")
    holder.order("end")
    assert machine.limit_mw() == FOUND_MW


def test_what_a_driver_made_of_our_wish_is_put_back_too(
    tmp_path: Path, machine: NvmlWithLimits, hold: Callable[..., Holder]
) -> None:
    holder = hold()
    machine.keep_in(1_000)
    assert "set to 300.7 W, the device says 300 W" in holder.order("set 300700")
    [claim] = read_claims(tmp_path / "claims")[0]
    assert 300_000 in claim.ours_mw  # for the watchdog, should the command die now
    assert holder.order("set 310000").startswith("did")  # it is not taken for somebody else's
    assert "set to 299.7 W" in holder.order("set 299700")
    assert "as it was found" in holder.order("end")
    assert machine.limit_mw() == FOUND_MW


def test_two_at_once_are_refused(
    tmp_path: Path, machine: NvmlWithLimits, hold: Callable[..., Holder]
) -> None:
    holder = hold()
    with pytest.raises(AssertionError, match="another command changes power limits"):
        Holder(tmp_path / "claims", tmp_path / "nvml.json")
    assert machine.limit_mw() == CAP_MW
    holder.order("end")
    assert machine.limit_mw() == FOUND_MW


def test_a_kept_limit_is_not_forgotten_while_a_command_holds_it(
    tmp_path: Path, machine: NvmlWithLimits, hold: Callable[..., Holder]
) -> None:
    before = PowerClaim(
        uuid=machine.uuid(), vendor="nvidia", index=0, name="H200", found_mw=650_000, ours_mw=(FOUND_MW,)
    )
    write_claim(tmp_path / "claims", before, "kept")
    holder = hold()
    controls = PowerControls([NvidiaPowerControl(machine)])
    outcomes, [said] = restored_now(tmp_path / "claims", controls, ("claim", "kept"))
    assert (outcomes, "will put them back itself" in said) == ((), True)
    assert machine.limit_mw() == CAP_MW
    holder.order("end")
    assert until(lambda: gone(holder.watchdog))
    [outcome] = restored_now(tmp_path / "claims", controls, ("claim", "kept"))[0]
    assert (outcome.outcome, machine.limit_mw()) == ("restored", 650_000)


def test_limits_outside_of_what_the_gpu_takes_are_refused(
    machine: NvmlWithLimits, hold: Callable[..., Holder]
) -> None:
    holder = hold()
    assert "not between the 200 W and 700 W" in holder.order("set 100000")
    holder.order("end")
    assert machine.limit_mw() == FOUND_MW
    assert (0, 100_000) not in machine.sets()
