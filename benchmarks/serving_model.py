"""What benchmarks/serving.py serves: where one item leaves most of the machine unused."""

import itertools

import torch
from torch import nn


class Encoder(nn.Module):
    """A text of 128 tokens to ten scores; one alone is a few hundred small launches."""

    def __init__(self, width: int = 1024, layers: int = 24) -> None:
        super().__init__()
        self.table = nn.Embedding(30_000, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores of each text."""
        return self.head(self.layers(self.table(ids)).mean(1)).float()


def make() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """On a GPU an encoder in bfloat16; on a CPU wide layers, of which one item reads every weight."""
    torch.manual_seed(0)
    if torch.cuda.is_available():
        return Encoder().bfloat16(), (torch.randint(0, 30_000, (1, 128)),)
    sizes = (256, 4096, 4096, 2048, 10)
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1]), (torch.randn(1, 256),)


def small() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """So small that the server itself is what is measured."""
    return nn.Linear(16, 4), (torch.randn(1, 16),)
