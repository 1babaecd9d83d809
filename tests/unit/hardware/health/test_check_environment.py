"""Thread counts, debug switches that were left on, allocator settings."""

import dataclasses

import pytest

from flatout.hardware.health.environment import DEBUG_STATE, DEBUG_VARIABLES
from flatout.records.machine import CheckResult
from tests.fakes.machines import healthy_h200, with_environment, with_host, with_torch
from tests.unit.hardware.health.looking import look, only


def threads(value: str) -> CheckResult:
    return only("env.threads", with_environment(healthy_h200(), OMP_NUM_THREADS=value))


def debug(name: str, value: str) -> CheckResult:
    return only("env.debug", with_environment(healthy_h200(), **{name: value}))


def allocator(value: str) -> CheckResult:
    return only("env.allocator", with_environment(healthy_h200(), PYTORCH_ALLOC_CONF=value))


# --- env.threads ------------------------------------------------------------------------------------------


def test_torchruns_single_thread_warns_with_the_number_to_use() -> None:
    result = threads("1")

    assert result.status == "warn"
    assert result.fix.startswith("export OMP_NUM_THREADS=16 ")
    assert "ranks" in result.fix
    assert "one of 16 CPUs" in result.evidence


def test_more_threads_than_cpus_warn() -> None:
    result = threads("17")

    assert (result.status, result.fix) == ("warn", "export OMP_NUM_THREADS=16")
    assert "OMP_NUM_THREADS=17, with 16 CPUs" in result.evidence


@pytest.mark.parametrize("value", ["many", "0", "-4", "", "²", "1.5"])
def test_a_value_that_is_no_number_of_threads_warns(value: str) -> None:
    result = threads(value)

    assert (result.status, result.fix) == ("warn", "unset OMP_NUM_THREADS")
    assert "not a number of threads" in result.evidence


@pytest.mark.parametrize("value", ["2", "16", "8,2", " 8 "])
def test_a_number_that_fits_is_fine(value: str) -> None:
    assert threads(value).status == "ok"


@pytest.mark.parametrize(("cpus", "status"), [(3, "ok"), (4, "warn")])
def test_one_thread_is_fine_only_on_a_small_machine(cpus: int, status: str) -> None:
    machine = with_host(with_environment(healthy_h200(), MKL_NUM_THREADS="1"), cpu_affinity_count=cpus)

    assert only("env.threads", machine).status == status


def test_a_quota_counts_as_cpus_to_use() -> None:
    machine = with_host(with_environment(healthy_h200(), OMP_NUM_THREADS="8"), cpu_quota=4.5)

    assert only("env.threads", machine).fix == "export OMP_NUM_THREADS=4"


def test_each_variable_is_judged_on_its_own() -> None:
    machine = with_environment(healthy_h200(), OMP_NUM_THREADS="8", OPENBLAS_NUM_THREADS="64")

    assert [result.status for result in look("env.threads", machine)] == ["ok", "warn"]


def test_unset_variables_are_fine() -> None:
    assert only("env.threads", healthy_h200()).evidence == "not set: libraries choose, with 16 CPUs to use"


def test_without_a_cpu_count_nothing_is_judged() -> None:
    machine = with_host(
        with_environment(healthy_h200(), OMP_NUM_THREADS="1"), cpu_count=None, cpu_affinity_count=None
    )

    assert look("env.threads", machine) == []


# --- env.debug --------------------------------------------------------------------------------------------


def on_value(name: str) -> str:
    """A value that switches this variable's cost on."""
    special = {
        "NVIDIA_TF32_OVERRIDE": "0",
        "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
        "NCCL_DEBUG": "INFO",
        "PYTHONMALLOC": "malloc_debug",
    }
    return special.get(name, "1")


@pytest.mark.parametrize("name", DEBUG_VARIABLES)
def test_every_debug_variable_warns_with_its_cost_and_the_way_back(name: str) -> None:
    result = debug(name, on_value(name))

    assert result.status == "warn"
    assert result.fix.split("   #")[0] == f"unset {name}"
    assert result.evidence == f"{name}={on_value(name)}: {DEBUG_VARIABLES[name][1]}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUDA_LAUNCH_BLOCKING", "0"),
        ("TORCHDYNAMO_DISABLE", "False"),
        ("CUDA_LAUNCH_BLOCKING", ""),
        ("NCCL_DEBUG", "WARN"),
        ("NVIDIA_TF32_OVERRIDE", "1"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
        ("TORCH_DISTRIBUTED_DEBUG", "INFO"),
        ("PYTHONMALLOC", "malloc"),
        ("TORCHINDUCTOR_COMPILE_THREADS", "16"),
    ],
)
def test_a_switch_that_is_off_or_harmless_is_fine(name: str, value: str) -> None:
    assert debug(name, value).status == "ok"


@pytest.mark.parametrize("name", DEBUG_STATE)
def test_a_switch_that_torch_starts_with_warns(name: str) -> None:
    result = only("env.debug", with_torch(healthy_h200(), switches={name: "on"}))

    assert result.status == "warn"
    assert DEBUG_STATE[name] in result.evidence
    assert result.fix.startswith("python -X importtime ")


def test_a_switch_that_torch_does_not_tell_is_unknown() -> None:
    machine = with_torch(healthy_h200(), switches={"anomaly_mode": "unknown: no such function"})

    result = only("env.debug", machine)

    assert result.status == "unknown"
    assert "anomaly_mode" in result.evidence


def test_without_torch_the_environment_is_still_read() -> None:
    machine = dataclasses.replace(healthy_h200(), frameworks=())

    assert only("env.debug", machine).status == "ok"
    assert only("env.debug", with_environment(machine, CUDA_LAUNCH_BLOCKING="1")).status == "warn"


# --- env.allocator ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["expandable_segment", "max_split_size", "PINNED"])
def test_an_unknown_key_fails_by_its_name(key: str) -> None:
    result = allocator(f"max_split_size_mb:128,{key}:1")

    assert (result.status, result.fix) == ("fail", "unset PYTORCH_ALLOC_CONF")
    assert f"unknown key {key!r}" in result.evidence


@pytest.mark.parametrize(
    "value",
    [
        "expandable_segments=True",
        "garbage",
        "garbage,expandable_segments:True",
        "expandable_segments:True,max_split_size_mb",
        "expandable_segments:",
        ",",
    ],
)
def test_what_is_not_key_and_value_fails(value: str) -> None:
    result = allocator(value)

    assert result.status == "fail"
    assert "not of the form key:value" in result.evidence


def test_settings_that_have_no_effect_together_warn() -> None:
    result = allocator("backend:cudaMallocAsync,expandable_segments:True")

    assert (result.status, result.fix) == ("warn", "export PYTORCH_ALLOC_CONF=expandable_segments:True")
    assert "cudaMallocAsync" in result.evidence


@pytest.mark.parametrize(
    "value",
    [
        "expandable_segments:True",
        " expandable_segments : True , max_split_size_mb:128,",
        "roundup_power2_divisions:[256:1,512:2,>:8],garbage_collection_threshold:0.8",
        "backend:cudaMallocAsync",
        "pinned_max_cached_size_mb:512,pinned_max_round_threshold_mb:64",
        "backend:native,expandable_segments:True",
    ],
)
def test_settings_that_torch_takes_are_fine(value: str) -> None:
    assert allocator(value).status == "ok"


def test_two_variables_that_differ_warn_that_one_counts() -> None:
    machine = with_environment(
        healthy_h200(),
        PYTORCH_ALLOC_CONF="expandable_segments:True",
        PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:128",
    )

    result = look("env.allocator", machine)[-1]

    assert (result.status, result.fix) == ("warn", "unset PYTORCH_CUDA_ALLOC_CONF")
    assert "PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF differ" in result.evidence


def test_two_variables_that_agree_are_fine() -> None:
    same = "expandable_segments:True"
    machine = with_environment(healthy_h200(), PYTORCH_ALLOC_CONF=same, PYTORCH_CUDA_ALLOC_CONF=same)

    assert {result.status for result in look("env.allocator", machine)} == {"ok"}


@pytest.mark.parametrize("variables", [{}, {"PYTORCH_ALLOC_CONF": ""}])
def test_no_settings_are_torchs_defaults(variables: dict[str, str]) -> None:
    machine = with_environment(healthy_h200(), **variables)

    assert only("env.allocator", machine).evidence == "not set: torch's defaults"


@pytest.mark.parametrize(
    "setting",
    ["expandable_segments:true", "max_split_size_mb:10", "garbage_collection_threshold:1.5", "backend:fast"],
)
def test_a_value_that_torch_refuses_fails(setting: str) -> None:
    result = allocator(setting)

    assert result.status == "fail"
    assert setting in result.evidence


@pytest.mark.parametrize(
    "setting", ["max_split_size_mb:21", "garbage_collection_threshold:0.8", "expandable_segments:False"]
)
def test_a_value_that_torch_takes_is_fine(setting: str) -> None:
    assert allocator(setting).status == "ok"
