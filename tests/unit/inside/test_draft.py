"""The step under way: copied, split and closed without losing or counting anything twice."""

from flatout.inside.draft import StepDraft


def test_what_came_after_a_copy_is_the_next_steps() -> None:
    draft = StepDraft(started_ns=10, forward_ns=5, forwards=1, losses=[1.0])
    early = draft.copy()
    draft.forward_ns += 7
    draft.forwards += 1
    draft.losses.append(2.0)
    rest = draft.after(early, started_ns=20)
    assert (early.forward_ns, early.forwards, early.losses) == (5, 1, [1.0])
    assert (rest.started_ns, rest.forward_ns, rest.forwards, rest.losses) == (20, 7, 1, [2.0])


def test_a_finished_step_carries_its_number_and_its_span() -> None:
    record = StepDraft(started_ns=10, samples=4).finished(3, 30)
    assert (record["update"], record["started_ns"], record["ended_ns"], record["samples"]) == (3, 10, 30, 4)
