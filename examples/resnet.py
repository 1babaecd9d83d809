"""ResNet-50 on images without meaning, in fp32. Needs torchvision.

python examples/resnet.py                # wants a GPU
"""

import argparse

import torch
from torch import nn
from torchvision.models import resnet50


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=500)
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = resnet50().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(chosen.batch, 3, chosen.size, chosen.size)
    labels = torch.randint(1000, (chosen.batch,))
    for step in range(chosen.steps):
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
