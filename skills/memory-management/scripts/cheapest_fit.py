#!/usr/bin/env python3
"""What a document of `flatout fit --json` fits on, the cheapest first: python cheapest_fit.py fit.json."""

import json
import sys
from pathlib import Path
from typing import Any

GIB = 1 << 30


def main() -> int:
    """Print GPUs and ways with room, by dollars an hour times the slowdown."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if document.get("schema") != "flatout.fit/1" or "options" not in document:
        print(f"no document of one fit: {document.get('schema')!r}", file=sys.stderr)
        return 2
    rows = [row for row in (*document["options"], *document.get("strategies", ())) if row["fits"]]
    rows = [row for row in rows if not row.get("changes_training")]
    for row in sorted(rows, key=lambda row: (_usd(row) is None, _usd(row) or 0.0, row["peak_bytes"])):
        usd = _usd(row)
        price = "price unknown" if usd is None else f"{usd:.2f} USD for the work of an hour"
        way = row.get("strategy") or "as written"
        print(f"{row['gpu']:20} {row['peak_bytes'] / GIB:8.1f} GiB  {price}  {way}")
    if not rows:
        print("nothing fits without changing the training; ways that would are in `strategies`")
    return 0 if rows else 1


def _usd(row: dict[str, Any]) -> float | None:
    """An hour of it, longer by what the way costs in time."""
    price = row.get("usd_per_hour")
    return None if price is None else price * (row.get("predicted_slowdown") or 1.0)


if __name__ == "__main__":
    sys.exit(main())
