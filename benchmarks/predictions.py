"""What levers were predicted to give, against what they gave: over every tuning that is kept in results/.

    python -m benchmarks.predictions            # the table of docs/predictions.md

Each row is a lever in one tuning: predicted from the baseline alone, measured by turns in the running job.
Of a lever in the plan that is its rung of the ladder, on top of the others; of another its comparison alone.
"""

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

# Below this, an error of what is gained is mostly one of measuring it.
_HELPED = 1.1
RESULTS = Path(__file__).parent / "results"


def rows() -> list[dict[str, Any]]:
    """Every lever of every tuning that has both figures."""
    found = []
    for path in sorted(RESULTS.glob("*tuning-*.json")):
        tuned = json.loads(path.read_text())
        for trial in tuned.get("trials", ()):
            predicted, measured = trial.get("predicted_speedup"), trial.get("measured_speedup")
            if predicted and measured:
                found.append(
                    {
                        "case": tuned["case"],
                        "lever": trial["lever"],
                        "settings": trial["settings"],
                        "predicted": predicted,
                        "measured": measured,
                        "error": predicted / measured - 1,
                        "file": path.name,
                    }
                )
    return found


def table(found: list[dict[str, Any]]) -> str:
    """By lever, in Markdown."""
    by_lever: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in found:
        by_lever[row["lever"]].append(row)
    lines = ["| lever | tunings | predicted | measured | error |", "|---|---:|---:|---:|---:|"]
    for lever, some in sorted(by_lever.items(), key=lambda item: -len(item[1])):
        predicted, measured = (
            statistics.median(row[name] for row in some) for name in ("predicted", "measured")
        )
        error = statistics.median(row["error"] for row in some)
        lines.append(f"| {lever} | {len(some)} | {predicted:.2f}x | {measured:.2f}x | {error:+.0%} |")
    whole = statistics.median(abs(row["error"]) for row in found)
    helped = [row for row in found if row["measured"] >= _HELPED]
    of_gains = statistics.median(abs((row["predicted"] - 1) / (row["measured"] - 1) - 1) for row in helped)
    lines.append(
        f"\nMedian of the absolute error over {len(found)} predictions: {whole:.0%}. That is of the "
        "speedup,\nwhich levers that change little flatter. Of what is gained, over the "
        f"{len(helped)} that gave {_HELPED}x\nor more: {of_gains:.0%}."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(rows()))
