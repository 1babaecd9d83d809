"""The manifest for Kubernetes: a TrainJob of Kubeflow Trainer, and the runtime, plan and volume it needs.

The runtime is the job's own, not the shared `torch-distributed`: what a job may patch in a shared one has
changed with every release of Trainer, and nothing there says what becomes of a job that was evicted.
"""

from typing import Any

from flatout.records.launch import LaunchJob
from flatout.records.places import DEFAULT_PLAN
from flatout.runtime.launching.command import all_words
from flatout.runtime.launching.draft import Draft
from flatout.runtime.launching.gpu_names import kubernetes_names
from flatout.runtime.launching.yaml_text import as_yaml

_API = "trainer.kubeflow.org/v1alpha1"
# Trainer finds the node's container, and its job, by these.
_NODE = "node"
_ROLE = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
_PLAN_FOLDER = "/etc/flatout"
_KEPT = "kept"
_ENDED_BY_SIGTERM = 128 + 15
_COMMENT = """\
# Made by `flatout launch`: {name}, nodes: {nodes}, processes on each: {processes}.
# A pod that is evicted gets SIGTERM, and {grace} s to save; then all start again, {restarts} times at most.
# A job that fails by itself stays failed.
"""


def draft_kubernetes(job: LaunchJob) -> Draft:
    """All documents in one file."""
    documents = tuple(
        document
        for document in (_plan(job), _claim(job), _runtime(job), _train_job(job))
        if document is not None
    )
    comment = _COMMENT.format(
        name=job.name,
        nodes=job.nodes,
        processes=job.processes_per_node,
        grace=job.grace_s,
        restarts=job.restarts,
    )
    return Draft(
        text=comment + as_yaml(*documents),
        suffix=".yaml",
        submit=("kubectl", "apply", "-f"),
        notes=_notes(job),
        documents=documents,
    )


def _metadata(job: LaunchJob, name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    space = {"namespace": job.settings.namespace} if job.settings.namespace else {}
    return {"name": name, **space, **({"labels": labels} if labels else {})}


def _plan(job: LaunchJob) -> dict[str, Any] | None:
    if job.plan is None:
        return None
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(job, f"{job.name}-plan"),
        "data": {DEFAULT_PLAN: job.plan_text},
    }


def _claim(job: LaunchJob) -> dict[str, Any] | None:
    if job.settings.claim:
        return None
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata(job, _claim_name(job)),
        "spec": {
            "accessModes": ["ReadWriteMany" if job.nodes > 1 else "ReadWriteOnce"],
            "resources": {"requests": {"storage": _mebibytes(job.settings.storage_bytes)}},
        },
    }


def _runtime(job: LaunchJob) -> dict[str, Any]:
    node = {
        "name": _NODE,
        "replicas": 1,
        "template": {"metadata": {"labels": _ROLE}, "spec": _node_job(job)},
    }
    return {
        "apiVersion": _API,
        "kind": "TrainingRuntime",
        "metadata": _metadata(job, job.name, {"trainer.kubeflow.org/framework": "torch"}),
        "spec": {
            "mlPolicy": {"numNodes": job.nodes, "torch": {}},
            "template": {"spec": {"failurePolicy": _after_failures(job), "replicatedJobs": [node]}},
        },
    }


def _after_failures(job: LaunchJob) -> dict[str, Any]:
    """Evictions, which the pods' policy names, start all anew; whatever else goes wrong is the end."""
    ends = {
        "name": "failedByItself",
        "action": "FailJobSet",
        "onJobFailureReasons": ["BackoffLimitExceeded", "DeadlineExceeded"],
    }
    return {"maxRestarts": job.restarts, "rules": [ends]}


def _node_job(job: LaunchJob) -> dict[str, Any]:
    evicted = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    stopped = {
        "action": "FailJob",
        "onExitCodes": {"containerName": _NODE, "operator": "In", "values": [_ENDED_BY_SIGTERM]},
    }
    limit = {"activeDeadlineSeconds": job.time_s} if job.time_s is not None else {}
    return {
        **limit,
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [evicted, stopped]},
        "template": {"spec": _pod(job)},
    }


def _pod(job: LaunchJob) -> dict[str, Any]:
    mounts, volumes = _volumes(job)
    container = {
        "name": _NODE,
        "image": job.settings.image,
        "workingDir": job.settings.workdir,
        "volumeMounts": mounts,
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": job.grace_s,
        **_affinity(job),
        "containers": [container],
        "volumes": volumes,
    }


def _volumes(job: LaunchJob) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    settings = job.settings
    folders = {
        settings.checkpoints: f"{job.name}/checkpoints",
        f"{settings.workdir}/.flatout": f"{job.name}/runs",
    }
    mounts: list[dict[str, Any]] = [
        {"name": _KEPT, "mountPath": folder, "subPath": inside} for folder, inside in folders.items()
    ]
    volumes: list[dict[str, Any]] = [
        {"name": _KEPT, "persistentVolumeClaim": {"claimName": settings.claim or _claim_name(job)}}
    ]
    # Workers of loaders hand batches over through it; a pod's own has 64 MiB.
    mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})  # noqa: S108
    volumes.append({"name": "shared-memory", "emptyDir": {"medium": "Memory"}})
    if job.plan is not None:
        mounts.append({"name": "plan", "mountPath": _PLAN_FOLDER, "readOnly": True})
        volumes.append({"name": "plan", "configMap": {"name": f"{job.name}-plan"}})
    return mounts, volumes


def _affinity(job: LaunchJob) -> dict[str, Any]:
    _, label, values = kubernetes_names(job.gpus)
    if not values or not job.gpus.per_node:
        return {}
    term = {"matchExpressions": [{"key": label, "operator": "In", "values": values}]}
    must = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": must}}


def _train_job(job: LaunchJob) -> dict[str, Any]:
    plan = f"{_PLAN_FOLDER}/{DEFAULT_PLAN}" if job.plan is not None else None
    # Where and how many is for Trainer to say: it sets the variables that torchrun reads.
    words = all_words(job, plan, [])
    environment = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(job.grace_s), **job.environment}
    trainer = {
        "numNodes": job.nodes,
        "numProcPerNode": job.processes_per_node,
        "command": [_literally(word) for word in words],
        "env": [{"name": name, "value": _literally(value)} for name, value in environment.items()],
        **_resources(job),
    }
    reference = {"apiGroup": _API.partition("/")[0], "kind": "TrainingRuntime", "name": job.name}
    return {
        "apiVersion": _API,
        "kind": "TrainJob",
        "metadata": _metadata(job, job.name),
        "spec": {"runtimeRef": reference, "trainer": trainer},
    }


def _resources(job: LaunchJob) -> dict[str, Any]:
    resource, _, _ = kubernetes_names(job.gpus)
    wanted = {
        resource: str(job.gpus.per_node) if job.gpus.per_node else "",
        "cpu": str(job.cpus) if job.cpus else "",
        "memory": _mebibytes(job.memory_bytes) if job.memory_bytes else "",
    }
    wanted = {name: amount for name, amount in wanted.items() if amount}
    return {"resourcesPerNode": {"requests": wanted, "limits": wanted}} if wanted else {}


def _literally(word: str) -> str:
    """Kubernetes puts variables in for `$(NAME)`, and one dollar for two."""
    return word.replace("$", "$$")


def _claim_name(job: LaunchJob) -> str:
    return f"{job.name}-kept"


def _mebibytes(count: int) -> str:
    return f"{-(-count >> 20)}Mi"


def _notes(job: LaunchJob) -> tuple[str, ...]:
    settings = job.settings
    notes = [
        f"{settings.image} must hold torch, Flatout and this folder's code, in {settings.workdir}",
        f"what the job saves in {settings.checkpoints} survives",
        "a job that saves and ends with 0 counts as done: flatout.Stopped ends otherwise",
        "needs Kubeflow Trainer 2 in the cluster, and the right to make a TrainingRuntime in the namespace",
    ]
    _, _, values = kubernetes_names(job.gpus)
    if values and job.gpus.per_node:
        notes.append(f"runs where nodes are labelled as one of: {', '.join(values)}")
    return tuple(notes)
