"""Numbers for people, at the places where unit and rounding change."""

import math
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.records.words import byte_rate, duration, flop_rate, memory_size, percent, three_digits

# Seeded, and without a clock: a busy machine is no failure.
patient = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 MiB"),
        (MIB, "1 MiB"),
        (GIB - 1, "1024 MiB"),
        (GIB, "1.0 GiB"),
        (150_754_820_096, "140.4 GiB"),
        (2**40, "1024.0 GiB"),
    ],
)
def test_memory_is_in_gib_or_mib(count: int, words: str) -> None:
    assert memory_size(count) == words


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (0, "0 B/s"),
        (999_999, "999999 B/s"),
        (1e6, "1.00 MB/s"),
        (1e9, "1.00 GB/s"),
        (55.2e9, "55.2 GB/s"),
        (9.996e9, "10.0 GB/s"),
        (1e12, "1.00 TB/s"),
        (4.29e12, "4.29 TB/s"),
        (99.96e12, "100 TB/s"),
    ],
)
def test_a_byte_rate_is_in_powers_of_ten(rate: float, words: str) -> None:
    assert byte_rate(rate) == words


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (0, "0 FLOP/s"),
        (1e9, "1.00 GFLOP/s"),
        (91.2e9, "91.2 GFLOP/s"),
        (1e12, "1.00 TFLOP/s"),
        (780e12, "780 TFLOP/s"),
        (1979e12, "1979 TFLOP/s"),
        (9.99e15, "9990 TFLOP/s"),
        (1e16, "10.0 PFLOP/s"),
        (1.5e17, "150 PFLOP/s"),
    ],
)
def test_a_flop_rate_stays_in_teraflops_as_datasheets_do(rate: float, words: str) -> None:
    assert flop_rate(rate) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 ns"),
        (1e-9, "1 ns"),
        (999e-9, "999 ns"),
        (1e-6, "1.00 us"),
        (9.4e-6, "9.40 us"),
        (1e-3, "1.00 ms"),
        (12.1e-3, "12.1 ms"),
        (1, "1.00 s"),
        (3.2, "3.20 s"),
        (3600, "3600 s"),
    ],
)
def test_a_duration_has_the_unit_that_fits(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0, "0.0 %"),
        (0.001, "0.1 %"),
        (0.0949, "9.5 %"),
        (0.095, "10 %"),
        (0.1, "10 %"),
        (0.7886, "79 %"),
        (1, "100 %"),
    ],
)
def test_a_small_percentage_keeps_a_decimal(share: float, words: str) -> None:
    assert percent(share) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0.00"),
        (9.99, "9.99"),
        (9.996, "10.0"),
        (10, "10.0"),
        (99.94, "99.9"),
        (99.96, "100"),
        (100, "100"),
        (1978.9, "1979"),
    ],
)
def test_three_digits_stay_three_where_rounding_adds_one(value: float, words: str) -> None:
    assert three_digits(value) == words


@patient
@given(st.floats(min_value=1, max_value=999))
def test_three_digits_are_three_and_near_the_value(value: float) -> None:
    words = three_digits(value)
    assert len(words.replace(".", "")) == 3
    assert math.isclose(float(words), value, rel_tol=0.00501)


@patient
@given(st.floats(min_value=0, max_value=1e20))
def test_no_number_is_shown_with_an_exponent(value: float) -> None:
    for words in (memory_size(value), byte_rate(value), flop_rate(value), duration(value)):
        assert re.fullmatch(r"\d+(\.\d+)? [A-Za-z/]+", words)
