"""A small GPT that one process trains, or several: the strategy is an argument.

    python examples/parallel.py
    torchrun --nproc-per-node 2 examples/parallel.py --strategy ddp
    torchrun --nproc-per-node 2 examples/parallel.py --strategy fsdp --save model.pt
    torchrun --nproc-per-node 2 examples/parallel.py --strategy tensor
    torchrun --nproc-per-node 2 examples/parallel.py --strategy pipeline

Under torchrun all print the same losses, but for rounding: ranks together take batches of the same samples.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset

import flatout


class CountingText(Dataset):
    """Rows of numbers that go on from one to the next, from some start and by some stride."""

    def __init__(self, samples: int, length: int, vocabulary: int) -> None:
        starts = torch.randint(vocabulary, (samples, 1))
        strides = torch.randint(1, 5, (samples, 1))
        self.tokens = (starts + strides * torch.arange(length + 1)) % vocabulary

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tokens[place, :-1], self.tokens[place, 1:]


class Attention(nn.Module):
    """Causal self-attention; queries, keys and values in layers of their own, so that they can be divided."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            one(x).view(batch, length, self.heads, -1).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    """Attention and a two-layer network, each beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


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
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.reshape(-1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    strategies = ("auto", "ddp", "fsdp", "tensor", "pipeline", "layers")
    parser.add_argument("--strategy", choices=strategies, default="auto")
    parser.add_argument("--batch", type=int, default=32, help="samples of all ranks together")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save", help="where the whole model goes at the end")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    data = CountingText(chosen.batch * 32, chosen.length, chosen.vocabulary)
    loader = DataLoader(data, batch_size=chosen.batch, shuffle=True, drop_last=True)
    model = GPT(chosen.vocabulary, chosen.length, chosen.width, chosen.heads, chosen.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    sample = torch.zeros(chosen.batch, chosen.length, dtype=torch.long)
    with flatout.parallel(
        chosen.strategy, model=model, optimizer=optimizer, loader=loader, sample=sample, keep_batch=True
    ) as world:
        if world.is_main:
            print(f"{world.strategy}: {world.reason}")
        scheduler = torch.optim.lr_scheduler.LinearLR(world.optimizer, 0.1, total_iters=20)
        step = 0
        while step < chosen.steps:
            for inputs, targets in world.loader:
                loss = world.train_step(inputs.to(world.device), targets.to(world.device), loss_of)
                world.clip(1.0)
                world.optimizer.step()
                world.optimizer.zero_grad()
                scheduler.step()
                step += 1
                if step % 10 == 0 or step == chosen.steps:
                    mean = world.mean(loss)
                    if world.is_main:
                        print(f"step {step} loss {mean.item():.4f}")
                if step == chosen.steps:
                    break
        if chosen.save:
            world.save(chosen.save, step=step)


if __name__ == "__main__":
    main()
