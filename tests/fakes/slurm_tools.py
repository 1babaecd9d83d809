"""Stands in for Slurm around a batch script: `srun` and `scontrol` on PATH, as seen of the real ones (22.05).

`srun` starts the step once for each node, hands USR1 to every process of it, and kills what is left when one
fails. `scontrol` notes what it was asked for.
"""

import os
import stat
import sys
from pathlib import Path

_SRUN = """
import os, signal, subprocess, sys, time
words = sys.argv[1:]
nodes = next(int(word.partition("=")[2]) for word in words if word.startswith("--nodes="))
while words[0].startswith("--"):
    words.pop(0)
steps = [
    subprocess.Popen(words, start_new_session=True, env={**os.environ, "SLURM_NODEID": str(node)})
    for node in range(nodes)
]
def told(number, _frame):
    for step in steps:
        if step.poll() is None:
            os.killpg(step.pid, number)
signal.signal(signal.SIGUSR1, told)
while any(step.poll() is None for step in steps):
    if any(step.poll() for step in steps):
        for step in steps:
            if step.poll() is None:
                os.killpg(step.pid, signal.SIGKILL)
                step.wait()
    time.sleep(0.02)
sys.exit(max(step.returncode if step.returncode >= 0 else 128 - step.returncode for step in steps))
"""

_SCONTROL = """
import os, sys
with open(os.environ["FAKE_SLURM_LOG"], "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
if sys.argv[1:3] == ["show", "hostnames"]:
    print("localhost\\nother")
if sys.argv[1:3] == ["show", "job"]:
    print("JobId=7 PreemptTime=" + os.environ.get("FAKE_PREEMPT_TIME", "None") + " SuspendTime=None")
"""


def install(folder: Path) -> dict[str, str]:
    """Put them into `folder`; the environment of a job that Slurm starts."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in (("srun", _SRUN), ("scontrol", _SCONTROL)):
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{source}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "localhost,other",
        "FAKE_SLURM_LOG": str(folder / "log"),
    }


def asked_for(folder: Path) -> list[str]:
    """What `scontrol` was asked for, but for names and looks."""
    log = folder / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in lines if not line.startswith("show ")]
