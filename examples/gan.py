"""A DCGAN that learns to draw small coloured shapes: two networks, two optimizers.

Every picture is drawn pixel by pixel in Python when it is asked for, in the process that trains: the GPU
waits. fp32, and two `.item()` every step.

    python examples/gan.py                       # 32 x 32 pixels, batch 128: wants a GPU
    python examples/gan.py --width 8 --noise 16 --samples 256 --batch-size 8 --steps 20
"""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PIXELS = 32


class Shapes(Dataset):
    """A disc, a square or a diamond in one colour on a dark ground; values from -1 to 1."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, place: int) -> torch.Tensor:
        dice = random.Random(place)  # noqa: S311
        shape = dice.choice(("disc", "square", "diamond"))
        colour = [dice.uniform(0.0, 1.0) for _ in range(3)]
        radius = dice.uniform(5, 10)
        left, top = (dice.uniform(radius, PIXELS - radius) for _ in range(2))
        inside = [
            [self._inside(shape, x - left, y - top, radius) for x in range(PIXELS)] for y in range(PIXELS)
        ]
        return torch.tensor([[[c if here else -0.9 for here in row] for row in inside] for c in colour])

    @staticmethod
    def _inside(shape: str, x: float, y: float, radius: float) -> bool:
        if shape == "disc":
            return x * x + y * y <= radius * radius
        if shape == "square":
            return max(abs(x), abs(y)) <= 0.8 * radius
        return abs(x) + abs(y) <= radius


def generator(noise: int, width: int) -> nn.Sequential:
    """Noise to picture: 4, 8, 16, 32 pixels."""
    return nn.Sequential(
        nn.ConvTranspose2d(noise, 4 * width, 4, bias=False),
        nn.BatchNorm2d(4 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1),
        nn.Tanh(),
    )


def discriminator(width: int) -> nn.Sequential:
    """Picture to one number: how real it looks."""
    return nn.Sequential(
        nn.Conv2d(3, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(4 * width),
        nn.LeakyReLU(0.2),
        nn.Conv2d(4 * width, 1, 4),
        nn.Flatten(0),
    )


def start(module: nn.Module) -> None:
    """The starting weights of the DCGAN paper."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(module.weight, std=0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, mean=1.0, std=0.02)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--noise", type=int, default=100)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=500)
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    # A last batch of one picture would be too few for the batch norms.
    loader = DataLoader(Shapes(chosen.samples), batch_size=chosen.batch_size, shuffle=True, drop_last=True)
    if len(loader) == 0:
        parser.error("--samples must be at least --batch-size")
    maker = generator(chosen.noise, chosen.width).apply(start).to(device)
    judge = discriminator(chosen.width).apply(start).to(device)
    maker_optimizer = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
    judge_optimizer = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    step, judge_total, maker_total = 0, 0.0, 0.0
    while step < chosen.steps:
        for real in loader:
            real = real.to(device)
            ones, zeros = torch.ones(len(real), device=device), torch.zeros(len(real), device=device)
            fake = maker(torch.randn(len(real), chosen.noise, 1, 1, device=device))

            judge_optimizer.zero_grad()
            # Detached: what the judge learns here is none of the maker's business.
            judge_loss = criterion(judge(real), ones) + criterion(judge(fake.detach()), zeros)
            judge_loss.backward()
            judge_optimizer.step()

            maker_optimizer.zero_grad()
            maker_loss = criterion(judge(fake), ones)
            maker_loss.backward()
            maker_optimizer.step()

            step += 1
            judge_total += judge_loss.item()
            maker_total += maker_loss.item()
            if step % 10 == 0:
                print(
                    f"step {step} discriminator loss {judge_total / 10:.4f}"
                    f" generator loss {maker_total / 10:.4f}"
                )
                judge_total = maker_total = 0.0
            if step == chosen.steps:
                break


if __name__ == "__main__":
    main()
