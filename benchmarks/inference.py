"""What `flatout.optimize` makes of common models, by turns with what people do by hand.

    python -m benchmarks.inference [--models resnet50,vit-b] [--goals latency,throughput] [--budget 120]
                                   [--modes default,reduce-overhead]    # without the minutes of max-autotune

On a GPU. Beside the module as it is (float32, without gradients): torch.compile alone, and bf16 weights with
torch.compile in each of its modes, images in channels-last. Their inputs are cast and laid out beforehand;
ours come as they are, and pay for that in each call. Latency is with one sample, throughput with many. Ours
must not be behind the best of them by more than 3 %. Weights are random. The
file is written anew after each comparison. Compilers keep what they made: a rehearsal of all models side by
side, with its results thrown away, takes most of the waiting out of the next run.
"""

import argparse
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

import flatout
from benchmarks.machine import write
from flatout.infer.optimizing.racing import Race

AS_GOOD = 0.97
BATCH = {"resnet50": 128, "vit-b": 64, "bert-base": 32, "tiny": 8}
MODES = ("default", "reduce-overhead", "max-autotune")
_LENGTH = 128
_OF_IMAGES = 4


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, wide: int, narrow: int, stride: int) -> None:
        super().__init__()
        out = 4 * narrow
        self.body = nn.Sequential(
            *(nn.Conv2d(wide, narrow, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(inplace=True)),
            *(nn.Conv2d(narrow, narrow, 3, stride, 1, bias=False), nn.BatchNorm2d(narrow)),
            *(nn.ReLU(inplace=True), nn.Conv2d(narrow, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        self.aside = nn.Sequential(nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        if wide == out and stride == 1:
            self.aside = nn.Sequential()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the body makes of it."""
        return torch.relu(self.body(x) + self.aside(x))


def resnet50() -> nn.Module:
    try:
        from torchvision.models import resnet50 as made
    except ImportError:
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
        layers += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        wide = 64
        for stage, (blocks, narrow) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True)):
            for block in range(blocks):
                layers.append(Bottleneck(wide, narrow, 2 if block == 0 and stage else 1))
                wide = 4 * narrow
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 1000))
    return made()


class Vit(nn.Module):
    """ViT-B/16, of torch's own layers."""

    def __init__(self, width: int = 768, layers: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.ModuleList([VitBlock(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class VitBlock(nn.Module):
    """Attention, then a small network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both added."""
        batch, length, width = x.shape
        qkv = self.qkv(self.one(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.body(self.two(x))


def bert_base() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(num_labels=10))


def tiny() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": resnet50,
    "vit-b": Vit,
    "bert-base": bert_base,
    "tiny": tiny,
}


def inputs_of(model: str, batch: int, device: str) -> dict[str, Any] | tuple[Any, ...]:
    if model == "bert-base":
        ids = torch.randint(1000, 20000, (batch, _LENGTH), device=device)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return (torch.randn(batch, 3, 224, 224, device=device),)


def cast(value: Any) -> Any:
    if not value.is_floating_point():
        return value
    layout = torch.channels_last if value.dim() == _OF_IMAGES else torch.preserve_format
    return value.to(torch.bfloat16, memory_format=layout)


def called(run: Any, given: Any) -> Callable[[], Any]:
    if isinstance(given, dict):
        return lambda: run(**given)
    return lambda: run(*given)


def by_hand(
    module: nn.Module, given: Any, modes: Sequence[str]
) -> dict[str, Callable[[], Callable[[], Any]]]:
    """What people do; made when it is its turn."""

    def in_bf16(mode: str) -> Callable[[], Any]:
        own = copy.deepcopy(module).to(torch.bfloat16)
        items = given.items() if isinstance(given, dict) else enumerate(given)
        mine = {name: cast(value) for name, value in items}
        if any(value.dim() == _OF_IMAGES for value in mine.values()):
            own = own.to(memory_format=torch.channels_last)
        return called(torch.compile(own, mode=mode), mine if isinstance(given, dict) else (*mine.values(),))

    ways: dict[str, Callable[[], Callable[[], Any]]] = {
        "eager": lambda: called(module, given),
        "compile": lambda: called(torch.compile(module), given),
    }
    for mode in modes:
        ways[f"bf16 + compile {mode}"] = lambda mode=mode: in_bf16(mode)
    return ways


@torch.no_grad()
def measured(
    model: str, goal: Any, budget_s: float, modes: Sequence[str], device: str, found: dict[str, Any]
) -> Iterator[None]:
    """Fills `found`, and comes up for air after each comparison."""
    torch.manual_seed(0)
    module = MODELS[model]().to(device).eval()
    batch = 1 if goal == "latency" else BATCH[model]
    given = inputs_of(model, batch, device)
    began = time.monotonic()
    fast = flatout.optimize(module, given, goal, budget_s=budget_s)
    found |= {"batch": batch, "optimize_s": time.monotonic() - began, "chosen": list(fast.report.chosen)}
    print(fast.report, flush=True)
    race = Race(torch.device(device, 0) if device == "cuda" else torch.device(device), goal)
    found["tried"] = [
        {
            "lever": one.lever,
            "verdict": one.verdict,
            "speedup": one.measured_speedup,
            "reason": one.reason,
            "ready_s": one.ready_s,
        }
        for one in fast.report.tried
    ]
    found["by_hand"] = {}
    yield
    for name, make in by_hand(module, given, modes).items():
        made_s = time.monotonic()
        try:
            raced = race.run(make(), called(fast, given))
        except Exception as error:  # noqa: BLE001 - one of theirs may fail
            found["by_hand"][name] = {"failed": (str(error).splitlines() or [""])[0]}
            continue
        found["by_hand"][name] = {
            "their_ms": raced.first_ms,
            "our_ms": raced.second_ms,
            "times_as_fast": raced.speedup,
            "low": raced.low,
            "high": raced.high,
        }
        print(
            f"  {name:28} {raced.first_ms:8.3f} ms, ours {raced.second_ms:8.3f} ms: {raced.speedup:.2f}x "
            f"({time.monotonic() - made_s:.0f} s)",
            flush=True,
        )
        ratios = [one["times_as_fast"] for one in found["by_hand"].values() if "times_as_fast" in one]
        found["over_the_best_by_hand"] = min(ratios)
        found["is_never_behind"] = min(ratios) >= AS_GOOD
        found["took_s"] = time.monotonic() - began
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default="resnet50,vit-b,bert-base")
    parser.add_argument("--goals", default="latency,throughput")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for each search")
    parser.add_argument("--modes", default=",".join(MODES), help="of torch.compile, by hand")
    parser.add_argument("--out", help="the result file")
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    result: dict[str, Any] = {}
    for model in chosen.models.split(","):
        for goal in chosen.goals.split(","):
            print(f"{model}, {goal}", flush=True)
            found = result[f"{model} {goal}"] = {}
            try:
                for _ in measured(model, goal, chosen.budget, chosen.modes.split(","), device, found):
                    write("inference", result, chosen.out)
            except Exception as error:  # noqa: BLE001 - the next one may do better
                found["failed"] = f"{type(error).__name__}: {error}"[:500]
            over, took_s = found.get("over_the_best_by_hand"), found.get("took_s", 0.0)
            words = found.get("failed") or f"{over or 0.0:.2f}x the best by hand, {took_s:.0f} s"
            print(f"  {words}", flush=True)
            write("inference", result, chosen.out)
            torch.compiler.reset()


if __name__ == "__main__":
    main()
