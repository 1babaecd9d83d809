"""Plans that people edited: what is no setting is refused, what nobody knows is left out with a word."""

from pathlib import Path
from typing import Any

import pytest

from flatout.records.errors import BadConfig
from flatout.records.plan import Choice, Fingerprint, Plan
from flatout.tune.soundness import sound

PATH = Path("flatout.toml")


def plan(lever: str, **settings: Any) -> Plan:
    return Plan(
        job=Fingerprint(script="train.py", script_sha256=""), levers=(Choice(id=lever, settings=settings),)
    )


def test_a_lever_that_nobody_knows_is_left_out_with_a_word() -> None:
    found, words = sound(plan("bf-16"), PATH)
    assert found.levers == ()
    assert words == ["dropped bf-16: this Flatout has no such lever (did you mean 'bf16'?)"]


@pytest.mark.parametrize(
    ("lever", "settings"),
    [
        ("loader", {"num_workers": 4, "pin_memory": True, "persistent_workers": False}),
        ("loader", {"num_workers": 0}),
        ("compile", {"mode": "max-autotune"}),
        ("batch-size", {"--batch-size": 64, "_joined": False, "_was": 16}),
        ("cpu-threads", {"threads": 1}),
        ("device-prefetch", {"_leaves": ["0"], "_data_set": "Data"}),
    ],
)
def test_what_tuning_writes_is_sound(lever: str, settings: dict[str, Any]) -> None:
    whole = plan(lever, **settings)
    assert sound(whole, PATH) == (whole, [])


@pytest.mark.parametrize(
    ("lever", "name", "value", "expected"),
    [
        ("loader", "num_workers", "many", "a whole number, 0 or more"),
        ("loader", "num_workers", -1, "a whole number, 0 or more"),
        ("loader", "num_workers", True, "a whole number, 0 or more"),
        ("loader", "pin_memory", "yes", "true or false"),
        ("compile", "mode", "fast", "one of: default, reduce-overhead"),
        ("batch-size", "--batch-size", 0, "a whole number, 1 or more"),
        ("cpu-threads", "threads", 1.5, "a whole number, 1 or more"),
        ("compile", "modee", "default", "one of: mode"),
        ("bf16", "mode", "default", "no settings"),
    ],
)
def test_what_is_no_setting_is_refused(lever: str, name: str, value: Any, expected: str) -> None:
    with pytest.raises(BadConfig) as raised:
        sound(plan(lever, **{name: value}), PATH)
    assert expected in str(raised.value.expected)
