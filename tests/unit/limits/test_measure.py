"""Measuring in a child: a real CPU, and children that refuse, crash, hang or fall silent."""

import os
from pathlib import Path

import pytest

from flatout.hardware.cpu import CpuSource
from flatout.limits.measure import Job, measure_devices
from flatout.limits.target import Target, choose_target
from flatout.records.device import Device
from flatout.records.errors import ChildFailed
from tests.fakes.processes import wait_until_gone


def cpu_target(**environment: str) -> Target:
    target = choose_target(CpuSource().discover().devices, "cpu", {})
    return Target(target.device, "cpu", environment)


def sabotage(tmp_path: Path, body: str) -> Target:
    """A child that runs `body` before anything else; it writes its PID first."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time, signal\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n{body}\n"
    )
    return cpu_target(PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.timeout(600)
def test_the_cpu_is_measured_with_plausible_figures_and_stages_in_order() -> None:
    stages: list[tuple[str, int, int]] = []
    [found] = measure_devices(
        [Job(cpu_target(), ("fp32",), CpuSource())], on_stage=lambda *stage: stages.append(stage)
    )
    rate = found.measured.matmul_flops_per_s["fp32"]
    assert 1e9 < rate < 1e14
    assert rate == max(result.flops_per_s for result in found.matmuls)
    for field in ("memory_copy_bytes_per_s", "memory_read_bytes_per_s", "memory_triad_bytes_per_s"):
        assert 1e8 < getattr(found.measured, field) < 1e13
    assert found.measured.h2d_pinned_bytes_per_s is None
    assert "host" in found.measured.unknown["h2d_pinned_bytes_per_s"]
    assert found.measured.launch_s is not None
    assert 1e-8 < found.measured.launch_s < 1e-2
    assert [name for name, _, _ in stages] == [
        "import torch",
        "launch cost",
        "host link",
        "memory bandwidth",
        "fp32 products",
        "launch cost again",
    ]


def test_a_device_that_torch_cannot_use_is_refused_with_advice() -> None:
    device = Device(index=0, vendor="nvidia", name="NVIDIA H200", uuid="GPU-none")
    alone = {"CUDA_VISIBLE_DEVICES": ""}
    with pytest.raises(ChildFailed, match="cannot use cuda here") as caught:
        measure_devices([Job(Target(device, "cuda:0", alone), ("bf16",))])
    assert "flatout doctor" in caught.value.remedy


def test_a_crash_is_told_with_its_signal(tmp_path: Path) -> None:
    target = sabotage(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(ChildFailed, match="signal 11"):
        measure_devices([Job(target, ("fp32",))])


def test_an_exception_is_told_with_its_last_line(tmp_path: Path) -> None:
    target = sabotage(tmp_path, "sys.stderr.write('CUDA error: ECC uncorrectable\\n'); os._exit(3)")
    with pytest.raises(ChildFailed, match="ended with 3: CUDA error: ECC uncorrectable"):
        measure_devices([Job(target, ("fp32",))])


def test_a_hang_ends_at_the_deadline_and_leaves_no_process(tmp_path: Path) -> None:
    target = sabotage(tmp_path, "time.sleep(600)")
    for seconds in (2, 60):
        with pytest.raises(ChildFailed, match=f"no result within {seconds} s"):
            measure_devices([Job(target, ("fp32",))], timeout_s=seconds)
        if (tmp_path / "pid").exists():  # else this machine is so slow that it did not come to say who it is
            break
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


def test_a_child_that_floods_its_standard_error_does_not_block(tmp_path: Path) -> None:
    target = sabotage(tmp_path, "sys.stderr.write('x' * 1_000_000 + '\\nthe end\\n'); os._exit(5)")
    with pytest.raises(ChildFailed, match="ended with 5: the end"):
        measure_devices([Job(target, ("fp32",))])


def test_a_child_that_cannot_be_started_leaves_no_pipe_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.hardware.command.sys.executable", str(tmp_path / "missing"))
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(FileNotFoundError):
        measure_devices([Job(sabotage(tmp_path, ""), ("fp32",))])
    assert set(Path("/proc/self/fd").iterdir()) <= before


def test_a_child_that_is_silent_and_does_not_end_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.limits.measure._ENDS_WITHIN_S", 0.1)
    target = sabotage(tmp_path, "os.closerange(3, 50); time.sleep(600)")
    with pytest.raises(ChildFailed, match="fell silent, and its process does not end"):
        measure_devices([Job(target, ("fp32",))])


def test_an_interrupt_ends_the_child_too(tmp_path: Path) -> None:
    def interrupt(*_stage: object) -> None:
        raise KeyboardInterrupt

    target = sabotage(tmp_path, "")
    with pytest.raises(KeyboardInterrupt):
        measure_devices([Job(target, ("fp32",))], on_stage=interrupt)
    assert wait_until_gone(int((tmp_path / "pid").read_text()))


def test_a_module_of_the_users_with_a_common_name_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "statistics.py").write_text("raise SystemExit('the user's own file ran')")
    monkeypatch.chdir(tmp_path)
    seen: list[str] = []

    def stop(name: str, *_: object) -> None:
        seen.append(name)
        if name == "launch cost":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_devices([Job(cpu_target(), ("fp32",))], on_stage=stop)
    assert seen == ["import torch", "launch cost"]
