"""The collector's tap: a Ctrl-C that comes while it notes something reaches the script."""

from pathlib import Path

import pytest
import torch

from flatout.inside.collector import CollectorTap
from flatout.inside.session import Session
from flatout.records.session import Order


def test_a_ctrl_c_in_the_midst_of_a_note_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(torch, Order(folder=str(tmp_path)))

    def interrupted(_event: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session.log, "add", interrupted)
    tap = CollectorTap(session)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it comes at whatever Python does next
        tap._note("start", {})
        tap._note("stop", {})
        for _ in range(1000):
            pass
