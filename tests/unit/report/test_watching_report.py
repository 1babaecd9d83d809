"""`watch --once`: the whole frame in plain lines, at any width, with nothing obeyed in names."""

import dataclasses
import io

import pytest
from rich.console import Console

from flatout.records.watching import Frame
from flatout.report.watching import draw_frame
from tests.fakes.watching import eight_gpus, job_here, no_gpu, one_gpu


def drawn(frame: Frame, width: int = 100, **options: object) -> str:
    file = io.StringIO()
    draw_frame(frame, Console(file=file, width=width, markup=False, highlight=False, **options))  # type: ignore[arg-type]
    return file.getvalue()


def test_everything_of_a_server_is_there() -> None:
    text = drawn(eight_gpus())
    for words in (
        "node-7",
        "SM active 87 %",
        "limited by heat",
        "DOWN: NVML answered: GPU is lost",
        "4215  ada  100.0 GiB  running",
        "31337  ?",
        "step 412 ms",
        "loss 2.713",
        "torch.compile is predicted",
        "ipykernel_launcher",
    ):
        assert words in text, words


def test_no_gpu_shows_the_host_and_jobs() -> None:
    text = drawn(no_gpu())
    assert "no GPU can be seen here" in text
    assert "CPU busy 31 %" in text
    assert "train.py" in text


@pytest.mark.parametrize("width", [20, 40, 80])
def test_narrow_terminals_wrap_and_lose_nothing(width: int) -> None:
    text = drawn(eight_gpus(), width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "31337" in text


def test_names_are_inert_and_a_pipe_gets_no_colours() -> None:
    evil = "\x1b[31mred\n[bold]x"
    frame = dataclasses.replace(one_gpu(), host=evil, jobs=(job_here(1, evil),), notes=(evil,))
    text = drawn(frame, 200)
    assert "\x1b" not in text
    assert text.count("\\x1b[31mred\\n[bold]x") == 3
