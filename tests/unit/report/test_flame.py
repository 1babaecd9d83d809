"""The picture of calls: as wide as what they hold, below whoever called them, and never outside the whole."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flatout.records.fit import MemoryStack
from flatout.report.flame import flame, short_call

GIB = 1 << 30
MAIN = "train.py:9 in main"


def held(size: int, *frames: str, category: str = "activations", **more: Any) -> MemoryStack:
    return MemoryStack(frames=frames, category=category, size_bytes=size, count=1, **more)


def test_calls_lie_below_whoever_calls_them_the_largest_first() -> None:
    found = flame(
        [
            held(1 * GIB, MAIN, "model.py:3 in f", operator="relu"),
            held(2 * GIB, MAIN, "model.py:3 in f", operator="mm"),
            held(5 * GIB, MAIN, "model.py:8 in g", category="gradients"),
        ],
        10 * GIB,
        "all",
    )
    assert found is not None
    assert found.rows == 4
    assert [(box.row, box.label, box.start, box.width) for box in found.boxes] == [
        (0, "all 10.0 GiB", 0, 100),
        (1, "main:9 8.0 GiB", 0, 80),
        (2, "g:8 5.0 GiB", 0, 50),
        (3, "gradients 5.0 GiB", 0, 50),
        (2, "f:3 3.0 GiB", 50, 30),
        (3, "mm 2.0 GiB", 50, 20),
        (3, "relu 1.0 GiB", 70, 10),
    ]
    assert [box.kind for box in found.boxes[:5]] == [
        "mixed",
        "mixed",
        "gradients",
        "gradients",
        "activations",
    ]
    assert found.boxes[4].title == "model.py:3 in f: 3.0 GiB, 30 %, 2 x"


def test_a_little_of_another_category_does_not_take_the_colour() -> None:
    found = flame([held(99, MAIN), held(1, MAIN, category="workspace")], 100, "all")
    assert found is not None
    assert found.boxes[0].kind == "activations"


def test_the_same_operator_for_two_owners_is_two_boxes() -> None:
    found = flame(
        [held(1, MAIN, operator="mm"), held(1, MAIN, operator="mm", category="gradients")], 2, "all"
    )
    assert found is not None
    assert [box.kind for box in found.boxes if box.row == 2] == ["activations", "gradients"]


def test_what_no_line_of_the_script_asked_for_is_told_so() -> None:
    found = flame([held(GIB, category="parameters")], GIB, "all")
    assert found is not None
    assert [box.label for box in found.boxes] == [
        "all 1.0 GiB",
        "no line of the script 1.0 GiB",
        "parameters 1.0 GiB",
    ]
    assert flame([], GIB, "all") is None
    assert flame([held(0, MAIN)], GIB, "all") is None


def test_narrow_boxes_have_no_words_and_the_narrowest_are_left_out() -> None:
    found = flame([held(9989, MAIN), held(10, "a.py:1 in f"), held(1, "a.py:2 in f")], 10_000, "all")
    assert found is not None
    below = [box for box in found.boxes if box.row == 1]
    assert [box.label != "" for box in below] == [True, False]
    assert below[1].title.startswith("a.py:1 in f: ")


def test_of_calls_that_go_deep_the_middle_is_left_out() -> None:
    found = flame([held(GIB, *(f"a.py:{line} in f" for line in range(48)))], GIB, "all")
    assert found is not None
    assert found.rows == 1 + 25 + 1
    assert found.boxes[13].label == "24 calls between 1.0 GiB"


def test_calls_are_named_by_function_and_a_modules_own_lines_by_file() -> None:
    assert short_call("src/model.py:66 in Block.forward") == "Block.forward:66"
    assert short_call("/home/me/in there/train.py:3 in <module>") == "train.py:3"
    assert short_call("what is this") == "what is this"


frames = st.lists(st.sampled_from([f"a.py:{line} in f" for line in range(4)]), max_size=30)
stacks = st.lists(
    st.builds(
        lambda calls, size, category: held(size, *calls, category=category),
        frames,
        st.integers(0, 10**15),
        st.sampled_from(["activations", "gradients", "other"]),
    ),
    max_size=20,
)


@given(stacks=stacks, whole=st.integers(0, 10**16))
def test_boxes_lie_within_those_above_them_whatever_is_held(stacks: list[MemoryStack], whole: int) -> None:
    found = flame(stacks, whole, "all")
    if found is None:
        assert not any(stack.size_bytes for stack in stacks)
        return
    above: dict[int, tuple[float, float]] = {}
    for box in found.boxes:
        end = box.start + box.width
        assert box.start >= 0
        assert end <= 100.01
        if box.row:
            low, high = above[box.row - 1]
            assert low - 0.01 <= box.start
            assert end <= high + 0.01
        above[box.row] = (box.start, end)
