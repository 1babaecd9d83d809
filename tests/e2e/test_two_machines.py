"""Two machines, as two network namespaces: one is cut off, the other goes on alone, and they meet again."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ADDRESSES = {"fa0": "10.77.0.1", "fb0": "10.77.0.2"}
SCRIPT = """
import datetime, os, sys, time
import torch, torch.distributed as dist
import flatout

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6))
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
checkpointer = flatout.Checkpointer("kept", every=5, model=model.module, optimizer=optimizer)
step = checkpointer.resume()
print(f"from {step} rank {rank} of {world}", flush=True)
while step < 400:
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(1000 * step + rank))
    optimizer.zero_grad()
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    step += 1
    if rank == 0:
        print(f"step {step} of {world} {loss.item():.4f}", flush=True)
    checkpointer.step(step)
    time.sleep(0.1)
checkpointer.close()
print("ended", flush=True)
"""


@contextlib.contextmanager
def two_machines() -> Iterator[tuple[str, str]]:
    names = tuple(f"flatout{os.getpid()}{letter}" for letter in "ab")
    ends = tuple(ADDRESSES)

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip(
            "link",
            "add",
            ends[0],
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            ends[1],
            "netns",
            names[1],
        )
        for name, end, address in zip(names, ends, ADDRESSES.values(), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as problem:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        pytest.skip(f"no network namespaces here: {problem}")
    try:
        yield names  # type: ignore[misc]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def begin(name: str, end: str, place: Path) -> "subprocess.Popen[bytes]":
    # By its name, torch would not know the machine whose address this is.
    conf = f"is_host={str(end == 'fa0').lower()},join_timeout=100,last_call_timeout=2,read_timeout=40,"
    conf += "keep_alive_interval=1,keep_alive_max_attempt=3"
    output = (place / f"{end}.txt").open("ab")
    job = subprocess.Popen(
        [
            *("ip", "netns", "exec", name, sys.executable, "-m", "flatout", "run", "--as-written", "--"),
            *("torchrun", "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "9"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29511", "--rdzv-id", "two"),
            *("--rdzv-conf", conf, "--local-addr", ADDRESSES[end], "--monitor-interval", "0.5", "train.py"),
        ],
        cwd=place,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "FLATOUT_CACHE_DIR": str(place / "cache"),
            "GLOO_SOCKET_IFNAME": end,
            "OMP_NUM_THREADS": "1",
        },
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    output.close()
    return job


def until(place: Path, end: str, pattern: str, *, after: int = 0, within_s: float = 100.0) -> int:
    """Wait for a line of a machine's output; where it ends."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        text = (place / f"{end}.txt").read_text(errors="replace")
        found = re.search(pattern, text[after:])
        if found is not None:
            return after + found.end()
        time.sleep(0.3)
    raise AssertionError(f"no {pattern!r}: {text[after:][-1500:]}")


@pytest.mark.full
@pytest.mark.timeout(400)
def test_one_is_cut_off_and_comes_back(tmp_path: Path) -> None:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the ip command")
    (tmp_path / "train.py").write_text(SCRIPT)
    with two_machines() as (first, second):
        jobs = [begin(first, "fa0", tmp_path), begin(second, "fb0", tmp_path)]
        try:
            at = until(tmp_path, "fa0", r"step 2\d of 2 ")
            subprocess.run(["ip", "-n", second, "link", "set", "fb0", "down"], check=True)
            at = until(tmp_path, "fa0", r"from \d+ rank 0 of 1\n", after=at)
            at = until(tmp_path, "fa0", r"step \d+ of 1 ", after=at)
            subprocess.run(["ip", "-n", second, "link", "set", "fb0", "up"], check=True)
            at = until(tmp_path, "fa0", r"from \d+ rank \d of 2\n", after=at)
            until(tmp_path, "fa0", r"ended", after=at)
            assert [job.wait(timeout=60) for job in jobs] == [0, 0]
        finally:
            for job in jobs:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.pid, 9)
                job.wait()
    text = (tmp_path / "fa0.txt").read_text() + (tmp_path / "fb0.txt").read_text()
    begun = [int(step) for step in re.findall(r"from (\d+) rank 0", text)]
    # Each time they went on from a checkpoint: work is lost back to the last, and no further.
    assert begun == sorted(begun)
    assert begun[0] == 0
    assert begun[1] >= 20
