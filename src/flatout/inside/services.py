"""Keeps a trial from logging to services: trackers run offline, uploads to the Hub do not happen.

Twice, because neither is enough alone: variables reach every child and library, and what a script asks for in
its own code (`mode="online"`) is overruled in its process. Downloads stay possible.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from flatout.inside.imports import after_import

# Told once for each call that was kept from leaving: the service, and what was called.
Note = Callable[[str, str], None]

# Arguments that keep a tracker's entry at home, whatever the script gives for them.
_FORCED: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("wandb", "init", {"mode": "disabled"}),
    ("swanlab", "init", {"mode": "disabled"}),
    ("neptune", "init_run", {"mode": "debug"}),
    ("trackio", "init", {"space_id": None, "server_url": None, "dataset_id": None, "bucket_id": None}),
    ("comet_ml", "start", {"online": False}),
)

# What only reads, in the Hub's client. All else is held to write: a method that we do not know yet is kept
# offline, not let through.
_HUB_READS = (
    *("get_", "list_", "search_", "inspect_", "fetch_", "download_", "read_", "parse_", "wait_for_"),
    *("verify_", "resolve_", "hf_hub_download", "snapshot_download", "whoami", "auth_check", "run_as_future"),
)
_HUB_READ_ENDINGS = ("_info", "_exists")


def offline_environment(scratch: Path) -> dict[str, str]:
    """The variables that keep trackers offline in a child; what they must write goes into `scratch`."""
    store = _mlflow_store(scratch)
    return {
        "WANDB_MODE": "disabled",
        "WANDB_SILENT": "true",
        "WANDB_DIR": str(scratch),
        "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_TRACKING_URI": store,
        "MLFLOW_REGISTRY_URI": store,
        # Folders as stores are refused without it since mlflow 3.
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "COMET_START_ONLINE": "false",
        "COMET_AUTO_LOG_DISABLE": "true",
        "COMET_OFFLINE_DIRECTORY": str(scratch / "comet"),
        "NEPTUNE_MODE": "offline",
        "NEPTUNE_DATA_DIRECTORY": str(scratch / "neptune"),
        "CLEARML_OFFLINE_MODE": "1",
        "SWANLAB_MODE": "disabled",
        # Joined to the folder of Aim's repository; being absolute, it takes that folder's place.
        "__AIM_REPO_NAME__": str(scratch / "aim"),
        "TRACKIO_DIR": str(scratch / "trackio"),
        "TRACKIO_SPACE_ID": "",
        "TRACKIO_SERVER_URL": "",
        "OPIK_TRACK_DISABLE": "true",
        "DVC_STUDIO_OFFLINE": "true",
        "DVC_NO_ANALYTICS": "true",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "true",
    }


def keep_services_offline(scratch: Path, note: Note) -> None:
    """Overrule, in this process, what the script asks of trackers and of the Hub, once it imports them."""
    for module, name, forced in _FORCED:
        _when_imported(module, note, functools.partial(_force, name=name, forced=forced, note=note))
    _when_imported("wandb", note, functools.partial(_stay_logged_out, note=note))
    store = functools.partial(_keep_mlflow, store=_mlflow_store(scratch), note=note)
    _when_imported("mlflow.tracking._tracking_service.utils", note, store)
    _when_imported("mlflow.tracking._model_registry.utils", note, store)
    _when_imported("huggingface_hub.hf_api", note, functools.partial(_keep_hub, note=note))
    _when_imported("huggingface_hub._login", note, functools.partial(_keep_login, note=note))


def _mlflow_store(scratch: Path) -> str:
    # A folder, not sqlite: mlflow-skinny comes without the database driver.
    return (scratch / "mlflow").absolute().as_uri()


def _when_imported(name: str, note: Note, keep: Callable[[ModuleType], None]) -> None:
    def callback(module: ModuleType) -> None:
        try:
            keep(module)
        except Exception as error:  # noqa: BLE001 - the variables still hold, and the report says what failed
            note(name.partition(".")[0], f"not overruled: {type(error).__name__}: {error}")

    after_import(name, callback)


def _force(module: ModuleType, *, name: str, forced: Mapping[str, Any], note: Note) -> None:
    """Have `module.name` called with our arguments, those that it knows."""
    import inspect

    real = getattr(module, name)
    known = {key: value for key, value in forced.items() if key in inspect.signature(real).parameters}

    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        note(module.__name__, name)
        return real(*args, **{**kwargs, **known})

    _replace_everywhere(module.__name__, real, call)


def _stay_logged_out(module: ModuleType, *, note: Note) -> None:
    """What asks the server of W&B something before any run begins, or writes a key into the home folder."""

    def login(*_args: Any, **_kwargs: Any) -> bool:
        note("wandb", "login")
        return True

    def sweep(*_args: Any, **_kwargs: Any) -> str:
        note("wandb", "sweep")
        return "offline"

    def agent(_sweep_id: Any = None, function: Callable[[], Any] | None = None, **_kwargs: Any) -> None:
        note("wandb", "agent")
        if function is not None:
            function()

    for stand_in in (login, sweep, agent):
        real = getattr(module, stand_in.__name__)
        _replace_everywhere("wandb", real, functools.wraps(real)(stand_in))


def _replace_everywhere(package: str, real: Any, ours: Any) -> None:
    """Wherever a module of the package keeps the function under a name: `from` imports bind it early."""
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(f"{package}."):
            for attribute in [key for key, value in vars(module).items() if value is real]:
                setattr(module, attribute, ours)


def _keep_mlflow(module: ModuleType, *, store: str, note: Note) -> None:
    """For the tracking service and for the registry: every client asks one of the two for its URI."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    for name in ("set_tracking_uri", "set_registry_uri", "_resolve_tracking_uri", "_resolve_registry_uri"):
        real = getattr(module, name, None)
        if real is not None:
            setattr(module, name, _always(real, store if name.startswith("_") else None, store, note))


def _always(real: Callable[..., Any], answer: str | None, store: str, note: Note) -> Callable[..., Any]:
    @functools.wraps(real)
    def call(uri: Any = None, *_args: Any, **_kwargs: Any) -> Any:
        if uri is not None and str(uri) != store:
            note("mlflow", "client" if answer else real.__name__)
        return answer

    return call


class _Nothing:
    """Stands for an answer of the Hub that we cannot make up: empty, whatever is asked of it."""

    def __getattr__(self, name: str) -> "_Nothing":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_args: Any, **_kwargs: Any) -> "_Nothing":
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return ""


def _keep_hub(module: ModuleType, *, note: Note) -> None:
    """Every method that writes does nothing, and so do the functions that were made of them."""
    api: type[Any] = vars(module)["HfApi"]
    for name, real in list(vars(api).items()):
        if _writes(name, real):
            setattr(api, name, _offline_method(module, name, real, note))
    for name, value in list(vars(module).items()):
        owner = getattr(value, "__self__", None)
        if isinstance(owner, api) and _writes(name, value):
            setattr(module, name, getattr(owner, name))


def _writes(name: str, value: Any) -> bool:
    reads = name.startswith(("_", *_HUB_READS)) or name.endswith(_HUB_READ_ENDINGS)
    return callable(value) and not isinstance(value, type) and not reads


def _offline_method(
    module: ModuleType, name: str, real: Callable[..., Any], note: Note
) -> Callable[..., Any]:
    import inspect

    signature = inspect.signature(real)
    promised = str(signature.return_annotation)

    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        note("huggingface_hub", name)
        given = signature.bind_partial(*args, **kwargs).arguments
        answer = _answer(module, promised, given)
        if not given.get("run_as_future"):
            return answer
        import concurrent.futures

        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_result(answer)
        return future

    return call


def _answer(module: ModuleType, promised: str, given: Mapping[str, Any]) -> Any:
    """What the script gets: of the kind that it expects, as far as it can be made up."""
    if promised in ("None", "<class 'NoneType'>"):
        return None
    url = f"{vars(given['self'])['endpoint']}/{given.get('repo_id') or 'offline/offline'}"
    if "CommitInfo" in promised:
        message = str(given.get("commit_message") or "")
        return vars(module)["CommitInfo"](
            commit_url=f"{url}/commit/{'0' * 40}", commit_message=message, commit_description="", oid="0" * 40
        )
    if "RepoUrl" in promised:
        return vars(module)["RepoUrl"](url)
    return _Nothing()


def _keep_login(module: ModuleType, *, note: Note) -> None:
    """A token serves downloads, so it is kept: for this process, not in the user's home folder."""
    real = vars(module)["login"]

    @functools.wraps(real)
    def login(token: str | None = None, *_args: Any, **_kwargs: Any) -> None:
        note("huggingface_hub", "login")
        if token:
            os.environ["HF_TOKEN"] = token

    _replace_everywhere("huggingface_hub", real, login)
