"""The house and its papers agree: rooms, public names, README, results."""

import ast
import json
import re
from pathlib import Path

import flatout
from flatout.cli.commands import COMMANDS
from flatout.hardware.catalogue import catalogue
from flatout.hardware.health.catalogue import CHECKS

ROOT = Path(__file__).parents[2]


def test_the_public_surface_is_what_we_meant() -> None:
    public = [
        *("Buckets", "Checkpointer", "MemoryTracker", "Microbatch", "NotFinite", "Stopped", "Update"),
        *("__version__", "apply", "batch_inference"),
        *("find_batch_size", "fit", "generate", "load_model", "loader_settings", "log", "microbatch"),
        *("observe", "optimize", "parallel", "prefetch", "stop_requested", "tune"),
    ]
    assert flatout.__all__ == public
    assert all(callable(getattr(flatout, name)) for name in public if name != "__version__")


def test_every_room_is_described_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = {path.name for path in (ROOT / "src/flatout").iterdir() if (path / "__init__.py").exists()}
    described = set(re.findall(r"`src/flatout/(\w+)/`", text))
    assert described == rooms


def test_every_room_says_its_job_in_one_sentence() -> None:
    for file in (ROOT / "src").rglob("*.py"):
        first = file.read_text().splitlines()[0]
        assert first.startswith('"""'), file


def test_the_readme_lists_every_command_and_counts_right() -> None:
    text = (ROOT / "README.md").read_text()
    table = text.partition("\n## Commands\n")[2].partition("\n## ")[0]
    assert re.findall(r"`flatout ([\w-]+)`", table) == list(COMMANDS)
    assert f"{len(CHECKS)} checks" in text
    assert f"{len(catalogue())} GPUs" in text


def test_every_result_file_says_when_where_and_with_what() -> None:
    files = list((ROOT / "benchmarks/results").glob("*.json"))
    assert files
    for file in files:
        machine = json.loads(file.read_text())["machine"]
        assert file.name.startswith(machine["date"][:10])
        assert machine["devices"]
        assert machine["versions"]["torch"]


def test_no_two_tests_have_the_same_name() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names)), "pytest tells files apart by their names alone"


# What torch.set_default_device moves. `as_tensor` is left out: a tensor stays what it is.
MAKERS = {
    *("arange", "empty", "empty_strided", "eye", "full", "linspace", "ones", "rand", "randint", "randn"),
    *("randperm", "scalar_tensor", "tensor", "zeros"),
}
IN_THE_USERS_PROCESS = ("inside", "levers", "entry", "runtime", "memory", "infer", "integrations", "monitor")


def test_tensors_of_ours_say_where_they_are() -> None:
    """A script may call torch.set_default_device: what we hold on the host must not land on its GPU."""
    without = []
    for room in IN_THE_USERS_PROCESS:
        for file in sorted((ROOT / "src/flatout" / room).rglob("*.py")):
            for call in ast.walk(ast.parse(file.read_text())):
                if not isinstance(call, ast.Call) or not _makes_a_tensor(call.func):
                    continue
                # None: as many as are in a dictionary.
                if not {None, "device"} & {keyword.arg for keyword in call.keywords}:
                    without.append(f"{file.relative_to(ROOT)}: {ast.unparse(call)}")
    # Drawn as torch's own DataLoader draws it.
    assert without == ["src/flatout/inside/overrides.py: torch.empty((), dtype=torch.int64)"]


def _makes_a_tensor(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute) or function.attr not in MAKERS:
        return False
    owner = function.value
    return (owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")) in ("torch", "_torch")
