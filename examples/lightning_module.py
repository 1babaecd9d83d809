"""Tells wave forms apart with a 1-D convolutional network, as a LightningModule. Needs lightning.

Every wave is worked out point by point in Python when it is asked for, in the process that trains: the GPU
waits. fp32, and a `.item()` every step.

    python examples/lightning_module.py          # batch 64, 2048 points: wants a GPU
    python examples/lightning_module.py --width 8 --points 128 --samples 256 --batch-size 8 --steps 20
"""

import argparse
import math
import random

import lightning as L  # noqa: N812
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset

SHAPES = {
    "sine": lambda turn: math.sin(2 * math.pi * turn),
    "square": lambda turn: 1.0 if turn % 1 < 0.5 else -1.0,
    "saw": lambda turn: 2 * (turn % 1) - 1,
    "triangle": lambda turn: 4 * abs(turn % 1 - 0.5) - 1,
}


class Waves(Dataset):
    """Noisy waves of four shapes; pitch, phase and loudness vary."""

    def __init__(self, samples: int, points: int) -> None:
        self.samples, self.points = samples, points
        self.shapes = list(SHAPES.values())

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        dice = random.Random(place)  # noqa: S311
        label = place % len(self.shapes)
        shape = self.shapes[label]
        # Turns by the point, so that a wave looks alike however long it is.
        pitch, phase, loudness = dice.uniform(0.02, 0.06), dice.random(), dice.uniform(0.5, 1.5)
        wave = [loudness * shape(pitch * point + phase) + dice.gauss(0, 0.1) for point in range(self.points)]
        return torch.tensor(wave).unsqueeze(0), label


class Listener(L.LightningModule):
    """Four convolutions, each halving the length, an average over time, and a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers, channels = [], 1
        for wider in (width, 2 * width, 4 * width, 4 * width):
            layers += [nn.Conv1d(channels, wider, 7, stride=2, padding=3), nn.BatchNorm1d(wider), nn.ReLU()]
            channels = wider
        self.network = nn.Sequential(
            *layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, len(SHAPES))
        )
        self.total = 0.0

    def training_step(self, batch: list[torch.Tensor], place: int) -> torch.Tensor:  # noqa: ARG002
        waves, labels = batch
        loss = F.cross_entropy(self.network(waves), labels)
        self.total += loss.item()
        step = self.global_step + 1
        if step % 10 == 0:
            print(f"step {step} loss {self.total / 10:.4f}")
            self.total = 0.0
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--points", type=int, default=2048)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=500)
    chosen = parser.parse_args()
    L.seed_everything(0)
    loader = DataLoader(Waves(chosen.samples, chosen.points), batch_size=chosen.batch_size, shuffle=True)
    trainer = L.Trainer(
        max_steps=chosen.steps,
        max_epochs=-1,  # the steps decide
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Listener(chosen.width), loader)


if __name__ == "__main__":
    main()
