"""What parsers and schemas say of a file before it is shown: bash, a YAML parser, and the targets' own.

A tool or package that is not here is named as skipped: what was not checked must not look as if it was.
"""

import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from flatout.records.launch import LaunchCheck, Target
from flatout.runtime.launching.draft import Draft

_PATIENCE_S = 20.0
_LONGEST = 600
# Of sbatch, where there is nobody to ask.
_NO_CLUSTER = ("configuration source", "contact slurm controller", "Connection refused", "timed out")


def check_draft(draft: Draft, target: Target) -> tuple[LaunchCheck, ...]:
    """Every check that can be made here."""
    return tuple(_CHECKS[target](draft))


def _slurm(draft: Draft) -> Iterator[LaunchCheck]:
    yield _by_bash(draft.text)
    tested = _by_program("sbatch --test-only", ["sbatch", "--test-only"], draft.text)
    if tested.outcome == "failed" and any(words in tested.reason for words in _NO_CLUSTER):
        tested = LaunchCheck(by=tested.by, outcome="skipped", reason="no cluster answers here")
    yield tested


def _kubernetes(draft: Draft) -> Iterator[LaunchCheck]:
    yield _read_back(draft)
    yield _guarded("kubeflow_trainer_api", lambda: _by_trainer_models(draft))


def _skypilot(draft: Draft) -> Iterator[LaunchCheck]:
    task = draft.documents[0]
    yield _by_bash(task.get("setup", "") + task["run"])
    yield _read_back(draft)
    yield _guarded("sky", lambda: _by_skypilot_schema(task))


_CHECKS: dict[Target, Callable[[Draft], Iterator[LaunchCheck]]] = {
    "slurm": _slurm,
    "kubernetes": _kubernetes,
    "skypilot": _skypilot,
}


def _by_bash(script: str) -> LaunchCheck:
    return _by_program("bash -n", ["bash", "-n"], script)


def _by_program(name: str, words: list[str], text: str) -> LaunchCheck:
    if shutil.which(words[0]) is None:
        return LaunchCheck(by=name, outcome="skipped", reason=f"there is no {words[0]} here")
    try:
        done = subprocess.run(
            words, input=text.encode(), capture_output=True, timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return LaunchCheck(by=name, outcome="skipped", reason=f"no answer within {_PATIENCE_S:.0f} s")
    said = "; ".join((done.stderr or done.stdout).decode(errors="replace").splitlines())[:_LONGEST]
    return LaunchCheck(by=name, outcome="failed" if done.returncode else "ok", reason=said)


def _guarded(package: str, check: Callable[[], str]) -> LaunchCheck:
    """A check by somebody's package, where it is installed; it says what is wrong, or nothing."""
    if importlib.util.find_spec(package) is None:
        return LaunchCheck(by=package, outcome="skipped", reason=f"{package} is not installed")
    try:
        problem = check()
    except Exception as error:  # noqa: BLE001 - whatever a schema raises, it says no
        problem = f"{type(error).__name__}: {error}"
    return LaunchCheck(by=package, outcome="failed" if problem else "ok", reason=problem[:_LONGEST])


def _read_back(draft: Draft) -> LaunchCheck:
    return _guarded("yaml", lambda: _by_yaml(draft))


def _by_yaml(draft: Draft) -> str:
    import yaml

    read = list(yaml.safe_load_all(draft.text))
    return "" if read == _plain(list(draft.documents)) else "it does not read as it was written"


def _by_trainer_models(draft: Draft) -> str:
    from kubeflow_trainer_api import models

    kinds = {
        "TrainJob": models.TrainerV1alpha1TrainJob,
        "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
    }
    for document in draft.documents:
        model = kinds.get(document["kind"])
        if model is not None:
            lost = _lost(_plain(document), model.from_dict(document).to_dict())
            if lost:
                return f"{document['kind']} has no {lost}"
    return ""


def _lost(given: Any, kept: Any, path: str = "") -> str:
    """The first thing that a model did not take; models pass over what they do not know."""
    if isinstance(given, dict):
        for name, value in given.items():
            if not isinstance(kept, dict) or name not in kept:
                return f"{path}.{name}".lstrip(".")
            lost = _lost(value, kept[name], f"{path}.{name}")
            if lost:
                return lost
        return ""
    if isinstance(given, list):
        if not isinstance(kept, list) or len(kept) != len(given):
            return path.lstrip(".")
        pairs = enumerate(zip(given, kept, strict=True))
        return next((lost for n, (a, b) in pairs if (lost := _lost(a, b, f"{path}.{n}"))), "")
    return "" if given == kept else path.lstrip(".")


def _by_skypilot_schema(task: dict[str, Any]) -> str:
    from sky.utils import common_utils, schemas

    mounts = [value for value in task.get("file_mounts", {}).values() if isinstance(value, dict)]
    parts = [
        (task, schemas.get_task_schema()),
        (task["resources"], schemas.get_resources_schema()),
        *((mount, schemas.get_storage_schema()) for mount in mounts),
    ]
    for part, schema in parts:
        common_utils.validate_schema(part, schema, "")
    return ""


def _plain(value: Any) -> Any:
    """With lists for tuples, as parsers give them."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
