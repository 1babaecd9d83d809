"""A GPT with PyTorch's own attention, and otherwise as plain as `gpt.py`.

Everything in fp32, the default AdamW, and a `.item()` every step.

    python examples/gpt_sdpa.py                  # 1.3 B parameters, 2048 tokens, batch 2: wants a large GPU
    python examples/gpt_sdpa.py --size 124m      # 124 M parameters, 1024 tokens, batch 4: wants a GPU
    python examples/gpt_sdpa.py --layers 2 --width 64 --heads 4 --length 64 --vocabulary 500 --steps 20

What is given by name wins over what the size says.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset

SIZES = {
    "124m": {"layers": 12, "width": 768, "heads": 12, "length": 1024, "vocabulary": 50257, "batch_size": 4},
    "1.3b": {"layers": 24, "width": 2048, "heads": 16, "length": 2048, "vocabulary": 50257, "batch_size": 2},
}


class RandomText(Dataset):
    """Tokens without meaning; the next token is the target."""

    def __init__(self, samples: int, length: int, vocabulary: int) -> None:
        self.tokens = torch.randint(vocabulary, (samples, length + 1))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tokens[place, :-1], self.tokens[place, 1:]


class Attention(nn.Module):
    """Causal self-attention; PyTorch chooses how."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(batch, length, width))


class Block(nn.Module):
    """Attention and a two-layer network, each beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
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
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, default="1.3b")
    # Without a default, so that the size's own value shows through.
    for name in ("layers", "width", "heads", "length", "vocabulary", "batch-size"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--steps", type=int, default=200)
    chosen = parser.parse_args()
    for name, value in SIZES[chosen.size].items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)
    return chosen


def main() -> None:
    chosen = arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    data = RandomText(chosen.batch_size * 64, chosen.length, chosen.vocabulary)
    loader = DataLoader(data, batch_size=chosen.batch_size, shuffle=True)
    model = GPT(chosen.vocabulary, chosen.length, chosen.width, chosen.heads, chosen.layers).to(device)
    print(f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.1f} M parameters on {device}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    step, total = 0, 0.0
    while step < chosen.steps:
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            logits = model(inputs)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            total += loss.item()
            if step % 5 == 0:
                print(f"step {step} loss {total / 5:.4f}")
                total = 0.0
            if step == chosen.steps:
                break


if __name__ == "__main__":
    main()
