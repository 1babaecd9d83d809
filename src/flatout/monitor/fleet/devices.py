"""From rows to devices: each GPU once, whoever tells of it."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from flatout.monitor.fleet.answers import Row, by_device, device_key
from flatout.monitor.fleet.policy import BOTH_LIVE_S, NAMED_IN_NOTES, RECENT_S, RECENT_SEEN, RECENT_STEP_S
from flatout.records.fleet import FleetDevice

Answers = Mapping[str, list[Row]]
Key = tuple[str, str, str]

_PREFIX = "flatout_device_"
_MIB = float(1 << 20)
# What stands for a uuid where a device has none is no name to know it by elsewhere.
_NO_UUID = re.compile(r"(nvidia|amd|apple|intel|cpu)-\d+|")
_LOOKS = RECENT_S / RECENT_STEP_S


@dataclasses.dataclass(frozen=True)
class Told:
    """Devices as they are told of, and what is odd about that."""

    devices: tuple[FleetDevice, ...]
    notes: tuple[str, ...]


def devices_told(answers: Answers, names: Mapping[str, str]) -> Told:
    """Every GPU of which somebody tells at this moment, without its history."""
    ours, slices = _flatout_devices(answers["devices"], names)
    unique, notes = _newest(ours, by_device(answers["told_at"]))
    known = {device.uuid for device in unique}
    theirs = [device for device in _dcgm_devices(answers["dcgm"], names) if device.uuid not in known]
    if theirs:
        machines = len({device.machine for device in theirs})
        notes.append(
            f"{len(theirs)} GPUs on {machines} machine{'s' * (machines != 1)} are known by dcgm-exporter "
            "alone: their jobs, processes, limits and prices are not told"
        )
    if slices:
        notes.append(f"{slices} MIG instances count as a part of their card, not as GPUs")
    return Told((*unique, *theirs), tuple(notes))


def with_history(devices: Iterable[FleetDevice], answers: Answers, step_s: int) -> list[FleetDevice]:
    """The same devices with what a first look at the window says of them."""
    columns = {name: by_device(rows) for name, rows in answers.items() if name != "gone"}
    return [_one_with_history(device, columns, step_s) for device in devices]


def with_details(
    devices: Iterable[FleetDevice], answers: Answers, step_s: int, now: float
) -> list[FleetDevice]:
    """The same devices with what was asked about a few of them."""
    columns = {name: by_device(rows) for name, rows in answers.items() if name in _DETAILS}
    limited: dict[Key, dict[str, float]] = {}
    for row in answers.get("limited_s", ()):
        limited.setdefault(device_key(row), {})[row.label("reason")] = row.value
    return [_one_with_details(device, columns, limited, step_s, now) for device in devices]


def devices_gone(
    rows: Iterable[Row], last_seen: Mapping[Key, float], names: Mapping[str, str], now: float
) -> list[FleetDevice]:
    """GPUs that were told of within the window, and are not any more; each where it was last."""
    newest: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: last_seen.get(device_key(row), 0.0)):
        newest[row.label("uuid")] = row
    return [
        FleetDevice(
            machine=names[row.label("instance")],
            instance=row.label("instance"),
            gpu=row.label("gpu"),
            uuid=uuid,
            name=row.label("name"),
            source="flatout",
            state="gone",
            gone_s=max(0.0, now - last_seen[device_key(row)]) if device_key(row) in last_seen else None,
        )
        for uuid, row in newest.items()
    ]


_DETAILS = frozenset({"idle_held", "last_busy", "down", "lost", "losing"})


def _flatout_devices(rows: Iterable[Row], names: Mapping[str, str]) -> tuple[list[FleetDevice], int]:
    values: dict[Key, dict[str, float]] = {}
    reasons: dict[Key, list[str]] = {}
    infos: dict[Key, Row] = {}
    for row in rows:
        key, metric = device_key(row), row.name.removeprefix(_PREFIX)
        if metric == "info":
            infos[key] = row
        elif metric == "throttled":
            if row.value > 0:
                reasons.setdefault(key, []).append(row.label("reason"))
        else:
            values.setdefault(key, {})[metric] = row.value
    whole = {key: row for key, row in infos.items() if not row.label("parent_uuid")}
    made = [
        _flatout_device(row, values.get(key, {}), reasons.get(key, ()), names)
        for key, row in whole.items()
        if row.label("vendor") != "cpu"
    ]
    return made, len(infos) - len(whole)


def _flatout_device(
    info: Row, values: Mapping[str, float], reasons: Iterable[str], names: Mapping[str, str]
) -> FleetDevice:
    instance, uuid, gpu = device_key(info)
    total = _positive(values.get("memory_total_bytes")) or _positive(_number(info.label("memory_bytes")))
    return FleetDevice(
        machine=names[instance],
        instance=instance,
        gpu=gpu,
        uuid=uuid,
        name=info.label("name"),
        source="flatout",
        state="up" if values.get("up", 1.0) == 1.0 else "down",
        memory_used_bytes=_positive(values.get("memory_used_bytes")),
        memory_total_bytes=total,
        power_w=_positive(values.get("power_watts")),
        power_limit_w=_positive(values.get("power_limit_watts")),
        power_limit_default_w=_positive(values.get("power_limit_default_watts")),
        throttle_reasons=tuple(sorted(reasons)),
        xid_count=_count(values.get("xid_total")),
        xid_last=_count(values.get("xid_last")),
        ecc_uncorrected=_count(values.get("ecc_uncorrected_total")),
        processes=_count(values.get("processes")),
        usd_per_hour=_positive(values.get("usd_per_hour")),
        price_source="its exporter",
    )


def _newest(
    devices: Iterable[FleetDevice], told_at: Mapping[Key, float]
) -> tuple[list[FleetDevice], list[str]]:
    """One of those that share a uuid: a GPU that has moved is where it was told of last."""
    by_uuid: dict[object, list[FleetDevice]] = {}
    for device in devices:
        key = device.uuid if not _NO_UUID.fullmatch(device.uuid) else (device.instance, device.gpu)
        by_uuid.setdefault(key, []).append(device)
    kept, twice = [], []
    for same in by_uuid.values():
        same.sort(key=lambda one: told_at.get((one.instance, one.uuid, one.gpu), 0.0))
        kept.append(same[-1])
        times = [told_at.get((one.instance, one.uuid, one.gpu), 0.0) for one in same]
        if len(same) > 1 and times[-1] - times[-2] <= BOTH_LIVE_S:
            twice.append(same)
    return kept, _told_twice(twice)


def _told_twice(groups: Sequence[Sequence[FleetDevice]]) -> list[str]:
    if not groups:
        return []
    tellers = ", ".join(device.instance for device in groups[0][-NAMED_IN_NOTES:])
    who = groups[0][0].uuid if len(groups) == 1 else f"{len(groups)} GPUs, such as {groups[0][0].uuid}"
    verb = "is" if len(groups) == 1 else "are"
    return [f"{who}, {verb} told of by several exporters ({tellers}): counted once".replace(", is", " is")]


def _dcgm_devices(rows: Iterable[Row], names: Mapping[str, str]) -> list[FleetDevice]:
    values: dict[Key, dict[str, float]] = {}
    labels: dict[Key, Row] = {}
    for row in rows:
        if row.label("UUID") and not row.label("GPU_I_ID"):
            values.setdefault(device_key(row), {})[row.name] = row.value
            labels[device_key(row)] = row
    return [_dcgm_device(labels[key], told, names) for key, told in values.items()]


def _dcgm_device(row: Row, told: Mapping[str, float], names: Mapping[str, str]) -> FleetDevice:
    instance, uuid, gpu = device_key(row)
    used, free = told.get("DCGM_FI_DEV_FB_USED"), told.get("DCGM_FI_DEV_FB_FREE")
    total = told.get("DCGM_FI_DEV_FB_TOTAL") or (
        used + free if used is not None and free is not None else None
    )
    xid = _count(told.get("DCGM_FI_DEV_XID_ERRORS"))
    return FleetDevice(
        machine=names[instance],
        instance=instance,
        gpu=gpu,
        uuid=uuid,
        name=row.label("modelName"),
        source="dcgm-exporter",
        memory_used_bytes=_positive(used * _MIB if used is not None else None),
        memory_total_bytes=_positive(total * _MIB if total is not None else None),
        power_w=_positive(told.get("DCGM_FI_DEV_POWER_USAGE")),
        # It tells the last Xid, or 0, and never how many there were.
        xid_count=None if xid is None else min(xid, 1),
        xid_last=xid or None,
        ecc_uncorrected=_count(told.get("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")),
        pod="/".join(
            filter(None, (row.label("exported_namespace", "namespace"), row.label("exported_pod", "pod")))
        )
        if row.label("exported_container", "container", "exported_pod")
        else "",
    )


def _one_with_history(
    device: FleetDevice, columns: Mapping[str, Mapping[Key, float]], step_s: int
) -> FleetDevice:
    key = (device.instance, device.uuid, device.gpu)
    found = {name: column.get(key) for name, column in columns.items()}
    held, held_mean, running = found["recently_held"], found["held_mean"], found["running_mean"]
    present_s = None if found["present"] is None else found["present"] * step_s
    idle_s = None if present_s is None or running is None else present_s * (1 - running)
    # Held all the time, or never: then it was idle so, too. What lies in between has to be asked for.
    held_s = None if idle_s is None or held_mean not in (0.0, 1.0) else idle_s * held_mean
    return dataclasses.replace(
        device,
        state="down" if device.state == "down" and not found["lately_up"] else "up",
        xid_count=_new_xids(device, found["xid_then"]),
        kernel_running_share=found["running"],
        sm_active_share=found["sm"],
        tensor_active_share=found["tensor"],
        recently_seen=(found["recently_seen"] or 0.0) >= RECENT_SEEN * _LOOKS,
        recently_held=None if held is None else held > 0,
        present_s=present_s,
        idle_s=idle_s,
        idle_held_s=held_s,
    )


def _one_with_details(
    device: FleetDevice,
    columns: Mapping[str, Mapping[Key, float]],
    limited: Mapping[Key, dict[str, float]],
    step_s: int,
    now: float,
) -> FleetDevice:
    key = (device.instance, device.uuid, device.gpu)

    def seconds(name: str) -> float | None:
        looks = columns.get(name, {}).get(key)
        return None if looks is None else looks * step_s

    busy_at = columns.get("last_busy", {}).get(key)
    # Never busy in all the window: at least as long as it was there.
    quiet_s = max(0.0, now - busy_at) if busy_at is not None else device.present_s
    return dataclasses.replace(
        device,
        idle_held_s=device.idle_held_s if device.idle_held_s is not None else seconds("idle_held"),
        quiet_s=quiet_s if "last_busy" in columns and device.idle_s else None,
        throttled_lost_s=seconds("lost"),
        throttled_losing_share=columns.get("losing", {}).get(key),
        throttled_s=limited.get(key, {}),
        gone_s=seconds("down") if device.state == "down" else None,
    )


def _new_xids(device: FleetDevice, then: float | None) -> int | None:
    """Those of the window: what a reset has mended long ago is no news. A counter that fell began anew."""
    if device.source == "dcgm-exporter":
        return 0 if then and then == device.xid_last else device.xid_count
    if device.xid_count is None or then is None or then > device.xid_count:
        return device.xid_count
    return device.xid_count - round(then)


def _positive(value: float | None) -> float | None:
    return value if value is not None and value >= 0 else None


def _count(value: float | None) -> int | None:
    return round(value) if value is not None and 0 <= value < 2**53 else None


def _number(text: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
