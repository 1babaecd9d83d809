"""The doctor's report in a terminal."""

import io

import pytest
from rich.console import Console

from flatout.records.device import Device
from flatout.records.machine import CheckResult, DoctorReport, Framework, Host
from flatout.report.doctor import draw_doctor
from flatout.report.plain import inert


def report(*checks: CheckResult, gpus: int = 1) -> DoctorReport:
    devices = tuple(
        Device(index=i, vendor="nvidia", name="NVIDIA H200", memory_total_bytes=150754820096)
        for i in range(gpus)
    )
    return DoctorReport(
        devices=devices,
        samples=(),
        host=Host(system="Linux 6", python_version="3.11"),
        frameworks=(Framework(name="torch", installed=True, version="2.11.0"),),
        checks=checks,
    )


def drawn(found: DoctorReport, width: int = 100, *, problems_only: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    draw_doctor(found, console, problems_only=problems_only)
    return console.file.getvalue()  # type: ignore[attr-defined]


OK = CheckResult(id="env.debug", status="ok", evidence="none is on", fix="never shown")
WARN = CheckResult(
    id="gpu.power-cap",
    status="warn",
    evidence="limited to 500 W",
    fix="sudo nvidia-smi -pl 700",
    device_index=0,
)
FAIL = CheckResult(id="torch.build", status="fail", evidence="a CPU build", fix="pip install torch")


def test_problems_carry_their_fix_and_what_is_ok_does_not() -> None:
    text = drawn(report(OK, WARN, FAIL))
    assert "fix: sudo nvidia-smi -pl 700" in text
    assert "fix: pip install torch" in text
    assert "never shown" not in text
    assert "1 failed, 1 to look at, 1 ok" in text


def test_problems_only_leaves_out_what_is_ok() -> None:
    text = drawn(report(OK, WARN), problems_only=True)
    assert "env.debug" not in text
    assert "gpu.power-cap" in text


def test_with_several_gpus_each_result_says_which() -> None:
    assert "GPU 0: limited" not in drawn(report(WARN, gpus=1))
    assert "GPU 0: limited" in drawn(report(WARN, gpus=2))


@pytest.mark.parametrize("width", [20, 60, 80, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = drawn(report(OK, WARN, FAIL), width)
    assert max(map(len, text.splitlines())) <= width


def test_text_from_outside_is_inert() -> None:
    evil = CheckResult(
        id="gpu.processes", status="warn", evidence="PID 1 ([red]\x1b[31mx\x07\r\nroot)", fix=""
    )
    text = drawn(report(evil))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]" in text
    assert r"\x1b[31mx\x07\r\nroot" in text


def test_inert_keeps_ordinary_text_and_escapes_direction_marks() -> None:
    assert inert("NVIDIA H200 ü 東") == "NVIDIA H200 ü 東"
    assert inert("a\u202eb\x00") == r"a\u202eb\x00"
