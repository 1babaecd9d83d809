"""Recordings: read back as they were written, bounded, and whatever is broken in them is left out."""

import gzip
import os
import threading
import tty
from pathlib import Path

import pytest

from flatout.monitor.recording import Recorder, Recording, aside, frame_line
from flatout.monitor.replaying import Replay
from flatout.records.errors import CallerMistake, CannotWrite, CorruptFile, EnvironmentProblem, ForeignVersion
from flatout.records.watching import Frame
from tests.fakes.watching import NOW, busy, eight_gpus, frame_of

DAY_S = 24 * 3600


def frame(second: float) -> Frame:
    sample = busy(0, taken_at_unix_s=NOW + second, power_draw_mw=round(1000 * second))
    return frame_of([sample], taken_at_unix_s=NOW + second)


@pytest.mark.parametrize("name", ["watch.jsonl", "watch.jsonl.gz"])
def test_frames_come_back_as_they_were(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with Recorder(path) as recorder:
        recorder.add(eight_gpus())
        recorder.add(frame(1.0))
    recording = Recording(path)
    assert len(recording) == 2
    assert recording[0] == eight_gpus()
    assert recording[1] == frame(1.0)
    recording.close()


def test_a_second_start_adds_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "watch.jsonl.gz"
    for second in (0.0, 1.0):
        with Recorder(path) as recorder:
            recorder.add(frame(second))
    recording = Recording(path)
    assert [one.taken_at_unix_s for one in recording] == [NOW, NOW + 1.0]  # type: ignore[attr-defined]
    recording.close()


@pytest.mark.parametrize("name", ["watch.jsonl", "watch.jsonl.gz"])
def test_a_day_stays_within_its_limit_and_keeps_the_newest(tmp_path: Path, name: str) -> None:
    path, most = tmp_path / name, 200_000 if name.endswith("l") else 20_000
    with Recorder(path, most_bytes=most) as recorder:
        for second in range(0, DAY_S, 120 if name.endswith("l") else 40):
            recorder.add(frame(float(second)))
    taken = [one.stat().st_size for one in tmp_path.iterdir()]
    assert len(taken) == 2
    assert sum(taken) < 1.5 * most
    recording = Recording(path)
    times = [recording[number].taken_at_unix_s for number in range(len(recording))]
    recording.close()
    assert times == sorted(times)
    assert times[-1] > NOW + DAY_S - 121
    assert aside(path).is_file()


def test_the_end_that_a_killed_recorder_left_is_missing_and_the_rest_is_there(tmp_path: Path) -> None:
    for name in ("watch.jsonl", "watch.jsonl.gz"):
        path = tmp_path / name
        with Recorder(path) as recorder:
            for second in range(30):
                recorder.add(frame(float(second)))
        path.write_bytes(path.read_bytes()[:-40])
        recording = Recording(path)
        assert 0 < len(recording) < 30
        recording.close()


def test_lines_that_are_damaged_are_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "watch.jsonl"
    good = frame_line(frame(0.0))
    broken = (b"\n", b"{}\n", b'{"schema":"flatout.watch/1","host":7}\n', good[:300] + b"\n", b"\xff\xfe\n")
    path.write_bytes(good + b"".join(broken) + b"[" * 100_000 + b"\n" + good)
    recording = Recording(path)
    assert (len(recording), recording.unreadable) == (2, 6)
    recording.close()


def test_files_of_other_versions_or_of_nothing_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "watch.jsonl"
    with pytest.raises(EnvironmentProblem, match="not there"):
        Recording(path)
    path.write_bytes(frame_line(frame(0.0)).replace(b"flatout.watch/1", b"flatout.watch/9"))
    with pytest.raises(ForeignVersion, match="watch/9"):
        Recording(path)
    path.write_text("hello\n")
    with pytest.raises(CorruptFile, match="no frame"):
        Recording(path)


def test_what_unpacks_to_far_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(bytes(8 << 20)))
    with pytest.raises(CorruptFile, match="unpacks to more"):
        Recording(path, unpacked_most_bytes=4 << 20)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match="nowhere"):
        Recorder(tmp_path / "nowhere" / "watch.jsonl")


@pytest.mark.parametrize("named", ["train.py", "weights.gz", "watch.jsonl.gz"])
def test_a_file_that_is_no_recording_is_left_as_it_is(tmp_path: Path, named: str) -> None:
    path = tmp_path / named
    path.write_bytes(gzip.compress(b"x") if named == "train.py" else b"print('hello')\n")
    before = path.read_bytes()
    with pytest.raises(CallerMistake, match="is no recording"):
        Recorder(path)
    assert path.read_bytes() == before
    # Nor is one written over that stands where the older half would go.
    (tmp_path / "watch.jsonl.1").write_text("mine")
    with pytest.raises(CallerMistake, match=r"watch.jsonl.1 is there"):
        Recorder(tmp_path / "watch.jsonl")


def test_an_empty_file_and_what_is_no_plain_file_are_recorded_to_and_the_latter_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[Path] = []
    monkeypatch.setattr(Path, "replace", lambda path, _to: moved.append(path))
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    came: list[bytes] = []
    reader = threading.Thread(target=lambda: came.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    # A terminal is a device that can be written to; nothing that others need is at stake.
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    device = Path(os.ttyname(theirs))
    terminal = threading.Thread(target=_read_lines, args=(ours, 20), daemon=True)
    terminal.start()
    for path in (tmp_path / "empty", tmp_path / "pipe", device):
        with Recorder(path, most_bytes=10_000_000 if path.name == "empty" else 1000) as recorder:
            for second in range(20):
                recorder.add(frame(float(second)))
    reader.join(60)
    terminal.join(60)
    os.close(ours)
    os.close(theirs)
    assert came[0].count(b"\n") == 20
    assert not moved


def _read_lines(descriptor: int, count: int) -> None:
    while count > 0:
        count -= os.read(descriptor, 1 << 16).count(b"\n")


def test_a_line_without_an_end_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = frame_line(frame(0.0))
    monkeypatch.setattr("flatout.monitor.recording._LINE_MOST_BYTES", 2 * len(line))
    (tmp_path / "watch.jsonl").write_bytes(line + b"x" * 5 * len(line) + b"\n" + line)
    recording = Recording(tmp_path / "watch.jsonl")
    assert (len(recording), recording.unreadable, recording[1]) == (2, 3, frame(0.0))
    recording.close()


def test_a_jump_back_draws_the_curve_that_was_there_then(tmp_path: Path) -> None:
    path = tmp_path / "watch.jsonl"
    with Recorder(path) as recorder:
        for second in range(100):
            recorder.add(frame(float(second)))
    recording = Recording(path)
    replay = Replay(recording, monotonic=lambda: 0.0)
    uuid = str(frame(0.0).devices[0].uuid)
    replay.go_to(90)
    replay.go_to(20)
    assert replay.frame().taken_at_unix_s == NOW + 20
    [whole] = replay.history(uuid).curve("power_draw_mw", 15.0, 1, until_unix_s=NOW + 20)
    assert whole is not None
    assert whole.high == 20_000
    replay.jump(-50)
    assert replay.place == 0
    recording.close()


def killed_after(path: Path, seconds: range, *, lost: int) -> None:
    """A recorder that writes these frames, and is killed before its last bytes come to the disk."""
    with Recorder(path) as recorder:
        for second in seconds:
            recorder.add(frame(float(second)))
    path.write_bytes(path.read_bytes()[:-lost])


def seconds_in(path: Path) -> tuple[list[int], int]:
    recording = Recording(path)
    found = [round(recording[number].taken_at_unix_s - NOW) for number in range(len(recording))]
    recording.close()
    return found, recording.unreadable


@pytest.mark.parametrize("lost", [1, 8, 9, 40, 150])
@pytest.mark.parametrize("name", ["watch.jsonl", "watch.jsonl.gz"])
def test_a_recorder_that_starts_after_a_killed_one_adds_to_what_can_be_read(
    tmp_path: Path, name: str, lost: int
) -> None:
    path = tmp_path / name
    killed_after(path, range(30), lost=lost)
    survived, _ = seconds_in(path)
    killed_after(path, range(100, 130), lost=lost)
    with Recorder(path) as recorder:
        recorder.add(frame(200.0))
    found, unreadable = seconds_in(path)
    assert found[: len(survived)] == survived == list(range(len(survived)))
    assert len(survived) >= 20
    again = [second - 100 for second in found if 100 <= second < 130]
    assert again == list(range(len(again)))
    assert len(again) >= 20
    assert found[-1] == 200
    # Lines that were begun are counted; where only the end of a line or of the member is missing, none was.
    assert unreadable == (2 if len(survived) < 30 else 0)
    if name.endswith(".gz"):
        assert gzip.decompress(path.read_bytes()).count(b"\n") == len(found) + unreadable, "as others read it"


@pytest.mark.parametrize("lost", [9, 40, 150, 700])
def test_frames_behind_an_unfinished_member_are_found_and_the_gap_is_counted(
    tmp_path: Path, lost: int
) -> None:
    first, second = tmp_path / "first.gz", tmp_path / "second.gz"
    for path, begin in ((first, 0), (second, 100)):
        with Recorder(path) as recorder:
            for at in range(begin, begin + 30):
                recorder.add(frame(float(at)))
    whole = tmp_path / "watch.jsonl.gz"
    whole.write_bytes(first.read_bytes()[:-lost] + second.read_bytes())
    found, unreadable = seconds_in(whole)
    assert [one for one in found if one < 100] == list(range(len(found) - 30))
    assert len(found) > 30
    assert found[-30:] == list(range(100, 130))
    assert unreadable >= 1
    # And what is added to it makes one file of it that every tool reads.
    with Recorder(whole) as recorder:
        recorder.add(frame(200.0))
    assert seconds_in(whole) == ([*found, 200], unreadable)
    assert b'"power_draw_mw":200000' in gzip.decompress(whole.read_bytes())


def test_damage_in_the_middle_costs_the_rest_of_its_member_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "watch.jsonl.gz"
    sizes = [0]
    for begin in (0, 100, 200):
        with Recorder(path) as recorder:
            for at in range(begin, begin + 30):
                recorder.add(frame(float(at)))
        sizes.append(path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[sizes[2] - 60 : sizes[2] - 52] = b"\xff" * 8
    path.write_bytes(bytes(data))
    found, unreadable = seconds_in(path)
    assert found[:30] == list(range(30))
    assert found[-30:] == list(range(200, 230))
    assert len(found) > 60
    assert unreadable >= 1
