"""The manifest for Kubernetes, read by a YAML parser and by Kubeflow's own models."""

from typing import Any

import pytest
import yaml

from flatout.records.errors import CallerMistake
from flatout.runtime.launching.checking import check_draft
from flatout.runtime.launching.draft import Draft
from flatout.runtime.launching.kubernetes import draft_kubernetes
from tests.unit.runtime.launching.conftest import PLAN, Make
from tests.unit.runtime.launching.test_shell_words import HOSTILE


def documents(draft: Draft) -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in yaml.safe_load_all(draft.text)}


def as_kubernetes_expands(word: str, variables: dict[str, str]) -> str:
    """By its documentation: `$(NAME)` is replaced where NAME is set, `$$` is one dollar."""
    done, place = "", 0
    while place < len(word):
        if word[place] != "$" or place + 1 == len(word):
            done, place = done + word[place], place + 1
        elif word[place + 1] == "$":
            done, place = done + "$", place + 2
        elif word[place + 1] == "(" and ")" in word[place:]:
            end = word.index(")", place)
            name = word[place + 2 : end]
            done, place = done + variables.get(name, word[place : end + 1]), end + 1
        else:
            done, place = done + word[place : place + 2], place + 2
    return done


def pod(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    job = found["TrainingRuntime"]["spec"]["template"]["spec"]["replicatedJobs"][0]
    spec: dict[str, Any] = job["template"]["spec"]["template"]["spec"]
    return spec


def test_kubeflows_models_take_all_of_it(make_job: Make) -> None:
    job = make_job(
        "kubernetes",
        *("train.py", *HOSTILE),
        nodes=4,
        gpus=8,
        gpu="h100-80gb",
        cpus=32,
        memory_bytes=64 << 30,
        time_s=3600,
        environment=("A=$(B)", "C=d e"),
        settings={"namespace": "team"},
    )
    draft = draft_kubernetes(job)
    checks = {check.by: (check.outcome, check.reason) for check in check_draft(draft, "kubernetes")}
    assert checks == {"yaml": ("ok", ""), "kubeflow_trainer_api": ("ok", "")}
    assert all(document["metadata"]["namespace"] == "team" for document in documents(draft).values())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda job: job["spec"].update(runtimeReff={}), "runtimeReff"),
        (lambda job: job["spec"]["trainer"].update(numNodes="two"), "numNodes"),
        (lambda job: job["spec"].pop("runtimeRef"), "runtimeRef"),
    ],
)
def test_the_models_would_have_said_no(make_job: Make, change: Any, said: str) -> None:
    draft = draft_kubernetes(make_job("kubernetes"))
    change(next(document for document in draft.documents if document["kind"] == "TrainJob"))
    failed = [check for check in check_draft(draft, "kubernetes") if check.outcome == "failed"]
    assert {check.by for check in failed} == {"yaml", "kubeflow_trainer_api"}
    assert said in failed[1].reason


def test_the_program_receives_its_words_as_they_were_given(make_job: Make) -> None:
    found = documents(draft_kubernetes(make_job("kubernetes", "train.py", *HOSTILE, "$$(HOME)$", "$(HOME")))
    command = found["TrainJob"]["spec"]["trainer"]["command"]
    expanded = [as_kubernetes_expands(word, {"HOME": "/root"}) for word in command]
    assert expanded[-len(HOSTILE) - 3 :] == ["train.py", *HOSTILE, "$$(HOME)$", "$(HOME"]
    assert expanded[:6] == ["python", "-m", "flatout", "run", "--plan", "/etc/flatout/flatout.toml"]


def test_the_plan_travels_with_the_job(make_job: Make) -> None:
    found = documents(draft_kubernetes(make_job("kubernetes")))
    assert found["ConfigMap"]["data"] == {"flatout.toml": PLAN}
    mounts = {mount["name"]: mount["mountPath"] for mount in pod(found)["containers"][0]["volumeMounts"]}
    assert mounts["plan"] == "/etc/flatout"
    without = documents(draft_kubernetes(make_job("kubernetes", plan=None)))
    assert "ConfigMap" not in without
    assert "--as-written" in without["TrainJob"]["spec"]["trainer"]["command"]


def test_many_processes_run_under_torchrun_and_one_does_not(make_job: Make) -> None:
    many = documents(draft_kubernetes(make_job("kubernetes", nodes=2, gpus=4)))["TrainJob"]["spec"]["trainer"]
    assert (many["numNodes"], many["numProcPerNode"]) == (2, 4)
    assert many["command"][-4:] == ["python", "-m", "torch.distributed.run", "train.py"]
    assert many["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": "4"}
    one = documents(draft_kubernetes(make_job("kubernetes", "-x", as_module=True, gpus=0)))
    assert one["TrainJob"]["spec"]["trainer"]["command"][-3:] == ["-m", "--", "-x"]
    assert "resourcesPerNode" not in one["TrainJob"]["spec"]["trainer"]


def test_what_is_evicted_has_time_and_starts_again_and_what_fails_does_not(make_job: Make) -> None:
    found = documents(draft_kubernetes(make_job("kubernetes", grace_s=90, restarts=7)))
    assert pod(found)["terminationGracePeriodSeconds"] == 90
    assert pod(found)["restartPolicy"] == "Never"
    jobs = found["TrainingRuntime"]["spec"]["template"]["spec"]
    assert jobs["failurePolicy"]["maxRestarts"] == 7
    ends = jobs["failurePolicy"]["rules"]
    assert [rule["action"] for rule in ends] == ["FailJobSet"]
    assert "PodFailurePolicy" not in ends[0]["onJobFailureReasons"]
    rules = jobs["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["onPodConditions"][0]["type"] == "DisruptionTarget"
    assert rules[1]["onExitCodes"]["values"] == [143]


def test_checkpoints_lie_on_a_volume_that_all_nodes_see(make_job: Make) -> None:
    found = documents(
        draft_kubernetes(make_job("kubernetes", nodes=2, settings={"checkpoints": "out/saved"}))
    )
    assert found["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    mounts = [mount["mountPath"] for mount in pod(found)["containers"][0]["volumeMounts"]]
    assert {"/workspace/out/saved", "/workspace/.flatout", "/dev/shm"} <= set(mounts)
    own = documents(draft_kubernetes(make_job("kubernetes", settings={"claim": "disk"})))
    assert "PersistentVolumeClaim" not in own
    assert pod(own)["volumes"][0]["persistentVolumeClaim"] == {"claimName": "disk"}


def test_without_an_image_there_is_nothing_to_run(make_job: Make) -> None:
    with pytest.raises(CallerMistake, match="no --image"):
        make_job("kubernetes", settings={"image": ""})
