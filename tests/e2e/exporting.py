"""A real `flatout export` beside a test: started, ordered about, scraped, ended."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
WAIT_S = 90.0
T = TypeVar("T")


class Exporting:
    """On fake GPUs; `order` plants faults in them."""

    def __init__(self, folder: Path, *arguments: str, gpus: int = 3) -> None:
        self.folder = folder
        self._errors = (folder / "errors").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.exporting", str(gpus), *arguments, "--json"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
                "FLATOUT_CACHE_DIR": str(folder / "cache"),
            },
        )
        self.started: dict[str, Any] = {}

    def __enter__(self) -> Self:
        assert self.process.stdout is not None
        text = ""
        for line in self.process.stdout:
            text += line
            if line.startswith("}"):
                break
        self.started = json.loads(text) if text else {}
        assert self.started, self.errors
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        self._errors.close()

    @property
    def url(self) -> str:
        return str(self.started["url"])

    @property
    def errors(self) -> str:
        return (self.folder / "errors").read_text()

    def order(self, *words: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def fired(self) -> dict[str, int]:
        """Which planted faults fired, and how often."""
        file = self.folder / "fired"
        file.unlink(missing_ok=True)
        self.order("fired", str(file))
        until(file.exists, "an answer")
        return until(lambda: json.loads(file.read_text() or "null"), "an answer")  # type: ignore[no-any-return]

    def scrape(self) -> dict[tuple[str, str], float]:
        """Values by name and GPU (or first label)."""
        with urllib.request.urlopen(self.url, timeout=20) as answer:
            text = answer.read().decode()
        return {
            (sample.name, sample.labels.get("gpu") or next(iter(sample.labels.values()), "")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def end(self) -> int:
        """Ask it to end, as systemd does."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


def until(look: Callable[[], T | None], what: str) -> T:
    """What `look` finds, as soon as it finds something."""
    limit = time.monotonic() + WAIT_S
    while time.monotonic() < limit:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited in vain for {what}")
