"""The hook: arms where it is asked to, and is never noticed elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.entry.hook import is_supervisor
from flatout.records.session import SESSION_VARIABLE, Order

SITE = Path(__file__).parents[3] / "src" / "flatout" / "entry" / "site"


@pytest.mark.parametrize(
    ("arguments", "supervises"),
    [
        (["/env/bin/python", "/env/bin/torchrun", "--nproc-per-node", "2", "train.py"], True),
        (["python", "-m", "torch.distributed.run", "train.py"], True),
        (["python", "-u", "-m", "torch.distributed.launch", "train.py"], True),
        (["/env/bin/python", "/env/bin/accelerate", "launch", "train.py"], True),
        (["python", "/x/torch/_inductor/compile_worker/__main__.py"], True),
        (["python", "train.py", "--launcher", "torchrun"], False),
        (["python", "-m", "train"], False),
        (["python", "-X", "torchrun", "train.py"], False),
        (["python", "-W", "ignore", "/env/bin/torchrun", "train.py"], True),
        (["python", "-c", "import torch"], False),
        (["python", "train.py"], False),
        (["python"], False),
    ],
)
def test_supervisors_are_known_by_their_command_line(arguments: list[str], supervises: bool) -> None:
    assert is_supervisor(arguments) is supervises


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(SITE), os.environ.get("PYTHONPATH", "")])
    clean = {name: value for name, value in os.environ.items() if name != SESSION_VARIABLE}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**clean, "PYTHONPATH": path, **environment},
        timeout=60,
    )


def test_without_the_variable_nothing_of_ours_is_imported() -> None:
    done = python("import sys; print([name for name in sys.modules if name.startswith('flatout')])")
    assert done.stdout == "[]\n"


def test_with_the_variable_and_no_torch_nothing_but_the_hook_is_imported(tmp_path: Path) -> None:
    order = tmp_path / "order.json"
    Order(folder=str(tmp_path / "run")).write(order)
    code = "import sys; print('flatout.inside.session' in sys.modules, 'torch' in sys.modules)"
    assert python(code, FLATOUT_SESSION=str(order)).stdout == "False False\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "content",
    [None, "{", *(pytest.param(text, marks=pytest.mark.full) for text in ('{"version": 99}', "[]"))],
)
def test_an_order_that_cannot_be_read_leaves_the_script_as_it_is(tmp_path: Path, content: str | None) -> None:
    order = tmp_path / "order.json"
    if content is not None:
        order.write_text(content)
    done = python("import torch; print(torch.ones(2).sum().item())", FLATOUT_SESSION=str(order))
    assert (done.returncode, done.stdout, done.stderr) == (0, "2.0\n", "")
    assert order.with_name("order.json.failed").exists() is (content is not None)


def test_a_script_that_deletes_the_variable_is_watched_all_the_same(tmp_path: Path) -> None:
    order = tmp_path / "order.json"
    Order(folder=str(tmp_path / "run")).write(order)
    code = (
        "import os; del os.environ['FLATOUT_SESSION']; import torch; "
        "from flatout.inside.armed import armed_session; print(armed_session() is not None)"
    )
    done = python(code, FLATOUT_SESSION=str(order))
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_torch_is_found_and_loaded_as_without_us(tmp_path: Path) -> None:
    order = tmp_path / "order.json"
    Order(folder=str(tmp_path / "run")).write(order)
    code = (
        "import sys, torch; print(torch.__spec__.loader.__class__.__name__, 'exec_module' in "
        "vars(torch.__spec__.loader), "
        "[type(f).__name__ for f in sys.meta_path if 'flatout' not in type(f).__module__])"
    )
    watched, bare = python(code, FLATOUT_SESSION=str(order)), python(code)
    assert watched.stdout == bare.stdout
    assert watched.stderr == bare.stderr
