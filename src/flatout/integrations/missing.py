"""Libraries that are imported when they are used."""

import importlib
from typing import Any

from flatout.records.errors import EnvironmentProblem


def library(name: str, *, wanted_for: str, package: str = "") -> Any:
    """The module, or an error that names what to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = package or name.partition(".")[0]
        raise EnvironmentProblem(
            f"{name} cannot be imported: {error}",
            expected=f"{package}, for {wanted_for}",
            remedy=f"pip install {package}",
        ) from error
