"""MFU by `flatout profile` on unmodified scripts, beside operations counted by hand. Needs torchvision."""

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.machine import write
from benchmarks.profiled import profiled

EXAMPLES = Path(__file__).parents[1] / "examples"


def gpt_by_hand(
    batch: int = 4, length: int = 1024, width: int = 768, layers: int = 12, words: int = 50257
) -> int:
    """6 N + 12 L d T a token; N are the parameters of matrices: 12 d^2 a block, and the head."""
    matrices = layers * 12 * width**2 + words * width
    return batch * length * (6 * matrices + 12 * layers * width * length)


def resnet_by_hand(batch: int = 64) -> int:
    """4.089 G products a picture, two operations each, three times; the picture needs no gradient."""
    forward = 2 * 4_089_184_256
    first = 2 * 7 * 7 * 3 * 64 * 112 * 112
    return batch * (3 * forward - first)


def lstm_by_hand(batch: int = 64, length: int = 256, width: int = 1024, words: int = 10000) -> int:
    """Two layers of four gates over input and state, and the head; the first state needs no gradient."""
    layer = 2 * batch * length * 4 * width * (width + width)
    first_states = 2 * (2 * batch * 4 * width * width)
    head = 2 * batch * length * width * words
    return 3 * (2 * layer + head) - first_states


JOBS = {"gpt": gpt_by_hand, "resnet": resnet_by_hand, "lstm": lstm_by_hand}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=JOBS)
    parser.add_argument("--out")
    chosen = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, by_hand in JOBS.items():
            if chosen.only not in (None, name):
                continue
            found = profiled(["--seconds", "20", str(EXAMPLES / f"{name}.py")], folder)
            if "failed" in found:
                raise SystemExit(found["failed"])
            counted = found["mfu"]["flops_per_step"]
            rows[name] = {
                "counted_flops_per_step": counted,
                "by_hand_flops_per_step": by_hand(),
                "counted_over_by_hand": counted / by_hand(),
                **{key: found[key] for key in ("step_ms", "samples_per_s", "tokens_per_s", "mfu")},
                **{key: found[key] for key in ("device_parts", "host", "memory", "device_use", "steps")},
            }
            print(
                name, json.dumps({key: rows[name][key] for key in ("counted_over_by_hand", "tokens_per_s")})
            )
            print(json.dumps(found["mfu"]), json.dumps(found["step_ms"]))
    write("mfu", {"subject": "MFU of unmodified scripts", "jobs": rows}, chosen.out)


if __name__ == "__main__":
    main()
