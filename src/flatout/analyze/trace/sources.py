"""Which tool wrote a file: by what is in it, for names are anybody's."""

import re
import shlex
from pathlib import Path
from typing import Literal

from flatout.analyze.trace.chunks import NotATrace

Source = Literal["chrome", "nsys", "ncu"]

_SQLITE = b"SQLite format 3\x00"
# The first columns that ncu writes; before them may stand what it and the program said.
NCU_HEADER = re.compile(rb'^"?ID"?,.*"?Kernel Name"?', re.MULTILINE)
_HEAD_BYTES = 1 << 20
# Reports that nobody but their own tool reads, and how it writes them so that others can.
_OWN_FORMATS = {
    ".nsys-rep": "nsys export --type sqlite {file}",
    ".qdrep": "nsys export --type sqlite {file}",
    ".ncu-rep": "ncu --import {file} --csv --page raw > kernels.csv",
}


def source_of(path: Path) -> Source:
    """What wrote it; raises NotATrace where that is a report that its own tool must export first."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise NotATrace(path, error.strerror or "it cannot be read") from error
    if head.startswith(_SQLITE):
        return "nsys"
    export = _OWN_FORMATS.get(path.suffix)
    if export is not None:
        raise NotATrace(
            path,
            "a report in a format of its tool's own",
            expected="the same report, exported",
            remedy=export.format(file=shlex.quote(str(path))),
        )
    return "ncu" if path.suffix == ".csv" or NCU_HEADER.search(head) else "chrome"
