"""A small language model, the losses that one process gives for it, and ranks that play scenes with it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, LENGTH, WIDTH, HEADS = 24, 6, 16, 4
BATCH = 8
# Ranks need seconds; whoever waits for another in vain would wait for minutes.
IN_TIME_S = 240


class Attention(nn.Module):
    """Counts its heads by itself: divided layers with whole counts would run, and be wrong."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        # No bias for keys: softmax does not see it, and Adam would follow the rounding of its gradient.
        self.q, self.k, self.v = (nn.Linear(width, width, bias=at != 1) for at in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        batch, length, _ = x.shape
        q, k, v = (
            one(x).view(batch, length, self.heads, -1).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any, scale: Any = None) -> Any:
        x = x + self.attention(self.norm1(x))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return x if scale is None else x * scale


class Small(nn.Module):
    """A head that shares its weight, a parameter of the root's own, something worked out from the batch."""

    def __init__(self, layers: int = 4, heads: int = HEADS) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) / 10)
        self.blocks = nn.ModuleList(Block(WIDTH, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Any) -> Any:
        scale = 1.0 + (tokens[:, :1, None] % 3) / 10
        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = block(x, scale)
        return self.head(self.norm(x))


def seeded(make: Callable[[], Any] = Small, seed: int = 0) -> tuple[Any, Any]:
    """A model and its optimizer: two groups, and states."""
    torch.manual_seed(seed)
    model = make()
    decayed = [one for one in model.parameters() if one.dim() > 1]
    others = [one for one in model.parameters() if one.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=0.01)


def batches(steps: int, *, first: int = 0) -> Iterator[tuple[Any, Any]]:
    for step in range(first, first + steps):
        drawn = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
        yield drawn[:, :-1], drawn[:, 1:]


def loss_of(output: Any, target: Any) -> Any:
    return F.cross_entropy(output.reshape(-1, VOCABULARY), target.reshape(-1))


def alone(
    model: Any, optimizer: Any, steps: int, *, first: int = 0, clip: float | None = None
) -> list[float]:
    """What one process gives, without Flatout."""
    losses = []
    for inputs, targets in batches(steps, first=first):
        loss = loss_of(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def together(
    world: Any, steps: int, *, first: int = 0, parts: int = 1, clip: float | None = None
) -> list[float]:
    """The same steps: ranks that see different samples take theirs of each batch, in so many parts."""
    losses = []
    mine = slice(world.rank, None, world.count) if world.strategy in ("ddp", "fsdp") else slice(None)
    for whole, whole_targets in batches(steps, first=first):
        inputs, targets = whole[mine], whole_targets[mine]
        world.optimizer.zero_grad()
        total = 0.0
        for at, (x, y) in enumerate(zip(inputs.chunk(parts), targets.chunk(parts), strict=True)):
            with world.accumulating(last=at == parts - 1):
                if world.strategy == "pipeline":
                    total += world.train_step(x, y, lambda *given: loss_of(*given) / parts).item()
                else:
                    loss = loss_of(world.model(x), y) / parts
                    loss.backward()
                    total += loss.item()
        if clip is not None:
            world.clip(clip)
        world.optimizer.step()
        losses.append(world.mean(total).item())
    return losses


def text(samples: int = 16) -> TensorDataset:
    drawn = torch.randint(VOCABULARY, (samples, LENGTH), generator=torch.Generator().manual_seed(9))
    return TensorDataset(drawn, torch.arange(samples))


def loader_of(data: Any = None, **more: Any) -> Any:
    return DataLoader(data if data is not None else text(), **{"batch_size": 4, "shuffle": True, **more})


def said_by(call: Callable[[], Any]) -> str:
    """The words of the error that a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - it is what the test is about
        return f"{type(error).__name__}: {error}"
    return ""


def played_by(ranks: int, script: str, folder: Path) -> list[dict[str, Any]]:
    """Start ranks of a file as torchrun would; what each wrote."""
    # Kept until they have ended, so that nobody else is given it before the first rank listens there.
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", 0))
        return _played_at(free.getsockname()[1], ranks, script, folder)


def _played_at(port: int, ranks: int, script: str, folder: Path) -> list[dict[str, Any]]:
    common = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[4]),
    }
    if sys.platform == "linux":
        common["GLOO_SOCKET_IFNAME"] = "lo"
    started = [
        subprocess.Popen(
            [sys.executable, script, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    said = []
    try:
        for process in started:
            said.append(process.communicate(timeout=IN_TIME_S)[0])  # noqa: PERF401 - what came so far helps
    finally:
        for process in started:
            process.kill()
            process.communicate()
    files = [folder / f"{rank}.json" for rank in range(ranks)]
    assert all(file.exists() for file in files), "\n".join(said)[-6000:]
    return [json.loads(file.read_text()) for file in files]


def play(scenes: tuple[Any, ...], folder: Path) -> None:
    """On a rank: all scenes, in their order."""
    torch.set_num_threads(1)
    told = {scene.__name__: scene(folder) for scene in scenes}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(told))
