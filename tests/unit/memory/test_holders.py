"""Who holds memory: by line, and by the calls that lead there."""

from flatout.memory.allocator import MIB
from flatout.memory.holders import Holders
from flatout.records.ledger import LedgerFile

MAIN, ENCODE, DECODE = ("train.py", 9, "main"), ("model.py", 4, "encode"), ("model.py", 7, "decode")
LAYER = ("layer.py", 2, "Layer.forward")
# One line, to which two ways lead.
LEDGER = LedgerFile(
    events=[[1, 8 * MIB, 0], [2, 4 * MIB, 1], [3, 2 * MIB, 1], [4, 16 * MIB, 2], [4], [5, MIB, 2]],
    places=[(*LAYER, "aten::mm"), (*LAYER, "aten::mm"), ("", 0, "", "")],
    stacks=[[0, 1, 3], [0, 2, 3], []],
    frames=[MAIN, ENCODE, DECODE, LAYER],
    owners={"gradients": [3], "workspace": [5]},
    updates=1,
)


def test_a_line_is_one_whatever_leads_to_it_and_stacks_are_told_apart() -> None:
    found = Holders(LEDGER, 5)
    assert [(one.place, one.category, one.size_bytes // MIB, one.count) for one in found.by_line()] == [
        ((*LAYER, "aten::mm"), "activations", 12, 2),
        ((*LAYER, "aten::mm"), "gradients", 2, 1),
        (("", 0, "", ""), "workspace", 1, 1),
    ]
    assert [(one.calls, one.category, one.size_bytes // MIB) for one in found.by_stack()] == [
        ((MAIN, ENCODE, LAYER), "activations", 8),
        ((MAIN, DECODE, LAYER), "activations", 4),
        ((MAIN, DECODE, LAYER), "gradients", 2),
        ((), "workspace", 1),
    ]
    assert found.by_category() == {"activations": 12 * MIB, "gradients": 2 * MIB, "workspace": MIB}


def test_at_another_moment_others_hold_it() -> None:
    assert Holders(LEDGER, 3).by_stack()[0].size_bytes == 16 * MIB
    assert Holders(LEDGER, -1).by_stack() == ()


def test_of_very_many_stacks_the_largest_are_kept() -> None:
    many = LedgerFile(
        events=[[number, number * MIB, number - 1] for number in range(1, 501)],
        places=[("a.py", number, "f", "") for number in range(500)],
        stacks=[[number] for number in range(500)],
        frames=[("a.py", number, "f") for number in range(500)],
        owners={},
        updates=1,
    )
    found = Holders(many, 499).by_stack()
    assert len(found) == 200
    assert found[0].size_bytes == 500 * MIB
