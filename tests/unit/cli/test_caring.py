"""Options that say how another one works are refused without it."""

from pathlib import Path

import pytest

from flatout.cli.run import command
from flatout.records.errors import CallerMistake


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        (("--save-every", "5m"), "--protect"),
        (("--fresh",), "--protect"),
        (("--no-rehearsal",), "--protect"),
        (("--patience", "3"), "--on-nan"),
    ],
)
def test_alone_it_does_nothing_and_says_so(
    options: tuple[str, ...], missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit('it must not run')\n")
    with pytest.raises(CallerMistake) as found:
        command.main([*options, "train.py"], standalone_mode=False, obj={"json": False, "debug": False})
    assert f"without {missing}" in found.value.received
    assert missing in found.value.remedy
    assert not (tmp_path / ".flatout").exists()
