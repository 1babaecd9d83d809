"""What is built can be installed without torch, says what it lacks, and leaves nothing when it goes."""

import zipfile
from pathlib import Path

import pytest

from scripts import packaging


@pytest.mark.full
def test_it_is_built_installed_used_and_taken_away(capfd: pytest.CaptureFixture[str]) -> None:
    code = packaging.main([])
    told = capfd.readouterr()
    assert code == 0, told.err
    assert "No broken requirements found" in told.out
    assert told.out.splitlines()[-1] == "uninstalled nothing of it is left"


def test_a_wheel_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "flatout-1.0-py3-none-any.whl"
    fields = (
        "Metadata-Version: 2.4",
        "Name: flatout",
        "Version: 1.0",
        "Description-Content-Type: text/markdown",
    )
    metadata = "\n".join((*fields, "", "words"))
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("flatout-1.0.dist-info/METADATA", metadata)
        archive.writestr("tests/__init__.py", "")
    with pytest.raises(packaging.Wrong, match="the wheel holds"):
        packaging.check_contents(wheel, tmp_path / "none.tar.gz")


def test_an_environment_that_keeps_a_file_is_noticed(tmp_path: Path) -> None:
    class Kept(packaging.Environment):
        def __init__(self) -> None:
            self.prefix = tmp_path

        def pip(self, *words: str) -> str:
            return ""

    (tmp_path / "flatout.pth").touch()
    with pytest.raises(packaging.Wrong, match=r"flatout\.pth"):
        packaging.take_away(Kept())
