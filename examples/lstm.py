"""A two-layer LSTM language model, plainly written.

python examples/lstm.py                              # wants a GPU
python examples/lstm.py --width 64 --length 32 --batch 4 --vocabulary 500
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


class Model(nn.Module):
    """Embedding, LSTM, head."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.recurrent(self.tokens(tokens))
        return self.head(states)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=10000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=500)
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = Model(chosen.vocabulary, chosen.width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    text = torch.randint(chosen.vocabulary, (chosen.batch * 64, chosen.length + 1))
    for step in range(chosen.steps):
        batch = text[torch.randint(len(text), (chosen.batch,))].to(device)
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, chosen.vocabulary), batch[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
