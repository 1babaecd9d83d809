"""Stacks of the allocator: when they are kept, and that a script's own are left alone."""

from types import SimpleNamespace
from typing import Any

import pytest

from flatout.inside.allocation_stacks import AllocationStacks

GIB = 1 << 30


class Device:
    """A GPU of 100 GiB whose allocator notes how it is told to record."""

    def __init__(self) -> None:
        self.free = 90 * GIB
        self.told: list[Any] = []
        self.capturing = False
        self.memory = SimpleNamespace(_record_memory_history=self._record)

    def _record(self, *args: Any, **_: Any) -> None:
        self.told.append(args[0] if args else "all")

    def mem_get_info(self, _: Any) -> tuple[int, int]:
        return self.free, 100 * GIB

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.capturing


@pytest.fixture
def device() -> Device:
    return Device()


def begun(device: Device) -> AllocationStacks:
    stacks = AllocationStacks(SimpleNamespace(cuda=device))
    stacks.begin()
    return stacks


def test_they_are_kept_for_the_first_updates_and_again_when_the_device_is_nearly_full(device: Device) -> None:
    stacks = begun(device)
    for update in (1, 2):
        stacks.look(update, "cuda:0")
    assert (device.told, stacks.are_kept) == (["state"], True)
    stacks.look(3, "cuda:0")
    stacks.look(16, "cuda:0")
    assert (device.told, stacks.are_kept) == (["state", None], False)
    device.free = 20 * GIB
    stacks.look(32, "cuda:0")
    stacks.look(48, "cuda:0")
    assert (device.told, stacks.are_kept) == (["state", None, "state"], True)


def test_a_device_that_is_nearly_full_from_the_start_keeps_them(device: Device) -> None:
    stacks = begun(device)
    device.free = 10 * GIB
    stacks.look(3, "cuda:0")
    assert device.told == ["state"]


def test_what_the_script_records_itself_is_left_alone(device: Device) -> None:
    stacks = begun(device)
    device.memory._record_memory_history(max_entries=1000)
    stacks.look(3, "cuda:0")
    assert device.told == ["state", "all"]
    stacks.end()
    device.memory._record_memory_history("state")
    assert device.told == ["state", "all", "state"]


def test_a_capture_is_no_time_to_ask(device: Device) -> None:
    stacks = begun(device)
    device.capturing = True
    stacks.look(3, "cuda:0")
    assert device.told == ["state"]


def test_the_door_is_the_scripts_again_afterwards(device: Device) -> None:
    door = device.memory._record_memory_history
    begun(device).end()
    assert device.memory._record_memory_history == door
