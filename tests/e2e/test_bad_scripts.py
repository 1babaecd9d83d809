"""Scripts that are missing, broken, stuck, odd or not for training: each gets an answer that helps."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.jobs import ENDLESS, QUICK, Place, document, place_in, torchrun

PROFILE = ("profile", "--no-limits")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        yield made


# What is refused before anything starts


@pytest.mark.parametrize("command", ["profile", "check"])
def test_a_script_that_does_not_exist_is_answered_with_the_nearest_name(place: Place, command: str) -> None:
    place.script("", "train_small.py")
    done = place.flatout(command, "trian_small.py")
    assert done.returncode == 2
    assert "no script 'trian_small.py'" in done.stderr
    assert "did you mean 'train_small.py'?" in done.stderr
    assert list((place.work / ".flatout").iterdir()) == []


def test_a_folder_is_no_script(place: Place) -> None:
    (place.work / "model.py").mkdir()
    done = place.flatout("profile", "model.py")
    assert done.returncode == 2
    assert "'model.py' is no file" in done.stderr


def test_a_script_that_cannot_be_read_is_refused(place: Place) -> None:
    script = place.work / place.script(ENDLESS)
    script.chmod(0o000)
    if os.access(script, os.R_OK) and not shutil.which("setpriv"):
        pytest.skip("needs setpriv to be a root who may not read everything")
    drop = "-dac_override,-dac_read_search"
    bound = ("setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}") if os.getuid() == 0 else ()
    done = place.run((*bound, sys.executable, "-m", "flatout", "profile", "train.py"))
    assert done.returncode == 2, done.stderr
    assert "'train.py' cannot be read" in done.stderr


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--stps", "3", "train.py"), "--steps"),
        (("--steps", "0", "train.py"), "--steps"),
        (("--steps", "many", "train.py"), "--steps"),
        (("--startup-limit", "0", "train.py"), "--startup-limit"),
        ((), "SCRIPT"),
        (("--python", "/no/such/python", "train.py"), "/no/such/python"),
        (("no-such-program", "--flag"), "no-such-program"),
    ],
)
def test_a_wrong_flag_of_ours_is_the_callers_mistake(
    place: Place, words: tuple[str, ...], names: str
) -> None:
    place.script(ENDLESS)
    done = place.flatout("profile", "--json", *words)
    assert done.returncode == 2, done.stdout + done.stderr
    error = document(done)
    assert error["schema"] == "flatout.error/1"
    assert error["exit_code"] == 2
    assert names in error["error"]["received"] + error["error"]["expected"]
    assert all(error["error"][part] for part in ("kind", "received", "expected", "remedy"))
    assert "Traceback" not in done.stderr


# What never makes an update


def refused(place: Place, *words: str) -> str:
    """The error of a job that showed nothing: exit code 4, a document, and a run folder that tells more."""
    done = place.flatout(*PROFILE, "--json", *words)
    assert done.returncode == 4, done.stdout + done.stderr
    whole = document(done)
    assert (whole["schema"], whole["exit_code"]) == ("flatout.error/1", 4)
    assert whole["error"]["kind"] == "JobFailed"
    assert "Traceback" not in done.stderr.replace("    Traceback", "")  # but for the script's own
    manifest = json.loads((place.trial().parents[1] / "run.json").read_text())
    assert manifest["status"] == "failed"
    received: str = whole["error"]["received"]
    remedy: str = whole["error"]["remedy"]
    return f"{received}\n{remedy}"


def test_a_syntax_error_is_shown(place: Place) -> None:
    said = refused(place, place.script("import torch\ndef broken(:\n    pass\n"))
    assert "exit code 1 before its first update" in said
    assert "def broken(:" in said
    assert "SyntaxError: invalid syntax" in said


def test_a_crash_at_import_shows_its_last_lines_and_keeps_the_rest(place: Place) -> None:
    bold = "'\\033[1mline', n, '\\033[0m'"
    script = f"import sys\nfor n in range(40): print({bold}, file=sys.stderr)\nimport no_such_package\n"
    said = refused(place, place.script(script))
    assert "ModuleNotFoundError: No module named 'no_such_package'" in said
    assert "line 39" in said
    assert "line 9 " not in said
    assert "033" not in said
    assert "x1b" not in said
    assert str(place.trial().relative_to(place.work)) in said
    kept = (place.trial() / "stderr.txt").read_text()
    assert kept.startswith("\033[1mline 0 \033[0m\n\033[1mline 1")


def test_what_a_launcher_warns_of_does_not_stand_for_what_the_script_says(place: Place) -> None:
    script = """
import sys
print("W1119 21:02:05.190000 97 torch/distributed/run.py:803] Setting OMP_NUM_THREADS", file=sys.stderr)
print("*****************************************", file=sys.stderr)
print("Unable to locate sufficient 2 gpus")
sys.exit(1)
"""
    assert "Unable to locate sufficient 2 gpus" in refused(place, place.script(script))


def test_a_script_that_never_updates_is_told_what_was_expected(place: Place) -> None:
    script = QUICK + "for _ in range(3): model(torch.ones(1, 4)).sum().backward()\n"
    said = refused(place, place.script(script))
    assert "came to its end without an optimizer update (3 training calls of a model were seen)" in said


def test_a_script_that_only_infers_is_told_so(place: Place) -> None:
    script = QUICK + "with torch.no_grad():\n    for _ in range(5): model(torch.ones(1, 4))\n"
    said = refused(place, place.script(script))
    assert "without an optimizer update; it called a model 5 times or more" in said
    assert "--infer" in said


def test_a_script_without_torch_is_told_that_nothing_was_seen(place: Place) -> None:
    said = refused(place, place.script("print('hello')\n"))
    assert "without loading torch in a process that Flatout could watch" in said


def test_a_script_that_reads_its_input_is_told_that_there_is_none(place: Place) -> None:
    said = refused(place, place.script("rate = float(input('learning rate? '))\n"))
    assert "reads from standard input, which a trial does not have" in said
    assert "< answers.txt" in said


def test_a_script_that_kills_itself_is_told_the_signal(place: Place) -> None:
    said = refused(place, place.script("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"))
    assert "killed by signal 11 before its first update" in said


def test_a_program_that_cannot_be_started_is_told_why(place: Place) -> None:
    program = place.work / place.script("#!/no/such/interpreter\n", "program")
    program.chmod(0o755)
    said = refused(place, "--", "./program")
    assert "could not be started" in said
    assert "./program: No such file or directory" in said


def test_a_script_that_hangs_before_its_first_step_is_ended(place: Place) -> None:
    script = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)\n"
    said = refused(place, "--startup-limit", "2", place.script(script))
    assert re.search(r"made no optimizer update within \d+ s and was ended", said)
    assert "--startup-limit" in said


# What makes some updates, and then does not end well


@pytest.mark.full
def test_a_script_that_ends_after_three_steps_shows_them(place: Place) -> None:
    place.script(QUICK + "for _ in range(3): update()\nprint('the end')\n")
    done = place.flatout(*PROFILE, "train.py")
    assert done.returncode == 0, done.stderr
    assert "Linear, 5 parameters, Sgd on cpu" in done.stdout
    assert "not steady yet" in done.stdout
    assert "DID NOT END WELL" not in done.stdout
    saved = json.loads((place.trial().parents[1] / "profile.json").read_text())
    assert (saved["updates"], saved["trial"]["outcome"]) == (3, "ended")
    # It could not be asked for one more step: these were counted in a second trial.
    assert saved["mfu"]["flops_per_step"] == 2 * (2 * 8 * 4)
    assert place.said().endswith("the end\n")


@pytest.mark.parametrize(
    ("ending", "outcome", "word"),
    [
        ("time.sleep(1000)", "silent", "it hung, and was ended"),
        pytest.param("sys.exit(3)", "failed", "exit code 3", marks=pytest.mark.full),
        ("raise ValueError('in the sixth step')", "failed", "ValueError: in the sixth step"),
        ("import os; os.kill(os.getpid(), 9)", "killed", "signal 9"),
    ],
    ids=["hangs", "leaves", "raises", "is killed"],
)
def test_what_a_script_showed_before_it_ended_badly_is_kept_and_drawn(
    place: Place, ending: str, outcome: str, word: str
) -> None:
    # One that is killed has written by then what it had to say, on a busy machine too.
    pause_s = 3 if outcome == "killed" else 0
    place.script(QUICK + f"for _ in range(5): update()\ntime.sleep({pause_s})\n{ending}\n")
    done = place.flatout(*PROFILE, "--silence-limit", "3", "train.py")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "Linear, 5 parameters, Sgd on cpu" in done.stdout
    told = " ".join(done.stdout.split())
    assert "THE SCRIPT DID NOT END WELL" in told
    assert word in told
    saved = json.loads((place.trial().parents[1] / "profile.json").read_text())
    assert (saved["updates"], saved["trial"]["outcome"]) == (5, outcome)
    assert len(saved["losses"]) == 5
    assert saved["mfu"]["flops_per_step"] is None
    assert saved["mfu"]["reason"]


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        pytest.param("raise ValueError('a bad batch')", "rank 1: ValueError: a bad batch", id="raises"),
        pytest.param(
            "import os; os.kill(os.getpid(), 11)",
            "rank 1: Signal 11 (SIGSEGV) received",
            id="segfaults",
            marks=pytest.mark.full,
        ),
    ],
)
def test_of_several_ranks_the_one_that_failed_first_is_named(place: Place, fault: str, named: str) -> None:
    place.script(
        f"{QUICK}\ntorch.distributed.init_process_group('gloo')\n"
        "for step in range(10**9):\n"
        "    model(torch.randn(8, 4)).square().mean().backward()\n"
        "    torch.distributed.all_reduce(model.weight.grad)\n"
        "    optimizer.step()\n"
        "    time.sleep(0.02)\n"
        "    if step == 30: time.sleep(1)\n"  # a rank that is killed has written by then
        f"    if step == 30 and torch.distributed.get_rank() == 1: {fault}\n"
    )
    done = place.flatout(*PROFILE, *torchrun("train.py"), COLUMNS="200")
    assert done.returncode == 4, done.stdout + done.stderr
    assert f"THE SCRIPT DID NOT END WELL (exit code 1): {named}" in done.stdout
    saved = json.loads((place.trial().parents[1] / "profile.json").read_text())
    assert saved["updates"] >= 25
    assert len(saved["ranks"]) == 2


def test_a_daemon_that_outlives_the_script_is_ended_and_named(place: Place) -> None:
    daemon = (
        "import os, subprocess\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    place.script(daemon + QUICK + "for _ in range(2): update()\n")
    done = place.flatout(*PROFILE, "--json", "train.py")  # asserts itself that nobody is left
    assert done.returncode == 0, done.stderr
    [left] = document(done)["trial"]["left_over"]
    assert "sleep" in left


# What is odd, and works


def test_fifty_megabytes_of_output_are_no_obstacle(place: Place) -> None:
    talk = "line = 'x' * 1023\nfor _ in range(50 << 10): print(line)\n"
    place.script(QUICK + talk + "while True: update()\n")
    done = place.flatout(*PROFILE, "--json", "--steps", "3", "train.py")
    assert done.returncode == 0, done.stderr
    whole = document(done)
    assert whole["updates"] == 3
    assert len(done.stdout) < 100_000
    output = place.trial() / "stdout.txt"
    assert output.stat().st_size >= 50 << 20
    output.unlink()


ECHO = "import json, sys\nprint('argv', json.dumps(sys.argv))\n" + ENDLESS
NASTY = ("$HOME", "`id`", "a b", "*", "'", '"', ";touch pwned", "--json", "-m", "--", "|", "\\", "ä\n", "")


@pytest.mark.parametrize("name", ["an odd 'name\" ü $x;.py", pytest.param("./-x.py", marks=pytest.mark.full)])
def test_odd_names_and_arguments_reach_the_script_unharmed(place: Place, name: str) -> None:
    (place.work / name).write_text(ECHO)
    done = place.flatout(*PROFILE, "--steps", "2", name, *NASTY)
    assert done.returncode == 0, done.stderr
    assert not done.stdout.startswith("{")  # the script's --json is not ours
    said = place.said().splitlines()[0]
    assert json.loads(said.removeprefix("argv ")) == [name, *NASTY]
    assert not (place.work / "pwned").exists()


def test_flags_of_the_script_are_not_ours_when_it_fails(place: Place) -> None:
    place.script("import sys\nsys.exit(str(sys.argv[1:]))\n")
    done = place.flatout(*PROFILE, "train.py", "--json", "--debug")
    assert done.returncode == 4
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "['--json', '--debug']" in done.stderr


@pytest.mark.full
def test_a_module_of_a_package_is_run_as_python_does(place: Place) -> None:
    package = place.work / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "steps.py").write_text(QUICK)
    (package / "train.py").write_text(
        "import sys\nfrom .steps import update\nprint(__name__, __package__, sys.argv[1:], flush=True)\n"
        "while True: update()\n"
    )
    done = place.flatout(*PROFILE, "--steps", "2", "-m", "package.train", "--steps", "9")
    assert done.returncode == 0, done.stderr
    assert place.said() == "__main__ package ['--steps', '9']\n"
    assert sorted(path.name for path in package.iterdir()) == ["__init__.py", "steps.py", "train.py"]


@pytest.mark.full
def test_a_shell_script_may_start_the_training(place: Place) -> None:
    place.script(ECHO)
    place.script(
        f'echo "begins in $PWD" > shell.txt\ncat shell.txt\n"{sys.executable}" train.py "$@"\n', "t.sh"
    )
    done = place.flatout(*PROFILE, "--json", "--steps", "2", "--", "bash", "t.sh", "a b")
    assert done.returncode == 0, done.stderr
    assert document(done)["updates"] == 2
    assert place.said() == f'begins in {place.work}\nargv ["train.py", "a b"]\n'
    assert not (place.work / "shell.txt").exists()


def test_another_python_without_flatout_runs_the_script(place: Place) -> None:
    place.script(ENDLESS)
    elsewhere = place.work.parent / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(elsewhere)], check=True, timeout=60)
    [packages] = elsewhere.glob("lib/python3*/site-packages")
    [torch] = [path for path in sys.path if (Path(path) / "torch" / "version.py").is_file()]
    (packages / "torch.pth").write_text(torch)
    python = elsewhere / "bin" / "python"
    assert place.run((str(python), "-P", "-c", "import flatout")).returncode == 1
    done = place.flatout(*PROFILE, "--json", "--steps", "2", "--python", str(python), "train.py")
    assert done.returncode == 0, done.stderr
    assert document(done)["updates"] == 2
    assert document(done)["trial"]["command"][0] == str(python)
