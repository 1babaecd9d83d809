"""Who holds the others up shows in what a rank does alone: never in its step time, which is everybody's."""

import pytest

from flatout.analyze.straggling import straggler
from flatout.records.ranks import RankUse
from flatout.records.step import Share

DDP = ("DistributedDataParallel",)


def rank(number: int, **parts_ms: float) -> RankUse:
    """A step of 100 ms: what is left of it is waited for the others in the backward pass."""
    parts_ms = {name.replace("_", " "): ms for name, ms in parts_ms.items()}
    parts_ms["backward"] = 100 - sum(parts_ms.values())
    shares = tuple(Share(part=part, ms=ms, share=ms / 100) for part, ms in parts_ms.items())
    return RankUse(rank=number, pid=number, device="cpu", step_ms=100.0, updates=9, parts=shares)


@pytest.mark.parametrize("part", ["input", "copies", "before_forward", "other", "optimizer", "forward"])
def test_more_of_what_it_does_alone_is_seen_under_ddp(part: str) -> None:
    found = straggler([rank(0, **{part: 5.0}), rank(1, **{part: 30.0}), rank(2, **{part: 7.0})], DDP, 0.05)
    assert found is not None
    assert (found.rank, found.part, found.others_ms) == (1, part.replace("_", " "), 6.0)
    assert found.speedup == pytest.approx(100 / 76)
    assert "rank 1" in found.words()


def test_ranks_that_do_the_same_hold_nobody_up() -> None:
    assert straggler([rank(0, input=5.0, forward=20.0), rank(1, input=8.0, forward=18.0)], DDP, 0.05) is None


def test_a_rank_that_waits_in_its_forward_pass_for_a_slow_one_is_not_taken_for_it() -> None:
    # Buffers come from the first rank: the second waits for them when its forward pass begins.
    found = straggler([rank(0, input=30.0, forward=10.0), rank(1, input=2.0, forward=38.0)], DDP, 0.05)
    assert found is not None
    assert (found.rank, found.part) == (0, "input")


@pytest.mark.parametrize("root", ["FSDPTransformer", "FullyShardedDataParallel"])
def test_the_forward_pass_of_a_sharded_model_tells_nothing(root: str) -> None:
    assert straggler([rank(0, forward=10.0), rank(1, forward=40.0)], (root,), 0.05) is None
    assert straggler([rank(0, other=10.0), rank(1, other=40.0)], (root,), 0.05) is not None


def test_where_a_script_sums_gradients_itself_what_it_does_beside_may_be_a_wait() -> None:
    assert straggler([rank(0, other=40.0), rank(1, other=5.0)], ("Model",), 0.05) is None
    assert straggler([rank(0, input=40.0), rank(1, input=5.0)], ("Model",), 0.05) is not None


def test_two_processes_that_call_themselves_the_same_rank_are_compared_all_the_same() -> None:
    found = straggler([rank(0, input=5.0), rank(0, input=40.0)], DDP, 0.05)
    assert found is not None
    assert (found.ms, found.others_ms) == (40.0, 5.0)


def test_one_rank_alone_or_one_that_was_not_seen_says_nothing() -> None:
    unseen = RankUse(rank=1, pid=1, device=None, step_ms=None, updates=0)
    assert straggler([rank(0, input=40.0)], DDP, 0.05) is None
    assert straggler([rank(0, input=40.0), rank(2, input=1.0), unseen], DDP, 0.05) is None
