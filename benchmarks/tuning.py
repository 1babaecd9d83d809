"""`flatout tune` on unmodified scripts: what it gains, what it costs, and against the same levers by hand.

Each case tunes a script as a user would. Where an expert's version exists (benchmarks/by_hand.py), it and
`flatout run` then take turns, each in a process of its own, with the levers that tuning chose. Clocks and
temperature of the GPU are noted before and after.

    python -m benchmarks.tuning gpt-124m gpt-124m-sdpa
    python -m benchmarks.tuning --scripts ~/src chargpt-mini   # scripts of others, fetched by hand
    python -m benchmarks.tuning --kept benchmarks/results/...-tuning-gpt-124m.json gpt-124m
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.machine import write
from flatout.records.device import DeviceSample
from flatout.records.plan import Choice, Fingerprint, Plan
from flatout.runtime.samples import DeviceSampler

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"

PICTURES = Path(tempfile.gettempdir()) / "flatout-pictures"

# What follows `flatout tune`, in the folder where it is run; scripts of others lie where --scripts says.
CASES: dict[str, dict[str, str]] = {
    "tiny": {
        "words": f"{EXAMPLES}/gpt.py --layers 2 --width 64 --heads 4 --length 64 --vocabulary 1000",
        "options": "--budget 20s",
        "by_hand": f"{EXAMPLES}/gpt.py --size tiny",
        "steps": "--steps",
    },
    "gpt-124m": {
        "words": f"{EXAMPLES}/gpt.py",
        "by_hand": f"{EXAMPLES}/gpt.py",
        "steps": "--steps",
    },
    "gpt-124m-sdpa": {
        "words": f"{EXAMPLES}/gpt_sdpa.py --size 124m",
        "by_hand": f"{EXAMPLES}/gpt_sdpa.py",
        "steps": "--steps",
    },
    "gpt-1.3b": {
        "words": f"{EXAMPLES}/gpt_sdpa.py --size 1.3b --batch-size 2",
        "by_hand": f"{EXAMPLES}/gpt_sdpa.py --size 1.3b --batch 2",
        "steps": "--steps",
    },
    "gpt-1.3b-larger-batch": {
        "words": f"{EXAMPLES}/gpt_sdpa.py --size 1.3b --batch-size 2",
        "options": "--allow batch-size",
        "by_hand": f"{EXAMPLES}/gpt_sdpa.py --size 1.3b --batch 2",
        "steps": "--steps",
    },
    "images": {
        "words": f"{EXAMPLES}/images.py --width 192 --folder {PICTURES}",
        "prepare": f"{EXAMPLES}/images.py --width 8 --folder {PICTURES} --steps 0",
        "options": "--allow batch-size",
        "steps": "--steps",
    },
    # The mission's case: precision, loader, batch and compiler each have something to give.
    "images-small-batch": {
        "words": f"{EXAMPLES}/images.py --width 192 --batch-size 16 --folder {PICTURES}",
        "prepare": f"{EXAMPLES}/images.py --width 8 --folder {PICTURES} --steps 0",
        "options": "--allow batch-size",
        "steps": "--steps",
    },
    "chargpt-mini": {
        "folder": "minGPT/projects/chargpt",
        "words": "chargpt.py --trainer.max_iters=1000000",
        "python_path": "minGPT",
    },
    "chargpt-gpt2": {
        "folder": "minGPT/projects/chargpt",
        "words": "chargpt.py --model.model_type=gpt2 --data.block_size=1024 --trainer.batch_size=16"
        " --trainer.max_iters=1000000",
        "python_path": "minGPT",
    },
    "imagenet": {
        "folder": "examples/imagenet",
        "words": "main.py --dummy -a resnet50 -b 256 --epochs 1000 --gpu 0",
    },
    "nanogpt": {
        "folder": "nanoGPT",
        "words": "train.py config/train_shakespeare_char.py --max_iters=1000000",
    },
}
# More than any tuning takes.
MANY = "1000000"
KEPT = (
    *("baseline", "best", "speedup", "ladder", "trials", "guard", "notes", "summary"),
    *(
        "tune_seconds",
        "spent_seconds",
        "break_even_steps",
        "compile_seconds",
        "gpu_hours",
        "break_even_gpu_hours",
    ),
)
RUN = ("name", "outcome", "updates", "took_s", "to_first_update_s")
_LEVERS = {"tf32": "tf32", "bf16": "bf16", "fused-optimizer": "fused", "attention": "attention"}


def clocks(samples: list[DeviceSample]) -> dict[str, Any]:
    """What the GPU did meanwhile: clocks, power and temperature, lowest, middle and highest."""
    found: dict[str, Any] = {"samples": len(samples)}
    for name in ("clock_compute_hz", "clock_memory_hz", "power_draw_mw", "temperature_c"):
        values = sorted(v for one in samples if (v := getattr(one, name, None)) is not None)
        found[name] = [values[0], values[len(values) // 2], values[-1]] if values else None
    reasons = {reason for one in samples for reason in getattr(one, "throttle_reasons", None) or ()}
    return {**found, "throttle_reasons": sorted(map(str, reasons))}


def flatout(words: list[str], folder: Path, python_path: str, limit_s: float = 1e6) -> tuple[str, str]:
    """What a command of ours says in a folder; after so many seconds it gets the Ctrl-C of a user, or two."""
    known = [python_path, str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": ":".join(part for part in known if part)}
    command = [sys.executable, "-m", "flatout", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes) as running:  # type: ignore[call-overload]
        for wait_s in (limit_s, 20.0):
            try:
                return running.communicate(timeout=wait_s)
            except subprocess.TimeoutExpired:
                running.send_signal(signal.SIGINT)
        return running.communicate()


def by_hand(words: list[str], levers: str, seconds: float) -> dict[str, Any]:
    """The expert's version, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.by_hand", *words, "--levers", levers]
    done = subprocess.run(
        [*command, "--seconds", str(seconds)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"failed": done.stderr[-500:]}
    return found


def levers_by_hand(tuned: dict[str, Any]) -> str:
    """What tuning chose, in the words of by_hand.py; what that does not know is left out."""
    words = []
    for trial in tuned["trials"]:
        if trial["verdict"] == "kept" and trial["lever"] in _LEVERS:
            words.append(_LEVERS[trial["lever"]])
        if trial["verdict"] == "kept" and trial["lever"] == "compile":
            mode = trial["settings"].get("mode", "default")
            words.append("compile" if mode == "default" else f"compile={mode}")
    return ",".join(words)


def batch_by_hand(tuned: dict[str, Any]) -> list[str]:
    """The batch that tuning chose, in the words of by_hand.py, where it chose one."""
    for trial in tuned["trials"]:
        if trial["verdict"] == "kept" and trial["lever"] == "batch-size":
            [size] = (value for name, value in trial["settings"].items() if not name.startswith("_"))
            return ["--batch", str(size)]
    return []


def _short(word: str) -> str:
    """Where a file lies on this machine is nobody's business."""
    return word.replace(f"{ROOT}/", "")


def _read(document: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(document)
    except ValueError:
        return {}
    return found


def _keep(run: Path, name: str, out: str | None) -> None:
    """The run folder, with its page: what a result file leaves out is asked for later."""
    if out is not None:
        with tarfile.open(Path(out) / f"run-{name}.tar.gz", "w:gz") as archive:
            archive.add(run, arcname=run.name)


def _what_was_run(folder: Path) -> dict[str, Any]:
    """Comparisons and trials, as far as a tuning came."""
    told = {
        name: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for name in ("comparisons", "guard")
        if (path := folder / f"{name}.jsonl")
    }
    trials = sorted(folder.glob("trials/*/trial.json"), key=lambda path: path.stat().st_mtime)
    runs = [json.loads(path.read_text()) for path in trials]
    return {
        "comparisons": told["comparisons"],
        "judgements": told["guard"],
        "runs": [{name: run[name] for name in RUN} for run in runs],
    }


def run_case(
    name: str, scripts: Path, turns: int, seconds: float, limit_s: float, more: list[str], out: str | None
) -> Iterator[dict[str, Any]]:
    """Tune, then run and compare: what is known so far, whenever more is."""
    case = CASES[name]
    words, steps = shlex.split(case["words"]), case.get("steps")
    with tempfile.TemporaryDirectory() as temporary:
        folder = scripts / case["folder"] if "folder" in case else Path(temporary)
        python_path = str(scripts / case["python_path"]) if "python_path" in case else ""
        plan = str(Path(temporary) / "flatout.toml")
        if "prepare" in case:
            subprocess.run([sys.executable, *shlex.split(case["prepare"])], check=True, capture_output=True)
        began = time.monotonic()
        options = ["--json", "--plan", plan, *shlex.split(case.get("options", "")), *more]
        tune = ["tune", *options, *words, *([steps, MANY] if steps else [])]
        stdout, stderr = flatout(tune, folder, python_path, limit_s)
        took_s = time.monotonic() - began
        result: dict[str, Any] = {
            "case": name,
            "words": [_short(word) for word in words],
            "options": " ".join(more),
            "took_s": took_s,
        }
        tuned = _read(stdout)
        if "guard" not in tuned:
            kept = max((folder / ".flatout" / "runs").glob("*"), key=lambda one: one.stat().st_mtime)
            _keep(kept, name, out)
            yield {**result, "failed": (stderr or stdout)[-2000:], **_what_was_run(kept)}
            return
        result |= {key: tuned.get(key) for key in KEPT}
        result["guard"].pop("curves", None)
        kept = folder / ".flatout" / "runs" / tuned["run"]
        _keep(kept, name, out)
        result |= _what_was_run(kept)
        spent = {stage: round(seconds) for stage, seconds in tuned["spent_seconds"].items()}
        print(f"{name}: {tuned['summary']}; {took_s:.0f} s: {spent}", flush=True)
        yield result
        if "by_hand" in case and tuned["plan"]:
            for found in against_the_expert(name, tuned, plan, turns, seconds):
                yield {**result, "by_hand": found}


def against_the_expert(
    name: str, tuned: dict[str, Any], plan: str, turns: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """The expert's version and `flatout run`, by turns, with the levers and the batch that tuning chose."""
    case, levers = CASES[name], levers_by_hand(tuned)
    expert = [*shlex.split(case["by_hand"]), *batch_by_hand(tuned)]
    count = str(int(max(60, seconds * 1000 / tuned["best"]["step_ms"])))
    run = ["run", "--json", "--plan", plan, *shlex.split(case["words"]), case["steps"], count]
    found: dict[str, Any] = {"levers": levers, "turns": []}
    for _ in range(turns):
        hand = by_hand(expert, levers, seconds)
        ours, problem = flatout(run, Path(plan).parent, "")
        figures = _read(ours) or {"failed": problem[-500:]}
        found["turns"].append({"by_hand": hand, "flatout_run": figures})
        print(f"  by hand {hand}, flatout run {figures.get('samples_per_s')}", flush=True)
        yield found


def plan_of(tuned: dict[str, Any], path: Path) -> str:
    """The plan of a tuning that is kept as a result, as a file again."""
    levers = tuple(
        Choice(id=trial["lever"], settings=trial["settings"])
        for trial in tuned["trials"]
        if trial["verdict"] == "kept"
    )
    Plan(job=Fingerprint(script=tuned["words"][0], script_sha256=""), levers=levers).write(path)
    return str(path)


def main() -> None:
    """Run the cases that were named, each into a file of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="+", choices=CASES)
    parser.add_argument("--scripts", type=Path, default=Path.cwd(), help="where scripts of others lie")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--limit", type=float, default=1e6, help="seconds of tuning, then a Ctrl-C")
    parser.add_argument("--options", default="", help="more for `flatout tune`: '--budget 2m'")
    parser.add_argument("--kept", type=Path, help="no tuning: by hand alone, with what this result chose")
    parser.add_argument("--out", help="a folder for the result files, and for the run folder of each tuning")
    chosen = parser.parse_args()
    for name in chosen.cases:
        out = str(Path(chosen.out) / f"tuning-{name}.json") if chosen.out else None
        if chosen.kept is not None:
            tuned = json.loads(chosen.kept.read_text())
            with tempfile.TemporaryDirectory() as temporary, DeviceSampler() as sampler:
                plan = plan_of(tuned, Path(temporary) / "flatout.toml")
                for found in against_the_expert(name, tuned, plan, chosen.turns, chosen.seconds):
                    shown = {"case": name, "kept": chosen.kept.name, "by_hand": found}
                    write(f"by-hand-{name}", {**shown, "device": clocks(sampler.samples)}, out)
            continue
        with DeviceSampler() as sampler:
            more = shlex.split(chosen.options)
            scripts = chosen.scripts.resolve()
            limits = (chosen.turns, chosen.seconds, chosen.limit)
            for result in run_case(name, scripts, *limits, more, chosen.out):
                write(f"tuning-{name}", {**result, "device": clocks(sampler.samples)}, out)


if __name__ == "__main__":
    main()
