"""An image classifier that reads JPEG files and augments them: a ResNet-50 from scratch.

Every file is opened, decoded, cropped and jittered by PIL in the process that trains, one after another: the
GPU waits. fp32, plain copies to the device, and two `.item()` every step. The files are written at the start
to a temporary folder, or once to a folder of your choice; the colour and the direction of the stripes say
which class a picture is.

    python examples/images.py                    # 224 x 224 pixels, batch 64: wants a GPU
    python examples/images.py --folder pictures --steps 0       # write them, to find them there from then on
    python examples/images.py --images 128 --pixels 40 --crop 32 --width 8 --blocks 1,1,1,1 --batch-size 8
"""

# ruff: noqa: S311

import argparse
import math
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 10
COLOURS = ((220, 60, 50), (60, 190, 70), (60, 90, 220), (220, 200, 50), (180, 60, 200))
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def write_images(folder: Path, images: int, pixels: int) -> None:
    """One folder for each class: stripes of five colours, across or down, under some noise."""
    rng = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
    for place in range(images):
        label = place % CLASSES
        stripes, start = rng.uniform(4, 8), rng.uniform(0, 2 * math.pi)
        wave = 0.6 + 0.4 * np.sin(np.linspace(0, 2 * math.pi * stripes, pixels) + start)
        wave = wave[:, None, None] if label < len(COLOURS) else wave[None, :, None]
        picture = wave * np.array(COLOURS[label % len(COLOURS)]) * rng.uniform(0.7, 1.0)
        picture = picture + rng.integers(-30, 30, (pixels, pixels, 3), dtype=np.int8)
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(
            folder / str(label) / f"{place:05}.jpg", quality=90
        )


class Images(Dataset):
    """The JPEG files under a folder, each cropped, flipped and jittered anew whenever it is asked for."""

    def __init__(self, folder: Path, crop: int) -> None:
        self.files = sorted(folder.glob("*/*.jpg"))
        self.crop = crop

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        image = Image.open(self.files[place]).convert("RGB")
        image = self._random_crop(image)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            image = enhance(image).enhance(random.uniform(0.6, 1.4))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float() / 255
        return (pixels - MEAN) / STD, int(self.files[place].parent.name)

    def _random_crop(self, image: Image.Image) -> Image.Image:
        """A part of random size and shape, brought to the size of the crop."""
        area = random.uniform(0.25, 1.0) * image.width * image.height
        shape = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        width = min(image.width, round(math.sqrt(area * shape)))
        height = min(image.height, round(math.sqrt(area / shape)))
        left, top = random.randint(0, image.width - width), random.randint(0, image.height - height)
        image = image.crop((left, top, left + width, top + height))
        return image.resize((self.crop, self.crop), Image.Resampling.BILINEAR)


class Bottleneck(nn.Module):
    """Narrow, look around, widen, beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride=stride, bias=False), nn.BatchNorm2d(4 * width)
            )
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.layers(x) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, stages of bottlenecks that halve the picture and double the width, and a linear head."""

    def __init__(self, width: int, blocks: list[int]) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages, inputs = [], width
        for stage, count in enumerate(blocks):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(Bottleneck(inputs, width * 2**stage, stride))
                inputs = 4 * width * 2**stage
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stages(self.stem(x)))


def train(folder: Path, chosen: argparse.Namespace) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = Images(folder, chosen.crop)
    # A last batch of one picture would be too few for the batch norms.
    loader = DataLoader(data, batch_size=chosen.batch_size, shuffle=True, num_workers=0, drop_last=True)
    model = ResNet(chosen.width, [int(count) for count in chosen.blocks.split(",")]).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=chosen.lr, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    step, total, right = 0, 0.0, 0
    while step < chosen.steps:
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            logits = model(images)
            loss = criterion(logits, labels)
            loss.backward()
            optimizer.step()
            step += 1
            total += loss.item()
            right += (logits.argmax(dim=1) == labels).sum().item()
            if step % 10 == 0:
                print(f"step {step} loss {total / 10:.4f} accuracy {right / (10 * chosen.batch_size):.3f}")
                total, right = 0.0, 0
            if step == chosen.steps:
                break


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, help="where the files lie, or are to lie")
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--pixels", type=int, default=256)
    parser.add_argument("--crop", type=int, default=224)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", default="3,4,6,3", help="bottlenecks in each stage")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--steps", type=int, default=200)
    chosen = parser.parse_args()
    if chosen.images < chosen.batch_size:
        parser.error("--images must be at least --batch-size")
    random.seed(0)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        if not any(folder.glob("*/*.jpg")):
            write_images(folder, chosen.images, chosen.pixels)
        train(folder, chosen)


if __name__ == "__main__":
    main()
