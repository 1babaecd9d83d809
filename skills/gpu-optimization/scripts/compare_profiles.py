#!/usr/bin/env python3
"""Two documents of `flatout profile --json`, side by side: compare_profiles.py before.json after.json."""

import json
import sys
from pathlib import Path


def main() -> int:
    """Print step times, their ratio, and what each part of a step takes."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    before, after = (json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:])
    for document, name in ((before, sys.argv[1]), (after, sys.argv[2])):
        if document.get("schema") != "flatout.profile/1":
            print(f"{name} is no flatout.profile/1 but {document.get('schema')!r}", file=sys.stderr)
            return 2
    steps = [document.get("step_ms") for document in (before, after)]
    if not all(steps):
        print("a profile without a step time: its step_ms is null", file=sys.stderr)
        return 1
    old, new = steps
    print(f"step {old['p50']:.2f} -> {new['p50']:.2f} ms, {old['p50'] / new['p50']:.2f}x")
    apart = new["high"] < old["low"] or new["low"] > old["high"]
    print(
        "the intervals of both do not overlap" if apart else "the intervals overlap: no difference is shown"
    )
    parts = [{row["part"]: row["ms"] for row in document["waterfall"]} for document in (before, after)]
    for part in sorted({*parts[0], *parts[1]}, key=lambda name: -parts[0].get(name, 0.0)):
        print(f"{part:16} {parts[0].get(part, 0.0):10.3f} {parts[1].get(part, 0.0):10.3f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
