"""Trackers and the Hub stay offline, whatever the script asks of them; it goes on as if they had answered.

The real packages are used where they are installed, in children that note every connection they try; small
stand-ins show what must hold for any version.
"""

import http.server
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from flatout.inside.services import offline_environment

SOURCE = Path(__file__).parents[3] / "src"

START = """
import json, os, sys
from pathlib import Path
from flatout.inside.services import keep_services_offline
notes, connections = [], []
def watch(event, args):
    if event == "socket.getaddrinfo" and args[0] not in (None, "localhost", "127.0.0.1", "::1"):
        connections.append(str(args[0]))
    if event == "socket.connect" and isinstance(args[1], tuple) and args[1][1] != 9:
        connections.append(str(args[1]))
sys.addaudithook(watch)
keep_services_offline(Path(os.environ["SCRATCH"]), lambda service, what: notes.append([service, what]))
result = None
"""
END = """
print("ANSWER", json.dumps({"result": result, "notes": notes, "connections": connections}))
"""


class Job:
    """Runs code in a folder of the user's, with or without the variables."""

    def __init__(self, root: Path) -> None:
        self.user, self.scratch, self.packages = root / "user", root / "scratch", root / "packages"
        for folder in (self.user, self.scratch, self.packages):
            folder.mkdir()

    def fake(self, name: str, code: str) -> None:
        """A stand-in for a package."""
        path = self.packages / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))

    def run(self, code: str, *, variables: bool = True, **environment: str) -> dict[str, Any]:
        given = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("WANDB", "MLFLOW", "HF_"))
        }
        done = subprocess.run(
            [sys.executable, "-c", START + textwrap.dedent(code) + END],
            capture_output=True,
            text=True,
            cwd=self.user,
            env={
                **given,
                **(offline_environment(self.scratch) if variables else {}),
                "PYTHONPATH": os.pathsep.join([str(self.packages), str(SOURCE)]),
                "PYTHONDONTWRITEBYTECODE": "1",
                "SCRATCH": str(self.scratch),
                "HOME": str(self.scratch),
                **environment,
            },
            timeout=250,
        )
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
        answer: dict[str, Any] = json.loads(lines[-1].removeprefix("ANSWER "))
        return answer

    def left_behind(self) -> list[str]:
        return sorted(str(path.relative_to(self.user)) for path in self.user.rglob("*"))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def test_the_variables_are_plain_text_and_point_into_the_scratch_folder(tmp_path: Path) -> None:
    before = dict(os.environ)
    variables = offline_environment(tmp_path / "with space")
    assert dict(os.environ) == before
    assert all(isinstance(value, str) for value in variables.values())
    paths = [value for value in variables.values() if "/" in value]
    assert paths
    assert all(str(tmp_path) in value for value in paths)
    assert variables["MLFLOW_TRACKING_URI"].endswith("/with%20space/mlflow")
    assert variables["WANDB_MODE"] == "disabled"


FAKE_TRACKER = """
calls = []
def {entry}(project=None, mode=None, space_id="none", **more):
    "What a run begins with."
    calls.append([project, mode, space_id])
    return "run"
"""


@pytest.mark.parametrize(
    ("package", "entry", "expected"),
    [
        ("wandb", "init", ["p", "disabled", "s"]),
        ("swanlab", "init", ["p", "disabled", "s"]),
        ("neptune", "init_run", ["p", "debug", "s"]),
        ("trackio", "init", ["p", "online", None]),
    ],
)
def test_a_tracker_gets_our_arguments_where_the_script_gives_its_own(
    job: Job, package: str, entry: str, expected: list[Any]
) -> None:
    more = "def login(): pass\ndef sweep(): pass\ndef agent(): pass\n"
    job.fake(package, FAKE_TRACKER.format(entry=entry) + more)
    answer = job.run(
        f"""
        import inspect, {package} as tracker
        run = tracker.{entry}("p", mode="online", space_id="s")
        result = [run, tracker.calls[0], tracker.{entry}.__doc__, str(inspect.signature(tracker.{entry}))]
        """
    )
    run, call, page, signature = answer["result"]
    assert (run, call, page) == ("run", expected, "What a run begins with.")
    assert signature == "(project=None, mode=None, space_id='none', **more)"
    assert answer["notes"] == [[package, entry]]


def test_a_tracker_that_cannot_be_overruled_is_told_of_and_still_imported(job: Job) -> None:
    job.fake("wandb", "version = 99")
    answer = job.run("import wandb; result = wandb.version")
    assert answer["result"] == 99
    assert {service for service, _ in answer["notes"]} == {"wandb"}
    assert all("not overruled: AttributeError" in what for _, what in answer["notes"])


def test_what_we_do_not_know_of_the_hub_is_held_to_write(job: Job) -> None:
    job.fake("huggingface_hub.__init__", "")
    job.fake(
        "huggingface_hub.hf_api",
        """
        class RepoUrl(str): pass
        class HfApi:
            endpoint_of_all = "e"
            def __init__(self): self.endpoint = "https://hub"
            def teleport_repo(self, repo_id) -> "Other": raise ConnectionError
            def create_repo(self, repo_id: str) -> RepoUrl: raise ConnectionError
            def model_info(self, repo_id): return "read"
            def hf_hub_download(self, repo_id): return "downloaded"
            def _private(self): return "private"
        api = HfApi()
        teleport_repo = api.teleport_repo
        model_info = api.model_info
        """,
    )
    answer = job.run(
        """
        from huggingface_hub.hf_api import HfApi, teleport_repo, model_info
        api = HfApi()
        empty = teleport_repo("a")
        empty = [str(api.teleport_repo("a")), bool(empty.whatever.there().is_none), list(empty)]
        result = [empty, api.create_repo("a/b"), model_info("a"), api.hf_hub_download("a"), api._private()]
        """
    )
    assert answer["result"] == [["", False, []], "https://hub/a/b", "read", "downloaded", "private"]
    assert answer["notes"] == [["huggingface_hub", "teleport_repo"]] * 2 + [
        ["huggingface_hub", "create_repo"]
    ]


@pytest.mark.parametrize("variables", [True, False])
def test_wandb_runs_disabled_even_where_the_script_says_online(job: Job, variables: bool) -> None:
    needs("wandb")
    answer = job.run(
        """
        import wandb
        wandb.login(key="0" * 40)
        run = wandb.init(project="p", mode="online", settings=wandb.Settings(mode="online"), config={"lr": 1})
        run.log({"loss": 1.0}); wandb.log({"loss": 0.5}); run.summary["best"] = 1
        wandb.save("*.pt"); run.log_artifact(wandb.Artifact("a", "b"))
        result = [run.disabled, wandb.config["lr"], wandb.sweep({"method": "grid"})]
        wandb.finish()
        wandb.agent("offline", function=lambda: result.append("ran"))
        """,
        variables=variables,
    )
    assert answer["result"] == [True, 1, "offline", "ran"]
    assert answer["notes"] == [["wandb", "login"], ["wandb", "init"], ["wandb", "sweep"], ["wandb", "agent"]]
    assert answer["connections"] == []
    assert job.left_behind() == []


def test_the_variables_alone_keep_wandb_at_home(job: Job) -> None:
    needs("wandb")
    done = subprocess.run(
        [sys.executable, "-c", "import wandb; print(wandb.init(project='p').disabled)"],
        env={**os.environ, **offline_environment(job.scratch), "HOME": str(job.scratch)},
        cwd=job.user,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.stdout == "True\n", done.stderr
    assert job.left_behind() == []


@pytest.mark.parametrize("variables", [True, False])
def test_mlflow_logs_into_the_scratch_folder(job: Job, variables: bool) -> None:
    needs("mlflow")
    answer = job.run(
        """
        import mlflow
        mlflow.set_tracking_uri("http://127.0.0.1:9")
        Path(os.environ["SCRATCH"], "file.txt").write_text("artifact")
        with mlflow.start_run() as run:
            mlflow.log_metric("loss", 1.0); mlflow.log_artifact(os.environ["SCRATCH"] + "/file.txt")
        client = mlflow.MlflowClient(tracking_uri="http://127.0.0.1:9", registry_uri="http://127.0.0.1:9")
        result = [mlflow.get_tracking_uri() if os.environ.get("MLFLOW_TRACKING_URI") else client.tracking_uri,
                  client.get_run(run.info.run_id).data.metrics, len(client.search_registered_models())]
        """,
        variables=variables,
    )
    assert answer["result"] == [(job.scratch / "mlflow").as_uri(), {"loss": 1.0}, 0]
    assert ["mlflow", "set_tracking_uri"] in answer["notes"]
    assert ["mlflow", "client"] in answer["notes"]
    assert answer["connections"] == []
    assert list((job.scratch / "mlflow").rglob("artifacts/file.txt"))
    assert job.left_behind() == []


def test_uploads_to_the_hub_do_nothing_and_answer_in_kind(job: Job) -> None:
    needs("huggingface_hub")
    answer = job.run(
        """
        import huggingface_hub as hub
        hub.login(token="hf_secret")
        api = hub.HfApi()
        repo = hub.create_repo("me/model", exist_ok=True)
        commit = api.upload_folder(repo_id="me/model", folder_path=".", commit_message="weights")
        later = hub.upload_file(
            path_or_fileobj=b"x", path_in_repo="x", repo_id="me/model", run_as_future=True
        )
        made = api.create_commit("me/model", [], commit_message="m")
        result = [repo.repo_id, commit.commit_message, len(commit.oid), later.result().commit_url,
                  made.pr_url, api.create_branch("me/model", branch="b"), hub.create_tag("me/model", tag="t"),
                  api.delete_repo("me/model"), str(hub.create_pull_request("me/model", title="t").num),
                  hub.get_token(), sorted(Path(os.environ["SCRATCH"]).rglob("token"))]
        """
    )
    assert answer["result"] == [
        *("me/model", "weights", 40, f"https://huggingface.co/me/model/commit/{'0' * 40}", None),
        *(None, None, None, "", "hf_secret", []),
    ]
    assert [what for _, what in answer["notes"]] == [
        *("login", "create_repo", "upload_folder", "upload_file", "create_commit"),
        *("create_branch", "create_tag", "delete_repo", "create_pull_request"),
    ]
    assert answer["connections"] == []
    assert job.left_behind() == []


def test_downloads_from_the_hub_are_let_out(job: Job) -> None:
    needs("huggingface_hub")
    asked = []

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(self.path)
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.end_headers()

        do_GET = do_HEAD

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answer = job.run(
            """
            import huggingface_hub
            try:
                huggingface_hub.hf_hub_download("me/model", "config.json")
            except Exception as error:
                result = str(type(error).__name__)
            """,
            HF_ENDPOINT=f"http://127.0.0.1:{server.server_port}",
        )
        server.shutdown()
    assert "EntryNotFoundError" in answer["result"]
    assert "/me/model/resolve/main/config.json" in asked
    assert answer["notes"] == []
