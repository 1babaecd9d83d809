"""Without an extra the core imports, and the error names what to install (fault 60)."""

import importlib.metadata
import json
import subprocess
import sys

import pytest

from flatout.limits.measure import torch_version
from flatout.records.errors import MissingExtra

WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "amdsmi"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

sys.meta_path.insert(0, Missing())
refused = []
for extra in ("torch", "amdsmi"):
    try:
        __import__(extra)
    except ModuleNotFoundError:
        refused.append(extra)

import importlib, json, pkgutil
import flatout

imported = []
for room in ("records", "report", "hardware", "cli"):
    package = importlib.import_module(f"flatout.{room}")
    imported.append(package.__name__)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        imported.append(importlib.import_module(module.name).__name__)
print(json.dumps({"refused": refused, "imported": imported, "torch": "torch" in sys.modules}))
"""


def test_every_room_but_limits_imports_without_torch_and_amdsmi() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_EXTRAS], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["refused"] == ["torch", "amdsmi"], "the extras were really missing"
    assert said["torch"] is False
    expected = {"flatout.records.index", "flatout.report.roofline", "flatout.hardware.amd.through_amdsmi"}
    assert expected | {"flatout.cli.limits"} <= set(said["imported"])


def test_measuring_without_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def version(name: str) -> str:
        asked.append(name)
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(MissingExtra) as refused:
        torch_version()
    assert asked == ["torch"]
    assert "flatout[torch]" in refused.value.remedy
    assert refused.value.extra == "torch"
    assert refused.value.exit_code == 3
