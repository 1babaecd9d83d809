"""`flatout` and `flatout --json` as a user types them."""

import json
from pathlib import Path

from tests.e2e.conftest import Run
from tests.e2e.test_imports import loaded_after

TRAINING = "import torch\nfor _ in range(3):\n    torch.ones(1, requires_grad=True).sum().backward()\n"


def test_it_suggests_the_next_command_and_exits_with_zero(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    done = flatout(COLUMNS="120")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nflatout check train.py\n" in done.stdout
    assert "a loop with backward (line 3)" in done.stdout


def test_it_is_readable_when_narrow_and_names_are_inert(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "t\x1b[2Jrain.py").write_text(TRAINING)
    done = flatout(COLUMNS="20", LC_ALL="C")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout


def test_the_document_says_the_same(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    done = flatout("--json")
    document = json.loads(done.stdout)
    assert document["schema"] == "flatout.next/1"
    assert document["suggestion"]["command"] == "flatout check train.py"
    assert len(document["others"]) <= 3


def test_json_before_a_command_is_refused_with_the_right_order(flatout: Run) -> None:
    done = flatout("--json", "gpus")
    assert done.returncode == 2
    assert "flatout gpus --json" in done.stderr
    assert json.loads(done.stdout)["schema"] == "flatout.error/1"


def test_it_never_loads_torch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    loaded = loaded_after(
        f"import os; os.chdir({str(tmp_path)!r})\n"
        "from flatout.cli.main import main\n"
        "try:\n    main([])\nexcept SystemExit as ended:\n    assert not ended.code"
    )
    assert "msgspec" in loaded
    assert "torch" not in loaded
