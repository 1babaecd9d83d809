"""What a loop changes on disk is there already when it is run again."""

import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from flatout.runtime.protect.quiet import Quiet  # noqa: E402


def test_files_that_are_gone_by_now_are_no_error_while_it_is_void(tmp_path: Path) -> None:
    gone, folder = tmp_path / "best.ckpt", tmp_path / "kept"
    folder.mkdir()
    quiet = Quiet(torch)
    quiet.install({})
    quiet.close()
    try:
        # Moved to its place, and given its rights: then removed for a better one, in the life before.
        shutil.move(tmp_path / "partial", gone)
        gone.chmod(0o644)
        (tmp_path / "last.ckpt").symlink_to(gone)
        folder.mkdir()
        (folder / "new").mkdir()
    finally:
        quiet.open()
        quiet.stop()
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["kept", "new"]
    with pytest.raises(FileExistsError):
        folder.mkdir()
