"""Faults planted in a script, and what `flatout profile` says of them: how much, which finding, which line.

Each case is a small training on the GPU with one fault of a known size, in the line that ends with `# here`.

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
# Of each: what is changed, the findings that may come first, a part of the waterfall with its milliseconds.
CASES: dict[str, dict[str, Any]] = {
    "sync-20-ms": {
        "changes": {"after": "    loss.item()  # here\n    time.sleep(0.02)"},
        "codes": ["F204"],
        "part": ("sync_stall", 20.0),
    },
    "fp32-products": {
        "changes": {"autocast": "False", "inside": "        x = x * 1.0  # here"},
        "codes": ["F302", "F301", "F309"],
        "any_line": True,
    },
    "attention-by-hand": {"changes": {"inside": ATTENTION}, "codes": ["F305", "F310"]},
    "leak-1-mb": {
        "changes": {"after": "    kept.append(torch.ones(1 << 18, device=device))  # here"},
        "codes": ["F505"],
        "growth_bytes": 1 << 20,
        "any_line": True,
    },
    "no-zero-grad": {"changes": {"zero": "pass  # here"}, "codes": ["F506"], "any_line": True},
    "unaligned": {
        "changes": {"vocabulary": 50257, "inside": "        x = x * 1.0  # here"},
        "codes": ["F304", "F307"],
        "any_line": True,
    },
    # Last: a recording of so many takes the longest to read.
    "tiny-operators": {
        "changes": {"after": TINY},
        "codes": ["F205", "F201"],
    },
}


def run_case(name: str, limit_s: float) -> dict[str, Any]:
    """Profile one, and hold what was found against what was planted."""
    case = CASES[name]
    source = BEGIN.format(**{**PLAIN, **case["changes"]})
    line = next(number for number, text in enumerate(source.splitlines(), 1) if text.endswith("# here"))
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
    result = {
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
        "is_on_the_line": line in lines or bool(case.get("any_line")),
        "lines": lines,
        "planted_line": line,
        "growth_bytes_per_step": found["memory"]["growth_bytes_per_step"],
        "waits": (found.get("trace") or {}).get("syncs", [])[:3],
        "kernels": (found.get("trace") or {}).get("kernels", [])[:6],
        "unknown": found["unknown"],
    }
    if "part" in case:
        part, planted_ms = case["part"]
        seen_ms = sum(share["ms"] for share in found["waterfall"] if share["part"] == part)
        result |= {"planted_ms": planted_ms, "attributed_ms": seen_ms}
    return result


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
    for name in chosen.cases or CASES:
        result = run_case(name, max(1.0, deadline - time.monotonic()))
        results.append(result)
        codes = [finding["code"] for finding in result.get("findings", ())]
        figures = {key: result[key] for key in ("planted_ms", "attributed_ms") if key in result}
        on_line = result.get("is_on_the_line")
        print(
            f"{name}: {codes[:4]}, on the line: {on_line} {figures} {result['took_s']:.0f} s "
            f"{result.get('failed', '')[-300:]}",
            flush=True,
        )
        # After each: a device may be taken away before the last.
        write("ground-truth", {"cases": results}, out)


if __name__ == "__main__":
    main()
