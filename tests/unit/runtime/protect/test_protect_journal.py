"""What a script has read, and reads again."""

from pathlib import Path

from flatout.runtime.protect.journal import Journal, Lines, Replay


def written(path: Path, *updates: list[list[object]]) -> None:
    journal = Journal(path)
    for number, reads in enumerate(updates, 1):
        for place, value in reads:
            journal.note(str(place), value)
        journal.updated(number)
    journal.close()


def test_what_was_read_before_each_update_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, [["a:1", 0.1]], [], [["a:1", float("nan")], ["b:2", True]])
    lines = Lines(path)
    assert lines.reads[1] == [["a:1", 0.1]]
    assert 2 not in lines.reads
    assert [place for place, _ in lines.reads[3]] == ["a:1", "b:2"]
    assert lines.reads[3][0][1] != lines.reads[3][0][1]


def test_a_line_that_was_cut_off_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, [["a:1", 1]], [["a:1", 2]])
    path.write_text(path.read_text()[:-5])
    assert list(Lines(path).reads) == [1]


def test_what_came_after_a_checkpoint_is_cut_and_kept_for_comparison(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, *([["a:1", number]] for number in range(1, 6)))
    after = Lines(path).cut(3)
    assert sorted(after.reads) == [4, 5]
    assert sorted(Lines(path).reads) == [1, 2, 3]


def test_reads_come_in_their_order_and_what_is_left_out_is_passed_over() -> None:
    replay = Replay({1: [["a:1", 1], ["hook:9", 7], ["b:2", 2]], 2: [["a:1", 3]]})
    assert replay.read("a:1", lambda: None) == 1
    assert replay.read("b:2", lambda: None) == 2
    replay.updated(1)
    assert replay.read("a:1", lambda: None) == 3
    assert replay.strange == 0


def test_what_was_never_read_is_told_and_is_the_last_or_the_real_value() -> None:
    replay = Replay({1: [["a:1", 1]]})
    assert replay.read("a:1", lambda: 99) == 1
    assert replay.read("a:1", lambda: 99) == 1
    assert replay.read("c:3", lambda: 99) == 99
    assert (replay.strange, replay.strange_place) == (2, "a:1")
