"""Kept limits: found again for the same device, driver and torch only; never overwritten unasked."""

import dataclasses
import datetime as dt
from pathlib import Path

import pytest

from flatout.hardware.protocol import Discovery
from flatout.limits import obtain
from flatout.limits.store import LimitsStore
from flatout.records.device import Device, DeviceProcess, DeviceSample
from flatout.records.errors import (
    CallerMistake,
    CannotWrite,
    ChildFailed,
    CorruptFile,
    EnvironmentProblem,
    ForeignVersion,
    LockHeld,
    UnknownName,
)
from flatout.records.limits import ClockState, DeviceLimits, Limits, Measured, MeasuredDevice

GPU = Device(index=0, vendor="nvidia", name="NVIDIA H200", uuid="GPU-1", driver_version="580.1")
CPU = Device(index=0, vendor="cpu", name="A CPU", uuid="CPU-1")


def some_limits(version: str = "2.13.0") -> Limits:
    device = MeasuredDevice(
        name=GPU.name,
        torch_device="cuda:0",
        vendor="nvidia",
        uuid=GPU.uuid,
        index=0,
        memory_total_bytes=150 << 30,
        driver_version="580.1",
        torch_version=version,
    )
    return Limits(
        device=device,
        measured=Measured(matmul_flops_per_s={"bf16": 8e14}, memory_bytes_per_s=4.3e12),
        rated=None,
        rated_reason="",
        matmuls=(),
        clocks=ClockState(samples=0),
        cpu=None,
        measured_at=dt.datetime(2026, 11, 15, tzinfo=dt.UTC),
        took_s=20.0,
        method=1,
    )


def test_what_was_kept_is_found_again(tmp_path: Path) -> None:
    store = LimitsStore(tmp_path)
    store.save(GPU, some_limits())
    assert store.load(GPU, "2.13.0") == some_limits()


@pytest.mark.parametrize("change", [{"uuid": "GPU-2"}, {"driver_version": "590.0"}])
def test_another_device_or_driver_finds_nothing(tmp_path: Path, change: dict[str, str]) -> None:
    store = LimitsStore(tmp_path)
    store.save(GPU, some_limits())
    assert store.load(dataclasses.replace(GPU, **change), "2.13.0") is None  # type: ignore[arg-type]
    assert store.load(GPU, "2.14.0") is None


@pytest.mark.parametrize("damage", [b"", b"{", b'{"schema": "flatout.limits/1"}', b"\xff\xfe"])
def test_a_damaged_file_is_refused_and_left_alone(tmp_path: Path, damage: bytes) -> None:
    store = LimitsStore(tmp_path)
    path = store.save(GPU, some_limits())
    path.write_bytes(damage)
    with pytest.raises(CorruptFile, match="--fresh"):
        store.load(GPU, "2.13.0")
    assert path.read_bytes() == damage


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    store = LimitsStore(tmp_path)
    path = store.save(GPU, some_limits())
    path.write_bytes(path.read_bytes().replace(b"flatout.limits/1", b"flatout.limits/9"))
    with pytest.raises(ForeignVersion):
        store.load(GPU, "2.13.0")


def test_names_with_slashes_cannot_leave_the_folder(tmp_path: Path) -> None:
    store = LimitsStore(tmp_path)
    evil = dataclasses.replace(GPU, uuid="../../../etc/passwd", driver_version="/tmp")
    assert store.path_for(evil, "../..").parent == tmp_path / "limits"


def test_a_folder_that_cannot_be_written_is_noticed_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CannotWrite, match="--no-cache"), LimitsStore(tmp_path / "file").writing():
        pytest.fail("this must not be reached")


def test_a_file_where_the_folder_should_be_is_the_environments_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EnvironmentProblem, match="cannot read"):
        LimitsStore(tmp_path / "file").load(GPU, "2.13.0")


def test_two_measurements_at_once_are_refused(tmp_path: Path) -> None:
    with LimitsStore(tmp_path).writing(), pytest.raises(LockHeld), LimitsStore(tmp_path).writing():
        pytest.fail("this must not be reached")


def test_a_kept_rate_below_zero_is_damage(tmp_path: Path) -> None:
    store = LimitsStore(tmp_path)
    path = store.save(GPU, some_limits())
    path.write_bytes(path.read_bytes().replace(b"4300000000000.0", b"-5.0"))
    with pytest.raises(CorruptFile):
        store.load(GPU, "2.13.0")


# --- obtaining -----------------------------------------------------------------------------------------


class OneSource:
    """A source with fixed devices."""

    def __init__(self, *devices: Device) -> None:
        self.devices = devices
        self.vendor = devices[0].vendor
        self.closed = 0
        self.processes: tuple[DeviceProcess, ...] = ()

    def discover(self) -> Discovery:
        return Discovery(devices=self.devices)

    def sample(self, devices: object) -> list[DeviceSample]:
        return [DeviceSample(index=0, uuid=None, taken_at_unix_s=1.0, processes=self.processes)]

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands for the measuring child on a quiet machine; lists what it was asked to measure."""
    asked: list[str] = []
    monkeypatch.setattr("flatout.limits.disturbance._busy_seconds", lambda: 0.0)

    def measure(jobs: list, **_: object) -> list[DeviceLimits]:
        asked.extend(job.target.torch_device for job in jobs)
        whole = some_limits(obtain.torch_version())
        one = DeviceLimits(
            device=whole.device, measured=whole.measured, matmuls=(), clocks=whole.clocks, took_s=1.0
        )
        return [one] * len(jobs)

    monkeypatch.setattr(obtain, "measure_devices", measure)
    return asked


def sources() -> list[OneSource]:
    return [OneSource(GPU), OneSource(CPU)]


def test_the_second_time_nothing_is_measured_until_fresh_is_asked_for(
    tmp_path: Path, measured: list[str]
) -> None:
    store = LimitsStore(tmp_path)
    first, path = obtain.obtain_limits(obtain.Request(), sources=sources(), store=store)
    assert measured == ["cuda:0", "cpu"]
    assert path is not None
    assert not first.from_cache
    again, _ = obtain.obtain_limits(obtain.Request(), sources=sources(), store=store)
    assert again.from_cache
    assert measured == ["cuda:0", "cpu"]
    obtain.obtain_limits(obtain.Request(fresh=True), sources=sources(), store=store)
    assert measured == ["cuda:0", "cpu"] * 2


def test_the_h200_is_shown_against_its_rated_peaks(tmp_path: Path, measured: list[str]) -> None:
    limits, _ = obtain.obtain_limits(obtain.Request(), sources=sources(), store=LimitsStore(tmp_path))
    assert limits.rated is not None
    assert limits.rated.id == "h200-sxm"
    assert limits.rated.dense_flops_per_s["bf16"] == pytest.approx(989.4e12)


def test_a_partial_measurement_is_not_kept(tmp_path: Path, measured: list[str]) -> None:
    store = LimitsStore(tmp_path)
    for request in (
        obtain.Request(dtypes=("bf16",)),
        obtain.Request(with_cpu=False),
        obtain.Request(use_cache=False),
    ):
        _, path = obtain.obtain_limits(request, sources=sources(), store=store)
        assert path is None
    assert not list(tmp_path.rglob("*.json"))


def test_the_sources_are_closed_whatever_happens(tmp_path: Path, measured: list[str]) -> None:
    own = sources()
    with pytest.raises(UnknownName):
        obtain.obtain_limits(obtain.Request(device="tpu"), sources=own, store=LimitsStore(tmp_path))
    assert [source.closed for source in own] == [1, 1]


def test_precisions_are_parsed_and_unknown_ones_answered_with_the_nearest() -> None:
    assert obtain.parse_dtypes("BF16, fp8,bf16") == ("bf16", "fp8")
    assert obtain.parse_dtypes(None) == ()
    with pytest.raises(UnknownName, match="did you mean 'bf16'"):
        obtain.parse_dtypes("bf61")


def test_figures_taken_beside_another_job_are_shown_and_not_kept(tmp_path: Path, measured: list[str]) -> None:
    own = sources()
    own[0].processes = (DeviceProcess(pid=77, kind="compute", memory_bytes=1 << 33),)
    limits, path = obtain.obtain_limits(obtain.Request(), sources=own, store=LimitsStore(tmp_path))
    assert "PID 77" in limits.disturbed
    assert path is None
    assert not list(tmp_path.rglob("*.json"))


def test_figures_taken_on_busy_cpus_are_not_kept(
    tmp_path: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([0.0, 1e6])
    monkeypatch.setattr("flatout.limits.disturbance._busy_seconds", lambda: next(seconds))
    limits, path = obtain.obtain_limits(obtain.Request(), sources=sources(), store=LimitsStore(tmp_path))
    assert "of the CPUs" in limits.disturbed
    assert path is None


def test_a_measurement_that_measured_nothing_is_a_failure_and_not_kept(
    tmp_path: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(jobs: list, **_: object) -> list[DeviceLimits]:
        nothing = Measured(unknown={"memory_bytes_per_s": "CUDA out of memory"})
        whole = some_limits()
        one = DeviceLimits(device=whole.device, measured=nothing, matmuls=(), clocks=whole.clocks, took_s=1.0)
        return [one] * len(jobs)

    monkeypatch.setattr(obtain, "measure_devices", out_of_memory)
    with pytest.raises(ChildFailed, match="CUDA out of memory"):
        obtain.obtain_limits(obtain.Request(), sources=sources(), store=LimitsStore(tmp_path))
    assert not list(tmp_path.rglob("*.json"))


def test_tf32_is_refused_before_measuring_where_it_does_not_exist(
    tmp_path: Path, measured: list[str]
) -> None:
    request = obtain.Request(device="cpu", dtypes=("tf32",))
    with pytest.raises(CallerMistake, match="TF32"):
        obtain.obtain_limits(request, sources=sources(), store=LimitsStore(tmp_path))
    assert measured == []
