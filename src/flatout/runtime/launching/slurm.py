"""The batch script for Slurm.

Slurm tells the batch shell alone that the time is nearly over (`--signal=B:USR1@N`), and gives any signal for
a step to every process in it, loaders and compilers included. So the shell passes USR1 on to the step, where
all ignore it but a small shell on each node, which tells `flatout run` by SIGTERM, as every other scheduler
would; that tells the job alone. What was interrupted is put back into the queue; what was cancelled is not.
"""

from flatout.records.launch import LaunchJob
from flatout.runtime.launching.command import quoted_lines
from flatout.runtime.launching.draft import Draft
from flatout.runtime.launching.gpu_names import slurm_type
from flatout.runtime.launching.shell import array, joined, quoted

# A trap ends `wait` before the job has ended; once it has, `wait` knows how.
_WAIT = """while kill -0 "$job" 2> /dev/null; do wait "$job"; done
wait "$job"
code=$?"""

_ON_EACH_NODE = f"""on_each_node='
# Slurm gives a signal to every process of the step. All ignore this one but this shell, which tells the job.
trap "" USR1
"$@" &
job=$!
asked=
trap "asked=yes; kill -TERM $job" USR1
trap asked=yes TERM  # the job has its own
{_WAIT}
# A node that was asked to stop has not failed: Slurm would kill the others while they save.
if [ -n "$asked" ] && [ "$code" -ne 0 ]; then
  if [ -e "$FLATOUT_UNFINISHED" ]; then echo "$code" > "$FLATOUT_UNFINISHED"; fi
  code=0
fi
exit "$code"
'"""

_MEET = """# Processes meet at the first node, at a port of this job's own.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 40000))
"""


def draft_slurm(job: LaunchJob) -> Draft:
    """The script, and what to know about it."""
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in _options(job)),
        "",
        f"# Made by `flatout launch`: {job.name}, {_size(job)}.",
        f"cd -- {quoted(job.folder)} || exit",
        *(f"export {name}={quoted(value)}" for name, value in job.environment.items()),
        f"export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={job.grace_s}  # else torchrun kills after 30 s",
        "FLATOUT_UNFINISHED=$(mktemp)  # says what is left to do when the time is over",
        "export FLATOUT_UNFINISHED",
        "",
        *([_MEET] if job.nodes > 1 else []),
        *array("job_words", quoted_lines(job, job.plan, _meeting(job))),
        "",
        _ON_EACH_NODE,
        "",
        "asked=",
        "trap 'asked=yes; kill -USR1 \"$job\"' USR1  # the time is nearly over",
        "trap : TERM  # Slurm has told the job itself",
        f'srun {joined(_step_options(job))} bash -c "$on_each_node" flatout "${{job_words[@]}}" &',
        "job=$!",
        _WAIT,
        *_again(job),
    ]
    return Draft(text="\n".join(lines) + "\n", suffix=".sbatch", submit=("sbatch",), notes=_notes(job))


def _options(job: LaunchJob) -> list[str]:
    settings = job.settings
    gpu_type = slurm_type(job.gpus)
    gpus = f"gpu:{gpu_type}:{job.gpus.per_node}" if gpu_type else f"gpu:{job.gpus.per_node}"
    options = {
        "job-name": job.name,
        "output": f"{job.name}-%j.out",
        "open-mode": "append",
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "gres": gpus if job.gpus.per_node else "",
        "cpus-per-task": job.cpus or "",
        "mem": f"{-(-job.memory_bytes >> 20)}M" if job.memory_bytes else "",
        "time": _slurm_time(job.time_s) if job.time_s is not None else "",
        "signal": f"B:USR1@{job.grace_s}",
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
    }
    requeue = "--requeue" if job.restarts else "--no-requeue"
    return [*(f"--{name}={value}" for name, value in options.items() if value != ""), requeue]


def _step_options(job: LaunchJob) -> list[str]:
    # Since 22.05 a step does not inherit this from its job.
    cpus = [f"--cpus-per-task={job.cpus}"] if job.cpus else []
    return [f"--nodes={job.nodes}", f"--ntasks={job.nodes}", *cpus, "--kill-on-bad-exit=1"]


def _meeting(job: LaunchJob) -> list[str]:
    if job.nodes == 1:
        return [f"--standalone --nproc-per-node={job.processes_per_node}"]
    return [
        f"--nnodes={job.nodes} --nproc-per-node={job.processes_per_node} --rdzv-backend=c10d",
        '"--rdzv-endpoint=$first:$port" "--rdzv-id=$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"',
    ]


def _again(job: LaunchJob) -> list[str]:
    """The end of the script: what was interrupted, and not cancelled, is put back."""
    lines = [
        "",
        'left=$(cat "$FLATOUT_UNFINISHED")',
        'rm -f "$FLATOUT_UNFINISHED"',
        'if [ -n "$left" ]; then code=$left; fi',
    ]
    if job.restarts:
        preempted = """scontrol show job -o "$SLURM_JOB_ID" | grep -q 'PreemptTime=[0-9]'"""
        limit = f'[ "${{SLURM_RESTART_COUNT:-0}}" -lt {job.restarts} ]'
        lines += [
            "# What must make room, and ends before Slurm ends it, would count as failed.",
            f"if {preempted}; then asked=yes; fi",
            "# Asked to stop before it was done: once more, from what it has saved.",
            f'if [ -n "$asked" ] && [ "$code" -ne 0 ] && {limit}; then',
            '  scontrol requeue "$SLURM_JOB_ID"',
            "fi",
        ]
    return [*lines, 'exit "$code"']


def _slurm_time(seconds: int) -> str:
    minutes = -(-seconds // 60)  # Slurm counts minutes
    days, minutes = divmod(minutes, 24 * 60)
    return f"{days}-{minutes // 60:02}:{minutes % 60:02}:00"


def _size(job: LaunchJob) -> str:
    return f"nodes: {job.nodes}, processes on each: {job.processes_per_node}"


def _notes(job: LaunchJob) -> tuple[str, ...]:
    notes = [f"runs in {job.folder}, with {job.python}: all nodes must see both"]
    gpu_type = slurm_type(job.gpus)
    if gpu_type and not job.gpus.name_there:
        notes.append(f"the cluster must call these GPUs {gpu_type!r} (`sinfo -o %G`), or: --gpu-name TYPE")
    return tuple(notes)
