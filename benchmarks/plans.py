"""Unmodified examples under plans written by hand: what levers, alone or together, give at a batch size.

Shows what a job can reach under levers that change the training (`--allow`), and what each of them adds, in
minutes, where tuning would take many more. Each is profiled in a process of its own.

    python -m benchmarks.plans                       # all
    python -m benchmarks.plans gpt-1.3b-16-bf16-parameters gpt-1.3b-16-fp8
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import write
from benchmarks.profiled import profiled
from flatout.records.plan import Choice, Fingerprint, Plan

ROOT = Path(__file__).parents[1]
SCRIPT = str(ROOT / "examples" / "gpt_sdpa.py")
GRAPHS = Choice(id="compile", settings={"mode": "reduce-overhead"})
COMPILED = Choice(id="compile", settings={"mode": "default"})
FUSED = Choice(id="fused-optimizer")
BF16 = Choice(id="bf16")
CHUNKED_LOSS = Choice(id="linear-cross-entropy")
BF16_PARAMETERS = Choice(id="bf16-parameters")
FP8 = Choice(id="fp8")
CUDNN = Choice(id="sdpa-backend", settings={"first": "cudnn"})

Case = tuple[tuple[str, ...], tuple[Choice, ...]]
CASES: dict[str, Case] = {
    **{
        f"gpt-124m-{batch}": (("--size", "124m", "--batch-size", str(batch)), (BF16, FUSED, GRAPHS))
        for batch in (32, 64, 128)
    },
    **{
        f"gpt-124m-{batch}-chunked-loss": (
            ("--size", "124m", "--batch-size", str(batch)),
            (BF16, FUSED, CHUNKED_LOSS, GRAPHS),
        )
        for batch in (4, 32, 64, 128)
    },
    "gpt-1.3b-16": (("--size", "1.3b", "--batch-size", "16"), (BF16, FUSED, GRAPHS)),
    **{
        f"gpt-1.3b-16-bf16-parameters{name}": (
            ("--size", "1.3b", "--batch-size", "16"),
            (BF16_PARAMETERS, CUDNN, FUSED, *more, GRAPHS),
        )
        for name, more in (
            ("", ()),
            ("-fp8", (FP8,)),
            ("-chunked-loss", (CHUNKED_LOSS,)),
            ("-chunked-loss-fp8", (CHUNKED_LOSS, FP8)),
        )
    },
}
KEPT = ("step_ms", "samples_per_s", "mfu", "waterfall", "floors", "memory", "unknown")
_MOST_KERNELS = 25


def run_case(name: str, seconds: float, limit_s: float) -> dict[str, Any]:
    """Profile one."""
    words, levers = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.toml"
        Plan(job=Fingerprint(script=SCRIPT, script_sha256=""), levers=levers).write(plan)
        options = ["--no-limits", "--plan", str(plan), "--seconds", str(seconds)]
        began = time.monotonic()
        found = profiled([*options, SCRIPT, *words, "--steps", "1000000"], folder, limit_s=limit_s)
        took_s = time.monotonic() - began
    result: dict[str, Any] = {
        "case": name,
        "words": list(words),
        "levers": [one.words() for one in levers],
        "took_s": took_s,
    }
    if "findings" not in found:
        return {**result, "failed": found.get("failed", "it was interrupted")}
    result |= {key: found.get(key) for key in KEPT}
    trace = found.get("trace") or {}
    result["kernels"] = (trace.get("kernels") or [])[:_MOST_KERNELS]
    result["findings"] = [one["code"] for one in found["findings"]]
    return result


def main() -> None:
    """Run the cases, and say how they went in a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all without")
    parser.add_argument("--seconds", type=float, default=5.0, help="of steps that are timed")
    parser.add_argument("--limit", type=float, default=1e6, help="seconds for all of them")
    parser.add_argument("--out", help="a folder for the result file")
    chosen = parser.parse_args()
    deadline = time.monotonic() + chosen.limit
    results = []
    out = str(Path(chosen.out) / "plans.json") if chosen.out else None
    for name in chosen.cases or CASES:
        result = run_case(name, chosen.seconds, max(1.0, deadline - time.monotonic()))
        results.append(result)
        mfu = (result.get("mfu") or {}).get("of_rated")
        print(
            f"{name}: {result.get('samples_per_s')} samples/s, MFU {mfu}, {result['took_s']:.0f} s "
            f"{result.get('failed', '')[-300:]}",
            flush=True,
        )
        write("plans", {"cases": results}, out)


if __name__ == "__main__":
    main()
