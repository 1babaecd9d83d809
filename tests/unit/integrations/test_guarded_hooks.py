"""A hook of ours that fails: told once, off from then on, and never the training's trouble."""

import io
import sys

import pytest

from flatout.integrations.guarded import guarded


class Callback:
    """Fails at each call."""

    def __init__(self) -> None:
        self.calls = 0

    @guarded
    def on_step(self) -> None:
        self.calls += 1
        raise ValueError("no such folder")


def test_a_hook_that_fails_is_told_once_and_is_off(capsys: pytest.CaptureFixture[str]) -> None:
    callback = Callback()
    callback.on_step()
    callback.on_step()
    assert callback.calls == 1
    said = capsys.readouterr().err
    assert said == "flatout: Callback.on_step failed, and is off: ValueError: no such folder\n"


@pytest.mark.parametrize("missing", [True, False])
def test_without_a_place_to_tell_it_training_goes_on(monkeypatch: pytest.MonkeyPatch, missing: bool) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", None if missing else closed)
    callback = Callback()
    callback.on_step()
    callback.on_step()
    assert callback.calls == 1
