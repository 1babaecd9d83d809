"""What sessions of a profile's trials have learned."""

from pathlib import Path

from flatout.runtime.profiling import learned_in
from tests.unit.analyze.events import training, write_rank


def test_a_trial_of_its_own_that_made_no_step_has_counted_nothing(tmp_path: Path) -> None:
    write_rank(tmp_path / "1-profile", training(2), {"device": "cpu"})
    write_rank(tmp_path / "2-count", [], {"flops": {"of": "nothing"}})
    assert learned_in(tmp_path) == {"device": "cpu", "flops": {}}
