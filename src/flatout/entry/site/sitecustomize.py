"""For environments without our `.pth`, through PYTHONPATH; runs the user's own sitecustomize as well."""

import contextlib
import os
import sys


def _chain() -> None:
    """Import the sitecustomize that Python would have found without this folder."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if "FLATOUT_SESSION" in os.environ:
    with contextlib.suppress(Exception):  # an environment that cannot hold us runs the script bare
        import flatout.entry.hook  # noqa: F401
_chain()
