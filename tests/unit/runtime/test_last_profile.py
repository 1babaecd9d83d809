"""What the newest profile of the same script says; nothing in a project's folder can make that fail."""

from pathlib import Path
from typing import Any

import pytest

from flatout.records.codec import encode
from flatout.records.runs import RunFolder
from flatout.runtime.last_profile import last_profile


def keep(root: Path, kind: str, script: str, name: str, **body: Any) -> None:
    folder = RunFolder.create(root, command=kind, arguments=())
    folder.path.rename(folder.path.with_name(name))
    command = (
        {"trial": {"command": ["python", script]}} if kind == "profile" else {"command": ["python", script]}
    )
    (root / "runs" / name / f"{kind}.json").write_bytes(encode(kind, 1, {**command, **body}))


def finding(code: str) -> dict[str, str]:
    return {"code": code, "title": f"what {code} is", "severity": "high"}


def test_without_a_profile_it_says_how_to_get_one(tmp_path: Path) -> None:
    found = last_profile(tmp_path / "nowhere", "train.py")
    assert found.finding is None
    assert found.finding_reason == "no profile of this script: flatout profile train.py"


def test_the_newest_of_the_same_script_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    floors = {"as_written_ms": 20.0, "fused_ms": 10.0}
    keep(
        tmp_path,
        "profile",
        "train.py",
        "20260101-000000-profile-a",
        findings=[finding("F101")],
        floors=floors,
    )
    keep(tmp_path, "tune", "train.py", "20260102-000000-tune-b", findings=[finding("F201")])
    keep(tmp_path, "profile", "other.py", "20260103-000000-profile-c", findings=[finding("F301")])
    found = last_profile(tmp_path, "./train.py")
    assert found.finding == "F201 what F201 is"
    assert found.headroom(0.05, None) == pytest.approx(2.5)
    assert last_profile(tmp_path, "other.py").finding == "F301 what F301 is"


def test_a_batch_of_another_size_has_another_floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    floors = {"as_written_ms": 20.0}
    keep(tmp_path, "profile", "train.py", "20260101-000000-profile-a", floors=floors, samples_per_step=8)
    found = last_profile(tmp_path, "train.py")
    assert found.headroom(0.05, 16.0) == pytest.approx(1.25)
    assert found.headroom(0.03, 16.0) == 1.0
    assert found.headroom(None, 16.0) is None
    assert found.finding_reason == "its last profile found nothing"


def test_broken_documents_and_other_versions_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keep(tmp_path, "profile", "train.py", "20260101-000000-profile-a", findings=[finding("F101")])
    for name, text in (("b", b"{"), ("c", b'{"schema": "flatout.profile/9"}'), ("d", b"\xff")):
        keep(tmp_path, "profile", "train.py", f"20260102-000000-profile-{name}")
        (tmp_path / "runs" / f"20260102-000000-profile-{name}" / "profile.json").write_bytes(text)
    assert last_profile(tmp_path, "train.py").finding == "F101 what F101 is"
