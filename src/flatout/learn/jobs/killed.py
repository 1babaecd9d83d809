"""A small training job to be killed: it steps, prints, and saves every so often, carelessly or carefully.

    python -m flatout.learn.jobs.killed plain|careful FOLDER

`plain` saves as most scripts do, over the file that is there. `careful` has a Checkpointer, which also
answers signals. Either way it tells how far it is in `progress`, which a kill does not take back.
"""

import os
import struct
import sys
import threading
import time
from pathlib import Path

ROWS, WIDTH = 49152, 256
SAVE_EVERY = 20
CHECKPOINT, PROGRESS, KEPT = "model.pt", "progress", "kept"
_STEPS, _STEP_S = 100_000, 0.01
_NUMBERS = struct.Struct("qq")


def read_progress(folder: Path) -> tuple[int, int]:
    """(steps done, steps at the last save that ended well) of a job in this folder."""
    try:
        data = (folder / PROGRESS).read_bytes()
        return _NUMBERS.unpack(data)
    except (FileNotFoundError, struct.error):
        return 0, 0


def main(way: str, folder: Path) -> None:
    """Train until somebody ends it."""
    import torch

    from flatout.runtime.checkpoint.checkpointer import Checkpointer

    threading.Thread(target=_follow_parent, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.EmbeddingBag(ROWS, WIDTH, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    progress = os.open(folder / PROGRESS, os.O_CREAT | os.O_WRONLY)
    saver = (
        Checkpointer(folder / KEPT, every=SAVE_EVERY, model=model, optimizer=optimizer)
        if way == "careful"
        else None
    )
    saved = 0
    for step in range(1, _STEPS):
        loss = model(torch.randint(ROWS, (8, 4))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(_STEP_S)
        print(f"step {step} loss {loss.item():.4f}")  # noqa: T201 - into a buffer, as scripts do
        os.pwrite(progress, _NUMBERS.pack(step, saved), 0)
        if saver is not None:
            saver.step(step)
        elif step % SAVE_EVERY == 0:
            torch.save({"step": step, "model": model.state_dict()}, folder / CHECKPOINT)
            saved = step


def _follow_parent(parent: int) -> None:
    """Nobody is left to end it when the lesson is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
