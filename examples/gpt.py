"""A GPT-2 sized language model, written the way many first versions are: correct, clear and slow.

Attention by hand, everything in fp32, the default AdamW, and a `.item()` every step.

    python examples/gpt.py                     # 124 M parameters, 1024 tokens, batch 4: wants a GPU
    python examples/gpt.py --layers 2 --width 128 --heads 4 --length 128 --vocabulary 1000
"""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset


class RandomText(Dataset):
    """Tokens without meaning; the next token is the target."""

    def __init__(self, samples: int, length: int, vocabulary: int) -> None:
        self.tokens = torch.randint(vocabulary, (samples, length + 1))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tokens[place, :-1], self.tokens[place, 1:]


class Attention(nn.Module):
    """Causal self-attention, written out."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        return self.out(y.transpose(1, 2).contiguous().view(batch, length, width))


class Block(nn.Module):
    """Attention and a two-layer network, each beside a shortcut."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, length)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.network(self.norm2(x))


class GPT(nn.Module):
    """Embeddings, blocks, and a head that shares the token embedding."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, length) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self._start)

    @staticmethod
    def _start(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--steps", type=int, default=1000)
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    data = RandomText(chosen.batch * 64, chosen.length, chosen.vocabulary)
    loader = DataLoader(data, batch_size=chosen.batch, shuffle=True)
    model = GPT(chosen.vocabulary, chosen.length, chosen.width, chosen.heads, chosen.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    step = 0
    while step < chosen.steps:
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            logits = model(inputs)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(f"step {step} loss {loss.item():.4f}")
            if step == chosen.steps:
                break


if __name__ == "__main__":
    main()
