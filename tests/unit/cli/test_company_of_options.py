"""What was typed and has no use is refused, never dropped."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from flatout.cli import fit, serve
from flatout.records.errors import CallerMistake


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--load m.safetensors --max-memory 3GiB", "--max-memory"),
        ("--load m.safetensors --batch 4", "--batch"),
        ("--load m.safetensors train.py --lr 3", "train.py"),
        ("--hf m train.py", "train.py"),
        ("--hf m --gpus 2", "--gpus"),
        ("--hf m --load m.safetensors", "--hf"),
        ("--step-ms 4 train.py", "--step-ms"),
        ("--context 64 train.py", "--context"),
    ],
)
def test_fit_names_what_it_would_not_heed(words: str, named: str) -> None:
    done = CliRunner().invoke(fit.command, words.split())
    if isinstance(done.exception, CallerMistake):
        assert done.exception.received.startswith(f"{named} has no meaning beside --")
    else:
        assert done.exit_code == 2
        assert f"{named} is for" in done.output


@pytest.mark.parametrize(
    ("words", "named"),
    [("model:make", "model:make"), ("--latency 50ms", "--latency"), ("--queue 4", "--queue")],
)
def test_vllm_is_given_nothing_that_it_would_not_heed(words: str, named: str) -> None:
    done = CliRunner().invoke(serve.command, ["--llm", "m", "--engine", "vllm", *words.split()])
    assert isinstance(done.exception, CallerMistake)
    assert done.exception.received == f"{named} has no meaning beside --engine vllm"


@pytest.mark.parametrize(("token", "warns"), [({}, True), ({"FLATOUT_SERVE_TOKEN": "x"}, False)])
def test_vllm_for_everybody_is_warned_of(tmp_path: Path, token: dict[str, str], warns: bool) -> None:
    words = ["--llm", str(tmp_path), "--engine", "vllm", "--host", "0.0.0.0", "--gpu", "l4", "--dry-run"]
    done = CliRunner(env={"VLLM_API_KEY": None, **token}).invoke(serve.command, words)
    assert ("anybody who reaches 0.0.0.0 may use this server" in done.output) == warns
