"""A few updates of one of several models: what `flatout fit` predicts, and a GPU then measures.

python benchmarks/fit_job.py --model gpt --batch 8 --precision autocast
"""

# ruff: noqa: D102

import argparse
import json
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

CLASSES, VOCABULARY = 1000, 32000


class Attention(nn.Module):
    """Self-attention by torch's own call."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class RMSNorm(nn.Module):
    """By the root of the mean square, written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return (x.float() * scale).type_as(x) * self.weight


class Gated(nn.Module):
    """A network of which one half opens the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = width * 8 // 3 // 64 * 64
        self.gate, self.up, self.down = (
            nn.Linear(width, inner, bias=False),
            nn.Linear(width, inner, bias=False),
            nn.Linear(inner, width, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and a network, each beside a shortcut."""

    def __init__(self, width: int, heads: int, *, causal: bool, kind: str) -> None:
        super().__init__()
        norm = RMSNorm if kind == "llama" else nn.LayerNorm
        self.first, self.second = norm(width), norm(width)
        self.attention = Attention(width, heads, causal=causal)
        if kind == "llama":
            self.network: nn.Module = Gated(width)
        else:
            layers = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            self.network = nn.Sequential(*layers, nn.Dropout(0.1 if kind == "bert" else 0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.network(self.second(x))


class Blocks(nn.Module):
    """One after the other; recomputed in the backward pass where asked for."""

    def __init__(self, layers: int, width: int, heads: int, *, recompute: bool, **kind: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, **kind) for _ in range(layers))
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return x


class Text(nn.Module):
    """GPT, Llama and BERT: tokens in, tokens out."""

    def __init__(self, kind: str, layers: int, width: int, length: int, *, recompute: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        causal = kind != "bert"
        self.blocks = Blocks(layers, width, width // 64, recompute=recompute, causal=causal, kind=kind)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.tokens(tokens) + self.places(places))).flatten(0, 1)


class ViT(nn.Module):
    """Patches of a picture as tokens."""

    def __init__(self, layers: int, width: int, *, recompute: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.blocks = Blocks(layers, width, width // 64, recompute=recompute, causal=False, kind="vit")
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class Bottleneck(nn.Module):
    """Narrow, look around, widen, beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(
                nn.Conv2d(width, width, 3, stride, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        changes = stride != 1 or inputs != 4 * width
        other = (nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        self.shortcut = nn.Sequential(*(other if changes else ()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.layers(x) + self.shortcut(x), inplace=True)


def resnet(blocks: tuple[int, ...]) -> nn.Module:
    """A stem, four stages, a head."""
    layers: list[nn.Module] = [
        *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(Bottleneck(inputs, 64 * 2**stage, 2 if stage and not block else 1))
            inputs = 256 * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


class UNet(nn.Module):
    """Down, up, and across: a class for each pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(4)]
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip((3, *sizes[:-1]), sizes, strict=True))
        pairs = list(zip(sizes[:0:-1], sizes[-2::-1], strict=True))
        self.widen = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.up = nn.ModuleList(_twice(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(width, 21, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = []
        for level, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2) if level else x)
            seen.append(x)
        for widen, layer, across in zip(self.widen, self.up, seen[-2::-1], strict=True):
            x = layer(torch.cat((widen(x), across), 1))
        return self.head(x).permute(0, 2, 3, 1).reshape(-1, 21)


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    one = (nn.Conv2d(inputs, outputs, 3, 1, 1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))
    two = (nn.Conv2d(outputs, outputs, 3, 1, 1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))
    return nn.Sequential(*one, *two)


class Recurrent(nn.Module):
    """Two layers of an LSTM over tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.layers = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.tokens(tokens))[0]).flatten(0, 1)


def build(chosen: argparse.Namespace) -> nn.Module:
    """The model."""
    recompute = chosen.checkpointing
    if chosen.model in ("gpt", "llama", "bert"):
        return Text(chosen.model, chosen.layers, chosen.width, chosen.length, recompute=recompute)
    if chosen.model == "vit":
        return ViT(chosen.layers, chosen.width, recompute=recompute)
    if chosen.model == "resnet":
        return resnet((3, 4, 6, 3))
    return UNet(64) if chosen.model == "unet" else Recurrent(chosen.width)


def batch_of(chosen: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """On the host, as a loader would give it."""
    if chosen.model in ("gpt", "llama", "bert", "lstm"):
        tokens = torch.randint(VOCABULARY, (chosen.batch, chosen.length + 1))
        return tokens[:, :-1], tokens[:, 1:].reshape(-1)
    images = torch.randn(chosen.batch, 3, 224, 224)
    if chosen.model == "unet":
        return images, torch.randint(21, (chosen.batch * 224 * 224,))
    return images, torch.randint(CLASSES, (chosen.batch,))


def train(chosen: argparse.Namespace) -> None:
    """A few updates."""
    with torch.device("cuda" if chosen.on_device else "cpu"):
        model: Any = build(chosen).to("cuda")
    if chosen.precision == "bf16":
        model = model.to(torch.bfloat16)
    if chosen.compile:
        model = torch.compile(model)
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    more = {"momentum": 0.9} if chosen.optimizer == "sgd" else {}
    optimizer = kinds[chosen.optimizer](model.parameters(), lr=1e-4, **more)
    for _ in range(chosen.updates):
        inputs, targets = (one.to("cuda") for one in batch_of(chosen))
        if chosen.precision == "bf16" and inputs.is_floating_point():
            inputs = inputs.to(torch.bfloat16)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=chosen.precision == "autocast"):
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        loss.item()


def main() -> None:
    """Train, and say what torch counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--model", default="gpt", choices=("gpt", "llama", "bert", "vit", "resnet", "unet", "lstm")
    )
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "autocast", "bf16"))
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "sgd"))
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--on-device", action="store_true", help="make the model there: it starts sooner")
    parser.add_argument("--updates", type=int, default=5)
    train(parser.parse_args())
    peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(json.dumps(dict(zip(("allocated_bytes", "reserved_bytes"), peaks, strict=True))))


if __name__ == "__main__":
    main()
