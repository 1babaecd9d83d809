"""Framework probes: real torch in a real child, and children that crash, hang, lie or are not there."""

import os
import sys
import time
from pathlib import Path

import pytest

from flatout.hardware.frameworks import Probe
from tests.fakes.processes import wait_until_gone


def program(tmp_path: Path, source: str) -> Path:
    path = tmp_path / "probe.py"
    path.write_text(source)
    return path


def test_real_torch_really_computes() -> None:
    found = Probe("torch").result()
    assert found.installed
    assert found.problem == ""
    assert found.version is not None
    assert found.version.startswith("2.")
    assert found.build is not None
    assert all(proof.computed for proof in found.proofs)
    assert found.import_s is not None
    assert found.import_s > 0
    assert int(found.switches["threads"]) >= 1


def test_a_framework_that_is_not_installed_is_no_problem() -> None:
    found = Probe("tensorflow").result()
    assert not found.installed
    assert found.problem == ""


def test_a_broken_install_is_a_problem_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text("raise OSError('libcusolver.so.11: cannot open shared object file')")
    found = Probe("jax", extra_environment={"PYTHONPATH": str(tmp_path)}).result()
    assert found.installed
    assert "libcusolver.so.11" in found.problem


def test_a_fake_jax_that_computes_wrongly_is_caught(tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text(
        """
__version__ = "0.0-fake"
class Device:
    device_kind = "Fake GPU"
    def __str__(self): return "fake:0"
class Array:
    def __matmul__(self, other): return self
    def sum(self): return 1.5
class numpy:
    ones = staticmethod(lambda shape: Array())
def devices(): return [Device()]
def device_put(array, device): return array
def default_backend(): return "fake"
"""
    )
    found = Probe("jax", extra_environment={"PYTHONPATH": str(tmp_path)}).result()
    [proof] = found.proofs
    assert proof.name == "Fake GPU"
    assert not proof.computed
    assert "1.5" in proof.problem


def test_switches_left_on_by_a_sitecustomize_are_seen(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import torch; torch.autograd.set_detect_anomaly(True)")
    found = Probe("torch", extra_environment={"PYTHONPATH": str(tmp_path)}).result()
    assert found.switches["anomaly_mode"] == "on"


def test_a_crash_names_its_signal(tmp_path: Path) -> None:
    source = program(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    found = Probe("torch", program=source).result()
    assert "signal 11" in found.problem


def test_a_hang_ends_at_the_deadline_and_takes_its_children_along(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    source = program(
        tmp_path,
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)\n",
    )
    for seconds in (3, 60):
        found = Probe("torch", program=source, timeout_s=seconds).result()
        assert f"no answer within {seconds} s" in found.problem
        if pid_file.exists():  # else this machine is so slow that it did not come to its child
            break
    assert wait_until_gone(int(pid_file.read_text()))


@pytest.mark.parametrize("line", ["FLATOUT-PROBE {", "FLATOUT-PROBE [1]", 'FLATOUT-PROBE {"proofs": 3}'])
def test_a_garbled_answer_is_a_problem(tmp_path: Path, line: str) -> None:
    found = Probe("torch", program=program(tmp_path, f"print({line!r})")).result()
    assert "garbled" in found.problem


def test_noise_around_the_answer_does_not_matter(tmp_path: Path) -> None:
    noisy = "print('WARNING: something'); print('FLATOUT-PROBE {\"installed\": false}'); print('bye')"
    found = Probe("torch", program=program(tmp_path, noisy)).result()
    assert not found.installed
    assert found.problem == ""


def test_a_python_that_does_not_exist_is_a_problem() -> None:
    found = Probe("torch", python="/nowhere/python").result()
    assert "cannot be started" in found.problem


def test_another_environments_python_is_asked(tmp_path: Path) -> None:
    # A Python that sees no site-packages stands for an environment without torch.
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    wrapper.chmod(0o755)
    assert not Probe("torch", python=str(wrapper)).result().installed


def test_a_cancelled_probe_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killpg = os.killpg
    pid_file = tmp_path / "pid"
    source = program(
        tmp_path, f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    probe = Probe("torch", program=source)
    while not pid_file.exists() or not pid_file.read_text():
        time.sleep(0.01)
    ended: list[int] = []
    monkeypatch.setattr(
        "flatout.hardware.command.os.killpg", lambda *who: ended.append(who[0]) or killpg(*who)
    )
    probe.cancel()
    probe.cancel()
    assert wait_until_gone(int(pid_file.read_text()))
    assert ended == [probe.pid], "its number may be somebody else's by now"


def test_the_probe_takes_no_more_gpu_memory_than_it_needs(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text(
        "import os\nraise RuntimeError(os.environ['TF_FORCE_GPU_ALLOW_GROWTH'] + "
        "os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'])"
    )
    found = Probe("tensorflow", extra_environment={"PYTHONPATH": str(tmp_path)}).result()
    assert "truefalse" in found.problem


def test_a_device_that_computes_but_does_not_tell_its_memory_still_counts(tmp_path: Path) -> None:
    from flatout.hardware.probes.compute import prove

    def no_facts() -> dict[str, str]:
        raise RuntimeError("free memory queries are not supported")

    found = prove("xpu:0", no_facts, lambda: "")
    assert found["computed"]
    assert "not supported" in found["unknown"]["name"]
