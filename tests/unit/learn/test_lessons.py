"""What lessons say: figures of this machine, other hardware marked as rated, commands that exist."""

import dataclasses
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.cli.commands import COMMANDS
from flatout.hardware.catalogue import catalogue
from flatout.learn.catalogue import BY_ID, LESSONS, chosen, entries
from flatout.learn.jobs.ranks import RankCount
from flatout.learn.killing import Killed
from flatout.learn.lesson import Setting
from flatout.learn.lessons import bound
from flatout.learn.lessons.bound import BoundMeasured, RowsPoint
from flatout.learn.lessons.kill import KillMeasured
from flatout.learn.lessons.launch import CallPoint, LaunchMeasured
from flatout.learn.lessons.memory import MemoryMeasured
from flatout.learn.lessons.parallel import ParallelMeasured
from flatout.learn.lessons.precision import Format, PrecisionMeasured
from flatout.learn.lessons.training import BatchPoint, TrainingMeasured
from flatout.learn.rungs import Cache, SizePoint
from flatout.records.errors import UnknownName
from flatout.records.learn import LearnDevice, LearnFigure, Taught

MIB = 1 << 20


def setting(*, gpu: bool) -> Setting:
    device = LearnDevice(
        name="NVIDIA H200" if gpu else "AMD EPYC",
        torch_device="cuda:0" if gpu else "cpu",
        vendor="nvidia" if gpu else "cpu",
        torch_version="2.13.0",
        reason="the first GPU" if gpu else "no GPU can be used here",
    )
    compared = tuple(entry for entry in catalogue() if entry.id in ("h100-80gb-sxm", "rtx4090", "m4-8"))
    return Setting(device=device, rated=None, compared=compared, params=7e9, gpus=8, tokens=8192)


def killed(way: Any, signal: str, done: int, kept: int, **more: Any) -> Killed:
    code = -9 if signal == "SIGKILL" else -15
    return Killed(
        way=way,
        signal=signal,
        instant="while it saved",
        exit_code=code,
        steps_done=done,
        steps_kept=kept,
        lines_printed=0,
        **more,
    )


HALF = {
    "half_bytes": 4 * MIB,
    "whole_bytes": 48 * MIB,
    "first_bytes": "50 4b",
    "last_bytes": "02 a4",
    "load_error": "RuntimeError: PytorchStreamReader failed",
}
FOUND: dict[str, Any] = {
    "memory": MemoryMeasured(
        points=tuple(SizePoint(MIB << n, 8e12 if n < 6 else 4.3e12) for n in range(12)),
        caches=(Cache("the L2 cache", 50 * MIB),),
        in_order_bytes_per_s=2e12,
        shuffled_bytes_per_s=1e11,
        pinned_bytes_per_s=55.5e9,
        pageable_bytes_per_s=15.8e9,
        disk_bytes_per_s=1e9,
        disk_folder="/tmp",
    ),
    "bound": BoundMeasured(
        width=8192,
        dtype="bf16",
        points=tuple(
            RowsPoint(n, max(3e-5, n * 1.7e-7), 2.0 * n * 8192**2, 1.34e8) for n in (1, 64, 512, 4096)
        ),
        addition=RowsPoint(1, 1e-3, 7e8, 4.2e9),
        memory_bytes_per_s=4.29e12,
        peak_flops_per_s=797e12,
    ),
    "launch": LaunchMeasured(
        points=(CallPoint(1, 6.6e-6), CallPoint(65536, 6.7e-6), CallPoint(1 << 24, 4e-5)),
        updates_s={"one by one": 1.5e-2, "one kernel for all": 1e-4},
        launch_s=6.64e-6,
        item_s=11.7e-6,
        graph_node_s=1.2e-6,
    ),
    "precision": PrecisionMeasured(
        formats=tuple(
            Format(
                dtype=dtype,
                bits=16,
                largest=6e4,
                step_at_one=0.0078125,
                smallest_normal=1e-5,
                sum_of_updates=1.0,
                large=None,
                small=0.0,
                product_error=2e-3,
            )
            for dtype in ("bf16", "fp16")
        ),
        rates={"fp32": 52e12, "bf16": 797e12},
        refused={"fp8": "no tensor cores for fp8"},
    ),
    "training": TrainingMeasured(
        parameters=1_000_000,
        parameter_bytes=4_000_000,
        gradient_bytes=4_000_000,
        optimizer_bytes=8_000_000,
        points=(BatchPoint(1, 5_000_000, 30_000_000), BatchPoint(16, 80_000_000, 120_000_000)),
    ),
    "parallel": ParallelMeasured(
        ranks=2,
        parameters=930_000,
        counts=tuple(
            RankCount(strategy=name, sent_bytes=sent, held_bytes=held, step_s=0.1)
            for name, sent, held in (
                ("ddp", 3.73e6, 14_900_000),
                ("fsdp", 7.17e6, 7_450_000),
                ("tensor", 12.6e6, 8_590_000),
                ("pipeline", 0.53e6, 7_450_000),
            )
        ),
    ),
    "kill": KillMeasured(
        jobs=(
            killed("plain", "SIGKILL", 40, 0, **HALF),
            killed("careful", "SIGKILL", 56, 20, half_bytes=9 * MIB, whole_bytes=48 * MIB),
            killed("plain", "SIGTERM", 50, 40),
            killed("careful", "SIGTERM", 51, 51),
        )
    ),
}


def taught(lesson: str, *, gpu: bool = True) -> Taught:
    return BY_ID[lesson].teach(FOUND[lesson], setting(gpu=gpu))


def words(one: Taught) -> Iterator[str]:
    yield from (one.answer, *one.seen, *one.notes)


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("lesson", [lesson.id for lesson in LESSONS])
def test_a_lesson_answers_draws_explains_and_advises(lesson: str, gpu: bool) -> None:
    one = taught(lesson, gpu=gpu)
    assert one.pictures
    assert len(one.seen) >= 3
    assert one.figures
    assert all("{" not in text and "  " not in text for text in words(one))
    assert re.search(r"\d", one.answer), "an answer has a figure of this machine in it"
    named = [advice.command.split()[1] for advice in one.advice if advice.command.startswith("flatout ")]
    assert named
    assert set(named) <= set(COMMANDS)


def test_other_hardware_is_marked_as_rated() -> None:
    for lesson in LESSONS:
        rated = taught(lesson.id).rated
        if rated is not None:
            assert rated.kind == "table"
            assert rated.origin == "rated"
            assert "not measured" in rated.caption
    assert sum(taught(lesson.id).rated is not None for lesson in LESSONS) >= 6


def test_the_ladder_puts_each_size_on_its_rung() -> None:
    figures = {one.name: one.value for one in taught("memory").figures}
    assert figures["the L2 cache"] == 8e12
    assert figures["the GPU's memory"] == 4.3e12
    assert figures["the host, pinned"] == 55.5e9
    assert figures["in order over shuffled"] == pytest.approx(20)


def test_a_ladder_without_known_caches_still_has_memory_on_it() -> None:
    found = dataclasses.replace(FOUND["memory"], caches=())
    figures = {one.name: one.value for one in BY_ID["memory"].teach(found, setting(gpu=False)).figures}
    assert figures["main memory"] == pytest.approx(4.3e12)
    assert figures["what lies near"] == pytest.approx(8e12)


def test_the_ridge_is_the_peak_over_the_bandwidth() -> None:
    figures = {one.name: one.value for one in taught("bound").figures}
    assert figures["ridge"] == pytest.approx(797e12 / 4.29e12)
    roof = next(one for one in taught("bound").pictures[0].curves if one.name == "roof")  # type: ignore[union-attr]
    assert max(y for _, y in roof.points) == 797e12


def test_bf16_that_is_slower_here_is_said_to_be() -> None:
    found = dataclasses.replace(FOUND["precision"], rates={"fp32": 2e11, "bf16": 1e11})
    one = BY_ID["precision"].teach(found, setting(gpu=False))
    assert any("slower than fp32" in text for text in one.seen)
    assert not any("slower than fp32" in text for text in taught("precision").seen)


def test_the_model_that_was_asked_for_is_reckoned_with() -> None:
    figures = {one.name: one for one in taught("training").figures}
    assert figures["7 B parameters"].value == pytest.approx(16 * 7e9)
    assert figures["7 B parameters"].origin == "computed"


def test_a_kill_tells_what_was_lost() -> None:
    one = taught("kill")
    assert "Of 40 steps" in one.answer
    assert any("PytorchStreamReader" in text for text in one.pictures[2].lines)  # type: ignore[union-attr]


def test_a_wrong_name_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UnknownName, match="did you mean 'memory'"):
        chosen(("memry",))
    assert [lesson.id for lesson in chosen(("KILL", "kill"))] == ["kill"]


def test_one_lesson_is_the_one_to_start_with() -> None:
    assert [entry.id for entry in entries() if entry.is_first] == ["memory"]
    assert set(FOUND) == {entry.id for entry in entries()}


def test_an_unknown_figure_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="nobody says why"):
        LearnFigure(name="launch", value=None, unit="s")


@pytest.mark.parametrize(("cache_mib", "width"), [(0, 8192), (50, 8192), (126, 16384), (512, 16384)])
def test_the_matrix_of_a_gpu_is_larger_than_its_cache(cache_mib: int, width: int) -> None:
    """As on an H100, whose second-level cache has 50 MiB, and a B200 with 126."""
    properties = SimpleNamespace(L2_cache_size=cache_mib << 20)
    torch = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda _device: properties))
    bench = SimpleNamespace(on_cpu=False, torch=torch, device="cuda:0")
    assert bound._width(bench) == width  # type: ignore[arg-type]
