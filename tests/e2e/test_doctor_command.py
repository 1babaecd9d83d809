"""`flatout doctor` as a user meets it."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Run


def test_json_is_one_document_with_the_promised_fields_and_no_secrets(flatout: Run) -> None:
    done = flatout(
        "doctor", "--json", TORCH_HUB_TOKEN="hush-hush", JAX_SECRET="hush-hush", MY_KEY="hush-hush"
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "flatout.doctor/1"
    for device in document["devices"]:
        assert {"index", "vendor", "name", "uuid", "memory_total_bytes"} <= device.keys()
        for name, value in device.items():
            assert value is not None or device["unknown"][name]
    assert document["devices"][-1]["vendor"] == "cpu"
    for check in document["checks"]:
        assert {"id", "status", "evidence", "fix"} <= check.keys()
        assert check["status"] in ("ok", "warn", "fail", "unknown")
        assert check["evidence"]
    assert done.stderr == ""
    assert "hush" not in done.stdout


def test_without_a_gpu_it_says_so_with_advice_and_a_pipe_gets_no_colour_and_no_progress(flatout: Run) -> None:
    done = flatout("doctor")
    assert "\x1b" not in done.stdout
    assert done.stderr == ""
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has an NVIDIA driver")
    assert done.returncode == 0
    assert "no GPU" in done.stdout
    assert "fix:" in done.stdout


def test_debug_switches_left_on_are_named_with_their_cost(flatout: Run) -> None:
    done = flatout("doctor", "--problems", CUDA_LAUNCH_BLOCKING="1", TORCH_LOGS="+dynamo")
    assert "CUDA_LAUNCH_BLOCKING=1: each kernel launch waits" in " ".join(done.stdout.split())
    assert "unset CUDA_LAUNCH_BLOCKING" in done.stdout
    assert "TORCH_LOGS" in done.stdout
    assert not re.search(r"^ok ", done.stdout, re.MULTILINE)


def test_a_failing_check_exits_with_one(flatout: Run) -> None:
    done = flatout("doctor", "--json", PYTORCH_CUDA_ALLOC_CONF="expandable_segmnets:True")
    assert done.returncode == 1
    failed = [check for check in json.loads(done.stdout)["checks"] if check["status"] == "fail"]
    # With a GPU, torch itself fails on the setting too.
    [allocator] = [check for check in failed if check["id"] == "env.allocator"]
    assert "expandable_segmnets" in allocator["evidence"]


# Outputs that are hard to print on -------------------------------------------------------------------


def test_twenty_columns_are_readable(flatout: Run) -> None:
    done = flatout("doctor", COLUMNS="20")
    assert done.returncode == 0
    assert max(len(line) for line in done.stdout.splitlines()) <= 20
    squeezed = re.sub(r"\s", "", done.stdout)
    assert "host.shared-memory" in squeezed
    assert "unset" not in squeezed or "fix:" in squeezed


@pytest.mark.full
def test_a_c_locale_prints_plain_ascii(flatout: Run) -> None:
    done = flatout("doctor", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "env.debug" in done.stdout


def in_a_terminal(arguments: list[str], **environment: str) -> str:
    """What a terminal of 100 columns shows."""
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "flatout", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **environment},
        start_new_session=True,
    )
    os.close(slave)
    shown = b""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        ready, _, _ = select.select([master], [], [], 0.2)
        if ready:
            try:
                chunk = os.read(master, 65536)
            except OSError:
                break
            if not chunk:
                break
            shown += chunk
        elif child.poll() is not None:
            break
    child.wait(timeout=60)
    os.close(master)
    return shown.decode()


def test_a_terminal_gets_colour_and_progress_and_no_colour_obeys_the_variable() -> None:
    coloured = in_a_terminal(["doctor"], NO_COLOR="")
    assert "\x1b[32m" in coloured
    assert "looking at this machine" in coloured
    assert "\x1b[?25h" in coloured  # the cursor that the progress line hid is shown again
    plain = in_a_terminal(["doctor"], NO_COLOR="1")
    assert "\x1b[32m" not in plain
    assert "env.debug" in plain


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m flatout gpus --json | head -c 10",
        shell=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.stdout == '{\n  "schem'
    assert done.stderr == ""
