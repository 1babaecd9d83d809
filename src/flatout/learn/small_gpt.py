"""A small GPT for lessons that train: blocks that repeat, as strategies need them. For child processes."""

from typing import Any

VOCABULARY = 512


def small_gpt(torch: Any, *, width: int, layers: int, length: int, heads: int = 4) -> Any:
    """A model from tokens (batch, length) to logits; linear layers of its own for query, key and value."""
    nn, F = torch.nn, torch.nn.functional  # noqa: N806 - as everybody calls it

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.heads = heads
            self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
            self.out = nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            batch, at, _ = x.shape
            q, k, v = (
                one(x).view(batch, at, self.heads, -1).transpose(1, 2) for one in (self.q, self.k, self.v)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).reshape(batch, at, -1))

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = Attention()
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class Gpt(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.head = nn.Linear(width, VOCABULARY, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.tokens(tokens) + self.places(torch.arange(tokens.size(1), device=tokens.device))
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    return Gpt()


def loss_of(logits: Any, targets: Any) -> Any:
    """The mean over all tokens."""
    import torch

    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.reshape(-1))


def tokens_of(torch: Any, batch: int, length: int, device: Any = "cpu") -> Any:
    """Tokens to learn from: numbers that go on."""
    starts = torch.arange(batch, device=device).unsqueeze(1)
    return (starts + torch.arange(length, device=device)) % VOCABULARY
