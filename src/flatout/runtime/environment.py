"""The environment of a job: the way in for the hook; for trials, trackers offline and caches beside."""

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from flatout.inside.services import offline_environment
from flatout.records.places import cache_folder
from flatout.records.session import SESSION_VARIABLE

_PACKAGE = Path(__file__).resolve().parents[1]


def trial_environment(
    order: Path, scratch: Path, *, own_python: bool, seed: int | None, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Every variable of the job."""
    given = watched_environment(order, own_python=own_python, base=base)
    added = offline_environment(scratch)
    if seed is not None:
        added["PYTHONHASHSEED"] = given.get("PYTHONHASHSEED", str(seed % 2**32))
    if "TORCHINDUCTOR_CACHE_DIR" not in given:
        # Beside ours, not the user's: a trial leaves no trace there, and the next trial still starts warm.
        added["TORCHINDUCTOR_CACHE_DIR"] = str(compile_cache())
    return {**given, **added}


def watched_environment(
    order: Path, *, own_python: bool, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The user's environment, and the way in for the hook."""
    given = dict(os.environ if base is None else base)
    added = {SESSION_VARIABLE: str(order)}
    if not (own_python and hook_is_installed()):
        added["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(_PACKAGE / "entry" / "site"), str(_alone()), given.get("PYTHONPATH", "")])
        )
    return {**given, **added}


def redirected_environment(aside: Path) -> dict[str, str]:
    """What a trial without an overlay needs beside: programs see real files alone, compilers among them.

    The keeper makes the folder that TMPDIR names.
    """
    return {
        "TMPDIR": str(aside / "tmp"),
        "TORCH_EXTENSIONS_DIR": str(compile_cache() / "extensions"),
        "TRITON_CACHE_DIR": str(compile_cache() / "triton"),
        "CUDA_CACHE_PATH": str(compile_cache() / "cuda"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def hook_is_installed() -> bool:
    """Whether this Python runs our line at start: an installed package has it, a bare checkout not."""
    return (Path(sysconfig.get_paths()["purelib"]) / "flatout.pth").is_file()


def compile_cache() -> Path:
    """Where compiled code of trials is kept."""
    folder = cache_folder() / "compiled"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def folders_to_keep(environment: Mapping[str, str], trial: Path) -> tuple[Path, ...]:
    """What stays really writable during a trial: our own folders, and caches of downloads.

    Without the latter every trial would download its model again.
    """
    home = Path(environment.get("HOME") or Path.home())
    caches = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    downloads = [
        Path(environment.get("HF_HOME") or caches / "huggingface"),
        Path(environment.get("TORCH_HOME") or caches / "torch"),
        Path(environment.get("TRITON_CACHE_DIR") or home / ".triton"),
        Path(environment.get("TORCHINDUCTOR_CACHE_DIR") or compile_cache()),
    ]
    return (trial, cache_folder(), *(path for path in downloads if path.is_dir()))


def _alone() -> Path:
    """A folder with our package and nothing else: on PYTHONPATH it must not bring its neighbours along."""
    folder = cache_folder() / "alone"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "flatout"
    if not link.exists() or link.resolve() != _PACKAGE:
        fresh = folder / f".flatout-{os.getpid()}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(_PACKAGE)
        fresh.replace(link)
    return folder
