"""A folder with a script and a plan, and jobs made from it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout.records.launch import LaunchJob, Settings
from flatout.runtime.launching.request import LaunchRequest, job_for

Make = Callable[..., LaunchJob]
PLAN = 'version = 1\n\n[job]\nscript = "train.py"\nscript_sha256 = ""\narguments = []\n'


@pytest.fixture
def make_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """`make_job("slurm", "train.py", "--lr", gpus=2)`; settings by keyword, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "flatout.toml").write_text(PLAN)

    def make(target: str, *words: str, settings: dict[str, Any] | None = None, **options: Any) -> LaunchJob:
        given = {"checkpoints": "checkpoints", "workdir": "/workspace", "storage_bytes": 1 << 30}
        needed = {"kubernetes": {"image": "team/train:1"}, "skypilot": {"setup": "true"}}.get(target, {})
        request = LaunchRequest(
            target=target,
            words=words or ("train.py",),
            python=options.pop("python", "python"),
            folder=str(tmp_path),
            plan=options.pop("plan", "flatout.toml"),
            settings=Settings(**{**given, **needed, **(settings or {})}),
            **options,
        )
        return job_for(request)[0]

    return make
