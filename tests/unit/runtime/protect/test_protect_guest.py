"""The life of a protected script: what it comes back to, who is protected, and what it says of its saves."""

import json
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from flatout.records.session import Order
from flatout.runtime.checkpoint.checkpointer import Checkpointer
from flatout.runtime.checkpoint.store import STATE_FILE, Partial
from flatout.runtime.checkpoint.writer import at_work_in
from flatout.runtime.protect.guest import Protected, protect
from flatout.runtime.stopping import Stopped, current


def an_order(folder: Path) -> Order:
    kept = folder / "kept"
    kept.mkdir(exist_ok=True)
    return Order(folder=str(folder), protect={"folder": str(kept), "every_updates": 1})


def test_ranks_that_torchrun_starts_again_are_protected_like_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[Any] = []
    monkeypatch.setattr(Protected, "install", lambda _self: installed.append(True))
    for count in ("0", "0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
        protect(torch, an_order(tmp_path), {})
    assert len(installed) == 2


def test_what_is_still_being_written_for_the_life_before_is_waited_for(tmp_path: Path) -> None:
    protected = Protected(torch, an_order(tmp_path), {})
    finding = threading.Thread(target=protected._find_what_was_saved)
    with at_work_in(tmp_path / "kept"):
        finding.start()
        finding.join(timeout=0.2)
        partial = Partial(tmp_path / "kept", 7, "of the life before")
        partial.add(STATE_FILE, lambda: iter((json.dumps({"loader": {"updates": 7}}).encode(),)))
        partial.commit({})
    finding.join()
    assert protected._target == 7


def begin_a_writer_that_may_write_little(checkpointer: Checkpointer) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpointer._writer.close()
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, before[1]))
    try:
        checkpointer._writer.start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_refuses_is_told_of_when_it_is_asked_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts: dict[str, Any] = {"protection": {"resumed_at": None, "saved": 0}}
    protected = Protected(torch, an_order(tmp_path), facts)
    said: list[str] = []
    monkeypatch.setattr(protected._quiet, "say", said.append)
    model = torch.nn.Linear(64, 64)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        protected._updates = 1
        protected._save(sys._getframe())
        protected._settle()
        assert (facts["protection"]["saved"], facts["protection"]["saved_at"]) == (1, 1)
        assert protected._checkpointer is not None
        begin_a_writer_that_may_write_little(protected._checkpointer)
        protected._updates = 2
        with pytest.raises(Stopped):
            protected._stop(sys._getframe())
    finally:
        signal.signal(signal.SIGXFSZ, handler)
        current().leave()
        if protected._checkpointer is not None:
            protected._checkpointer.close()
    assert model.training
    assert facts["protection"]["saved"] == 1
    assert "File too large" in facts["protection"]["problem"]
    assert said[-1] == "asked to stop: what is saved goes no further than update 1"
