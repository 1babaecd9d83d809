"""Each check of `flatout check`: where it fires, where it must not, and where there is nothing to go by."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from flatout.analyze.inspection import Inspected, read_inspected
from flatout.analyze.readiness import check_first_updates, shape_words
from flatout.records.check import ParameterState
from flatout.records.machine import CheckResult
from flatout.records.session import BY_HAND, INSPECTION_FILE
from tests.unit.analyze.events import MS, rank_of, step, training, trial, write_rank

GIB = 1 << 30
TENSOR = {"shape": [4, 3], "dtype": "float32", "device": "cpu"}
CALL = {"update": 0, "module": "Net", "inputs": [TENSOR], "output": TENSOR, "autocast": None}
PAIRING = {"parameters": [11], "inputs": [[0, 21], [1, 22], [2, 23]]}
LOADER = {"data_set": "pkg.Data", "batch_size": 8, "samples": 100, "num_workers": 2}
ALL_IDS = [
    "script.runs",
    "model.inputs",
    "model.device",
    "loss.finite",
    "gradients.reach",
    "optimizer.covers",
    "loader.health",
    "determinism",
    "memory.room",
]


def parameter(name: str = "weight", **changes: Any) -> ParameterState:
    facts: dict[str, Any] = {
        "name": name,
        "shape": (4, 3),
        "dtype": "float32",
        "device": "cpu",
        "trainable": True,
        "optimized": True,
        "updates_with_gradient": 3,
        "updates_with_zero_gradient": 0,
        "updates_with_bad_gradient": 0,
        "changed": True,
        "learning_rate": 0.1,
    }
    return ParameterState(**{**facts, **changes})


def healthy(
    *,
    losses: list[float | None] | None = None,
    about: dict[str, Any] | None = None,
    steps: list[dict[str, Any]] | None = None,
    calls: tuple[dict[str, Any], ...] = (CALL,),
    parameters: tuple[ParameterState, ...] | None = None,
) -> Inspected:
    """Three updates with nothing wrong."""
    given = [1.0, 0.5, 0.25] if losses is None else losses
    # The first step holds the start of the program, too.
    lengths = [5000 * MS, 100 * MS, 100 * MS]
    made = [
        step(update=place + 1, ended_ns=length, losses=given[place : place + 1], host_peak_bytes=GIB)
        for place, length in enumerate(lengths)
    ]
    facts = {"pairing": PAIRING, "loaders": [LOADER], **(about or {})}
    return Inspected(
        rank=rank_of(steps if steps is not None else made, facts),
        calls=calls,
        parameters=(parameter(), parameter("bias")) if parameters is None else parameters,
    )


def checks(
    seen: Inspected | None = None,
    again: Inspected | str | None = "the same",
    *,
    gpus: int = 0,
    device_total_bytes: int | None = None,
    **of_trial: Any,
) -> dict[str, CheckResult]:
    seen = seen or healthy()
    results = check_first_updates(
        trial(updates=3, **of_trial),
        seen,
        seen if isinstance(again, str) else again,
        gpus=gpus,
        device_total_bytes=device_total_bytes,
    )
    assert len({result.id for result in results}) == len(results)
    for result in results:
        assert result.evidence
        assert bool(result.fix) == (result.status in ("warn", "fail")), result
    return {result.id: result for result in results}


def status(check: str, *arguments: Any, **options: Any) -> str:
    return checks(*arguments, **options)[check].status


def test_a_healthy_script_passes_everything() -> None:
    found = checks()
    assert list(found) == ALL_IDS
    assert {result.status for result in found.values()} == {"ok"}


# script.runs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "facts", "words"),
    [
        ("failed", {"exit_code": 3}, "exit code 3"),
        ("killed", {"exit_code": None, "signal": 11}, "signal 11"),
        ("silent", {"exit_code": None}, "no progress"),
    ],
)
def test_a_script_that_ended_badly_fails(outcome: str, facts: dict[str, Any], words: str) -> None:
    found = checks(outcome=outcome, said=("some", "RuntimeError: it broke"), **facts)["script.runs"]
    assert found.status == "fail"
    assert words in found.evidence
    assert "RuntimeError: it broke" in found.evidence
    assert "/tmp/run/stderr.txt" in found.fix


@pytest.mark.parametrize("outcome", ["stopped", "ended"])
def test_a_script_that_was_stopped_or_came_to_its_end_is_fine(outcome: str) -> None:
    assert status("script.runs", outcome=outcome) == "ok"


def test_a_script_that_said_nothing_and_whose_start_was_not_timed() -> None:
    assert "it said nothing" in checks(outcome="failed", exit_code=1)["script.runs"].evidence
    assert "after ?" in checks(to_first_update_s=None)["script.runs"].evidence


# model.inputs -----------------------------------------------------------------------------------------------


def test_inputs_are_described_and_changing_shapes_are_told() -> None:
    wider = {**CALL, "inputs": [{**TENSOR, "shape": [4, 5]}]}
    other = {**CALL, "module": "Critic", "inputs": []}
    found = checks(healthy(calls=({**CALL, "autocast": "bfloat16"}, CALL, wider, other)))["model.inputs"]
    assert found.status == "ok"
    assert "Net: float32[4, 3] -> float32[4, 3]" in found.evidence
    assert "autocast bfloat16" in found.evidence
    assert "2 different input shapes" in found.evidence
    assert "different" not in checks(healthy(calls=(CALL, CALL, other)))["model.inputs"].evidence


def called(module: str, *shape: int) -> dict[str, Any]:
    return {**CALL, "module": module, "inputs": [{**TENSOR, "shape": list(shape)}]}


def test_two_models_of_one_class_are_told_with_their_own_shapes() -> None:
    loss = called("Loss", 64, 1)
    calls = (called("Sequential", 64, 64), called("Sequential", 64, 784), loss) * 4
    evidence = checks(healthy(calls=calls, about={"roots": ["Sequential"] * 2}))["model.inputs"].evidence
    assert evidence == (
        "Sequential: float32[64, 64] -> float32[4, 3]; Sequential: float32[64, 784] -> float32[4, 3]"
    )
    # More shapes than models: whose each is cannot be told.
    calls = (*calls, called("Sequential", 32, 784))
    evidence = checks(healthy(calls=calls, about={"roots": ["Sequential"] * 2}))["model.inputs"].evidence
    assert evidence.endswith("[4, 3]; 3 different input shapes in 9 calls of 2 models")
    # One model with two shapes, as before; only its own calls count.
    evidence = checks(healthy(calls=calls[:3], about={"roots": ["Sequential"]}))["model.inputs"].evidence
    assert evidence.endswith("[4, 3]; 2 different input shapes in 2 calls")


def test_models_of_several_classes_are_each_told_and_losses_are_not() -> None:
    calls = (called("Encoder", 8, 3), called("Head", 8, 5), called("MSELoss", 8, 1), called("Head", 4, 5))
    evidence = checks(healthy(calls=calls, about={"roots": ["Encoder", "Head"]}))["model.inputs"].evidence
    assert evidence == (
        "Encoder: float32[8, 3] -> float32[4, 3]; Head: float32[8, 5] -> float32[4, 3]; "
        "2 different input shapes in 2 calls"
    )


def test_a_long_list_of_models_is_cut() -> None:
    calls = tuple(called("Linear", 8, width) for width in range(20))
    evidence = checks(healthy(calls=calls, about={"roots": ["Linear"] * 20}))["model.inputs"].evidence
    assert "float32[8, 7]" in evidence
    assert evidence.endswith("; and 12 more")


def test_a_model_that_is_no_module_has_unknown_inputs() -> None:
    assert status("model.inputs", healthy(calls=())) == "unknown"


def test_shapes_are_written_with_their_nesting() -> None:
    assert shape_words([TENSOR, {"mask": TENSOR, "n": "int"}, "NoneType"]) == (
        "float32[4, 3], {mask: float32[4, 3], n: int}, NoneType"
    )


# model.device -----------------------------------------------------------------------------------------------


def test_a_model_left_on_the_cpu_beside_a_gpu_is_a_warning() -> None:
    one, two = checks(gpus=1)["model.device"], checks(gpus=2)["model.device"]
    assert (one.status, two.status) == ("warn", "warn")
    assert "1 GPU" in one.evidence
    assert "2 GPUs" in two.evidence


def test_a_model_on_the_cpu_of_a_machine_without_a_gpu_is_fine() -> None:
    assert status("model.device", gpus=0) == "ok"


def test_a_model_partly_on_the_gpu_is_fine() -> None:
    parts = (parameter(device="cuda:0"), parameter("host", device="cpu"))
    assert status("model.device", healthy(parameters=parts), gpus=1) == "ok"


def test_without_parameters_the_device_is_unknown() -> None:
    assert status("model.device", healthy(parameters=()), gpus=1) == "unknown"


# loss.finite ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_fails_and_is_named(bad: float) -> None:
    found = checks(healthy(losses=[1.0, bad, 0.5]))["loss.finite"]
    assert found.status == "fail"
    assert f"backward 2 is {bad}" in found.evidence


def test_a_loss_that_never_moves_is_a_warning() -> None:
    assert status("loss.finite", healthy(losses=[2.0, 2.0, 2.0])) == "warn"


def test_a_loss_that_rises_or_was_seen_twice_only_is_fine() -> None:
    assert status("loss.finite", healthy(losses=[1.0, 2.0, 3.0])) == "ok"
    assert status("loss.finite", healthy(losses=[2.0, 2.0])) == "ok"
    assert status("loss.finite", healthy(losses=[2.0, None, 2.0])) == "ok"


def with_losses(*of_steps: list[float | None]) -> str:
    some = [step(update=place, losses=losses) for place, losses in enumerate(of_steps, start=1)]
    return checks(healthy(steps=some))["loss.finite"].evidence


def test_the_course_of_a_loss_is_told() -> None:
    assert with_losses([3.0], [2.0], [1.5]) == "3 -> 1.5 in 3 backward passes, all finite"
    assert with_losses([3.0]) == "3 in 1 backward passes, all finite"


def test_an_arrow_never_joins_two_different_losses() -> None:
    both = with_losses([1.35, 0.70], [1.34, 0.71])
    assert both == "1.35 -> 1.34, 0.7 -> 0.71 (2 losses a step) in 4 backward passes, all finite"
    # The first step may lack what comes at the beginning of the others.
    assert with_losses([1.35], [0.70, 1.34], [0.71, 1.33]).startswith("0.7 -> 0.71, 1.35 -> 1.33 (2 losses")
    # What a script does once, to try its model out, makes no step have two.
    assert with_losses([0.4, 7.7], [7.6], [7.5]).startswith("7.7 -> 7.5 in 4 backward passes")
    # What cannot be read takes no place.
    assert with_losses([None, 1.35], [None, 1.34]).startswith("1.35 -> 1.34 in 2")


def test_of_many_micro_batches_the_last_is_told() -> None:
    told = with_losses([4.0, 3.9, 3.8, 3.7], [3.6, 3.5, 3.4, 3.3])
    assert told.startswith("3.7 -> 3.3 (the last of 4 losses a step) in 8 backward passes")


def test_losses_that_were_not_seen_or_could_not_be_read_are_unknown() -> None:
    assert status("loss.finite", healthy(losses=[])) == "unknown"
    assert status("loss.finite", healthy(losses=[None, None])) == "unknown"


# gradients --------------------------------------------------------------------------------------------------


def never(name: str = "dead") -> ParameterState:
    return parameter(name, updates_with_gradient=0)


def test_a_parameter_that_no_gradient_reaches_fails() -> None:
    found = checks(healthy(parameters=(parameter(), never())))["gradients.reach"]
    assert found.status == "fail"
    assert "1 of 2 parameters: dead" in found.evidence


def test_a_long_list_of_parameters_is_cut() -> None:
    many = tuple(never(f"layer{place}") for place in range(20))
    evidence = checks(healthy(parameters=many))["gradients.reach"].evidence
    assert "layer7 and 12 more" in evidence
    assert "layer8" not in evidence


def test_a_frozen_parameter_needs_no_gradient() -> None:
    frozen = parameter("frozen", trainable=False, optimized=False, updates_with_gradient=0)
    found = checks(healthy(parameters=(parameter(), frozen)))
    assert found["gradients.reach"].status == "ok"
    assert "1 are frozen" in found["gradients.reach"].evidence
    assert found["optimizer.covers"].status == "ok"


def test_a_gradient_that_is_always_zero_is_a_warning_and_one_that_sometimes_is_not() -> None:
    dead = parameter("relu", updates_with_gradient=0, updates_with_zero_gradient=3)
    assert status("gradients.zero", healthy(parameters=(parameter(), dead))) == "warn"
    sometimes = parameter("relu", updates_with_gradient=1, updates_with_zero_gradient=2)
    assert "gradients.zero" not in checks(healthy(parameters=(sometimes,)))


def test_a_gradient_that_is_not_finite_fails_even_once() -> None:
    burst = parameter("head", updates_with_gradient=2, updates_with_bad_gradient=1)
    found = checks(healthy(parameters=(parameter(), burst)))
    assert found["gradients.finite"].status == "fail"
    assert "head" in found["gradients.finite"].evidence
    assert found["gradients.reach"].status == "ok"


def test_without_trainable_parameters_gradients_are_unknown() -> None:
    assert status("gradients.reach", healthy(parameters=())) == "unknown"
    assert status("gradients.reach", healthy(parameters=(parameter(trainable=False),))) == "unknown"


# optimizer.covers -------------------------------------------------------------------------------------------


def test_a_parameter_that_no_optimizer_holds_is_a_warning() -> None:
    left_out = parameter("head", optimized=False)
    found = checks(healthy(parameters=(parameter(), left_out)))["optimizer.covers"]
    assert found.status == "warn"
    assert "head" in found.evidence


def test_a_parameter_that_never_changes_is_a_warning_with_its_learning_rate() -> None:
    stuck = parameter("weight", changed=False, learning_rate=0.0)
    found = checks(healthy(parameters=(stuck,)))["optimizer.covers"]
    assert found.status == "warn"
    assert "learning rate 0" in found.evidence
    unknown_rate = checks(healthy(parameters=(parameter(changed=False, learning_rate=None),)))
    assert "learning rate" not in unknown_rate["optimizer.covers"].evidence


def test_a_parameter_without_gradients_or_whose_change_is_unknown_is_not_stuck() -> None:
    no_gradient = parameter(changed=False, updates_with_gradient=0, updates_with_zero_gradient=3)
    assert status("optimizer.covers", healthy(parameters=(no_gradient,))) == "ok"
    assert status("optimizer.covers", healthy(parameters=(parameter(changed=None),))) == "ok"


def test_updates_by_hand_are_told_as_such() -> None:
    found = checks(healthy(about={"optimizers": [BY_HAND]}))["optimizer.covers"]
    assert (found.status, found.evidence) == ("ok", "the script itself updates every trainable parameter")


# loader.health ----------------------------------------------------------------------------------------------


def waiting(ms: float) -> list[dict[str, Any]]:
    first = step(ended_ns=60_000 * MS, loader_ns=20_000 * MS, host_peak_bytes=GIB)
    return [first, *(step(loader_ns=round(ms * MS), host_peak_bytes=GIB) for _ in range(2))]


def test_a_loop_that_waits_much_is_a_warning_however_long_the_start_took() -> None:
    found = checks(healthy(steps=waiting(40)))["loader.health"]
    assert found.status == "warn"
    assert "40.0 ms wait a step, 40% of these first steps" in found.evidence


def test_a_loop_that_waits_a_little_is_fine() -> None:
    assert status("loader.health", healthy(steps=waiting(29))) == "ok"


def test_evaluation_does_not_hide_the_wait() -> None:
    some = waiting(40)
    for one in some:
        one.update(ended_ns=one["ended_ns"] + 500 * MS, evaluation_ns=500 * MS, evaluations=1)
    assert status("loader.health", healthy(steps=some)) == "warn"


def test_the_wait_is_judged_by_the_run_that_was_not_looked_at_closely() -> None:
    slow_to_look = healthy(steps=[step(ended_ns=900 * MS, loader_ns=40 * MS, host_peak_bytes=GIB)] * 3)
    assert status("loader.health", slow_to_look, healthy(steps=waiting(40))) == "warn"
    assert status("loader.health", slow_to_look, None) == "ok"


def test_one_step_alone_is_all_there_is_to_go_by() -> None:
    only = [step(loader_ns=40 * MS, host_peak_bytes=GIB)]
    assert status("loader.health", healthy(steps=only)) == "warn"


def test_a_data_set_smaller_than_its_batch_is_a_warning() -> None:
    assert status("loader.health", healthy(about={"loaders": [{**LOADER, "samples": 7}]})) == "warn"
    assert status("loader.health", healthy(about={"loaders": [{**LOADER, "samples": 8}]})) == "ok"


def test_batches_of_no_size_are_named_in_words() -> None:
    found = checks(healthy(about={"loaders": [{**LOADER, "batch_size": None}]}))["loader.health"]
    assert found.evidence.startswith("batches of the script's own making")
    unknown_size = healthy(about={"loaders": [{**LOADER, "samples": None}]})
    assert status("loader.health", unknown_size) == "ok"


def test_a_script_without_a_loader_or_with_one_it_never_used_is_fine() -> None:
    assert "no DataLoader" in checks(healthy(about={"loaders": []}))["loader.health"].evidence
    unused = healthy(steps=[step(loaders={}, host_peak_bytes=GIB)] * 2)
    assert "no DataLoader" in checks(unused)["loader.health"].evidence


# determinism ------------------------------------------------------------------------------------------------


def paired(**changes: Any) -> Inspected:
    return healthy(about={"pairing": {**PAIRING, **changes}})


def test_two_equal_runs_are_deterministic() -> None:
    found = checks()["determinism"]
    assert (found.status, found.evidence) == (
        "ok",
        "two runs with the same seed gave the same 3 losses, bit for bit",
    )


def test_other_parameters_other_batches_and_other_losses_are_told_apart() -> None:
    assert "different parameters" in checks(again=paired(parameters=[12]))["determinism"].evidence
    batches = checks(again=paired(inputs=[[0, 21], [1, 99], [2, 23]]))["determinism"]
    assert (batches.status, "update 2" in batches.evidence) == ("warn", True)
    losses = checks(again=healthy(losses=[1.0, 0.5000000000000001, 0.25]))["determinism"]
    assert losses.status == "warn"
    assert "0.5 and 0.5000000000000001 in backward 2" in losses.evidence


def test_two_losses_that_are_no_number_are_equal() -> None:
    nan = healthy(losses=[1.0, float("nan"), 2.0])
    assert status("determinism", nan, healthy(losses=[1.0, float("nan"), 2.0])) == "ok"
    assert status("determinism", nan, healthy(losses=[1.0, 1.5, 2.0])) == "warn"


def test_a_second_run_that_came_less_far_proves_nothing() -> None:
    shorter = paired(inputs=PAIRING["inputs"][:2])
    found = checks(again=shorter)["determinism"]
    assert found.status == "unknown"
    assert "3 training calls, the second 2" in found.evidence
    assert status("determinism", again=None) == "unknown"


def test_losses_that_nobody_could_read_prove_nothing() -> None:
    silent = healthy(losses=[None, None, None])
    assert status("determinism", silent, silent) == "unknown"
    assert status("determinism", healthy(), silent) == "unknown"
    partly = healthy(losses=[1.0, None, 0.25])
    assert "same 2 losses" in checks(healthy(), partly)["determinism"].evidence


def test_runs_without_checksums_are_compared_by_their_losses() -> None:
    bare = healthy(about={"pairing": None})
    assert status("determinism", bare, bare) == "ok"


# memory.room ------------------------------------------------------------------------------------------------


def reserving(count: int) -> Inspected:
    return healthy(steps=[step(reserved_peak_bytes=count, host_peak_bytes=GIB)] * 2)


def test_a_gpu_that_is_nearly_full_is_a_warning() -> None:
    assert status("memory.room", reserving(91 * GIB), device_total_bytes=100 * GIB) == "warn"


def test_a_gpu_with_room_or_of_unknown_size_is_fine() -> None:
    assert status("memory.room", reserving(90 * GIB), device_total_bytes=100 * GIB) == "ok"
    found = checks(reserving(90 * GIB))["memory.room"]
    assert (found.status, found.evidence) == ("ok", "90.0 GiB of the GPU")


def test_without_a_reading_memory_is_unknown() -> None:
    assert status("memory.room", healthy(steps=[step(), step()])) == "unknown"


# Taps and files ---------------------------------------------------------------------------------------------


def test_what_could_not_be_watched_is_unknown_and_said() -> None:
    found = checks(failed_taps={"loader override": "ValueError: no", "copies": "KeyError: 'x'"})
    assert found["tap.copies"].evidence == "could not watch: KeyError: 'x'"
    assert found["tap.loader_override"].status == "unknown"


def test_an_inspection_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    place = write_rank(tmp_path, training(3), {"pairing": PAIRING})
    entry = {**dataclasses.asdict(parameter()), "shape": [4, 3]}
    without_rate = {**entry, "name": "other", "learning_rate": float("nan")}
    whole = {"calls": [CALL], "parameters": [entry, without_rate]}
    (place / INSPECTION_FILE).write_text(json.dumps(whole))
    seen = read_inspected(tmp_path)
    assert seen is not None
    assert seen.losses == (1.0, 1.0, 1.0)
    assert seen.calls == (CALL,)
    assert seen.parameters == (parameter(), parameter("other", learning_rate=None))
    assert seen.pairing == PAIRING


@pytest.mark.parametrize("text", [None, "", '{"calls": ['])
def test_an_inspection_that_is_missing_or_cut_off_is_empty(tmp_path: Path, text: str | None) -> None:
    place = write_rank(tmp_path, training(3), {})
    if text is not None:
        (place / INSPECTION_FILE).write_text(text)
    seen = read_inspected(tmp_path)
    assert seen is not None
    assert (seen.calls, seen.parameters) == ((), ())
    assert seen.pairing == {"parameters": [], "inputs": []}


def test_a_trial_without_an_update_was_not_inspected(tmp_path: Path) -> None:
    assert read_inspected(tmp_path) is None
