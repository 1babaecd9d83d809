"""A batch in parts: whatever its nesting, nothing is lost, doubled or overlooked."""

import collections
import dataclasses
import types
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from flatout.memory.splitting import (  # noqa: E402
    map_tensors,
    samples_in,
    shares,
    sizes_of_parts,
    split,
    tensors_of,
)
from flatout.records.errors import CallerMistake  # noqa: E402


class Pair(NamedTuple):
    """A batch with names."""

    image: Any
    label: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """A batch of a class of its own."""

    nodes: Any
    name: Any = "g"


SAMPLES = st.shared(st.integers(1, 40), key="samples")


def by_sample(samples: int) -> Any:
    shapes = st.lists(st.integers(1, 3), max_size=2)
    return shapes.map(lambda more: torch.arange(float(samples * _product(more))).reshape(samples, *more))


def _product(numbers: list[int]) -> int:
    found = 1
    for number in numbers:
        found *= number
    return found


WHOLE = st.one_of(
    st.none(), st.text(max_size=3), st.integers(), st.just(torch.tensor(3.0)), st.just(torch.ones(97, 2))
)
NESTED = SAMPLES.flatmap(
    lambda samples: st.recursive(
        st.one_of(by_sample(samples), by_sample(samples), WHOLE),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(st.text(max_size=2), inner, max_size=4),
            st.tuples(inner, inner).map(lambda two: Pair(*two)),
            st.tuples(inner, inner).map(lambda two: Frozen(*two)),
        ),
        max_leaves=12,
    )
)


def same(one: Any, other: Any) -> bool:
    """Whether two batches have the same nesting, types and values."""
    mine, yours = list(tensors_of(one)), list(tensors_of(other))
    shape_of = [str(map_tensors(lambda tensor: tuple(tensor.shape), value)) for value in (one, other)]
    return (
        type(one) is type(other)
        and shape_of[0] == shape_of[1]
        and all(torch.equal(a, b) for a, b in zip(mine, yours, strict=True))
    )


def together(parts: list[Any], samples: int, whole: Any) -> Any:
    """The batch that the parts are of, by concatenation."""
    cut = iter(zip(*(tensors_of(part) for part in parts), strict=True))

    def join(tensor: Any) -> Any:
        pieces = next(cut)
        return torch.cat(pieces) if tensor.dim() and tensor.shape[0] == samples else pieces[0]

    return map_tensors(join, whole)


@settings(max_examples=150, deadline=None)
@given(samples=SAMPLES, more=NESTED, size=st.integers(1, 45))
def test_the_parts_of_any_nesting_make_up_the_batch(samples: int, more: Any, size: int) -> None:
    batch = {"x": torch.arange(samples), "y": torch.ones(samples, 2), "more": more}
    parts = split(batch, size, samples)
    sizes = sizes_of_parts(size, samples)
    assert [len(part["x"]) for part in parts] == sizes
    assert sum(sizes) == samples
    assert all(part == size for part in sizes[:-1])
    assert same(together(parts, samples, batch), batch)
    assert sum(shares(sizes)) == pytest.approx(1)


def test_parts_are_views_and_the_batch_is_left_alone() -> None:
    x, mask = torch.arange(6.0), torch.ones(4, 4)
    batch = [x, {"mask": mask, "scale": torch.tensor(2.0)}, "name"]
    first, second = split(batch, 4, 6)
    assert first[0].data_ptr() == x.data_ptr()
    assert second[0].tolist() == [4, 5]
    assert second[1] is batch[1]
    assert batch[0] is x
    assert split(batch, 6, 6) == [batch]


@pytest.mark.parametrize(
    "batch",
    [
        collections.OrderedDict(a=torch.ones(4), b=1),
        collections.UserDict({"input_ids": torch.ones(4, 2), "length": 3}),
        types.MappingProxyType({"a": torch.ones(4)}),
        Pair(torch.ones(4), "l"),
        Frozen(torch.ones(4)),
        [[[[[[[[[torch.ones(4)]]]]]]]]],
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_containers_keep_their_types_as_deep_as_they_go(batch: Any) -> None:
    parts = split(batch, 3, samples_in(batch))
    assert [type(part) for part in parts] == [type(batch)] * 2
    assert [next(tensors_of(part)).shape[0] for part in parts] == [3, 1]
    assert next(tensors_of(batch)).shape[0] == 4


def test_samples_are_what_the_first_tensors_agree_on() -> None:
    x, mask = torch.ones(8, 5), torch.ones(5, 5)
    assert samples_in(x) == 8
    assert samples_in((torch.tensor(1.0), x, mask)) == 8
    assert samples_in((x[:1], x[:1], mask)) == 1
    assert samples_in((mask, x, x), 8) == 8


@pytest.mark.parametrize(
    "batch",
    [
        None,
        "text",
        [1, 2],
        {},
        torch.tensor(1.0),
        torch.ones(0, 3),
        (torch.ones(5, 5), torch.ones(8), torch.ones(8)),
        torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)]),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_a_batch_whose_samples_nobody_can_count_is_a_mistake(batch: Any) -> None:
    with pytest.raises(CallerMistake, match=r"(first|batch) dimension"):
        samples_in(batch)


def test_a_number_of_samples_that_no_tensor_has_is_a_mistake() -> None:
    with pytest.raises(CallerMistake, match=r"7 as its first dimension: \(8,\)"):
        samples_in(torch.ones(8), 7)


def test_shares_are_of_what_counts() -> None:
    assert shares([2, 2, 4]) == [0.25, 0.25, 0.5]
    assert shares([0, 3]) == [0, 1]
    assert shares([0, 0]) == [0.5, 0.5], "where nothing counts"
    for wrong in ([1, -1], [float("nan"), 1], [float("inf"), 1]):
        with pytest.raises(CallerMistake, match="weigh"):
            shares(wrong)


# Running out of memory --------------------------------------------------------------------------------------
