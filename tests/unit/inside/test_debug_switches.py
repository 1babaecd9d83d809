"""Debug switches: on when they are asked for, and never left on."""

import builtins
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from flatout.inside.debugging.catalogue import BY_NAME, SWITCHES
from flatout.inside.debugging.sync import Sync
from flatout.inside.session import Session
from flatout.levers.catalogue import BY_ID
from flatout.records.plan import Choice, Fingerprint, Plan
from flatout.records.session import Order
from flatout.tune.debugging import environment_of, without_what_undoes


def state() -> tuple[Any, ...]:
    return (
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
        torch.get_deterministic_debug_mode(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("benchmark", [True, False])
def test_a_session_turns_them_on_and_puts_back_what_it_found(tmp_path: Path, benchmark: bool) -> None:
    torch.backends.cudnn.benchmark = benchmark
    before = state()
    try:
        session = Session(torch, Order(folder=str(tmp_path), debug=tuple(BY_NAME)))
        session.arm()
        try:
            assert state() == (True, True, 2, True, False)
            assert not torch.cuda.is_initialized()
            assert not (tmp_path / "ranks").exists(), "a folder before the rank is known"
            loss = (torch.zeros(1, requires_grad=True) - 1).sqrt().sum()
            with pytest.raises(RuntimeError, match="SqrtBackward0"):
                loss.backward()
        finally:
            session.finish()
            session.disarm()
        assert not session.failed
        assert state() == before
        told = session.facts["debug"]
        assert told["anomaly"] == told["deterministic"] == "on"
        if not torch.cuda.is_available():
            assert told["blocking"] == told["sync"] == told["memory-history"]
            assert "does nothing here" in told["sync"]
    finally:
        torch.backends.cudnn.benchmark = False


def test_one_that_fails_when_the_device_starts_is_told_of_and_the_device_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise RuntimeError("cudaMallocAsync does not yet support recordHistory")

    waiting: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_lazy_call", waiting.append)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", refused)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", refused)
    session = Session(torch, Order(folder=str(tmp_path), taps=(), debug=("memory-history", "sync")))
    session.arm()
    try:
        told = session.facts["debug"]
        assert set(told.values()) == {"on"}
        for begin in waiting:
            begin()
        words = "does not work here: RuntimeError: cudaMallocAsync does not yet support recordHistory"
        assert told == {"memory-history": words, "sync": words}
    finally:
        session.finish()
        session.disarm()
    assert not session.failed


def test_the_line_of_the_script_is_named_once_where_torch_waits_further_down(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    inside_torch = types.FunctionType(
        compile(
            'warnings.warn("called a synchronizing CUDA operation (Triggered internally)")',
            torch.__file__.replace("__init__.py", "_tensor.py"),
            "exec",
        ),
        {"warnings": warnings, "__builtins__": builtins},
    )
    shown, filters = warnings.showwarning, list(warnings.filters)
    switch = Sync(torch, lambda: tmp_path)
    switch.listen()
    try:
        for _ in range(3):
            inside_torch()
            here = sys._getframe().f_lineno - 1
            inside_torch()
    finally:
        switch.stop_listening()
    told = capfd.readouterr().err.splitlines()
    assert told == [
        f"flatout: {__file__}:{line} makes the host wait for the device" for line in (here, here + 2)
    ]
    assert (warnings.showwarning, list(warnings.filters)) == (shown, filters)


def test_other_warnings_are_shown_as_ever(tmp_path: Path) -> None:
    switch = Sync(torch, lambda: tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        switch.listen()
        warnings.warn("something else", stacklevel=1)
        switch.stop_listening()
    assert [str(one.message) for one in caught] == ["something else"]


def test_a_plan_is_applied_without_what_would_undo_them() -> None:
    levers = tuple(Choice(id=name) for name in ("debug-modes", "cudnn-autotune", "tf32"))
    plan = Plan(job=Fingerprint(script="train.py", script_sha256=""), levers=levers)
    kept, words = without_what_undoes(plan, ("anomaly", "deterministic"))
    assert [choice.id for choice in kept.levers] == ["tf32"]
    assert len(words) == 2
    assert without_what_undoes(plan, ("blocking",)) == (plan, [])
    assert all(lever in BY_ID for switch in SWITCHES for lever in switch.against)


def test_variables_go_into_the_jobs_environment_and_the_users_own_stay() -> None:
    assert environment_of(("anomaly",), {}) == {}
    wanted = {"CUDA_LAUNCH_BLOCKING": "1", "HIP_LAUNCH_BLOCKING": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    assert environment_of(("blocking", "deterministic"), {"CUDA_LAUNCH_BLOCKING": "0"}) == wanted
    assert environment_of(("deterministic",), {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}) == {}
