"""A real Prometheus server on data of our own: text into blocks, then the server on top of them."""

import contextlib
import math
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

# On the path, or where `make` unpacks it.
_PATH = os.pathsep.join((os.environ.get("PATH", ""), str(Path(sys.prefix) / "tools/usr/bin")))
PROMETHEUS = shutil.which("prometheus", path=_PATH)
PROMTOOL = shutil.which("promtool", path=_PATH)
WHY_NOT = "no Prometheus on this machine (apt-get install prometheus)"
_PATIENCE_S = 60.0

Points = Sequence[tuple[float, float]]
Series = tuple[str, dict[str, str], Points]


def open_metrics(series: Iterable[Series]) -> Iterator[str]:
    """The lines that promtool reads."""
    for name, labels, points in series:
        told = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
        for at, value in points:
            yield f"{name}{{{told}}} {_number(value)} {at:.3f}\n"
    yield "# EOF\n"


def backfill(folder: Path, series: Iterable[Series]) -> Path:
    """A folder of blocks with these series."""
    text, data = folder / "metrics.txt", folder / "data"
    with text.open("w", encoding="utf-8") as out:
        out.writelines(open_metrics(series))
    made = subprocess.run(
        [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", str(text), str(data), "--quiet"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert made.returncode == 0, made.stderr
    text.unlink()
    return data


@contextlib.contextmanager
def serving(data: Path, *options: str, config: str = "") -> Iterator[str]:
    """The address of a server on this data, until the end of the block."""
    settings = data.parent / "prometheus.yml"
    settings.write_text(config or "global: {scrape_interval: 1h}\n")
    port = free_port()
    words = [
        *(
            PROMETHEUS,
            f"--config.file={settings}",
            f"--storage.tsdb.path={data}",
            "--storage.tsdb.retention.time=60d",
        ),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=error", *options),
    ]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(url, server)
        yield url
    finally:
        server.terminate()
        server.wait(30)


_KEPT: list[socket.socket] = []


def free_port() -> int:
    """One that nobody listens on, and that nobody else is given while these tests run.

    Who says that addresses may be used again, as servers do, can listen on it all the same.
    """
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _KEPT.append(kept)
    return int(kept.getsockname()[1])


def _wait_until_ready(url: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        assert server.poll() is None, f"prometheus ended with {server.returncode}"
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{url}/-/ready", timeout=5).close()
            return
        time.sleep(0.1)
    raise AssertionError("prometheus did not become ready")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return (
        ("+Inf" if value > 0 else "-Inf")
        if math.isinf(value)
        else f"{value:.6g}"
        if abs(value) < 1e6
        else f"{value:.3f}"
    )
