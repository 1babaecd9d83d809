"""What goes along with a training, where something of its own cannot be done."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from flatout.inside.session import armed_session
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
