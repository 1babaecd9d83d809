"""A headless Chromium, spoken to through a pipe: what a page asks for, complains of, and looks like."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)
_PATIENCE_S = 60.0


class Browser:
    """One tab."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._left = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer; what happens meanwhile is kept in `events`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            got = self._receive()
            if got.get("id") == self._number:
                assert "error" not in got, got
                return dict(got["result"])
            self.events.append(got)

    def open(self, page: Path, *, width: int = 1280, scheme: str = "light") -> None:
        """Show a file, and wait until it is there."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript comes to."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def requests(self) -> list[str]:
        """Every address that the page asked for."""
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def complaints(self) -> list[dict[str, Any]]:
        """Whatever reached the console."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self.events if event["method"] in kinds]

    def picture(self) -> bytes:
        """All of the page, as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        return base64.b64decode(shot["data"])

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._left:
            assert time.monotonic() < end, "the browser does not answer"
            got = os.read(self._read, 1 << 20)
            assert got, "the browser has ended"
            self._left += got
        first, _, self._left = self._left.partition(b"\0")
        return dict(json.loads(first))


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, gone afterwards."""
    assert CHROMIUM is not None
    to_it, from_us = os.pipe()
    to_us, from_it = os.pipe()
    # It reads what we say from descriptor 3, and answers on 4.
    shell = f'exec "$0" "$@" 3<&{to_it} 4>&{from_it}'
    command = [CHROMIUM, *_OPTIONS, f"--user-data-dir={folder / 'browser'}"]
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", shell, *command],
            pass_fds=(to_it, from_it),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    os.close(to_it)
    os.close(from_it)
    try:
        yield Browser(from_us, to_us)
    finally:
        os.close(from_us)
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(to_us)
