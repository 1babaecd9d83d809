"""The README's picture: what a tuning on an H200 gave, lever by lever, from the figures that are kept."""

import json
import shlex
from html import escape
from pathlib import Path
from typing import Any

RESULT = "benchmarks/results/2026-11-16-nvidia-h200-tuning-images.json"
_WIDTH, _ROW, _TOP = 900, 34, 104
_SVG = 'xmlns="http://www.w3.org/2000/svg"'
_BAR_LEFT, _BAR_WIDTH = 250, 400
_STYLE = """
text { font: 14px ui-sans-serif, system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; fill: #1f2328; }
.title { font-size: 24px; font-weight: 700; }
.quiet { fill: #59636e; }
.mono { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: 13px; }
.number { text-anchor: end; font-variant-numeric: tabular-nums; }
.strong { font-weight: 700; }
.was { fill: #8b949e; } .now { fill: #0072b2; } .best { fill: #00845a; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .quiet { fill: #9198a1; }
.was { fill: #6e7681; } .now { fill: #4aa3df; } .best { fill: #2ea877; }
}
"""


def before_after(root: Path) -> str:
    """As SVG."""
    found = json.loads((root / RESULT).read_text())
    rows = [("as written", found["baseline"], "")]
    rows += [(f"+ {_short(rung['lever'])}", rung, f"{rung['gain']:.2f}x") for rung in found["ladder"]]
    most = max(row["samples_per_s"] for _, row, _ in rows)
    height = _TOP + _ROW * len(rows) + 46
    drawn = [
        f'<svg {_SVG} viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(_said(found))}">',
        f"<style>{_STYLE}</style>",
        _text(0, 28, _headline(found), "title"),
        _text(0, 56, f"flatout tune {_command(found)}", "mono quiet"),
        *(_text(at, 88, name, "number quiet") for at, name in _COLUMNS.items()),
    ]
    for number, (name, row, gain) in enumerate(rows):
        kind = "was" if number == 0 else "best" if number == len(rows) - 1 else "now"
        drawn += _row(_TOP + _ROW * number, name, row, gain, row["samples_per_s"] / most, kind)
    drawn.append(_text(0, height - 12, _foot(found), "quiet"))
    return "\n".join([*drawn, "</svg>", ""])


_COLUMNS = {730: "samples/s", 810: "MFU", 890: "gain"}


def _row(top: float, name: str, row: dict[str, Any], gain: str, share: float, kind: str) -> list[str]:
    numbers = (f"{row['samples_per_s']:,.0f}", f"{100 * row['mfu']:.1f} %", gain)
    strong = " strong" if kind == "best" else ""
    bar = f'x="{_BAR_LEFT}" y="{top}" width="{_BAR_WIDTH * share:.1f}" height="22" rx="3"'
    return [
        _text(0, top + 16, name, strong),
        f'<rect class="{kind}" {bar}/>',
        *(
            _text(at, top + 16, number, f"number{strong}")
            for at, number in zip(_COLUMNS, numbers, strict=True)
        ),
    ]


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text x="{x}" y="{y}" class="{kind.strip()}">{escape(words)}</text>'


def _headline(found: dict[str, Any]) -> str:
    before, after = found["baseline"]["samples_per_s"], found["best"]["samples_per_s"]
    return f"{before:,.0f} → {after:,.0f} samples/s: {found['speedup']:.2f} times as fast"


def _said(found: dict[str, Any]) -> str:
    return f"{_headline(found)}, with {', '.join(_short(rung['lever']) for rung in found['ladder'])}"


def _short(lever: str) -> str:
    """A lever with the one setting that says most."""
    name, _, settings = lever.partition(" (")
    workers = next((one for one in settings.rstrip(")").split(", ") if one.startswith("num_workers")), "")
    if workers:
        return f"{name}, {workers.partition('=')[2]} workers"
    return f"{name}, {settings.rstrip(')')}" if settings else name


def _command(found: dict[str, Any]) -> str:
    words = [word for word in found["words"] if word != "--folder" and not word.startswith("/")]
    return shlex.join(words)


def _foot(found: dict[str, Any]) -> str:
    busy = [round(100 * found[one]["gpu_busy_share"]) for one in ("baseline", "best")]
    return (
        f"{found['machine']['devices'][0]}, {Path(RESULT).name[:10]}. The script is unchanged. "
        f"GPU busy {busy[0]} → {busy[1]} %. Tuning took {found['took_s']:.0f} s."
    )
