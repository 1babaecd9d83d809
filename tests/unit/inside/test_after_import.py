"""Waiting for imports: called once, at the right moment, and nobody else notices."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"

START = """
import importlib, importlib.util, sys
from flatout.inside.imports import after_import
seen = []
"""


def python(code: str, folder: Path) -> str:
    """What a child prints, with the modules in `folder` at hand."""
    done = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(SOURCE)},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "one.py").write_text("state = 'whole'\nimport two\n")
    (tmp_path / "two.py").write_text("state = 'whole'\n")
    (tmp_path / "broken.py").write_text("raise ValueError('broken')\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "inner.py").write_text("from two import state\n")
    return tmp_path


def test_the_callback_gets_the_whole_module_before_the_import_returns(folder: Path) -> None:
    code = """
    after_import("one", lambda module: seen.append((module.__name__, module.state)))
    import one
    print(seen)
    """
    assert python(code, folder) == "[('one', 'whole')]\n"


def test_a_module_that_is_there_already_is_told_of_at_once(folder: Path) -> None:
    code = """
    import two
    after_import("two", lambda module: seen.append(module is two))
    print(seen)
    """
    assert python(code, folder) == "[True]\n"


def test_several_names_and_several_callbacks_keep_their_order(folder: Path) -> None:
    code = """
    for name in ("one", "two", "package.inner", "two"):
        after_import(name, lambda module, place=len(seen): seen.append(module.__name__))
    import package.inner, one
    print(seen)
    """
    assert python(code, folder) == "['two', 'two', 'package.inner', 'one']\n"


def test_looking_for_a_module_is_not_loading_it(folder: Path) -> None:
    """Libraries ask whether another is installed long before it is imported, if ever."""
    code = """
    after_import("two", lambda module: seen.append("two"))
    importlib.util.find_spec("two"); importlib.util.find_spec("two")
    print(seen)
    import two
    print(seen)
    """
    assert python(code, folder) == "[]\n['two']\n"


def test_loaders_and_finders_are_left_as_they_were_found(folder: Path) -> None:
    code = """
    before = list(sys.meta_path)
    after_import("two", seen.append); after_import("_queue", seen.append)
    assert len(sys.meta_path) == len(before) + 1
    import two, _queue
    assert sys.meta_path == before
    for module in (two, _queue):
        spec = importlib.util.spec_from_file_location("x", module.__file__)
        print(type(module.__loader__) is type(spec.loader), module.__spec__.loader is module.__loader__,
              "exec_module" in vars(module.__loader__))
    """
    assert python(code, folder) == "True True False\n" * 2


def test_built_in_modules_whose_loader_is_a_class_are_awaited_as_well(folder: Path) -> None:
    code = """
    import _frozen_importlib
    name = next(name for name in ("_struct", "math", "atexit", "faulthandler", "_tracemalloc")
                if name in sys.builtin_module_names and name not in sys.modules)
    own = vars(_frozen_importlib.BuiltinImporter)["exec_module"]
    after_import(name, lambda module: seen.append(module.__name__ == name))
    module = importlib.import_module(name)
    print(seen, module.__spec__.loader is _frozen_importlib.BuiltinImporter,
          module.__loader__ is _frozen_importlib.BuiltinImporter,
          vars(_frozen_importlib.BuiltinImporter)["exec_module"] is own)
    """
    assert python(code, folder) == "[True] True True True\n"


def test_an_import_that_fails_fails_as_without_us_and_is_awaited_on(folder: Path) -> None:
    code = """
    after_import("broken", lambda module: seen.append("broken"))
    for _ in range(2):
        try:
            import broken
        except ValueError as error:
            seen.append(str(error))
    try:
        after_import("nowhere", seen.append)
        import nowhere
    except ModuleNotFoundError as error:
        seen.append(error.name)
    print(seen)
    """
    assert python(code, folder) == "['broken', 'broken', 'nowhere']\n"


def test_a_finder_that_asks_everyone_in_its_turn_does_not_make_it_two_calls(folder: Path) -> None:
    code = """
    class Asking:
        def find_spec(self, name, path=None, target=None):
            sys.meta_path.remove(self)
            return importlib.util.find_spec(name)
    after_import("two", lambda module: seen.append("two"))
    sys.meta_path.append(Asking())
    sys.meta_path.insert(0, sys.meta_path.pop())  # before us
    sys.meta_path.insert(1, sys.meta_path.pop(0))  # and now behind us, before all others
    import two
    print(seen, two.state)
    """
    assert python(code, folder) == "['two'] whole\n"


def test_a_finder_that_hands_out_the_same_loader_twice_is_no_trouble(folder: Path) -> None:
    code = """
    spec = importlib.util.spec_from_file_location("kept_spec", "two.py")
    class Same:
        def find_spec(self, name, path=None, target=None):
            return spec if name == "kept_spec" else None
    sys.meta_path.insert(0, Same())
    after_import("kept_spec", lambda module: seen.append(module.state))
    importlib.util.find_spec("kept_spec"); importlib.util.find_spec("kept_spec")
    import kept_spec
    print(seen, "exec_module" in vars(spec.loader))
    """
    assert python(code, folder) == "['whole'] False\n"
