"""Which script, or which module, a command line runs."""

from pathlib import Path

import pytest

from flatout.runtime.command import JobCommand
from flatout.tune.fingerprints import fingerprint


@pytest.mark.parametrize(
    ("words", "script", "arguments"),
    [
        (("train.py", "--lr", "1"), "train.py", ("--lr", "1")),
        (("torchrun", "--nproc-per-node", "2", "train.py", "x"), "train.py", ("x",)),
        (("python", "-m", "torch.distributed.run", "train.py"), "train.py", ()),
        (("-m", "pkg.train", "--config", "other.py"), "-m pkg.train", ("--config", "other.py")),
        (("python", "-m", "pkg.train", "1"), "-m pkg.train", ("1",)),
        (("torchrun", "--nnodes", "2", "-m", "pkg.train"), "-m pkg.train", ()),
        (("-m", "torch.distributed.run", "-m", "pkg.train"), "-m pkg.train", ()),
        (("./train", "fast", "3"), "./train fast", ("fast", "3")),
    ],
)
def test_a_job_is_known_by_its_script_or_module(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    script: str,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "other.py"):
        (tmp_path / name).write_text("pass")
    found = fingerprint(JobCommand(words=(), own_python=True, given=words), None, {})
    assert (found.script, found.arguments) == (script, arguments)
