"""`flatout.log` on a real GPU: nothing waits, values are those of the call, captures of graphs stay whole.

Every script runs in a process of its own and prints what it has to tell as JSON in its last line.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from flatout.records.points import Point, point_of

SOURCE = Path(__file__).parents[2] / "src"
LOG = "log.jsonl"

BEGIN = """
    import json, os, sys, time
    import torch
    import flatout

    flatout.log.to("jsonl", "log.jsonl")
    # Long enough that nothing behind it can be ready by chance: about half a second.
    LONG = 1_000_000_000

    def tell(**found):
        print(json.dumps(found))
"""


def run_script(script: str, cwd: Path) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BEGIN) + textwrap.dedent(script)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return {**found, "stderr": ended.stderr}


def logged(cwd: Path) -> list[Point]:
    found = [point_of(line) for line in (cwd / LOG).read_text().splitlines()]
    return [point for point in found if point is not None]


def test_nothing_waits_and_the_values_are_those_of_the_calls(tmp_path: Path) -> None:
    found = run_script(
        """
        torch.set_default_device("cuda")  # pinned memory is made on the host all the same
        loss = torch.zeros(())
        whole = torch.full((1, 1), 1 << 40, dtype=torch.int64)
        with torch.inference_mode():  # the first call pins memory for each type, and may wait for that
            flatout.log({"loss": loss, "half": loss.bfloat16(), "whole": whole}, step=0)
        torch.cuda.synchronize()

        torch.cuda.set_sync_debug_mode("error")
        torch.cuda._sleep(LONG)
        began = time.perf_counter()
        # Some eight launches each: a driver holds a thousand that have not begun, then the host waits.
        for step in range(1, 61):
            loss.add_(0.5)
            flatout.log({"loss": loss, "half": (loss / 4).bfloat16(), "whole": whole, "lr": 0.1}, step=step)
            whole.add_(1)
            loss.mul_(1.0)
        took_s = time.perf_counter() - began
        behind = torch.cuda.Event()
        behind.record()
        still_busy = not behind.query()
        loss.fill_(-1.0)  # later than all calls
        whole.fill_(-1)
        done = flatout.log.flush(60)
        torch.cuda.set_sync_debug_mode("default")
        nan = torch.tensor(float("nan"))
        flatout.log({"odd": nan, "big": torch.tensor(float("inf"))}, step=61)
        tell(still_busy=still_busy, done=done, took_s=took_s, dropped=flatout.log.dropped)
        """,
        tmp_path,
    )
    assert found["still_busy"], "the device caught up: nothing was shown"
    assert found["done"]
    assert found["dropped"] == 0
    points = {point.step: point.values for point in logged(tmp_path)}
    assert list(points) == list(range(62))
    for step in range(1, 61):
        assert points[step]["loss"] == 0.5 * step
        assert points[step]["whole"] == float((1 << 40) + step - 1)
        assert points[step]["half"] == pytest.approx(0.5 * step / 4, rel=2**-8)
        assert points[step]["lr"] == 0.1
    assert points[61]["big"] == float("inf")
    assert points[61]["odd"] != points[61]["odd"]


def test_captures_stay_whole_while_values_are_on_their_way_and_while_somebody_logs(tmp_path: Path) -> None:
    found = run_script(
        """
        x = torch.ones((), device="cuda")
        flatout.log({"before": x}, step=0)
        thread_asks = flatout.log._calls._thread_asks
        static = torch.zeros((), device="cuda")
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # warm up
            static * 2 + 1
        torch.cuda.synchronize()

        torch.cuda._sleep(LONG)
        flatout.log({"pending": x + 1}, step=1)
        pending = len(flatout.log._calls._calls)
        with torch.cuda.stream(stream):
            graph.capture_begin()  # in the strictest mode, which is the default
            out = static * 2 + 1
            flatout.log({"inside": out, "lr": 0.5}, step=2)
            flatout.log.flush(0.05)
            time.sleep(0.2)  # the thread goes on asking meanwhile
            graph.capture_end()
        for step in range(3, 13):
            static.fill_(step)
            graph.replay()
            flatout.log({"replayed": out}, step=step)
        done = flatout.log.flush(60)
        tell(thread_asks=thread_asks, pending=pending, done=done, dropped=flatout.log.dropped)
        """,
        tmp_path,
    )
    assert found["thread_asks"], "the thread could not say that it concerns no capture"
    assert found["pending"] == 1, "the device caught up: nothing was shown"
    assert found["done"]
    points = {point.step: dict(point.values) for point in logged(tmp_path)}
    assert points[0] == {"before": 1.0}
    assert points[1] == {"pending": 2.0}
    assert points[2] == {"lr": 0.5}  # what is captured has no value
    assert [points[step]["replayed"] for step in range(3, 13)] == [2.0 * step + 1 for step in range(3, 13)]
    assert found["dropped"] == 1
    assert found["stderr"].count("captured") == 1


def test_the_usual_way_to_capture_works_around_a_call(tmp_path: Path) -> None:
    found = run_script(
        """
        static = torch.zeros((), device="cuda")
        flatout.log({"first": static}, step=0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = static + 1
            flatout.log({"inside": out}, step=1)
        static.fill_(4.0)
        graph.replay()
        flatout.log({"after": out}, step=2)
        tell(done=flatout.log.flush(60))
        """,
        tmp_path,
    )
    assert found["done"]
    assert [dict(point.values) for point in logged(tmp_path)] == [{"first": 0.0}, {"after": 5.0}]


def test_outputs_of_compiled_steps_that_are_written_over_are_logged_as_they_were(tmp_path: Path) -> None:
    found = run_script(
        """
        torch.manual_seed(0)
        weight = torch.randn(64, 64, device="cuda")

        @torch.compile(mode="reduce-overhead")
        def step(x):
            return (x @ weight).square().mean()

        inputs = [torch.randn(32, 64, device="cuda") for _ in range(20)]
        wanted = []
        with torch.no_grad():
            for _ in range(3):
                step(inputs[0])
            for number, x in enumerate(inputs):
                torch.compiler.cudagraph_mark_step_begin()
                flatout.log({"loss": step(x)}, step=number)
            wanted = [(x @ weight).square().mean().item() for x in inputs]
        tell(done=flatout.log.flush(60), wanted=wanted)
        """,
        tmp_path,
    )
    assert found["done"]
    assert [point.values["loss"] for point in logged(tmp_path)] == pytest.approx(found["wanted"], rel=1e-3)


def test_a_fork_after_device_values_ends_well_on_both_sides(tmp_path: Path) -> None:
    found = run_script(
        """
        x = torch.ones((), device="cuda")
        torch.cuda._sleep(LONG)
        flatout.log({"parent": x}, step=0)
        child = os.fork()
        if not child:
            flatout.log.to("jsonl", "child.jsonl")
            flatout.log({"child": 1.0}, step=0)
            done = flatout.log.flush(30)
            sys.stdout.flush()
            import gc
            gc.collect()
            os._exit(0 if done else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        flatout.log({"parent": x + 1}, step=1)
        tell(status=status, done=flatout.log.flush(60))
        """,
        tmp_path,
    )
    assert found["status"] == 0
    assert found["done"]
    assert [dict(point.values) for point in logged(tmp_path)] == [{"parent": 1.0}, {"parent": 2.0}]
    assert json.loads((tmp_path / "child.jsonl").read_text())["values"] == {"child": 1.0}


def test_figures_of_the_gpu_go_beside_those_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import time, torch
        model = torch.nn.Linear(4096, 4096, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        x = torch.randn(4096, 4096, device="cuda")
        until = time.monotonic() + 10
        while time.monotonic() < until:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.cuda.synchronize()
        """)
    )
    command = [sys.executable, "-m", "flatout", "run", "--as-written", "--log-to", f"jsonl:{LOG}", "train.py"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    rows = [point for point in logged(tmp_path) if "flatout/step_seconds" in point.values]
    [index] = {name.split("/")[1] for point in rows for name in point.values if name.endswith("/power_watts")}
    last = next(point for point in reversed(rows) if f"flatout/{index}/power_watts" in point.values)
    assert last.values[f"flatout/{index}/power_watts"] > 50
    assert last.values[f"flatout/{index}/temperature_celsius"] > 10
    assert last.values[f"flatout/{index}/memory_used_bytes"] > 4096 * 4096 * 4
    assert 0 < last.values["flatout/step_seconds"] < 1
    losses = [point.values["flatout/loss"] for point in logged(tmp_path) if "flatout/loss" in point.values]
    assert len(losses) > 20
    assert losses[-1] < losses[0]
