"""`flatout tune` on unmodified scripts: what it gains, what it costs, and against the same levers by hand.

Each case tunes a script as a user would. Where an expert's version exists (benchmarks/by_hand.py), it and
`flatout run` then take turns, each in a process of its own, with the levers that tuning chose. Clocks and
temperature of the GPU are noted before and after.

    python -m benchmarks.tuning gpt-124m gpt-124m-sdpa
    python -m benchmarks.tuning --scripts ~/src chargpt-mini   # scripts of others, fetched by hand
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import write
from flatout.hardware.machine import default_sources

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"

# Words after `flatout tune`; {scripts} is where scripts of others lie. The folder is where they are run.
CASES: dict[str, dict[str, Any]] = {
    "tiny": {
        "words": [str(EXAMPLES / "gpt.py"), "--layers", "2", "--width", "64", "--heads", "4"]
        + ["--length", "64", "--vocabulary", "1000", "--steps", "100000"],
        "options": ["--budget", "20s"],
        "by_hand": [str(EXAMPLES / "gpt.py"), "--size", "tiny"],
    },
    "gpt-124m": {
        "words": [str(EXAMPLES / "gpt.py"), "--steps", "100000"],
        "by_hand": [str(EXAMPLES / "gpt.py")],
    },
    "gpt-124m-sdpa": {
        "words": [str(EXAMPLES / "gpt_sdpa.py"), "--size", "124m", "--steps", "100000"],
        "by_hand": [str(EXAMPLES / "gpt_sdpa.py")],
    },
    "gpt-1.3b": {
        "words": [str(EXAMPLES / "gpt_sdpa.py"), "--size", "1.3b", "--batch-size", "2", "--steps", "100000"],
        "by_hand": [str(EXAMPLES / "gpt_sdpa.py"), "--size", "1.3b", "--batch", "2"],
    },
    "gpt-1.3b-larger-batch": {
        "words": [str(EXAMPLES / "gpt_sdpa.py"), "--size", "1.3b", "--batch-size", "2", "--steps", "100000"],
        "options": ["--allow", "batch-size"],
    },
    "images": {
        "words": [str(EXAMPLES / "images.py"), "--steps", "100000"],
        "options": ["--allow", "batch-size"],
    },
    "chargpt-mini": {
        "folder": "minGPT/projects/chargpt",
        "words": ["chargpt.py", "--trainer.max_iters=1000000"],
        "python_path": "minGPT",
    },
    "chargpt-gpt2": {
        "folder": "minGPT/projects/chargpt",
        "words": ["chargpt.py", "--model.model_type=gpt2", "--data.block_size=1024"]
        + ["--trainer.batch_size=16", "--trainer.max_iters=1000000"],
        "python_path": "minGPT",
    },
    "imagenet": {
        "folder": "examples/imagenet",
        "words": ["main.py", "--dummy", "-a", "resnet50", "-b", "256", "--epochs", "1000", "--gpu", "0"],
    },
    "nanogpt": {
        "folder": "nanoGPT",
        "words": ["train.py", "config/train_shakespeare_char.py", "--max_iters=1000000"],
    },
}
_LEVERS = {"tf32": "tf32", "bf16": "bf16", "fused-optimizer": "fused"}


def clocks() -> list[dict[str, Any]]:
    """What the GPUs are doing just now."""
    found = []
    for source in default_sources():
        for device in source.discover().devices:
            sample = source.sample(device) if hasattr(source, "sample") else None
            found.append({"name": device.name, "sample": str(sample) if sample is not None else None})
    return found


def flatout(words: list[str], folder: Path, python_path: str) -> "subprocess.CompletedProcess[str]":
    """A command of ours in a folder."""
    known = [python_path, str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": ":".join(part for part in known if part)}
    return subprocess.run(
        [sys.executable, "-m", "flatout", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


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


def run_case(name: str, scripts: Path, turns: int, seconds: float) -> dict[str, Any]:
    """Tune, then run and compare."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = scripts / case["folder"] if "folder" in case else Path(temporary)
        python_path = str(scripts / case["python_path"]) if "python_path" in case else ""
        plan = str(Path(temporary) / "flatout.toml")
        before, began = clocks(), time.monotonic()
        done = flatout(
            ["tune", "--json", "--plan", plan, *case.get("options", ()), *case["words"]], folder, python_path
        )
        took_s = time.monotonic() - began
        result: dict[str, Any] = {"case": name, "words": case["words"], "clocks": [before], "took_s": took_s}
        try:
            tuned = json.loads(done.stdout)
        except ValueError:
            return {**result, "failed": (done.stderr or done.stdout)[-2000:]}
        kept = (
            "baseline",
            "best",
            "speedup",
            "ladder",
            "trials",
            "guard",
            "notes",
            "summary",
            "tune_seconds",
        )
        result |= {key: tuned.get(key) for key in (*kept, "break_even_steps", "compile_seconds", "gpu_hours")}
        result["guard"].pop("curves", None)
        print(f"{name}: {tuned['summary']}; {took_s:.0f} s", flush=True)
        if "by_hand" in case and tuned["plan"]:
            levers = levers_by_hand(tuned)
            result["by_hand"] = {"levers": levers, "turns": []}
            steps = str(int(max(60, seconds * 1000 / tuned["best"]["step_ms"])))
            words = [*case["words"][:-1], steps]
            for _ in range(turns):
                hand = by_hand(case["by_hand"], levers, seconds)
                ours = flatout(["run", "--json", "--plan", plan, *words], folder, python_path)
                try:
                    figures = json.loads(ours.stdout)
                except ValueError:
                    figures = {"failed": ours.stderr[-500:]}
                result["by_hand"]["turns"].append({"by_hand": hand, "flatout_run": figures})
                print(f"  by hand {hand}, flatout run {figures.get('samples_per_s')}", flush=True)
        result["clocks"].append(clocks())
        return result


def main() -> None:
    """Run the cases that were named, each into a file of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="+", choices=CASES)
    parser.add_argument("--scripts", type=Path, default=Path.cwd(), help="where scripts of others lie")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--out", help="a folder for the result files")
    chosen = parser.parse_args()
    for name in chosen.cases:
        result = run_case(name, chosen.scripts.resolve(), chosen.turns, chosen.seconds)
        out = str(Path(chosen.out) / f"tuning-{name}.json") if chosen.out else None
        write(f"tuning-{name}", result, out)


if __name__ == "__main__":
    main()
