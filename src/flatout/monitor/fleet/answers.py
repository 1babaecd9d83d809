"""Answers of the Prometheus API: rows with labels and a number, and refusals."""

import dataclasses
import math
from collections.abc import Iterable

import msgspec

# Labels of others can be as long as they like; nobody reads more of a name.
_LONGEST_LABEL = 240


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One series: its name, its labels, and what it says at the moment that was asked for."""

    name: str
    labels: dict[str, str]
    value: float

    def label(self, *names: str) -> str:
        """The first of these labels that says something."""
        return next((found for name in names if (found := self.labels.get(name, ""))), "")


class Refusal(Exception):
    """The server says no to one query: too large, too slow, or not understood."""

    @classmethod
    def said_by(cls, body: bytes) -> "Refusal | None":
        """What a server gave as its reason, where it speaks like Prometheus."""
        answer = _decoded(body)
        return cls(answer.error[:300] or "no reason given") if answer and answer.status == "error" else None


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct):
    resultType: str  # noqa: N815 - Prometheus's name for it
    result: msgspec.Raw


class _Answer(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""


_ANSWER = msgspec.json.Decoder(_Answer)
_VECTOR = msgspec.json.Decoder(list[_Series])


def rows_of(body: bytes) -> list[Row] | None:
    """The finite rows of an answer; None where it is none.

    What is not a number, or is infinite, says nothing: it is left out, as if it had not been told.
    """
    answer = _decoded(body)
    if answer is None or answer.status != "success" or answer.data is None:
        return None
    try:
        found = _VECTOR.decode(answer.data.result)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return [row for series in found if (row := _row(series)) is not None]


def by_device(rows: Iterable[Row]) -> dict[tuple[str, str, str], float]:
    """Values by instance, uuid and index."""
    return {device_key(row): row.value for row in rows}


def device_key(row: Row) -> tuple[str, str, str]:
    """Which device of which exporter a row is about; dcgm-exporter writes UUID."""
    return row.label("instance"), row.label("uuid", "UUID"), row.label("gpu")


def by_label(rows: Iterable[Row], label: str) -> dict[str, float]:
    """Values by one label."""
    return {row.label(label): row.value for row in rows}


def _decoded(body: bytes) -> _Answer | None:
    try:
        return _ANSWER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _row(series: _Series) -> Row | None:
    try:
        value = float(series.value[1])
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    labels = {name: text[:_LONGEST_LABEL] for name, text in series.metric.items()}
    return Row(labels.pop("__name__", ""), labels, value)
