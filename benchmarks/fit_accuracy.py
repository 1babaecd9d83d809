"""How far `flatout fit` is from what a GPU measures: models, batch sizes, precisions, optimizers.

    python -m benchmarks.fit_accuracy predict --out predicted.json              # anywhere: no GPU needed
    python -m benchmarks.fit_accuracy measure --predicted predicted.json        # on the GPU
    python -m benchmarks.fit_accuracy measure --predicted new.json --measured FILE   # only what FILE lacks
    python -m benchmarks.fit_accuracy examples          # against what tuning saw of our examples on an H200

Each case is `benchmarks/fit_job.py` with other arguments, in a process of its own.
"""

import argparse
import concurrent.futures
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import write

ROOT = Path(__file__).parents[1]
JOB = ROOT / "benchmarks" / "fit_job.py"
RESULTS = ROOT / "benchmarks" / "results"
_AT_ONCE = 6

CASES = tuple(
    f"--model {words}"
    for words in (
        *(
            f"gpt --batch {size} --precision {kind}"
            for size in (2, 8)
            for kind in ("fp32", "autocast", "bf16")
        ),
        *(
            "gpt --batch 32 --precision autocast",
            "gpt --batch 8 --checkpointing",
            "gpt --batch 8 --optimizer sgd",
        ),
        "gpt --batch 32 --precision autocast --checkpointing",
        "gpt --layers 12 --width 1024 --length 1024 --batch 4 --precision autocast",
        *(
            f"llama --batch {size} --precision {kind}"
            for size in (2, 8)
            for kind in ("fp32", "autocast", "bf16")
        ),
        *("llama --batch 8 --optimizer sgd", "llama --batch 16 --precision bf16 --checkpointing"),
        "llama --layers 12 --width 2048 --length 1024 --batch 2 --precision bf16",
        *(f"bert --batch 16 --length 256 --precision {kind}" for kind in ("fp32", "autocast", "bf16")),
        *("bert --batch 32 --length 128 --optimizer sgd", "bert --batch 16 --length 256 --checkpointing"),
        *(f"vit --batch {size} --precision {kind}" for size in (16, 64) for kind in ("fp32", "autocast")),
        *("vit --batch 64 --precision bf16", "vit --batch 32 --optimizer sgd"),
        *(f"resnet --batch {size} --precision {kind}" for size in (16, 64) for kind in ("fp32", "autocast")),
        *("resnet --batch 64 --optimizer sgd", "resnet --batch 64 --precision bf16"),
        *(f"unet --batch {size} --precision {kind}" for size in (4, 16) for kind in ("fp32", "autocast")),
        *("lstm --batch 16", "lstm --batch 64 --precision autocast", "lstm --batch 32 --optimizer sgd"),
    )
)

# The rules in `memory/imagined/scratch.py` were read off some of the cases above. Off none of these.
HELD_OUT = tuple(
    f"--model {words}"
    for words in (
        "gpt --layers 8 --width 512 --length 384 --batch 12 --precision autocast",
        "gpt --layers 4 --width 1280 --length 640 --batch 6 --checkpointing",
        "llama --layers 10 --width 640 --length 768 --batch 5 --precision autocast",
        "llama --layers 6 --width 1024 --length 256 --batch 20 --optimizer sgd",
        "bert --layers 12 --width 512 --length 200 --batch 24 --precision autocast",
        "vit --layers 12 --width 384 --batch 48",
        "vit --layers 8 --width 1024 --batch 20 --precision autocast --checkpointing",
        "resnet --batch 40",
        "resnet --batch 96 --precision autocast",
        "unet --batch 10",
        "unet --batch 7 --precision autocast --optimizer sgd",
        "lstm --width 512 --batch 40",
    )
)

# What is imagined is the code as written; compiled code keeps less, as a rule. Counted apart.
COMPILED = tuple(
    f"--model {words} --compile"
    for words in (
        "gpt --batch 8",
        "gpt --batch 8 --precision autocast",
        "llama --batch 8 --precision bf16",
        "bert --batch 16 --length 256 --precision autocast",
        "vit --batch 64 --precision autocast",
        "resnet --batch 64 --precision autocast",
    )
)


def ran(words: list[str], folder: str) -> dict[str, Any]:
    """The document that a command prints last; what it said where there is none."""
    path = ":".join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    try:
        found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        return {"failed": (done.stderr or done.stdout)[-400:]}
    return found


def predict(case: str) -> dict[str, Any]:
    """What `flatout fit` says."""
    with tempfile.TemporaryDirectory() as folder:
        found = ran(["-m", "flatout", "fit", "--json", str(JOB), *case.split()], folder)
    kept = ("peak_bytes", "reserved_bytes", "parts", "notes", "took_s", "failed")
    held_out = {"held_out": True} if case in HELD_OUT else {}
    return {"case": case, **held_out, **{name: found[name] for name in kept if name in found}}


def measure(case: str) -> dict[str, Any]:
    """What torch counts on the GPU."""
    return ran([str(JOB), *case.split()], ".")


def examples() -> list[dict[str, Any]]:
    """Our examples, and what they reserved on an H200 when they were tuned there."""
    rows = []
    for name in ("gpt-124m", "gpt-124m-sdpa", "gpt-1.3b"):
        [path] = RESULTS.glob(f"*-nvidia-h200-tuning-{name}.json")
        tuned = json.loads(path.read_text())
        with tempfile.TemporaryDirectory() as folder:
            script, *more = tuned["words"]
            found = ran(["-m", "flatout", "fit", "--json", str(ROOT / script), *more], folder)
        measured = {"reserved_bytes": tuned["baseline"]["peak_bytes"], "from": path.name}
        row = {name: found.get(name) for name in ("peak_bytes", "reserved_bytes", "took_s")}
        rows.append({"case": " ".join(tuned["words"]), **row, "measured": measured})
    return rows


def errors(rows: list[dict[str, Any]], predicted: str, measured: str) -> dict[str, float]:
    """Relative errors: the middle, the 95th percentile and the worst."""
    found = sorted(
        abs(row[predicted] / row["measured"][measured] - 1)
        for row in rows
        if predicted in row and measured in row.get("measured", {})
    )
    if not found:
        return {}
    nearly_all = found[min(len(found) - 1, round(0.95 * (len(found) - 1)))]
    return {"cases": len(found), "median": statistics.median(found), "p95": nearly_all, "worst": found[-1]}


def verdicts(rows: list[dict[str, Any]]) -> dict[str, float]:
    """How often "it fits" and "it does not" would have been right, for more and for less than needed."""
    asked = [
        (row["reserved_bytes"] <= share * row["measured"]["reserved_bytes"]) == (share >= 1)
        for row in rows
        for share in (0.5, 0.8, 0.9, 1.1, 1.25, 2.0)
        if "reserved_bytes" in row and "reserved_bytes" in row["measured"]
    ]
    return {"asked": len(asked), "right": sum(asked) / max(1, len(asked))}


def formulas(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What two rules of thumb say of the same cases, which know of parameters alone.

    `accelerate estimate-memory` counts four times the weights for a training with Adam;
    DeepSpeed's `estimate_zero2_model_states_mem_needs` counts 20 bytes a parameter on one GPU.
    """
    for row in rows:
        weights = row.get("parts", {}).get("parameters", 0)
        count = weights / (2 if "--precision bf16" in row["case"] else 4)
        row["accelerate_bytes"], row["deepspeed_bytes"] = 4 * weights, 20 * count
    return {
        "accelerate estimate-memory": errors(rows, "accelerate_bytes", "allocated_bytes"),
        "DeepSpeed ZeRO-2, one GPU": errors(rows, "deepspeed_bytes", "allocated_bytes"),
    }


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors and verdicts, of all cases and of those that no rule was read off; of compiled ones apart."""
    compiled = [row for row in rows if "--compile" in row["case"]]
    rows = [row for row in rows if row not in compiled]
    held_out = [row for row in rows if row.get("held_out")]
    return {
        "allocated": errors(rows, "peak_bytes", "allocated_bytes"),
        "reserved": errors(rows, "reserved_bytes", "reserved_bytes"),
        "held out, allocated": errors(held_out, "peak_bytes", "allocated_bytes"),
        "held out, reserved": errors(held_out, "reserved_bytes", "reserved_bytes"),
        "fits or not": verdicts(rows),
        "allocated, by rules of thumb": formulas(rows),
        "compiled, predicted over measured": {
            row["case"]: row["peak_bytes"] / row["measured"]["allocated_bytes"]
            for row in compiled
            if "peak_bytes" in row and "allocated_bytes" in row.get("measured", {})
        },
    }


def main() -> None:
    """Predict here, measure there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("predict", "measure", "examples"))
    parser.add_argument("--predicted", type=Path, help="what `predict` wrote")
    parser.add_argument("--measured", type=Path, help="what `measure` wrote: these are not measured again")
    parser.add_argument("--only", default="", help="cases with this word")
    parser.add_argument("--out", help="where to write the result")
    chosen = parser.parse_args()
    if chosen.what == "examples":
        rows = examples()
        summary = {"reserved": errors(rows, "reserved_bytes", "reserved_bytes")}
        print(summary)
        write("fit-examples", {"summary": summary, "rows": rows}, chosen.out)
        return
    cases = [case for case in (*CASES, *HELD_OUT, *COMPILED) if chosen.only in case]
    if chosen.what == "predict":
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            rows = list(pool.map(predict, cases))
        for row in rows:
            print(row["case"], row.get("reserved_bytes", row.get("failed")))
        write("fit-predicted", {"rows": rows}, chosen.out)
        return
    if chosen.predicted is None:
        parser.error("measure needs --predicted FILE")
    rows = json.loads(chosen.predicted.read_text())["rows"]
    if chosen.measured is not None:  # on the same cases, at another time
        known = {row["case"]: row for row in json.loads(chosen.measured.read_text())["rows"]}
        predicted = {row["case"]: row for row in rows}
        rows = [{**row, **predicted.get(case, {})} for case, row in known.items()]
        rows += [row for case, row in predicted.items() if case not in known]
    new = [row for row in rows if "measured" not in row]
    if shutil.which("nvidia-smi") is None:
        rows, new = [row for row in rows if row not in new], []
    # What torch counts is a process's own: several at once count the same.
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        for row, measured in zip(new, pool.map(measure, (row["case"] for row in new)), strict=True):
            row["measured"] = measured
            print(row["case"], row.get("reserved_bytes"), row["measured"], flush=True)
    summary = summary_of(rows)
    print(json.dumps(summary, indent=2))
    write("fit-accuracy", {"summary": summary, "rows": rows}, chosen.out)


if __name__ == "__main__":
    main()
