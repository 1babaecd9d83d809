"""What a target's file says, before it is checked and written."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draft:
    """The text of the file, how its name ends, and the words that hand it in (the file comes last)."""

    text: str
    suffix: str
    submit: tuple[str, ...]
    notes: tuple[str, ...] = ()
    # Of YAML: what must be read back from it.
    documents: tuple[dict[str, Any], ...] = ()
