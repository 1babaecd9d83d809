"""What `flatout profile` says of unmodified scripts: their waterfall, and the findings with their lines.

    python -m benchmarks.findings [CASE ...] --scripts FOLDER [--out FOLDER]

The scripts of others (minGPT, pytorch/examples, nanoGPT) are expected under --scripts.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import write
from benchmarks.profiled import profiled
from benchmarks.tuning import CASES

_USUAL = ("gpt-124m", "chargpt-mini", "imagenet")
_KEPT = ("step_ms", "waterfall", "floors", "mfu", "device_use", "unknown")


def said_of(name: str, scripts: Path, limit_s: float) -> dict[str, Any]:
    """One script, as it is."""
    case = CASES[name]
    folder = scripts / case["folder"] if "folder" in case else None
    python_path = str(scripts / case["python_path"]) if "python_path" in case else ""
    with tempfile.TemporaryDirectory() as elsewhere:
        words = ["--no-limits", "--seconds", "4", *case["words"].split()]
        found = profiled(words, folder or elsewhere, python_path, limit_s)
    if "failed" in found:
        return {"case": name, **found}
    findings = [
        {
            "code": one["code"],
            "title": one["title"],
            "predicted_speedup": one["predicted_speedup"],
            "where": [f"{Path(place['file']).name}:{place['line']}" for place in one["where"][:3]],
        }
        for one in found["findings"]
    ]
    return {"case": name, **{key: found.get(key) for key in _KEPT}, "findings": findings}


def main() -> None:
    """Profile them, and say what is largest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--scripts", type=Path, default=Path())
    parser.add_argument("--limit", type=float, default=1e6, help="seconds for all of them")
    parser.add_argument("--out", help="a folder for the result file")
    chosen = parser.parse_args()
    deadline = time.monotonic() + chosen.limit
    out = str(Path(chosen.out) / "findings.json") if chosen.out else None
    rows = []
    for name in chosen.cases or _USUAL:
        began = time.monotonic()
        row = said_of(name, chosen.scripts.resolve(), max(1.0, deadline - began))
        row["took_s"] = time.monotonic() - began
        rows.append(row)
        shares = sorted(row.get("waterfall") or (), key=lambda share: -share["ms"])
        told = [f"{share['part']} {share['share']:.0%}" for share in shares[:3]]
        print(
            name,
            told,
            f"{row['took_s']:.0f} s",
            [one["code"] for one in row.get("findings", ())],
            row.get("failed", "")[-200:],
            flush=True,
        )
        # After each: a device may be taken away before the last.
        write("findings", {"rows": rows}, out)


if __name__ == "__main__":
    main()
