"""Faults planted in a script, and what `flatout profile` says of them: how much, which finding, which line.

Each case is a small training on the GPU with one fault. What it costs is what the step becomes longer than
that of the same script without it, in the same session; as much the parts of the waterfall must have grown.

    python -m benchmarks.ground_truth [CASE ...] [--limit 160] [--out FOLDER]

Limits of the device are used where they are kept, and not measured: `flatout limits` does that.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import write
from benchmarks.profiled import profiled

BEGIN = """
import math, time, torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, TOKENS, VOCABULARY = {width}, 4096, {vocabulary}
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(8)))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
    def forward(self, tokens):
        x = self.blocks(self.tokens(tokens))
{inside}
        return self.head(x)
model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), fused=device == "cuda")
tokens = torch.randint(VOCABULARY, (TOKENS,), device=device)
kept = []
def step():
    with torch.autocast(device, torch.bfloat16, enabled={autocast}):
        loss = F.cross_entropy(model(tokens), tokens)
    {zero}
    loss.backward()
    optimizer.step()
{after}
    return loss
while True:
    step()
"""
PLAIN = {
    "width": 1024,
    "vocabulary": 8192,
    "inside": "",
    "autocast": "True",
    "zero": "optimizer.zero_grad()",
    "after": "",
}
ATTENTION = """
        q = k = v = x.view(4, 1024, 16, -1).transpose(1, 2)
        mask = torch.ones(1024, 1024, dtype=torch.bool, device=x.device).tril()
        for _ in range(8):
            scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.size(-1))
            scores = scores.masked_fill(~mask, float("-inf"))
            q = torch.softmax(scores, dim=-1) @ v  # here
        x = x + q.transpose(1, 2).reshape(x.shape)
"""
TINY = """    small = torch.zeros(8, device=device)
    for _ in range(10000):
        small += 1  # here"""
# Of each: what is changed, the findings that may come first, the parts of the waterfall that it is to be
# found in, and text of the lines that may be named; the planted line where there is none.
CASES: dict[str, dict[str, Any]] = {
    "sync-20-ms": {
        "changes": {"after": "    loss.item()  # here\n    time.sleep(0.02)"},
        "codes": ["F204"],
        "parts": ("sync_stall",),
        "planted_ms": 20.0,
    },
    "fp32-products": {
        "changes": {"autocast": "False"},
        "codes": ["F302", "F301", "F309"],
        "parts": ("matmul",),
        "lines": ("self.down(F.gelu", "loss = F.cross_entropy(model(tokens)"),
    },
    "attention-by-hand": {
        "changes": {"inside": ATTENTION},
        "codes": ["F305", "F310"],
        "parts": ("matmul", "attention", "memory_bound", "other_gpu"),
    },
    "leak-1-mb": {
        "changes": {"after": "    kept.append(torch.ones(1 << 18, device=device))  # here"},
        "codes": ["F505"],
        "growth_bytes": 1 << 20,
    },
    "no-zero-grad": {
        "changes": {"zero": "pass"},
        "codes": ["F506"],
        "lines": ("optimizer.step()",),
    },
    "unaligned": {
        "changes": {"vocabulary": 50257},
        "codes": ["F304", "F307"],
        "parts": ("matmul", "memory_bound", "optimizer", "other_gpu"),
        "lines": ("return self.head(x)", "loss = F.cross_entropy(model(tokens)"),
    },
    # Last: a recording of so many takes the longest to read.
    "tiny-operators": {
        "changes": {"after": TINY},
        "codes": ["F205", "F201"],
        "parts": ("launch_gap", "memory_bound"),
    },
}
# Asked for: the milliseconds that a fault costs, within so much or so many.
_WITHIN, _WITHIN_MS = 0.05, 1.0


def run_plain(limit_s: float) -> dict[str, Any]:
    """The script without a fault: what a fault costs is what comes on top."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(BEGIN.format(**PLAIN))
        return profiled(["--no-limits", "--seconds", "2", "train.py"], folder, limit_s=limit_s)


def run_case(name: str, limit_s: float, plain: dict[str, Any]) -> dict[str, Any]:
    """Profile one, and compare what was found with what was planted."""
    case = CASES[name]
    source = BEGIN.format(**{**PLAIN, **case["changes"]})
    wanted_lines = case.get("lines", ("# here",))
    planted = [
        number
        for number, text in enumerate(source.splitlines(), 1)
        if any(wanted in text for wanted in wanted_lines)
    ]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(source)
        began = time.monotonic()
        found = profiled(["--no-limits", "--seconds", "2", "train.py"], folder, limit_s=limit_s)
        took_s = time.monotonic() - began
    if "failed" in found:
        return {"case": name, "took_s": took_s, **found}
    codes = [finding["code"] for finding in found["findings"]]
    wanted = next((one for one in found["findings"] if one["code"] in case["codes"]), None)
    lines = [place["line"] for place in wanted["where"]] if wanted is not None else []
    return {
        "case": name,
        "took_s": took_s,
        "trial_s": found["trial"]["took_s"],
        "step_ms": found["step_ms"],
        "waterfall": found["waterfall"],
        "floors": found["floors"],
        "findings": [
            {key: finding[key] for key in ("code", "evidence", "predicted_speedup")}
            for finding in found["findings"]
        ],
        "is_found": wanted is not None,
        "place_among_findings": codes.index(wanted["code"]) + 1 if wanted is not None else None,
        "is_on_the_line": bool(lines) and lines[0] in planted,
        "lines": lines,
        "planted_lines": planted,
        "growth_bytes_per_step": found["memory"]["growth_bytes_per_step"],
        "waits": (found.get("trace") or {}).get("syncs", [])[:3],
        "kernels": (found.get("trace") or {}).get("kernels", [])[:6],
        "unknown": found["unknown"],
        **_attributed(case, found, plain),
    }


def _attributed(case: dict[str, Any], found: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """What the fault costs, as it was planted or as the step became longer, and how much its parts grew."""
    parts = case.get("parts")
    if not parts or "failed" in plain:
        return {}
    cost_ms = case.get("planted_ms") or found["step_ms"]["mean"] - plain["step_ms"]["mean"]
    seen_ms = _ms(found, parts) - _ms(plain, parts)
    is_right = abs(seen_ms - cost_ms) <= max(_WITHIN_MS, _WITHIN * cost_ms)
    return {"planted_ms": cost_ms, "attributed_ms": seen_ms, "is_attributed": is_right}


def _ms(found: dict[str, Any], parts: tuple[str, ...]) -> float:
    return sum(share["ms"] for share in found["waterfall"] if share["part"] in parts)


def main() -> None:
    """Run the cases, and say how they went in a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all without")
    parser.add_argument("--limit", type=float, default=1e6, help="seconds for all of them")
    parser.add_argument("--out", help="a folder for the result file")
    chosen = parser.parse_args()
    deadline = time.monotonic() + chosen.limit
    results = []
    out = str(Path(chosen.out) / "ground-truth.json") if chosen.out else None
    plain = run_plain(max(1.0, deadline - time.monotonic()))
    for name in chosen.cases or CASES:
        result = run_case(name, max(1.0, deadline - time.monotonic()), plain)
        results.append(result)
        codes = [finding["code"] for finding in result.get("findings", ())]
        figures = {
            key: result[key] for key in ("planted_ms", "attributed_ms", "is_attributed") if key in result
        }
        on_line = result.get("is_on_the_line")
        print(
            f"{name}: {codes[:4]}, on the line: {on_line} {figures} {result['took_s']:.0f} s "
            f"{result.get('failed', '')[-300:]}",
            flush=True,
        )
        # After each: a device may be taken away before the last.
        write("ground-truth", {"plain": plain.get("waterfall"), "cases": results}, out)


if __name__ == "__main__":
    main()
