"""Unmodified scripts of others under `flatout run --protect`, killed and stopped at random: the same losses?

    python -m benchmarks.protect CASE... --scripts FOLDER [--ends 4] [--every 7] [--out FOLDER]

FOLDER holds clones of minGPT, nanoGPT and pytorch/examples (as `examples`). Data is generated.
Every loss that any life prints is held against what the script prints when nobody disturbs it.
"""

import argparse
import os
import pickle
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import write


def chargpt(scripts: Path, place: Path) -> list[str]:
    """minGPT's own trainer: a callback, a loader with workers, a model saved and sampled from on the way."""
    shutil.copytree(scripts / "minGPT", place, dirs_exist_ok=True)
    letters = [chr(code) for code in range(32, 127)] + ["\n"]
    chance = random.Random(0)
    (place / "projects/chargpt/input.txt").write_text("".join(chance.choice(letters) for _ in range(20_000)))
    return [
        "projects/chargpt",
        "chargpt.py",
        "--model.model_type=gpt-nano",
        "--trainer.max_iters=120",
        "--trainer.batch_size=4",
        "--trainer.num_workers=2",
    ]


def nanogpt(scripts: Path, place: Path) -> list[str]:
    """Everything in variables of the module: schedule, best loss, the next batch drawn ahead."""
    import numpy as np

    shutil.copytree(scripts / "nanoGPT", place, dirs_exist_ok=True)
    data = place / "data/shakespeare_char"
    tokens = np.cumsum(np.random.RandomState(0).randint(0, 3, 60_000)) % 65
    for name, part in (("train", tokens[:50_000]), ("val", tokens[50_000:])):
        part.astype(np.uint16).tofile(data / f"{name}.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65, "stoi": {}, "itos": {}}))
    sizes = {"block_size": 32, "batch_size": 4, "n_layer": 2, "n_head": 2, "n_embd": 32}
    loop = {"max_iters": 120, "lr_decay_iters": 120, "eval_interval": 20, "eval_iters": 5, "log_interval": 1}
    more = {"device": "cpu", "compile": False, "dropout": 0.1, "gradient_accumulation_steps": 2}
    options = [f"--{name}={value}" for name, value in {**sizes, **loop, **more}.items()]
    return ["", "train.py", "config/train_shakespeare_char.py", *options]


def mnist(scripts: Path, place: Path) -> list[str]:
    """pytorch/examples: epochs with an evaluation after each."""
    import numpy as np

    shutil.copytree(scripts / "examples/mnist", place / "mnist", dirs_exist_ok=True)
    raw = place / "data/MNIST/raw"
    raw.mkdir(parents=True)
    chance = np.random.RandomState(0)
    for name, count in (("train", 2000), ("t10k", 300)):
        labels = chance.randint(0, 10, count).astype(np.uint8)
        images = (chance.rand(count, 28, 28) * 60).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 + 2 * label : 5 + 2 * label, 4:24] += 150
        head = struct.pack(">IIII", 0x803, count, 28, 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels.tobytes())
    return ["mnist", "main.py", "--epochs", "4", "--log-interval", "1"]


CASES: dict[str, Callable[[Path, Path], list[str]]] = {"chargpt": chargpt, "nanogpt": nanogpt, "mnist": mnist}
# A line's key and what was computed, without the times that are printed beside.
LINES = (
    re.compile(r"(?P<key>iter \d+): train (?P<value>loss [\d.]+)"),
    re.compile(r"^(?P<key>(?:iter|step) \d+): (?P<value>.*?)(?:, time.*)?$"),
    re.compile(r"^(?P<key>Train Epoch: \d+ \[\d+/\d+).*?(?P<value>Loss: [\d.]+)"),
)


def losses(text: str) -> list[tuple[str, str]]:
    """What a script printed of its training, in its order."""
    found = []
    for line in text.splitlines():
        for pattern in LINES:
            matched = pattern.search(line)
            if matched is not None:
                found.append((matched["key"], matched["value"]))
                break
    return found


def lived(command: list[str], place: Path, environment: dict[str, str], end: tuple[int, int] | None) -> Any:
    """One life, ended after so many lines of losses by a signal; its losses, words on errors, exit code."""
    said: list[str] = []
    seen = 0
    with (place / "errors.txt").open("w+") as errors:
        job = subprocess.Popen(
            command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert job.stdout is not None
        for line in job.stdout:
            said.append(line)
            seen += bool(losses(line))
            if end is not None and seen == end[0]:
                _script_of(job.pid).send_signal(end[1])
                end = None
        code = job.wait()
        errors.seek(0)
        return losses("".join(said)), errors.read(), code


def _script_of(pid: int) -> Any:
    import psutil

    return psutil.Process(pid).children()[0]


def case(name: str, scripts: Path, ends: int, every: int, chance: random.Random) -> dict[str, Any]:
    """One script, undisturbed and disturbed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "case"
        folder, *words = CASES[name](scripts, root)
        place = root / folder
        path = [str(root), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
        began = time.monotonic()
        expected, errors, code = lived([sys.executable, *words], place, environment, None)
        whole_s = time.monotonic() - began
        assert code == 0, errors
        run = [sys.executable, "-m", "flatout", "run", "--protect", "--save-every", str(every), *words]
        lives, problems = [], []
        while True:
            signals = (signal.SIGKILL, signal.SIGTERM)
            at = max(3, len(expected) // (ends + 1))
            end = (chance.randint(2, at), chance.choice(signals)) if len(lives) < ends else None
            seen, said, code = lived(run, place, environment, end)
            back = re.search(r"goes on after update (\d+), ([\d.]+) s", said)
            lives.append(
                {
                    "ended_by": signal.Signals(end[1]).name if end is not None else None,
                    "exit_code": code,
                    "losses": len(seen),
                    "resumed_at": int(back[1]) if back else 0,
                    "came_back_s": float(back[2]) if back else None,
                    "compared": re.findall(r"(?:come out|does not repeat)[^\n]*", said),
                }
            )
            print(name, lives[-1], flush=True)
            known = dict(expected)
            problems += [
                f"{key}: {value}, not {known.get(key)}" for key, value in seen if known.get(key) != value
            ]
            if end is None or (code not in (-9, 137, 143, -15) and code != 0):
                break
        if code != 0:
            problems.append(f"the last life ended with {code}: {said[-500:]}")
        if seen and seen[-1] != expected[-1]:
            problems.append(f"it ended with {seen[-1]}, not {expected[-1]}")
    return {"words": words, "losses": len(expected), "whole_s": whole_s, "lives": lives, "problems": problems}


def main() -> None:
    """Each case, and a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="+", choices=sorted(CASES))
    parser.add_argument("--scripts", type=Path, required=True)
    parser.add_argument("--ends", type=int, default=4, help="how often each is killed or stopped")
    parser.add_argument("--every", type=int, default=7, help="updates between two checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="a folder for the result file")
    chosen = parser.parse_args()
    chance = random.Random(chosen.seed)
    result = {
        name: case(name, chosen.scripts.resolve(), chosen.ends, chosen.every, chance) for name in chosen.cases
    }
    for name, one in result.items():
        print(name, len(one["lives"]), "lives,", len(one["problems"]), "problems", one["problems"][:3])
    write("protect", result, str(Path(chosen.out) / "protect.json") if chosen.out else None)


if __name__ == "__main__":
    main()
