"""A launched job on a real Slurm, started here: it saves before its time is over, and goes on."""

import contextlib
import getpass
import os
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Run

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "srun")
MISSING = [name for name in TOOLS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(bool(MISSING), reason=f"Slurm is not installed: no {', '.join(MISSING)}"),
    pytest.mark.timeout(600),
]

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthInfo=socket={folder}/munge.sock
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=10
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""

SCRIPT = """
import sys, time, torch, flatout
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.randn(400, 4), batch_size=4, num_workers=1)
checkpointer = flatout.Checkpointer("checkpoints", model=model, optimizer=optimizer, loader=loader)
step = began = checkpointer.resume()
print("began at", step, sys.argv[1:], flush=True)
while step < 10**6 and not (began and step > began + 10):
    for batch in checkpointer.loader:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        time.sleep(0.02)
        checkpointer.step(step)
        if began and step > began + 10:
            break
checkpointer.close()
print("done", flush=True)
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's tools find a cluster of this machine."""
    folder = tmp_path / "slurm"
    (folder / "state").mkdir(parents=True)
    (folder / "spool").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    text = CONFIGURATION.format(
        host=platform.node().partition(".")[0],
        ports=(free_port(), free_port()),
        folder=folder,
        user=getpass.getuser(),
        cpus=os.cpu_count(),
    )
    (folder / "slurm.conf").write_text(text)
    variables = {
        "SLURM_CONF": str(folder / "slurm.conf"),
        "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
    }
    in_folder = {
        "socket": "munge.sock",
        "pid-file": "munged.pid",
        "log-file": "munged.log",
        "seed-file": "seed",
    }
    munge = [f"--{name}={folder / file}" for name, file in in_folder.items()]
    with contextlib.ExitStack() as ends:
        for words in (
            ["munged", "--foreground", "--force", f"--key-file={key}", *munge],
            ["slurmctld", "-D", "-c"],
            ["slurmd", "-D"],
        ):
            log = ends.enter_context((folder / f"{words[0]}.out").open("wb"))
            daemon = subprocess.Popen(
                words, env={**os.environ, **variables}, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
            ends.callback(daemon.wait)
            ends.callback(daemon.kill)
            time.sleep(1)
        until(lambda: "idle" in said(variables, "sinfo", "-h", "-o", "%T"), folder)
        yield variables
        said(variables, "scancel", "--user", getpass.getuser())
        until(lambda: not said(variables, "squeue", "-h"), folder)


def said(variables: dict[str, str], *words: str) -> str:
    done = subprocess.run(words, env={**os.environ, **variables}, capture_output=True, text=True)
    return done.stdout + done.stderr


def until(holds: Callable[[], bool], folder: Path) -> None:
    end = time.monotonic() + 60
    while not holds():
        logs = {path.name: path.read_text(errors="replace")[-1000:] for path in folder.glob("*.out")}
        assert time.monotonic() < end, logs
        time.sleep(0.2)


def test_a_job_saves_before_its_time_is_over_and_goes_on_where_it_was(
    flatout: Run, tmp_path: Path, cluster: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ("--gpus", "0", "--time", "10m", "--grace", "60s", "--as-written", "--submit")
    done = flatout("launch", "--to", "slurm", *options, "train.py", "a b", "$(touch owned)", **cluster)
    assert done.returncode == 0, done.stderr
    assert "ok   sbatch --test-only" in done.stderr
    job = done.stderr.rpartition("Submitted batch job ")[2].split()[0]
    out = tmp_path / f"train-{job}.out"
    until(lambda: out.exists() and "began at 0" in out.read_text(), tmp_path)
    time.sleep(1)
    said(cluster, "scancel", "--batch", "--signal=USR1", job)  # as Slurm does a minute before the end
    until(lambda: "Restarts=1" in said(cluster, "scontrol", "show", "job", job), tmp_path)
    until(lambda: "JobState=PENDING" in said(cluster, "scontrol", "show", "job", job), tmp_path)
    saved = [int(path.name.removeprefix("step-")) for path in (tmp_path / "checkpoints").glob("step-*")]

    def is_done() -> bool:
        said(cluster, "scontrol", "update", f"jobid={job}", "starttime=now")  # else it waits for two minutes
        return "JobState=COMPLETED" in said(cluster, "scontrol", "show", "job", job)

    until(is_done, tmp_path)
    assert f"began at {max(saved)} ['a b', '$(touch owned)']" in out.read_text()
    assert out.read_text().splitlines().count("done") == 1
    assert not (tmp_path / "owned").exists()
