"""Builds the package, installs it into an empty environment, uses it there, takes it away: `make package`.

Whatever is not as it should be ends this with the sentence that says so. Needs the package index for the
dependencies of Flatout alone: torch is left out on purpose.
"""

import argparse
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Command, exit code, and what it must say: without torch, and without any extra.
WORKS: tuple[tuple[tuple[str, ...], int, str], ...] = (
    (("--help",), 0, "doctor"),
    (("--version",), 0, "flatout"),
    ((), 0, "no torch in this Python"),
    (("doctor", "--json"), 0, "flatout.doctor/1"),
    (("gpus", "h200"), 0, "h200-sxm"),
    (("explain", "F101"), 0, "F101"),
    (("fit", "--load", "model.safetensors"), 0, "1 tensors"),
    (("ps",), 0, ""),
    (("watch", "--once"), 0, ""),
    (("export", "--once"), 0, "flatout_node_info"),
    (("skills",), 0, "gpu-optimization"),
    (("completion", "bash"), 0, "_flatout"),
    (("run", "--as-written", "plain.py"), 0, "ran under 1 session"),
    (("report",), 0, "run"),
)
# What needs torch or an extra names it, and blames nobody else.
SAYS_WHAT_IS_MISSING: tuple[tuple[tuple[str, ...], int, str], ...] = (
    (("limits",), 3, "torch is not installed"),
    (("check", "train.py"), 3, "torch is not installed"),
    (("profile", "train.py"), 3, "torch is not installed"),
    (("fit", "train.py"), 3, "torch is not installed"),
    (("tune", "train.py"), 3, "torch is not installed"),
    (("mcp",), 3, "pip install 'mcp>=2'"),
    (("serve", "module:factory"), 3, "torch is not installed"),
    (("bench", "http://127.0.0.1:1"), 3, "httptools is not installed"),
)
PLAIN = "import os\nprint('ran under', int('FLATOUT_SESSION' in os.environ), 'session')\n"


class Wrong(Exception):
    """Something that is not as it should be."""


def build(to: Path) -> tuple[Path, Path]:
    """The wheel, made from the sdist, and the sdist."""
    _run([sys.executable, "-m", "build", "--outdir", str(to), str(ROOT)])
    (wheel,), (sdist,) = to.glob("*.whl"), to.glob("*.tar.gz")
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> None:
    """Metadata that an index takes, the hook and the skills; no file of ours that is somewhere else."""
    from packaging.metadata import Metadata

    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        known = Metadata.from_email(archive.read(metadata), validate=True)
    if not known.description or known.description_content_type != "text/markdown":
        raise Wrong("the wheel carries no README")
    if "torch" in {re.split(r"[^\w-]", str(one))[0] for one in known.requires_dist or () if not one.marker}:
        raise Wrong("torch must stay the host's own: it is no dependency")
    above = {name.partition("/")[0] for name in names}
    expected = {"flatout", "flatout_skills", "flatout.pth", f"flatout-{known.version}.dist-info"}
    if above != expected:
        raise Wrong(f"the wheel holds {sorted(above)} and not {sorted(expected)}")
    if any("__pycache__" in name or name.endswith((".pyc", ".so")) for name in names):
        raise Wrong("the wheel holds compiled files")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2].partition("/")[0] for name in archive.getnames()}
    if missing := {"src", "tests", "examples", "docs", "LICENSE", "README.md", "pyproject.toml"} - inside:
        raise Wrong(f"the sdist lacks {sorted(missing)}")


class Environment:
    """An environment of its own, with a home, a folder for temporary files and a project."""

    def __init__(self, place: Path, python: str) -> None:
        self.prefix, self.home = place / "env", place / "home"
        self.temporary, self.project = place / "tmp", place / "project"
        for folder in (self.home, self.temporary, self.project):
            folder.mkdir(parents=True)
        _run([python, "-m", "venv", str(self.prefix)])
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("FLATOUT_", "XDG_"))
        }
        self._environment = {**kept, "HOME": str(self.home), "TMPDIR": str(self.temporary), "COLUMNS": "100"}
        self._environment.pop("PYTHONPATH", None)

    def run(self, program: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A program of the environment, in the project."""
        return subprocess.run(
            [str(self.prefix / "bin" / program), *words],
            cwd=self.project,
            env={**self._environment, **more},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=600,
            check=False,
        )

    def pip(self, *words: str) -> str:
        """What pip says; it must succeed."""
        done = self.run("python", "-m", "pip", "--disable-pip-version-check", *words)
        if done.returncode:
            raise Wrong(f"pip {' '.join(words)}: {(done.stdout + done.stderr).strip()[-2000:]}")
        return done.stdout


def files_in(folder: Path) -> set[str]:
    """Every file below a folder, by its path there."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def use(environment: Environment) -> int:
    """Every command that must work there, or must say what it lacks; how many."""
    project = environment.project
    (project / "plain.py").write_text(PLAIN)
    (project / "train.py").write_text("import torch\n")
    header = json.dumps({"w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}).encode()
    (project / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    ours, homes = files_in(project), files_in(environment.home)  # pip asks other programs, which write there
    for words, code, said in (*WORKS, *SAYS_WHAT_IS_MISSING):
        done = environment.run("flatout", *words)
        told = done.stdout + done.stderr
        if done.returncode != code or said not in told or "Traceback" in told:
            raise Wrong(f"flatout {' '.join(words)} ended with {done.returncode}, and said: {told[-2000:]}")
    if strays := {name for name in files_in(project) - ours if not name.startswith(".flatout/")}:
        raise Wrong(f"the project holds {sorted(strays)}")
    added = files_in(environment.home) - homes
    if strays := {name for name in added if not name.startswith(".cache/flatout/")}:
        raise Wrong(f"the home holds {sorted(strays)}")
    if strays := files_in(environment.temporary):
        raise Wrong(f"the folder of temporary files holds {sorted(strays)}")
    return len(WORKS) + len(SAYS_WHAT_IS_MISSING)


def take_away(environment: Environment) -> None:
    """Uninstalled, it leaves nothing, and no Python stumbles over what armed it."""
    environment.pip("uninstall", "--yes", "flatout")
    if left := sorted(map(str, environment.prefix.rglob("*flatout*"))):
        raise Wrong(f"uninstalled, it leaves {left[:20]}")
    done = environment.run("python", "-c", "print('as before')", FLATOUT_SESSION="/nowhere/order.json")
    if (done.stdout, done.stderr) != ("as before\n", ""):
        raise Wrong(f"after it is gone, Python says: {done.stdout}{done.stderr}")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where everything is as it should be."""
    options = argparse.ArgumentParser(prog="python -m scripts.packaging", description=__doc__)
    options.add_argument("--python", default=sys.executable, help="the Python of the empty environment")
    given = options.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="flatout-packaging-") as name:
        place = Path(name)
        try:
            wheel, sdist = build(place / "dist")
            check_contents(wheel, sdist)
            print(f"built       {wheel.name} ({wheel.stat().st_size >> 10} KiB), {sdist.name}")
            environment = Environment(place, given.python)
            environment.pip("install", "--quiet", str(wheel))
            print(f"installed   {environment.pip('check').strip()}")
            print(f"used        {use(environment)} commands without torch and without extras")
            take_away(environment)
            print("uninstalled nothing of it is left")
        except Wrong as wrong:
            print(f"wrong: {wrong}", file=sys.stderr)
            return 1
    return 0


def _run(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise Wrong(f"{' '.join(words)}: {(done.stdout + done.stderr).strip()[-2000:]}")


if __name__ == "__main__":
    sys.exit(main())
