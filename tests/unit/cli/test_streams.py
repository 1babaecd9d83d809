"""What reaches the terminal, and what reaches the disk, are told apart; other people's text is shown."""

import errno
from pathlib import Path

import click
import pytest

from flatout.cli import main as entry
from flatout.cli.options import Duration, Output

EVIL = "no \x1b]0;owned\x07 such\r thing"
SHOWN = r"no \x1b]0;owned\x07 such\r thing"


def ends_with(arguments: list[str]) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        entry.main(arguments)
    return ended.value.code


def test_text_of_others_is_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False, quiet=False).notice(f"{EVIL}\nand a second line")
    assert ends_with([EVIL]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"{SHOWN}\nand a second line\nflatout: unknown command")
    assert "\x1b" not in told
    assert "\r" not in told


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_is_not_taken_for_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def full(*_arguments: object, **_settings: object) -> None:
        raise OSError(number, "so it is", "/scratch/runs")

    monkeypatch.setattr("flatout.cli.next_step.command.say_what_is_next", full)
    assert ends_with([]) == 3
    told = capsys.readouterr().err
    assert "no room, or a bad disk" in told
    assert "/scratch/runs" in told
    assert "standard output" not in told


def test_a_full_disk_under_standard_output_is_named() -> None:
    from flatout.cli.streams import CannotPrint, _Result

    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "wb") as full, _Result(full.fileno(), "wb", closefd=False) as stream:  # noqa: PTH123
        with pytest.raises(CannotPrint) as error:
            stream.write(b"x")
        assert error.value.errno == errno.ENOSPC


@pytest.mark.parametrize("words", ["inf", "1e400", "1e308d", "nan", "-1", "²s"])
def test_a_duration_is_a_time_that_ends(words: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration().convert(words, None, None)


def test_a_raised_two_is_no_number() -> None:
    from flatout.cli.caring import UpdatesOrTime

    with pytest.raises(click.BadParameter):
        UpdatesOrTime().convert("²", None, None)
