"""Unknown is unknown: never a number in its place, and never without a reason."""

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.records.device import Device, DeviceProcess, DeviceSample
from flatout.records.unknown import NOT_RECORDED, Readings, is_sentinel

# Seeded, and without a clock: a busy machine is no failure.
patient = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SENTINELS = [
    0xFFFFFFFF,
    0x7FFFFFFF,
    2**63 - 1,
    2**63,
    2**64 - 1,
    float("inf"),
    float("-inf"),
    float("nan"),
    float(2**63),
    float(2**64),
]
ORDINARY = [0, 1, -1, 2**31, 2**40, 2**62, 0.0, 0.5, 1e15, -3.5]


@pytest.mark.parametrize(
    "record",
    [
        Device(index=0, vendor="nvidia", name="x"),
        DeviceProcess(pid=1),
        DeviceSample(index=0, uuid=None, taken_at_unix_s=0.0),
    ],
    ids=lambda record: type(record).__name__,
)
def test_every_none_has_a_reason(record: object) -> None:
    missing = {field.name for field in dataclasses.fields(record) if getattr(record, field.name) is None}
    assert missing
    assert record.unknown == dict.fromkeys(missing, NOT_RECORDED)


def test_a_given_reason_is_kept() -> None:
    device = Device(index=0, vendor="nvidia", name="x", unknown={"uuid": "the driver is too old"})
    assert device.unknown["uuid"] == "the driver is too old"
    assert device.unknown["pci_bus_id"] == NOT_RECORDED


def test_filling_in_reasons_leaves_the_callers_dictionary_alone() -> None:
    given_reasons = {"uuid": "why"}
    Device(index=0, vendor="nvidia", name="x", unknown=given_reasons)
    assert given_reasons == {"uuid": "why"}


@pytest.mark.parametrize("value", SENTINELS, ids=repr)
def test_a_placeholder_is_no_value(value: float) -> None:
    assert is_sentinel(value)
    readings = Readings(tolerated=())
    assert readings.read("field", lambda: value) is None
    assert readings.values == {"field": None}
    assert "placeholder" in readings.unknown["field"]


@pytest.mark.parametrize("value", ORDINARY, ids=repr)
def test_an_ordinary_value_is_kept(value: float) -> None:
    assert not is_sentinel(value)
    readings = Readings(tolerated=())
    assert readings.read("field", lambda: value) == value
    assert readings.values == {"field": value}
    assert readings.unknown == {}


@pytest.mark.parametrize("value", [True, False, "4294967295", None, [2**64 - 1]], ids=repr)
def test_what_is_no_number_is_never_a_placeholder(value: object) -> None:
    assert not is_sentinel(value)


@patient
@given(st.integers(min_value=0, max_value=2**62).filter(lambda n: n not in {0xFFFFFFFF, 0x7FFFFFFF}))
def test_no_plausible_count_is_taken_for_a_placeholder(value: int) -> None:
    assert not is_sentinel(value)


def test_false_is_a_value() -> None:
    readings = Readings(tolerated=())
    assert readings.read("ecc_enabled", lambda: False) is False
    assert readings.values == {"ecc_enabled": False}


def test_none_from_the_driver_is_unknown() -> None:
    readings = Readings(tolerated=())
    assert readings.read("field", lambda: None) is None
    assert "field" in readings.unknown


def test_a_tolerated_error_becomes_the_reason() -> None:
    readings = Readings(tolerated=(KeyError, OSError), describe=lambda error: f"said {type(error).__name__}")

    def fail() -> int:
        raise FileNotFoundError("no such file")

    assert readings.read("field", fail) is None
    assert readings.values == {"field": None}
    assert readings.unknown == {"field": "said FileNotFoundError"}


def test_any_other_error_is_the_callers_to_handle() -> None:
    readings = Readings(tolerated=(KeyError,))

    def fail() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        readings.read("field", fail)
    assert readings.values == {}


def test_an_impossible_value_is_unknown_and_shown_in_the_reason() -> None:
    readings = Readings(tolerated=())
    assert readings.read("share", lambda: 255, valid=lambda share: share <= 1) is None
    assert "255" in readings.unknown["share"]
    assert readings.read("other", lambda: 1, valid=lambda share: share <= 1) == 1


def test_valid_never_sees_a_placeholder() -> None:
    seen: list[int] = []
    Readings(tolerated=()).read("field", lambda: 2**64 - 1, valid=lambda value: bool(seen.append(value)))
    assert seen == []


@pytest.mark.parametrize("how", ["read", "give"])
def test_a_second_way_that_works_takes_the_first_ones_reason_away(how: str) -> None:
    readings = Readings(tolerated=())
    readings.absent("power_draw_mw", "the first call is not supported")
    if how == "read":
        readings.read("power_draw_mw", lambda: 70_000)
    else:
        readings.give("power_draw_mw", 70_000)
    assert readings.values == {"power_draw_mw": 70_000}
    assert readings.unknown == {}


def test_only_keeps_the_named_fields_and_leaves_the_rest_as_it_was() -> None:
    readings = Readings(tolerated=())
    readings.give("a", 1)
    readings.give("b", 2)
    readings.absent("c", "why")
    readings.absent("d", "why not")
    kept = readings.only({"a", "c"})
    assert kept.values == {"a": 1, "c": None}
    assert kept.unknown == {"c": "why"}
    assert set(readings.values) == {"a", "b", "c", "d"}


def test_only_keeps_what_is_tolerated() -> None:
    kept = Readings(tolerated=(KeyError,), describe=lambda _: "told").only(())

    def fail() -> int:
        raise KeyError

    assert kept.read("field", fail) is None
    assert kept.unknown == {"field": "told"}


def test_a_field_has_its_own_reason_and_none_without_need() -> None:
    from flatout.records.load import LoadOption

    made = LoadOption(gpu="l4", memory_bytes=1, fits_stored=None, fits_weights=True, fits_bf16=True)
    assert made.unknown == {"fits_stored": "too close to say", "usd_per_hour": "no price is known"}
    known = dataclasses.replace(made, usd_per_hour=0.8)
    assert known.unknown == {"fits_stored": "too close to say"}
