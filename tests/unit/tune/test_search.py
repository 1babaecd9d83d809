"""The search finds what helps, also where levers depend on each other, and says why the others did not."""

import contextlib
import dataclasses
import math
import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.levers.catalogue import BY_ID, LEVERS
from flatout.levers.job import JobFacts
from flatout.records.finding import Finding
from flatout.records.plan import Choice
from flatout.tune import search
from flatout.tune.arms import Arm, ArmResult, Ask, Comparison, block_length, mean_and_half_width
from flatout.tune.limits import Limits
from flatout.tune.search import Finder

GPU = JobFacts(
    device="cuda:0",
    capability=(9, 0),
    step_ms=100.0,
    host_shares={"forward": 0.1, "backward": 0.1, "optimizer": 0.05},
    device_shares={"forward": 0.3, "loss": 0.02, "backward": 0.6, "optimizer": 0.05},
    busy_share=0.95,
    flops_per_step=3.5e12,
    peaks={"fp32": 51e12, "tf32": 396e12, "bf16": 780e12},
    habits={
        "parameter_dtype": "float32",
        "optimizers": [{"name": "AdamW", "fused": None, "foreach": None, "supports_fused": True}],
        "input_shapes": 1,
        "roots": ["GPT"],
        "cpp_compiler": True,
    },
)


class World:
    """A job whose levers have known effects: by which factor each changes a step, alone or beside others."""

    def __init__(
        self,
        factors: dict[str, float],
        beside: dict[tuple[str, str], float] | None = None,
        host_share: float = 0.8,
    ) -> None:
        self.factors = factors
        self.host_share = host_share
        self.beside = beside or {}
        self.broken: dict[str, str] = {}
        self.asked: list[Ask] = []
        self.noise = random.Random(0)

    def step_ms(self, arm: Arm) -> float:
        names = {choice.words() for choice in arm}
        ids = {choice.id for choice in arm}
        time_ms = 100.0
        for name in names:
            time_ms *= self.factors.get(name, self.factors.get(name.partition(" ")[0], 1.0))
        for (one, other), factor in self.beside.items():
            if one in ids and other in ids:
                time_ms *= factor
        return time_ms

    def answer(self, ask: Ask) -> list[ArmResult]:
        self.asked.append(ask)
        base = self.step_ms(ask.arms[0])
        results = []
        for arm in ask.arms:
            broken = [why for name, why in self.broken.items() if name in {choice.id for choice in arm}]
            if broken:
                results.append(ArmResult(step_ms=None, failed=broken[0]))
                continue
            own = self.step_ms(arm) * (1 + self.noise.gauss(0, 0.001))
            speedup = base / own
            results.append(
                ArmResult(
                    step_ms=own,
                    speedup=speedup,
                    low=speedup - 0.004,
                    high=speedup + 0.004,
                    compile_s=20.0,
                    host_share=self.host_share,
                )
            )
        return results


def searched(world: World, job: JobFacts = GPU, **limits: object) -> Finder:
    finder = Finder(job, Limits(**limits))  # type: ignore[arg-type]
    search = finder.search(finder.candidates(LEVERS))
    try:
        ask = next(search)
        while True:
            ask = search.send(world.answer(ask))
    except StopIteration:
        return finder


def names(finder: Finder) -> list[str]:
    return [choice.words() for choice in finder.best]


def test_what_helps_is_kept_and_the_rest_is_not() -> None:
    finder = searched(
        World({"bf16": 0.45, "tf32": 0.5, "fused-optimizer": 0.97, "compile": 0.6}, {("tf32", "bf16"): 2.0})
    )
    assert names(finder) == ["bf16", "fused-optimizer", "compile (reduce-overhead)"] or names(finder) == [
        "bf16", "fused-optimizer", "compile (default)"
    ]  # fmt: skip
    assert finder.conclusions.trials["tf32"].verdict == "rejected"
    assert "they do its work" in finder.conclusions.trials["tf32"].reason
    assert finder.conclusions.trials["channels-last"].verdict == "skipped"


def test_the_ladder_goes_from_the_baseline_to_the_best() -> None:
    finder = searched(World({"bf16": 0.5, "fused-optimizer": 0.9, "compile (default)": 0.8}))
    assert [rung.lever for rung in finder.ladder] == names(finder)
    assert finder.ladder[-1].speedup == pytest.approx(1 / (0.5 * 0.9 * 0.8), rel=0.02)
    assert math.prod(rung.gain for rung in finder.ladder) == pytest.approx(finder.ladder[-1].speedup)


@pytest.mark.parametrize("lever", ["compile", "bf16"])
def test_what_gives_nothing_on_its_rung_is_not_in_the_plan(lever: str) -> None:
    """A gain that was seen once, by chance, costs a compilation at each start, or a cast in each call."""

    class Lucky(World):
        def answer(self, ask: Ask) -> list[ArmResult]:
            real = self.factors[lever]
            self.factors[lever] = 1.001 if ask.what.startswith(("baseline to best", "without")) else real
            try:
                return super().answer(ask)
            finally:
                self.factors[lever] = real

    finder = searched(Lucky({"fused-optimizer": 0.8, "bf16": 0.6, "compile": 0.7}))
    assert lever not in {choice.id for choice in finder.best}
    assert len(finder.best) == 2
    assert [rung.lever for rung in finder.ladder] == names(finder)
    rejected = [one for one in finder.conclusions.trials.values() if one.lever == lever]
    assert any("beside the others it gives 0.99" in one.reason for one in rejected)


def test_bf16_that_is_slower_alone_and_helps_under_the_compiler_is_found() -> None:
    world = World({"bf16": 1.15, "compile": 0.7}, {("bf16", "compile"): 0.6})
    assert "bf16" in names(searched(world))


@pytest.mark.parametrize(("host_share", "is_tried"), [(0.2, False), (0.8, True)])
def test_what_gave_nothing_is_compiled_for_once_more_only_where_launches_hid_it(
    host_share: float, is_tried: bool
) -> None:
    world = World({"fused-optimizer": 1.0, "compile": 0.6}, host_share=host_share)
    searched(world, only=("fused-optimizer", "compile"))
    assert ("fused-optimizer on top" in [ask.what for ask in world.asked]) == is_tried


def test_tf32_is_not_compiled_for_where_products_are_in_half_precision() -> None:
    world = World({"bf16": 0.5, "tf32": 1.0, "compile": 0.6})
    searched(world, only=("bf16", "tf32", "compile"))
    assert "tf32 on top" not in [ask.what for ask in world.asked]


def test_nothing_to_gain_is_an_answer() -> None:
    finder = searched(World({}))
    assert finder.best == ()
    assert finder.ladder == []
    assert {trial.verdict for trial in finder.conclusions.trials.values()} == {"rejected", "skipped"}


@pytest.mark.parametrize("broken", ["bf16", "compile", "fused-optimizer"])
def test_a_lever_that_fails_has_its_verdict_and_the_others_go_on(broken: str) -> None:
    world = World({"bf16": 0.5, "fused-optimizer": 0.9, "compile": 0.7})
    world.broken[broken] = "the job was killed by signal 9"
    finder = searched(world)
    assert broken not in {choice.id for choice in finder.best}
    assert len(finder.best) == 2
    failed = [trial for trial in finder.conclusions.trials.values() if trial.lever == broken]
    assert {(trial.verdict, trial.reason) for trial in failed} == {
        ("failed", "the job was killed by signal 9")
    }


def test_a_compilation_that_does_not_pay_back_is_not_chosen() -> None:
    finder = searched(World({"compile": 0.8}), job_steps=100)
    assert finder.best == ()
    reason = finder.conclusions.trials["compile (default)"].reason
    assert reason.startswith("compiling takes 20 s and saves 2 s") or "saves 1 s" in reason
    assert searched(World({"compile": 0.8}), job_steps=100_000).best != ()


def test_graphs_come_first_where_launches_hold_the_job_up_and_plain_code_needs_no_try_then() -> None:
    finder = searched(World({"compile (default)": 0.8, "compile (reduce-overhead)": 0.5}))
    assert names(finder) == ["compile (reduce-overhead)"]
    assert finder.conclusions.trials["compile (default)"].verdict == "skipped"
    assert "launches" in finder.conclusions.trials["compile (default)"].reason


def test_where_the_host_is_idle_plain_code_comes_first_and_graphs_need_no_try() -> None:
    world = World({"compile (default)": 0.8, "compile (reduce-overhead)": 0.8}, host_share=0.1)
    finder = searched(world)
    assert names(finder) == ["compile (default)"]
    assert finder.conclusions.trials["compile (reduce-overhead)"].verdict == "skipped"
    assert "the host keeps up" in finder.conclusions.trials["compile (reduce-overhead)"].reason


def test_graphs_that_fail_leave_plain_code_to_be_tried() -> None:
    world = World({"compile (default)": 0.8, "compile (reduce-overhead)": 1.2})
    assert names(searched(world)) == ["compile (default)"]


@pytest.mark.parametrize(
    ("host_share", "won", "tuned"),
    [
        (0.1, "compile (default)", "compile (max-autotune-no-cudagraphs)"),
        (0.8, "compile (reduce-overhead)", "compile (max-autotune)"),
    ],
)
def test_autotuning_is_tried_last_on_top_of_the_mode_that_won(
    host_share: float, won: str, tuned: str
) -> None:
    world = World({"bf16": 0.5, won: 0.8, tuned: 0.7}, host_share=host_share)
    finder = searched(world, comparison_s=60.0)
    assert names(finder) == ["bf16", tuned]
    assert finder.conclusions.trials[won].verdict == "rejected"
    assert "faster" in finder.conclusions.trials[won].reason
    assert finder.compile_s == 20.0
    assert [ask.what for ask in world.asked][-2:] == [f"{tuned} on top", "baseline to best"]
    assert [rung.lever for rung in finder.ladder] == ["bf16", tuned]


def test_autotuning_that_gives_nothing_leaves_the_mode_that_won() -> None:
    finder = searched(World({"compile": 0.8}), comparison_s=60.0)
    assert names(finder) == ["compile (reduce-overhead)"]
    assert finder.conclusions.trials["compile (max-autotune)"].verdict == "rejected"


@pytest.mark.parametrize(("left_s", "is_tried"), [(110.0, True), (80.0, False)])
def test_autotuning_needs_three_times_as_long_as_the_first_mode_took(left_s: float, is_tried: bool) -> None:
    world = World({"compile (reduce-overhead)": 0.8, "compile (max-autotune)": 0.7})
    finder = searched(world, deadline=time.monotonic() + left_s, comparison_s=40.0)
    trial = finder.conclusions.trials["compile (max-autotune)"]
    assert (trial.verdict == "kept") == is_tried
    if not is_tried:
        assert trial.verdict == "skipped"
        assert re.fullmatch(r"about 60 s to compile, (80|[67]\d) s are left", trial.reason)
        assert names(finder) == ["compile (reduce-overhead)"]


def test_autotuning_is_not_offered_where_the_compiler_gave_nothing_or_the_cpu_computes() -> None:
    assert not any("max-autotune" in name for name in searched(World({"bf16": 0.5})).conclusions.trials)
    world = World({"compile": 0.5})
    finder = searched(world, JobFacts(**{**vars_of(GPU), "device": "cpu", "capability": None}))
    assert names(finder) == ["compile (default)"]
    assert not any("max-autotune" in name for name in finder.conclusions.trials)


def test_autotuning_must_pay_back_too() -> None:
    finder = searched(
        World({"compile (reduce-overhead)": 0.8, "compile (max-autotune)": 0.79}),
        job_steps=5000,
        comparison_s=60.0,
    )
    assert names(finder) == ["compile (reduce-overhead)"]
    assert "compiling takes 20 s" in finder.conclusions.trials["compile (max-autotune)"].reason


def test_a_few_percent_are_not_worth_most_of_the_time_there_is() -> None:
    finder = searched(World({"compile (reduce-overhead)": 0.8, "compile (max-autotune)": 0.7}))
    assert names(finder) == ["compile (reduce-overhead)"]
    assert "a longer --budget" in finder.conclusions.trials["compile (max-autotune)"].reason


@pytest.mark.parametrize(("saved_ms", "is_tried"), [(0.1, True), (0.01, False)])
def test_an_attention_kernel_is_compiled_for_what_it_saves_of_the_tuned_step(
    saved_ms: float, is_tried: bool
) -> None:
    habits = {
        **GPU.habits,
        "operators": ["aten._scaled_dot_product_flash_attention"],
        "attention_ms": {"torch's choice": 0.3, "cudnn": 0.3 - saved_ms},
        "attention_calls": 12,
    }
    world = World({"bf16": 0.4, "compile": 0.5, "sdpa-backend": 0.95})
    finder = searched(world, dataclasses.replace(GPU, habits=habits))
    assert ("sdpa-backend (cudnn)" in names(finder)) == is_tried


LANGUAGE = dataclasses.replace(GPU, habits={**GPU.habits, "vocabulary": 50257})


@pytest.mark.parametrize("left_s", [1000.0, 50.0])
def test_the_loss_comes_before_the_compiler_unless_time_is_short(left_s: float) -> None:
    world = World({"linear-cross-entropy": 0.9, "compile": 0.6})
    searched(world, LANGUAGE, deadline=time.monotonic() + left_s, comparison_s=30.0)
    on_top = [ask.what.partition(" ")[0] for ask in world.asked if ask.what.endswith("on top")]
    first = "linear-cross-entropy" if left_s > 60.0 else "compile"
    assert on_top[0] == first
    assert set(on_top) >= {"linear-cross-entropy", "compile"}


def test_on_a_cpu_the_loss_in_chunks_is_for_memory() -> None:
    cpu = dataclasses.replace(LANGUAGE, device="cpu", device_shares={})
    trial = searched(World({"linear-cross-entropy": 0.5}), cpu).conclusions.trials["linear-cross-entropy"]
    assert (trial.verdict, trial.reason.partition(":")[0]) == ("skipped", "it saves memory more than time")
    names_of = names(searched(World({"linear-cross-entropy": 0.5}), LANGUAGE))
    assert "linear-cross-entropy" in names_of


def test_only_and_skip() -> None:
    world = World({"bf16": 0.5, "fused-optimizer": 0.9, "compile": 0.7})
    assert names(searched(world, only=frozenset({"bf16"}))) == ["bf16"]
    finder = searched(world, skip=frozenset({"bf16"}))
    assert finder.conclusions.trials["bf16"].reason == "left out by --skip"
    assert "bf16" not in names(finder)


def test_when_the_time_is_over_the_best_so_far_stays() -> None:
    finder = searched(World({"bf16": 0.5, "compile": 0.5}), deadline=time.monotonic() - 1)
    assert finder.best == ()
    assert finder.conclusions.trials["bf16"].reason == "the time allowed was over"


class Passing(World):
    """Each answer takes ten seconds of a clock that stands still otherwise."""

    now = 0.0

    def answer(self, ask: Ask) -> list[ArmResult]:
        self.now += 10.0
        return super().answer(ask)

    def monotonic(self) -> float:
        return self.now


def test_what_helped_stays_where_the_time_is_over_before_all_were_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Passing({"tf32": 0.33, "compile": 0.5})
    monkeypatch.setattr(search, "time", world)
    on_top = ("compile", "fp8", "sdpa-backend")
    cheap = [lever.id for lever in LEVERS if lever.switchable and lever.id not in (*on_top, "tf32")]
    choices = [Choice(id=name) for name in ("tf32", *cheap[:9])]
    compiled = Choice(id="compile", settings={"mode": "default"}, predicted_speedup=2.0)
    finder = Finder(GPU, Limits(deadline=5.0, comparison_s=30.0))
    asking = finder.search([*choices, compiled])
    with contextlib.suppress(StopIteration):
        ask = next(asking)
        while True:
            ask = asking.send(world.answer(ask))
    assert names(finder) == ["tf32", "compile (default)"]
    left = [finder.conclusions.trials[choice.words()] for choice in choices[6:]]
    assert {(trial.verdict, trial.reason) for trial in left} == {("skipped", "the time allowed was over")}


class Quarrelling(World):
    """A job that dies where two levers are on together."""

    def answer(self, ask: Ask) -> list[ArmResult]:
        results = super().answer(ask)
        died = ArmResult(step_ms=None, failed="the job was killed by signal 9")
        return [died if len(arm) > 1 else one for arm, one in zip(ask.arms, results, strict=True)]


def test_of_levers_that_break_the_job_together_the_fastest_alone_stays() -> None:
    world = Quarrelling({"tf32": 0.9, "bf16": 0.5, "fused-optimizer": 0.4})
    finder = searched(world, only=frozenset({"tf32", "bf16", "fused-optimizer"}))
    assert names(finder) == ["fused-optimizer"]
    kept = [trial.lever for trial in finder.conclusions.trials.values() if trial.verdict == "kept"]
    assert kept == ["fused-optimizer"]
    assert "killed by signal 9" in finder.conclusions.trials["bf16"].reason


FACTORS = st.sampled_from([0.4, 0.7, 0.9, 0.98, 1.0, 1.05, 1.4])


@settings(deadline=None, max_examples=60)
@given(
    st.fixed_dictionaries(dict.fromkeys(("tf32", "bf16", "fused-optimizer", "compile"), FACTORS)),
    st.dictionaries(
        st.sampled_from([("tf32", "bf16"), ("bf16", "compile"), ("fused-optimizer", "compile")]), FACTORS
    ),
)
def test_a_plan_is_never_slower_than_the_baseline(factors: dict, beside: dict) -> None:
    world = World(factors, beside)
    finder = searched(world)
    assert world.step_ms(finder.best) <= 100.0 * 1.001
    for choice in finder.best:
        assert finder.conclusions.trials[choice.words()].verdict == "kept"


def test_what_is_little_of_a_slow_step_may_be_some_of_a_fast_one() -> None:
    little = dataclasses.replace(GPU, device_shares={**GPU.device_shares, "optimizer": 0.006})
    for left, is_tried in ((0.08, True), (0.6, False)):
        found = searched(World({"bf16": left, "fused-optimizer": 0.95}), little)
        kept = [choice.id for choice in found.best]
        assert ("fused-optimizer" in kept) is is_tried
        assert found.conclusions.trials["fused-optimizer"].verdict == ("kept" if is_tried else "skipped")


def test_amdahl_skips_what_cannot_matter() -> None:
    job = JobFacts(**{**vars_of(GPU), "device_shares": {"forward": 0.3, "backward": 0.7, "optimizer": 0.001}})
    finder = Finder(job, Limits())
    finder.candidates(LEVERS)
    assert (
        finder.conclusions.trials["fused-optimizer"].reason == "Amdahl's law promises 0.1 %: less than 0.5 %"
    )


def vars_of(job: JobFacts) -> dict:
    import dataclasses

    return {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}


# Comparisons ------------------------------------------------------------------------------------------------


def steps(
    arm: int, count: int, ms: float, *, generation: int = 1, start: int = 1, **more: object
) -> list[dict]:
    zero = dict.fromkeys(("forward_ns", "backward_ns", "optimizer_ns", "clipping_ns"), 0)
    return [
        {
            "arm": (generation, arm), "in_block": start + number, "started_ns": 0, "ended_ns": int(ms * 1e6),
            "evaluation_ns": 0, "evaluations": 0, "compiles": 0, "recordings": 0, **zero, **more,
        }
        for number in range(count)
    ]  # fmt: skip


def compared(*blocks: tuple[int, float], block: int = 8) -> Comparison:
    ask = Ask(arms=((), (Choice(id="bf16"),)), what="")
    comparison = Comparison(ask, 1, [8, 8, 8])
    for arm, ms in blocks:
        for step in steps(arm, block, ms):
            comparison.take(step)
    return comparison


def test_a_speedup_is_the_mean_of_neighbouring_blocks() -> None:
    # The machine slows down by half in the middle: the ratio of neighbours does not.
    comparison = compared((0, 10), (1, 5), (0, 10), (1, 5), (0, 15), (1, 7.5), (0, 15), (1, 7.5))
    assert comparison.is_enough()
    result = comparison.results()[1]
    assert (result.speedup, result.low, result.high) == pytest.approx((2.0, 2.0, 2.0))
    assert result.is_faster(0.01)


def test_two_cycles_tell_what_is_far_away_and_nothing_else() -> None:
    ask = Ask(arms=((), (Choice(id="bf16"),), (Choice(id="tf32"),)), what="", threshold=1.01)
    comparison = Comparison(ask, 1, [8, 8, 8])
    for _ in range(2):
        for arm, ms in ((0, 10.0), (1, 5.0), (2, 9.7)):
            for step in steps(arm, 8, ms):
                comparison.take(step)
    assert not comparison.is_enough()
    assert comparison.settled == {1}
    for _ in range(2):  # the settled one takes no more turns
        for arm, ms in ((0, 10.0), (2, 9.7)):
            for step in steps(arm, 8, ms):
                comparison.take(step)
    assert comparison.is_enough()
    results = comparison.results()
    assert [result.speedup for result in results] == pytest.approx([1.0, 2.0, 10 / 9.7])


def test_what_stays_unclear_does_not_take_all_the_time_there_is() -> None:
    ask = Ask(arms=((), (Choice(id="bf16"),)), what="", threshold=1.01, most_seconds=30.0)
    comparison = Comparison(ask, 1, [4, 4])
    for base, own in ((2000.0, 1990.0), (2010.0, 1985.0)):
        assert not comparison.is_enough()
        for arm, ms in ((0, base), (1, own)):
            for step in steps(arm, 4, ms):
                comparison.take(step)
    assert comparison.is_enough()
    assert not comparison.results()[1].is_faster(0.01)


def test_three_blocks_are_not_enough_and_one_disturbance_does_not_decide() -> None:
    assert not compared((0, 10), (1, 5), (0, 10), (1, 5)).is_enough()
    quiet = [(0, 10.0), (1, 5.0)] * 5
    disturbed = [*quiet, (0, 10.0), (1, 50.0)]
    result = compared(*disturbed).results()[1]
    assert result.speedup == pytest.approx(2.0)


def test_steps_of_the_switch_and_of_compilations_do_not_count() -> None:
    comparison = Comparison(Ask(arms=((), (Choice(id="compile"),)), what=""), 1, [8, 8, 8])
    for _ in range(5):
        for step in [*steps(0, 2, 500.0), *steps(0, 6, 10.0, start=3)]:
            comparison.take(step)
        for step in [
            *steps(1, 1, 9000.0, compiles=1),
            *steps(1, 1, 500.0, start=2),
            *steps(1, 6, 5.0, start=3),
        ]:
            comparison.take(step)
    result = comparison.results()[1]
    assert result.speedup == pytest.approx(2.0)
    assert result.compile_s == pytest.approx(45.0)


def test_an_arm_that_never_stops_compiling_has_failed() -> None:
    comparison = Comparison(Ask(arms=((), (Choice(id="compile"),)), what=""), 1, [8, 8, 8])
    for _ in range(6):
        assert comparison.failed == {}
        for step in [*steps(0, 8, 10.0), *steps(1, 1, 900.0, compiles=1), *steps(1, 7, 5.0, start=2)]:
            comparison.take(step)
    assert "again and again" in comparison.failed[1]


def test_a_graph_that_is_recorded_again_in_every_block_is_no_failure_and_does_not_count() -> None:
    comparison = Comparison(Ask(arms=((), (Choice(id="compile"),)), what=""), 1, [8, 8, 8])
    for _ in range(8):
        recorded = steps(1, 1, 900.0, start=3, recordings=1)
        for step in [*steps(0, 8, 10.0), *steps(1, 2, 5.0), *recorded, *steps(1, 5, 5.0, start=4)]:
            comparison.take(step)
    assert comparison.failed == {}
    assert comparison.results()[1].speedup == pytest.approx(2.0)


def test_steps_of_another_question_do_not_count() -> None:
    comparison = compared((0, 10), (1, 5))
    for step in steps(1, 8, 1.0, generation=2):
        comparison.take(step)
    assert comparison.results()[1].speedup == pytest.approx(2.0)


@given(st.floats(0.01, 1e5))
def test_a_block_is_long_enough_for_what_it_measures(step_ms: float) -> None:
    assert 4 <= block_length(step_ms) <= 62


def test_one_value_alone_could_be_anything() -> None:
    assert mean_and_half_width([2.0]) == (2.0, math.inf)


def test_of_two_levers_that_conflict_the_faster_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BY_ID["tf32"], "conflicts", ("bf16",))
    found = searched(World({"tf32": 0.8, "bf16": 0.6}))
    assert "bf16" in names(found)
    assert "tf32" not in names(found)
    assert "conflicts with bf16" in found.conclusions.trials["tf32"].reason


def test_levers_that_answer_what_holds_the_job_up_come_first() -> None:
    def first(*findings: Finding) -> str:
        finder = Finder(GPU, Limits())
        return finder.candidates(LEVERS, findings)[0].id

    waits = Finding(
        code="F303", severity="high", title="", evidence="", fix="", predicted_speedup=9.0, arithmetic="1 / 9"
    )
    assert first() == "bf16"
    assert first(waits) == "fused-optimizer"
    # One that nobody knows any more, of an older record.
    assert first(dataclasses.replace(waits, code="F000")) == "bf16"


class Disturbed(World):
    """What seemed twice as fast alone does not show in the ladder, where anything could be true."""

    def answer(self, ask: Ask) -> list[ArmResult]:
        results = super().answer(ask)
        if not ask.what.startswith("baseline to best"):
            return results
        last = dataclasses.replace(results[-1], low=0.4, high=5.0)
        return [*results[:-1], last]


def test_a_plan_whose_ladder_could_be_chance_is_none() -> None:
    world = Disturbed({"bf16": 0.5, "fused-optimizer": 0.9})
    finder = searched(world)
    assert finder.best == ()
    assert finder.ladder == []
    assert [ask.what for ask in world.asked].count("baseline to best, once more") == 1
    told = [trial for trial in finder.conclusions.trials.values() if trial.lever == "bf16"]
    assert told[0].verdict == "rejected"
    assert "took too different times to compare" in told[0].reason


def test_speedups_are_never_negative() -> None:
    comparison = Comparison(Ask(arms=((), (Choice(id="bf16"),)), what="noise"), 1, [8, 8])
    comparison._blocks = [[[10.0] * 8, [400.0] * 8, [12.0] * 8], [[300.0] * 8, [9.0] * 8, [11.0] * 8]]
    result = comparison.results()[1]
    assert result.low is not None
    assert result.high is not None
    assert 0 < result.low < 1 < result.high


def test_what_promises_much_may_begin_late() -> None:
    """The deadline passes while levers that promise less are tried; the compiler comes after them."""
    job = dataclasses.replace(GPU, busy_share=0.3)
    late = {"deadline": time.monotonic() - 5, "comparison_s": 10.0}
    world = World({"compile": 0.5, "bf16": 0.5})
    finder = searched(world, job, **late)
    assert names(finder)[-1].startswith("compile")
    very_late = {"deadline": time.monotonic() - 30, "comparison_s": 10.0}
    assert searched(World({"compile": 0.5}), job, **very_late).best == ()


def test_a_comparison_that_says_nothing_gives_no_figures() -> None:
    class Stormy(World):
        def answer(self, ask: Ask) -> list[ArmResult]:
            results = super().answer(ask)
            return [results[0], *(dataclasses.replace(one, low=1e-3, high=1e9) for one in results[1:])]

    finder = searched(Stormy({"bf16": 0.2}))
    told = finder.conclusions.trials["bf16"]
    assert (finder.best, told.verdict) == ((), "rejected")
    assert (told.measured_speedup, told.low, told.high) == (None, None, None)
    assert told.reason.startswith("its steps took too different times to compare")


class Noisy(World):
    """What is worth much could be chance at first; whoever asks for longer knows."""

    def answer(self, ask: Ask) -> list[ArmResult]:
        results = super().answer(ask)
        if ask.what.endswith("once more"):
            return results
        unclear = [
            dataclasses.replace(one, low=0.87, high=1.8) if (one.speedup or 1.0) > 1.01 else one
            for one in results[1:]
        ]
        return [results[0], *unclear]


def test_what_promises_much_and_could_be_chance_is_compared_for_longer() -> None:
    world = Noisy({"bf16": 0.8, "fused-optimizer": 0.97, "compile": 0.5})
    finder = searched(world)
    assert finder.conclusions.trials["bf16"].verdict == "kept"
    assert any(name.startswith("compile") for name in names(finder))
    again = [ask for ask in world.asked if ask.what.endswith("once more")]
    singles = again[0]
    # What seemed little is not asked for again, and what is asked for again takes longer.
    assert [choice.id for arm in singles.arms for choice in arm] == ["bf16"]
    assert singles.most_cycles > world.asked[0].most_cycles
    assert singles.most_seconds > world.asked[0].most_seconds


def test_nothing_is_compared_for_longer_when_the_time_is_over() -> None:
    late = {"deadline": time.monotonic() - 5, "comparison_s": 10.0}
    world = Noisy({"compile": 0.5})
    searched(world, dataclasses.replace(GPU, busy_share=0.3), **late)
    assert world.asked
    assert not [ask for ask in world.asked if "on top, once more" in ask.what]
