"""`make demo`: tunes one of the examples in a folder of its own, and ends with the picture.

On a GPU the example as it is; without one a small version of it, in two or three minutes.
"""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from flatout.hardware.machine import default_sources

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".demo"
SMALL = "--layers 2 --width 64 --heads 4 --length 256 --vocabulary 1000"


def main() -> int:
    """Tune the GPT with attention by hand."""
    devices = [device for source in default_sources() for device in source.discover().devices]
    has_gpu = any(device.vendor == "nvidia" for device in devices)
    FOLDER.mkdir(exist_ok=True)
    # A copy: what tuning finds is then shown as a patch of it.
    script = shutil.copy(ROOT / "examples" / "gpt.py", FOLDER)
    budget = "3m" if has_gpu else "90s"
    words = [
        "tune",
        "--budget",
        budget,
        Path(script).name,
        *([] if has_gpu else shlex.split(SMALL)),
        "--steps",
        "100000",
    ]
    print(f"cd {FOLDER.name} && flatout {' '.join(words)}\n", flush=True)
    done = subprocess.run([sys.executable, "-m", "flatout", *words], cwd=FOLDER, check=False)
    print(
        f"\nThe files that it names lie in {FOLDER}; `flatout` is {Path(sys.executable).parent / 'flatout'}."
    )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
