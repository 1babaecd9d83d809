"""Where the cache lies, also for users that the system does not know."""

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from flatout.records.places import cache_folder


def test_the_users_variable_comes_first_then_the_systems_then_the_home() -> None:
    assert cache_folder({"FLATOUT_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/flatout")
    assert cache_folder({}) == Path("~/.cache/flatout").expanduser()


def test_a_containers_user_without_a_home_gets_a_temporary_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_uid: int) -> None:
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert cache_folder({}) == Path(tempfile.gettempdir()) / f"flatout-{os.getuid()}"
