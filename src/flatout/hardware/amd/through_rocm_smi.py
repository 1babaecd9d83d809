"""Reads AMD GPUs through the `rocm-smi` command, for machines without a working amdsmi."""

import json
import re
import time
from collections.abc import Callable, Mapping

from flatout.hardware.amd.conversions import down, is_not_negative, is_positive, is_share
from flatout.hardware.command import RunTool
from flatout.records.device import Device, DeviceSample
from flatout.records.unknown import Readings

NOT_INSTALLED = "rocm-smi is not installed"
TIMEOUT_S = 15.0
_IDENTITY = (
    *("rocm-smi", "--showproductname", "--showuniqueid", "--showbus", "--showdriverversion"),
    *("--showmaxpower", "--showmeminfo", "vram", "--json"),
)
_STATE = (
    *("rocm-smi", "--showbus", "--showuse", "--showmemuse", "--showpower", "--showmaxpower", "--showclocks"),
    *("--showtemp", "--showfan", "--showmeminfo", "vram", "--json"),
)
_ACTIVITY_SOURCE = "rocm-smi GPU use (%)"
_ABSENT = frozenset({"", "n/a", "none", "unknown", "0x0"})
_ERRORS = (LookupError, ValueError)


class RocmSmiFailed(Exception):
    """rocm-smi gave nothing that can be used; the message says why."""


Card = Mapping[str, str]


class RocmSmi:
    """The devices that rocm-smi lists. Keys are compared in lower case: their case changed over releases."""

    def __init__(self, run: RunTool, *, clock: Callable[[], float] = time.time) -> None:
        self._run = run
        self._clock = clock

    def devices(self) -> tuple[Device, ...]:
        """Every card with its fixed properties. Raises RocmSmiFailed."""
        cards, system = self._ask(_IDENTITY)
        return tuple(_device(index, card, system) for index, card in sorted(cards.items()))

    def samples(self, devices: tuple[Device, ...]) -> list[DeviceSample]:
        """One instant of each of these devices; a card that is not listed any more is down."""
        taken_at = self._clock()
        try:
            cards, _ = self._ask(_STATE)
        except RocmSmiFailed as error:
            return [down(device, taken_at, str(error)) for device in devices]
        return [self._sample(device, _card_of(device, cards), taken_at) for device in devices]

    def _sample(self, device: Device, card: Card | None, taken_at: float) -> DeviceSample:
        if card is None:
            return down(device, taken_at, "rocm-smi reports nothing for this GPU")
        readings = _state(card)
        if not any(value is not None for value in readings.values.values()):
            return down(device, taken_at, "rocm-smi reports no value for this GPU", readings.unknown)
        return DeviceSample(
            index=device.index,
            uuid=device.uuid,
            taken_at_unix_s=taken_at,
            activity_source=_ACTIVITY_SOURCE,
            unknown=readings.unknown,
            **readings.values,
        )

    def _ask(self, arguments: tuple[str, ...]) -> tuple[dict[int, Card], Card]:
        """The cards by number, and what is said of the whole system."""
        output = self._run(arguments, timeout_s=TIMEOUT_S)
        if output.text is None:
            raise RocmSmiFailed(output.reason)
        cards: dict[int, Card] = {}
        system: Card = {}
        for name, fields in _first_object(output.text).items():
            if not isinstance(fields, dict):
                continue
            texts = {key.lower().rstrip(":"): str(value).strip() for key, value in fields.items()}
            number = re.fullmatch(r"card(\d{1,6})", name)
            if number:
                cards[int(number[1])] = texts
            elif name == "system":
                system = texts
        if not cards:
            raise RocmSmiFailed("rocm-smi lists no card")
        return cards, system


def _first_object(text: str) -> dict[str, object]:
    """The JSON object in the output; rocm-smi can print warnings before it."""
    for start in re.finditer(r"^\s*\{", text, re.MULTILINE):
        try:
            found, _ = json.JSONDecoder().raw_decode(text[start.end() - 1 :])
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    begin = " ".join(text.split())[:80]
    raise RocmSmiFailed(f"rocm-smi printed no readable JSON (it begins with {begin!r})")


def _card_of(device: Device, cards: Mapping[int, Card]) -> Card | None:
    """The device's card, by its bus address where both are known: numbers can move when a card is lost."""
    if device.pci_bus_id:
        for card in cards.values():
            if card.get("pci bus", "").lower() == device.pci_bus_id.lower():
                return card
        if any("pci bus" in card for card in cards.values()):
            return None
    return cards.get(device.index)


def _device(index: int, card: Card, system: Card) -> Device:
    readings = Readings(_ERRORS, _describe)
    readings.read("uuid", lambda: _text(card, "unique id"))
    readings.read("pci_bus_id", lambda: _text(card, "pci bus"))
    readings.read("driver_version", lambda: _text(system, "driver version"))
    for field in ("architecture", "compute_capability"):
        readings.read(field, lambda: _text(card, "gfx version"), valid=lambda found: found.startswith("gfx"))
    readings.read("memory_total_bytes", lambda: int(_text(card, "vram total memory (b)")), valid=is_positive)
    try:
        name = _text(card, "card series")
    except _ERRORS:
        name = f"AMD GPU {card.get('card model', '')}".strip()
    return Device(
        index=index,
        vendor="amd",
        name=name,
        memory_source="rocm-smi",
        unknown=readings.unknown,
        **readings.values,
    )


def _state(card: Card) -> Readings:
    readings = Readings(_ERRORS, _describe)
    readings.read(
        "memory_used_bytes", lambda: int(_text(card, "vram total used memory (b)")), valid=is_not_negative
    )
    readings.read("memory_free_bytes", lambda: _free(card), valid=is_not_negative)
    readings.read("kernel_running_share", lambda: _number(card, "gpu use (%)") / 100, valid=is_share)
    readings.read(
        "memory_bus_active_share",
        lambda: _number(card, "gpu memory read/write activity (%)", "gpu memory use (%)") / 100,
        valid=is_share,
    )
    readings.read("power_draw_mw", lambda: round(1000 * _power_w(card)), valid=is_positive)
    readings.read(
        "power_limit_mw",
        lambda: round(1000 * _number(card, "max graphics package power (w)")),
        valid=is_positive,
    )
    readings.read(
        "clock_compute_hz",
        lambda: round(1_000_000 * _number(card, "sclk clock speed")),
        valid=is_not_negative,
    )
    readings.read(
        "clock_memory_hz", lambda: round(1_000_000 * _number(card, "mclk clock speed")), valid=is_not_negative
    )
    junction, edge = "temperature (sensor junction) (c)", "temperature (sensor edge) (c)"
    readings.read("temperature_c", lambda: round(_number(card, junction, edge)), valid=is_positive)
    memory = "temperature (sensor memory) (c)"
    readings.read("temperature_memory_c", lambda: round(_number(card, memory)), valid=is_positive)
    readings.read("fan_speed_share", lambda: _number(card, "fan speed (%)") / 100, valid=is_share)
    return readings


def _power_w(card: Card) -> float:
    """The power drawn, which releases and cards call average or current."""
    keys = [key for key in card if key.endswith("graphics package power (w)") and not key.startswith("max")]
    return _number(card, *(keys or ["average graphics package power (w)"]))


def _free(card: Card) -> int:
    return int(_text(card, "vram total memory (b)")) - int(_text(card, "vram total used memory (b)"))


def _text(card: Card, *keys: str) -> str:
    for key in keys:
        if card.get(key, "").lower() not in _ABSENT:
            return card[key]
    present = next((key for key in keys if key in card), None)
    if present is None:
        raise LookupError(f"rocm-smi does not report {keys[0]!r}")
    raise LookupError(f"rocm-smi reports {card[present]!r} for {present!r}")


def _number(card: Card, *keys: str) -> float:
    """A number, also from a text such as "(1700Mhz)"."""
    text = _text(card, *keys)
    found = re.fullmatch(r"\(?(-?\d{1,15}(?:\.\d{1,15})?)(?:mhz\))?", text, re.IGNORECASE)
    if not found:
        raise ValueError(f"rocm-smi reports {text!r} for {keys[0]!r}, which is not a number")
    return float(found[1])


def _describe(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__
