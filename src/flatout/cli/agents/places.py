"""Where an agent's paths may lead: into one folder, whatever links and dots they are made of."""

import re
from pathlib import Path

from flatout.records.errors import CallerMistake

_SCRIPTS = (".py", ".pyz", ".sh", ".bash")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Root:
    """The folder in which commands run and out of which no path may lead."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def path(self, given: str) -> str:
        """The same path, if it stays inside. It need not exist: a command says so in its own words."""
        if ".." in Path(given).parts:
            raise self._refusal(given, "it has `..` in it")
        try:
            real = (self.folder / given).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a zero byte
            raise self._refusal(given, str(error)) from None
        if not real.is_relative_to(self.folder):
            raise self._refusal(given, f"it leads to {real}")
        return given

    def script(self, given: str) -> str:
        """A script inside. Programs that a bare name would find on PATH are none."""
        path = self.folder / self.path(given)
        if given.startswith("-"):
            raise self._refusal(given, "it looks like an option; `./` before it makes it a path")
        if not (given.endswith(_SCRIPTS) or (path / "__main__.py").is_file()):
            raise self._refusal(given, "it is neither a Python nor a shell script")
        return given

    def module(self, given: str) -> str:
        """A module that lies inside, as `python -m` takes it: one that is installed somewhere is none."""
        base = self.folder.joinpath(*given.split(".")) if _MODULE.fullmatch(given) else None
        files = (base.with_suffix(".py"), base / "__main__.py") if base else ()
        if not any(file.is_file() and file.resolve().is_relative_to(self.folder) for file in files):
            raise self._refusal(given, "no such module lies in it")
        return given

    def run(self, given: str) -> str:
        """A run's id or the beginning of one, or its folder inside."""
        return self.path(given)

    def _refusal(self, given: str, why: str) -> CallerMistake:
        return CallerMistake(
            f"{given!r} is not allowed: {why}",
            expected=f"a path inside of {self.folder}",
            remedy="start `flatout mcp` with another --root, if that is meant",
        )
