"""What goes along with a training, where something of its own cannot be done."""

import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")

from flatout.inside.armed import armed_session
from flatout.integrations.companion import Companion, Held
from flatout.records.plan import Choice, Fingerprint, Plan

PLAN = Plan(
    job=Fingerprint(script="train.py", script_sha256=""),
    levers=(Choice(id="garbage-collector"),),
    samples_per_s=100.0,
)


def test_without_a_run_folder_the_plan_is_applied_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    companion = Companion(PLAN, watch=True, folder=in_the_way)
    companion.begin([], Held())
    try:
        assert "no profile is kept: " in capsys.readouterr().err
        session = armed_session()
        assert session is not None
        assert [one["id"] for one in session.order.levers] == ["garbage-collector"]
    finally:
        companion.end()
    assert armed_session() is None


def test_signals_are_the_programs_own_again_where_ending_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    found = signal.getsignal(signal.SIGTERM)
    companion = Companion(None, watch=True, folder=tmp_path)
    companion.begin([], Held())
    observing = companion._observing
    assert observing is not None
    assert signal.getsignal(signal.SIGTERM) is not found
    with monkeypatch.context() as patched:
        patched.setattr(type(observing), "__exit__", full)
        with pytest.raises(OSError, match="No space left"):
            companion.end()
    observing.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGTERM) is found
