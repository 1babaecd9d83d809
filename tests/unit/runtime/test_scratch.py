"""The scratch folder of a job goes, whatever lies in it, and nothing else goes with it."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from flatout.runtime.scratch import remove_folder
from tests.unit.runtime.house import WAIT_S, House, Kept, Who, run_as, shield_refusal, shielding, wait_for

Keep = Callable[..., Kept]


@pytest.mark.parametrize("shielded", [False, True], ids=["plain", "shielded"])
def test_the_keeper_removes_locked_folders_and_follows_no_links(
    keep: Keep, who: Who, house: House, shielded: bool
) -> None:
    if shielded and (refusal := shield_refusal(who)):
        pytest.skip(f"this machine allows no overlay: {refusal}")
    (house.other / "precious").write_text("precious")
    inner = house.scratch / "locked/inner"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    (house.scratch / "link").symlink_to(house.other)
    for path in (inner.parent, inner):
        os.chown(path, who.uid, who.gid)
    inner.parent.chmod(0)
    kept = keep(who, house, "open('made', 'w').close()", shield=shielding(house) if shielded else None)
    if shielded:
        kept.shielded()
    kept.event("started")
    assert kept.ended()["not_removed"] == []
    assert not house.scratch.exists()
    assert (house.other / "precious").read_text() == "precious"


def test_what_an_overlay_left_is_removed_by_the_user_when_the_keeper_was_killed(
    keep: Keep, who: Who, house: House
) -> None:
    if refusal := shield_refusal(who):
        pytest.skip(f"this machine allows no overlay: {refusal}")
    job = (
        "import os, time; os.mkdir('made'); open('made/file', 'w').close(); os.chmod('made', 0)\n"
        "open('../run/ready', 'w').write('ready\\n'); time.sleep(600)"
    )
    kept = keep(who, house, job, shield=shielding(house))
    kept.shielded()
    wait_for(house.run / "ready")
    os.kill(kept.pid, signal.SIGKILL)
    kept.process.wait(WAIT_S)
    assert list(house.scratch.rglob("made"))
    code = f"from flatout.runtime.scratch import *; print(remove_folder(Path({str(house.scratch)!r})))"
    assert run_as(who, code) == "True\n"
    assert not house.scratch.exists()
    assert house.work.exists()


def test_a_folder_that_is_missing_or_is_a_file_is_left_as_it_is(tmp_path: Path) -> None:
    assert remove_folder(tmp_path / "missing")
    file = tmp_path / "file"
    file.touch()
    assert remove_folder(file)
    assert file.exists()


def test_a_link_to_a_folder_stands_for_that_folder(tmp_path: Path) -> None:
    (tmp_path / "real/inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    assert remove_folder(tmp_path / "link")
    assert not (tmp_path / "real").exists()
