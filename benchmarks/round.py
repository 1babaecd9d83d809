"""Everything that needs a GPU, one after another, in the time that there is: its tests, then its benchmarks.

    python -m benchmarks.round --list
    python -m benchmarks.round --within 560 --out FOLDER                 # from the first, as far as it goes
    python -m benchmarks.round --within 560 --out FOLDER watching fp8    # these, in this order

Each step is a process with an end of its own: at it, the step gets a Ctrl-C, at which benchmarks write down
how far they came, and ten seconds later all that it started is killed, and its temporary files are gone. A
step that would not fit into what is left is left out, and named. After each step FOLDER/round.tar.gz is
written anew, with what all of them printed and the result files of those that ended: whatever happens later,
that much is there. `--packages FOLDER` goes onto PYTHONPATH, for machines on which nothing can be installed:
packages for the Python and the platform of that machine. The step `imports` tells in seconds what is missing.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
_GRACE_S = 10.0
_ENOUGH = 0.7
_LAST_LINES = 3
# By this variable of the environment, whatever a step started is known, also in a session of its own.
_MARK = "FLATOUT_ROUND_STEP"


@dataclasses.dataclass(frozen=True)
class Step:
    """A command of Python's, and about how long it takes."""

    seconds: float
    words: tuple[str, ...]
    # Whether it takes --out, a folder for its result files.
    has_result: bool = True


def _tests(seconds: float, *names: str) -> Step:
    files = [f"tests/gpu/test_{name}.py" for name in names]
    # A name as it is done: a log that is cut off says which test it was.
    told = ("-v", "--tb=short", "--show-capture=no", "--durations=5", "-o", "timeout=150")
    alone = ("-p", "no:cacheprovider", "-o", "addopts=", "-W", "ignore")
    return Step(seconds, ("-m", "pytest", *alone, *told, *files), has_result=False)


def _benchmark(seconds: float, name: str, *words: str) -> Step:
    return Step(seconds, ("-m", f"benchmarks.{name}", *words))


_NEEDED = (
    "flatout.cli.main", "torch", "numpy", "click", "rich", "jinja2", "msgspec", "libcst", "pynvml", "psutil",
    "prometheus_client", "hypothesis", "pytest", "pytest_timeout", "transformers", "safetensors", "starlette",
    "uvicorn", "httptools",
)  # fmt: skip
_IMPORTS = f"""
import importlib, sys
missing = {{}}
for name in {_NEEDED}:
    try:
        importlib.import_module(name)
    except Exception as error:
        missing[name] = repr(error)
sys.exit("; ".join(f"{{name}}: {{why}}" for name, why in missing.items()) or None)
"""

# Without the mode that compiles for minutes.
_INFERENCE = ("--budget", "60", "--modes", "default,reduce-overhead")

STEPS: dict[str, Step] = {
    "imports": Step(20, ("-c", _IMPORTS), has_result=False),
    "tests-devices": _tests(60, "real_nvml", "real_commands", "ps_on_gpu", "export_on_gpu", "learn_on_gpu"),
    "tests-taps": _tests(90, "taps_on_gpu", "flops_on_gpu", "recording_on_gpu", "log_on_gpu"),
    "tests-numbers": _tests(60, "nan_policy_on_gpu", "guard_on_gpu", "parallel_on_gpu"),
    "tests-memory": _tests(150, "memory_on_gpu", "memory_tracker_on_gpu", "offload_on_gpu"),
    "tests-levers": _tests(260, "levers_on_gpu", "more_levers_on_gpu", "precision_levers_on_gpu"),
    "tests-inference": _tests(60, "inference_on_gpu"),
    "tests-generate": _tests(150, "generate_on_gpu", "serving_on_gpu"),
    "tests-tune": _tests(250, "tune_on_gpu"),
    "tuning": _benchmark(300, "tuning", "gpt-124m-sdpa", "--turns", "1", "--seconds", "8"),
    "watching": _benchmark(90, "watching_cost", "--seconds", "8", "--job-seconds", "20"),
    "autopsy": _benchmark(60, "autopsy_cost"),
    "fp8": _benchmark(
        150,
        "plans",
        "gpt-1.3b-16-bf16-parameters-chunked-loss",
        "gpt-1.3b-16-bf16-parameters-chunked-loss-fp8",
    ),
    "inference-resnet50": _benchmark(170, "inference", "--models", "resnet50", *_INFERENCE),
    "inference-vit-b": _benchmark(170, "inference", "--models", "vit-b", *_INFERENCE),
    "inference-bert-base": _benchmark(130, "inference", "--models", "bert-base", *_INFERENCE),
    "serving": _benchmark(160, "serving", "--parts", "batching"),
    "decoding-8b": _benchmark(110, "decoding", "--size", "8b", "--tokens", "192", "--ways", "flatout,eager"),
    "decoding-1b": _benchmark(70, "decoding", "--size", "1b", "--tokens", "192", "--ways", "flatout,eager"),
    "checkpoints": _benchmark(220, "checkpoint_stall", "--limit", "190"),
    "ground-truth": _benchmark(200, "ground_truth"),
    "budget": _benchmark(160, "memory_budget"),
    "finite": _benchmark(40, "finite_updates"),
    "taps": _benchmark(120, "taps"),
    "mfu": _benchmark(60, "mfu"),
}


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a step ended."""

    name: str
    outcome: str
    took_s: float
    last: str = ""


def run(step: Step, place: Path, limit_s: float, packages: str) -> tuple[str, float]:
    """One step, its words in `place`/log; how it ended, and how long that took."""
    temporary = place / "temporary"
    temporary.mkdir(parents=True)
    words = [sys.executable, *step.words, *(("--out", str(place)) if step.has_result else ())]
    # Absolute: some of what steps start stands elsewhere.
    carried = [str(Path(one).resolve()) for one in packages.split(os.pathsep) if one]
    path = os.pathsep.join(
        filter(None, [*carried, str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    )
    mark = f"{place.name} {os.getpid()}"
    own = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "TMPDIR": str(temporary), _MARK: mark}
    began = time.monotonic()
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        outcome = "cut off"
        for wait_s, number in ((limit_s, signal.SIGINT), (_GRACE_S, signal.SIGKILL)):
            try:
                code = process.wait(max(1.0, wait_s))
            except subprocess.TimeoutExpired:
                _tell_group(process.pid, number)
            else:
                outcome = outcome if number == signal.SIGKILL else "ok" if not code else f"exit code {code}"
                break
        process.wait()
    _kill_all(mark)  # nothing of it holds the GPU when the next one begins
    shutil.rmtree(temporary, ignore_errors=True)
    return outcome, time.monotonic() - began


def _kill_all(mark: str) -> None:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == mark:
                process.kill()


def _tell_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _last_lines(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").strip().splitlines()[-_LAST_LINES:])


def _archive(place: Path, out: Path) -> None:
    whole = out / "round.tar.gz"
    partial = whole.with_suffix(".partial")
    with tarfile.open(partial, "w:gz") as archive:
        archive.add(place, arcname="round")
    partial.replace(whole)


def run_round(
    names: list[str], within_s: float, out: Path, packages: str, steps: dict[str, Step]
) -> list[Ended]:
    """The steps by these names, as far as the time goes."""
    deadline = time.monotonic() + within_s
    out.mkdir(parents=True, exist_ok=True)
    ended: list[Ended] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name in dict.fromkeys(names):
            step, left_s = steps[name], deadline - time.monotonic() - _GRACE_S
            if left_s < _ENOUGH * step.seconds:
                ended.append(Ended(name, f"left out: {max(0.0, left_s):.0f} s are too few", 0.0))
            else:
                print(f"{name}: about {step.seconds:.0f} s of the {left_s:.0f} s left", flush=True)
                outcome, took_s = run(step, place / name, min(left_s, 2 * step.seconds), packages)
                ended.append(Ended(name, outcome, took_s, _last_lines(place / name / "log")))
            print(f"  {name}: {ended[-1].outcome}, {ended[-1].took_s:.0f} s: {ended[-1].last}", flush=True)
            (place / "round.json").write_text(
                json.dumps([dataclasses.asdict(one) for one in ended], indent=1)
            )
            _archive(place, out)
    return ended


def main() -> None:
    """Run the steps that are named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "steps", nargs="*", choices=[*STEPS, []], metavar="STEP", help=f"of {', '.join(STEPS)}"
    )
    parser.add_argument("--within", type=float, default=1e6, metavar="SECONDS", help="for all of them")
    parser.add_argument("--out", type=Path, default=Path("round"), help="a folder for round.tar.gz")
    parser.add_argument("--packages", default="", help="a folder of packages, for the steps' PYTHONPATH")
    parser.add_argument("--list", action="store_true", help="what there is, and about how long it takes")
    words = parser.parse_args()
    if words.list:
        for name, step in STEPS.items():
            words_of_it = (
                " ".join(step.words) if step.words[0] != "-c" else f"-c 'import {', '.join(_NEEDED)}'"
            )
            print(f"{name:18} {step.seconds:4.0f} s   python {words_of_it}")
        return
    ended = run_round(words.steps or list(STEPS), words.within, words.out, words.packages, STEPS)
    sys.exit(any(one.outcome != "ok" for one in ended))


if __name__ == "__main__":
    main()
