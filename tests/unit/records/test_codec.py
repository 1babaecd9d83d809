"""Records to JSON and back; what is not a number becomes null with a reason (fault 55)."""

import dataclasses
import datetime as dt
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flatout.records.codec import decode, document, encode
from flatout.records.device import Device, DeviceProcess, DeviceSample, GpuLink
from flatout.records.errors import CorruptFile, ForeignVersion
from flatout.records.limits import ClockState, DeviceLimits, Limits, MatmulResult, Measured, MeasuredDevice

# Seeded, and without a clock: a busy machine is no failure.
patient = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])

NAN, INF = float("nan"), float("inf")
FILE = Path("/some/file.json")

NAMES = st.text(alphabet="abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=6)
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=8)
TREES = st.dictionaries(
    NAMES.filter(lambda name: name not in {"schema", "nulls"}),
    st.recursive(
        LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4)
    ),
    max_size=5,
)


def strictly(data: bytes) -> Any:
    """Parse as any JSON reader would: NaN and Infinity are no JSON."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(data, parse_constant=refuse)


def nulled(value: Any, path: str = "") -> tuple[Any, dict[str, str]]:
    """What the codec must make of a tree, written down a second time."""
    if isinstance(value, float) and not math.isfinite(value):
        return None, {path: "not a number" if math.isnan(value) else "infinite"}
    if isinstance(value, dict):
        parts = {key: nulled(item, f"{path}.{key}".lstrip(".")) for key, item in value.items()}
    elif isinstance(value, list):
        parts = {place: nulled(item, f"{path}.{place}") for place, item in enumerate(value)}
    else:
        return value, {}
    reasons = {where: why for _, found in parts.values() for where, why in found.items()}
    plain = {key: item for key, (item, _) in parts.items()}
    return (plain if isinstance(value, dict) else list(plain.values())), reasons


@dataclasses.dataclass(frozen=True)
class Inner:
    rates: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    by_name: dict[str, Inner]
    share: float


def a_device() -> Device:
    return Device(
        index=3, vendor="nvidia", name="NVIDIA H200 <ü>", uuid="GPU-1", memory_total_bytes=150_754_820_096
    )


def a_sample() -> DeviceSample:
    return DeviceSample(
        index=3,
        uuid="GPU-1",
        taken_at_unix_s=1.7e9,
        state="stale",
        kernel_running_share=0.25,
        throttle_reasons=("power", "heat"),
        gpu_links=(GpuLink(link=0, active=True), GpuLink(link=1, active=False)),
        processes=(DeviceProcess(pid=7, kind="compute", memory_bytes=1 << 30),),
        unknown={"fan_speed_share": "this card has no fan"},
    )


def some_limits() -> Limits:
    device = MeasuredDevice(
        name="NVIDIA H200",
        torch_device="cuda:0",
        vendor="nvidia",
        uuid="GPU-1",
        index=0,
        memory_total_bytes=None,
        driver_version="570.1",
        torch_version="2.10",
    )
    measured = Measured(matmul_flops_per_s={"bf16": 7.8e14}, memory_bytes_per_s=4.2e12)
    matmul = MatmulResult(dtype="bf16", m=8192, n=8192, k=8192, flops_per_s=7.8e14, spread_share=0.01)
    clocks = ClockState(samples=0)
    return Limits(
        device=device,
        measured=measured,
        rated=None,
        rated_reason="not in the catalogue",
        matmuls=(matmul,),
        clocks=clocks,
        cpu=DeviceLimits(device=device, measured=measured, matmuls=(), clocks=clocks, took_s=1.5),
        measured_at=dt.datetime(2026, 11, 15, 3, 15, tzinfo=dt.UTC),
        took_s=12.0,
        method=1,
    )


def test_nan_and_infinities_become_null_with_the_reason_at_their_path() -> None:
    body = Outer(Inner((1.0, NAN)), {"gpu": Inner((INF, -INF, 2.0))}, NAN)
    found = strictly(encode("thing", 1, body))
    assert found == {
        "schema": "flatout.thing/1",
        "inner": {"rates": [1.0, None]},
        "by_name": {"gpu": {"rates": [None, None, 2.0]}},
        "share": None,
        "nulls": {
            "inner.rates.1": "not a number",
            "by_name.gpu.rates.0": "infinite",
            "by_name.gpu.rates.1": "infinite",
            "share": "not a number",
        },
    }


@patient
@given(TREES)
@example({"a": [[NAN], {"b": [INF]}]})
def test_every_tree_becomes_json_that_any_reader_accepts(tree: dict[str, Any]) -> None:
    found = strictly(encode("tree", 1, tree))
    plain, reasons = nulled(tree)
    assert found.pop("schema") == "flatout.tree/1"
    assert found.pop("nulls", {}) == reasons
    assert found == plain


def test_a_document_without_gaps_has_no_list_of_nulls() -> None:
    assert document("thing", 1, {"a": 1.0, "b": None}) == {"schema": "flatout.thing/1", "a": 1.0, "b": None}


def test_the_schema_stands_first_and_cannot_be_the_bodys_own() -> None:
    found = document("thing", 2, {"a": 1, "schema": "somebody else's"})
    assert next(iter(found)) == "schema"
    assert found["schema"] == "flatout.thing/2"


def test_text_that_is_not_unicode_is_written_as_escapes() -> None:
    from_the_system = b"caf\xe9".decode("utf-8", "surrogateescape")
    found = strictly(encode("thing", 1, {"path": from_the_system, from_the_system: [from_the_system]}))
    assert found == {"schema": "flatout.thing/1", "path": r"caf\udce9", r"caf\udce9": [r"caf\udce9"]}


@pytest.mark.parametrize(
    "record", [a_device(), a_sample(), some_limits()], ids=lambda record: type(record).__name__
)
def test_a_record_reads_back_as_it_was(record: Any) -> None:
    data = encode("record", 1, record)
    strictly(data)
    assert data.endswith(b"}\n")
    assert decode(data, FILE, "record", 1, type(record), remedy="none") == record


def test_a_measured_nan_reads_back_as_unknown() -> None:
    data = encode("measured", 1, Measured(memory_bytes_per_s=NAN, launch_s=INF))
    found = decode(data, FILE, "measured", 1, Measured, remedy="none")
    assert found.memory_bytes_per_s is None
    assert found.launch_s is None
    assert {"memory_bytes_per_s", "launch_s"} <= set(found.unknown)


def test_fields_of_a_later_version_are_ignored() -> None:
    data = encode("device", 1, {**dataclasses.asdict(a_device()), "colour": {"deep": [1, 2]}})
    assert decode(data, FILE, "device", 1, Device, remedy="none") == a_device()


@pytest.mark.parametrize(
    "data",
    [
        encode("device", 2, a_device()),
        encode("limits", 1, a_device()),
    ],
)
def test_another_schema_is_refused_as_foreign(data: bytes) -> None:
    with pytest.raises(ForeignVersion) as refused:
        decode(data, FILE, "device", 1, Device, remedy="none")
    assert "flatout.device/1" in refused.value.expected
    assert refused.value.path == FILE


WHOLE = encode("device", 1, a_device())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" \n",
        WHOLE[:-3],
        WHOLE[: len(WHOLE) // 2],
        WHOLE + b"x",
        WHOLE.replace(b"H200", b"\xff\xfe"),
        b"[" * 10**5,
        b'{"a":' * 10**5,
        b"[" * 10**5 + b"]" * 10**5,
        b'{"schema": "flatout.device/1", "index": ' + b"9" * 10**5 + b"}",
        b'{"schema": "flatout.device/1", "index": 1e400}',
        b'{"schema": "flatout.device/1", "index": NaN}',
        WHOLE.replace(b'"index": 3', b'"index": "three"'),
        WHOLE.replace(b'"vendor": "nvidia"', b'"vendor": "matrox"'),
        WHOLE.replace(b'"index": 3,', b""),
        WHOLE.replace(b'"unknown": {', b'"unknown": null, "x": {'),
    ],
    ids=lambda data: repr(data[-24:]),
)
def test_garbage_is_called_damaged_with_what_to_do(data: bytes) -> None:
    assert data != WHOLE
    with pytest.raises(CorruptFile) as refused:
        decode(data, FILE, "device", 1, Device, remedy="measure again")
    assert refused.value.remedy == "measure again"
    assert refused.value.path == FILE


@patient
@given(st.binary(max_size=200))
def test_no_bytes_make_any_other_error(data: bytes) -> None:
    with pytest.raises((CorruptFile, ForeignVersion)):
        decode(data, FILE, "device", 1, Device, remedy="none")


@patient
@given(place=st.integers(0, len(WHOLE) - 1), byte=st.integers(0, 255))
def test_one_changed_byte_never_makes_any_other_error(place: int, byte: int) -> None:
    data = WHOLE[:place] + bytes([byte]) + WHOLE[place + 1 :]
    try:
        found = decode(data, FILE, "device", 1, Device, remedy="none")
    except (CorruptFile, ForeignVersion):
        return
    assert isinstance(found, Device)


@patient
@given(TREES)
def test_any_json_under_the_right_schema_is_a_record_or_damaged(tree: dict[str, Any]) -> None:
    try:
        found = decode(encode("device", 1, tree), FILE, "device", 1, Device, remedy="none")
    except CorruptFile:
        return
    assert isinstance(found, Device)


@pytest.mark.parametrize(
    "data",
    [b"{}", b"[]", b"null", b'"flatout.device/1"', b'{"schema": null}', b'{"schema": ["flatout.device/1"]}'],
)
def test_what_does_not_say_what_it_is_is_damaged(data: bytes) -> None:
    with pytest.raises(CorruptFile, match="no schema"):
        decode(data, FILE, "device", 1, Device, remedy="none")
