"""The environment of a trial: the way in, nothing that reports home, and the user's own settings kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.records.places import CACHE_VARIABLE
from flatout.records.session import SESSION_VARIABLE
from flatout.runtime import environment as module
from flatout.runtime.environment import compile_cache, folders_to_keep, trial_environment

SITE = Path(module.__file__).parents[1] / "entry" / "site"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def made(tmp_path: Path, base: dict[str, str] | None = None, **options: object) -> dict[str, str]:
    facts: dict[str, object] = {"own_python": True, "seed": None, **options}
    return trial_environment(tmp_path / "order.json", tmp_path / "aside", base=base or {}, **facts)  # type: ignore[arg-type]


def test_the_session_is_armed_and_the_users_variables_stay(tmp_path: Path) -> None:
    found = made(tmp_path, {"PATH": "/bin", "MY_DATA": "/data"})
    assert found[SESSION_VARIABLE] == str(tmp_path / "order.json")
    assert (found["PATH"], found["MY_DATA"]) == ("/bin", "/data")


def test_without_a_base_it_is_the_environment_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_DATA", "/data")
    found = trial_environment(tmp_path / "o", tmp_path / "a", own_python=True, seed=None)
    assert found["MY_DATA"] == "/data"
    assert SESSION_VARIABLE not in os.environ


def test_trackers_are_offline_whatever_the_user_asked_for(tmp_path: Path) -> None:
    found = made(tmp_path, {"WANDB_MODE": "online", "MLFLOW_TRACKING_URI": "https://example.org"})
    assert found["WANDB_MODE"] != "online"
    assert "example.org" not in found["MLFLOW_TRACKING_URI"]
    assert str(tmp_path / "aside") in found["WANDB_DIR"]


def test_a_seed_makes_hashes_the_same_unless_the_user_chose_one(tmp_path: Path) -> None:
    assert made(tmp_path, seed=1234)["PYTHONHASHSEED"] == "1234"
    assert made(tmp_path, seed=2**40 + 5)["PYTHONHASHSEED"] == "5"
    assert made(tmp_path, {"PYTHONHASHSEED": "7"}, seed=1234)["PYTHONHASHSEED"] == "7"
    assert "PYTHONHASHSEED" not in made(tmp_path, seed=None)


def test_compiled_code_is_kept_beside_ours_unless_the_user_has_a_place(tmp_path: Path, cache: Path) -> None:
    assert made(tmp_path)["TORCHINDUCTOR_CACHE_DIR"] == str(cache / "compiled")
    mine = made(tmp_path, {"TORCHINDUCTOR_CACHE_DIR": "/mine"})
    assert mine["TORCHINDUCTOR_CACHE_DIR"] == "/mine"
    assert compile_cache().is_dir()


def test_our_own_python_needs_no_path_where_the_hook_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "hook_is_installed", lambda: True)
    assert "PYTHONPATH" not in made(tmp_path)
    assert made(tmp_path, {"PYTHONPATH": "/mine"})["PYTHONPATH"] == "/mine"


@pytest.mark.parametrize(("own_python", "installed"), [(False, True), (True, False)])
def test_another_python_finds_the_hook_on_its_path_before_the_users_own(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, own_python: bool, installed: bool
) -> None:
    monkeypatch.setattr(module, "hook_is_installed", lambda: installed)
    found = made(tmp_path, {"PYTHONPATH": "/mine"}, own_python=own_python)
    assert found["PYTHONPATH"].split(os.pathsep) == [str(SITE), str(cache / "alone"), "/mine"]


def test_on_that_path_lies_our_package_and_nothing_else(tmp_path: Path, cache: Path) -> None:
    found = made(tmp_path, own_python=False)
    assert [entry.name for entry in (cache / "alone").iterdir()] == ["flatout"]
    code = "import flatout.records.session, sys; print(flatout.__file__); import psutil"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": found["PYTHONPATH"]},
        timeout=60,
    )
    assert str(cache / "alone") in done.stdout
    assert "No module named 'psutil'" in done.stderr  # our neighbours did not come along


def test_a_link_that_leads_elsewhere_is_mended(tmp_path: Path, cache: Path) -> None:
    (cache / "alone").mkdir(parents=True)
    (cache / "alone" / "flatout").symlink_to(tmp_path / "an old version")
    made(tmp_path, own_python=False)
    assert (cache / "alone" / "flatout").resolve() == Path(module.__file__).parents[1].resolve()
    assert [entry.name for entry in (cache / "alone").iterdir()] == ["flatout"]


def test_caches_of_downloads_stay_writable_where_they_are(tmp_path: Path, cache: Path) -> None:
    home = tmp_path / "home"
    for name in (".cache/huggingface", ".cache/torch", ".triton"):
        (home / name).mkdir(parents=True)
    trial = tmp_path / "trial"
    kept = folders_to_keep({"HOME": str(home), "TORCHINDUCTOR_CACHE_DIR": "/not/there"}, trial)
    assert kept == (trial, cache, home / ".cache/huggingface", home / ".cache/torch", home / ".triton")


def test_caches_that_the_user_has_moved_are_found(tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR")}
    for place in places.values():
        place.mkdir()
    given = {"HOME": "/nowhere", **{name: str(place) for name, place in places.items()}}
    assert set(places.values()) <= set(folders_to_keep(given, tmp_path / "trial"))


def test_folders_that_are_not_there_are_not_made(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    kept = folders_to_keep({"HOME": str(home)}, tmp_path / "trial")
    assert not any(str(place).startswith(str(home)) for place in kept)
    assert list(home.iterdir()) == []
