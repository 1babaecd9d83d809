"""The task for SkyPilot, as a managed job: recovered, elsewhere if need be, when its machines go."""

from typing import Any

from flatout.records.launch import LaunchJob
from flatout.runtime.launching.command import quoted_lines
from flatout.runtime.launching.draft import Draft
from flatout.runtime.launching.gpu_names import skypilot_names
from flatout.runtime.launching.shell import array, quoted
from flatout.runtime.launching.yaml_text import as_yaml

_PORT = 29500
_PLAN_THERE = "/tmp/flatout/flatout.toml"  # noqa: S108
_BUCKET_THERE = "/flatout-kept"
_COMMENT = """\
# Made by `flatout launch`: {name}, nodes: {nodes}, processes on each: {processes}.
# As a managed job (`sky jobs launch`) it starts again elsewhere when its machines are taken away.
"""


def draft_skypilot(job: LaunchJob) -> Draft:
    """The task, and what to know about it."""
    task = _task(job)
    comment = _COMMENT.format(name=job.name, nodes=job.nodes, processes=job.processes_per_node)
    return Draft(
        text=comment + as_yaml(task),
        suffix=".yaml",
        submit=("sky", "jobs", "launch", "--yes", "--name", job.name),
        notes=_notes(job),
        documents=(task,),
    )


def _task(job: LaunchJob) -> dict[str, Any]:
    mounts: dict[str, Any] = {}
    if job.plan is not None:
        mounts[_PLAN_THERE] = job.plan
    if job.settings.bucket:
        # A cache takes writes at the disk's speed, but what one node writes others see late.
        mode = "MOUNT_CACHED" if job.nodes == 1 else "MOUNT"
        mounts[_BUCKET_THERE] = {"name": job.settings.bucket, "mode": mode}
    return {
        "name": job.name,
        "num_nodes": job.nodes,
        "workdir": ".",
        "resources": _resources(job),
        **({"envs": job.environment} if job.environment else {}),
        **({"file_mounts": mounts} if mounts else {}),
        **({"setup": job.settings.setup} if job.settings.setup else {}),
        "run": _run(job),
    }


def _resources(job: LaunchJob) -> dict[str, Any]:
    settings = job.settings
    names = skypilot_names(job.gpus) if job.gpus.per_node else []
    choices = [{"accelerators": f"{name}:{job.gpus.per_node}"} for name in names]
    return {
        **(choices[0] if len(choices) == 1 else {}),
        **({"any_of": choices} if len(choices) > 1 else {}),
        **({"infra": settings.cloud} if settings.cloud else {}),
        **({"use_spot": True} if settings.is_spot else {}),
        **({"cpus": f"{job.cpus}+"} if job.cpus else {}),
        **({"memory": f"{-(-job.memory_bytes // 10**9)}+"} if job.memory_bytes else {}),
        **({"image_id": f"docker:{settings.image}"} if settings.image else {}),
        # What fails by itself stays failed: only machines that go away are made up for.
        "job_recovery": {"strategy": "EAGER_NEXT_REGION", "max_restarts_on_errors": 0},
    }


def _run(job: LaunchJob) -> str:
    plan = _PLAN_THERE if job.plan is not None else None
    lines = [
        *_kept_folder(job),
        *(['first=$(head -n 1 <<< "$SKYPILOT_NODE_IPS")'] if job.nodes > 1 else []),
        *array("job_words", quoted_lines(job, plan, _meeting(job))),
        'exec "${job_words[@]}"',
    ]
    return "\n".join(lines) + "\n"


def _meeting(job: LaunchJob) -> list[str]:
    count = '"--nproc-per-node=$SKYPILOT_NUM_GPUS_PER_NODE"'
    if not job.gpus.per_node or job.processes_per_node != job.gpus.per_node:
        count = f"--nproc-per-node={job.processes_per_node}"
    if job.nodes == 1:
        return [f"--standalone {count}"]
    return [
        f'--nnodes={job.nodes} {count} "--node-rank=$SKYPILOT_NODE_RANK"',
        f'"--master-addr=$first" --master-port={_PORT}',
    ]


def _kept_folder(job: LaunchJob) -> list[str]:
    """The folder that the job saves in lies in the bucket; one that came along with the code makes room."""
    if not job.settings.bucket:
        return []
    folders = {job.settings.checkpoints: "checkpoints", **({".flatout": "runs"} if job.is_protected else {})}
    return [line for here, inside in folders.items() for line in _linked(here, f"{job.name}/{inside}")]


def _linked(here: str, in_bucket: str) -> list[str]:
    folder, inside, aside = quoted(here), quoted(f"{_BUCKET_THERE}/{in_bucket}"), quoted(f"{here}.came-along")
    return [
        f'mkdir -p -- {inside} "$(dirname -- {folder})"',
        f"if [ -e {folder} ] && [ ! -L {folder} ]; then mv -T --backup=numbered -- {folder} {aside}; fi",
        f"ln -sfn -- {inside} {folder}",
    ]


def _notes(job: LaunchJob) -> tuple[str, ...]:
    settings = job.settings
    notes = ["hand it in from this folder: SkyPilot takes the code along from here, without what git ignores"]
    if settings.bucket:
        notes.append(f"what the job saves in {settings.checkpoints} goes to the bucket {settings.bucket}")
    else:
        notes.append("nothing that the job saves survives its machines: --bucket NAME keeps its checkpoints")
    if settings.bucket and job.nodes > 1:
        notes.append(
            "a bucket is no shared disk: have one rank write checkpoints, or use a disk of the cloud's"
        )
    notes.append("SkyPilot gives no warning before machines go: what was saved last is what is left")
    return tuple(notes)
