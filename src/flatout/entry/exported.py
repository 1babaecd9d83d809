"""`flatout.load_model`: what `flatout export-model` made, without the Python model."""

import os
from pathlib import Path

from flatout.infer.exporting.loaded import LoadedModel

__all__ = ["load_model"]


def load_model(path: str | os.PathLike[str]) -> LoadedModel:
    """Load a package of `flatout export-model`; it is called as the module was.

        model = flatout.load_model("model.pt2")
        scores = model(images)

    The Python code of the model need not be there. Inputs are checked against what the package was made for:
    shapes, dtypes, the device, and how many samples; `model.look` says what that is. A package is compiled
    code: load only those that you trust.
    """
    return LoadedModel.read(Path(path))
