"""What another optimizer steps on next is what it was."""

import pytest

torch = pytest.importorskip("torch")

from flatout.runtime.protect.gradients import put_back, waiting  # noqa: E402


def test_gradients_of_all_others_are_kept_and_put_back() -> None:
    one, two, three = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    first, second = torch.optim.SGD([one], lr=1.0), torch.optim.SGD([two, three], lr=1.0)
    one.grad, two.grad = torch.full((2,), 5.0), torch.full((2,), 7.0)
    kept = waiting([first, second], first)
    assert sorted(kept) == ["1.0", "1.1"]
    kept = {name: value.clone() if value is not None else None for name, value in kept.items()}
    two.grad, three.grad = torch.zeros(2), torch.zeros(2)
    put_back([first, second], kept)
    assert two.grad.tolist() == [7.0, 7.0]
    # Without a gradient a parameter is left out of a step: that is not the same as one of zeros.
    assert three.grad is None
    assert one.grad.tolist() == [5.0, 5.0]
    two.grad = None
    put_back([first, second], kept)
    assert two.grad.tolist() == [7.0, 7.0]
    put_back([first, second], {})  # of an earlier version
    assert two.grad.tolist() == [7.0, 7.0]
