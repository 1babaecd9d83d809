"""What a command draws, as text."""

import io
from collections.abc import Callable

from rich.console import Console


def terminal(
    draw: Callable[[Console], None], *, width: int = 80, height: int = 24, force: bool = False
) -> str:
    """Everything that was drawn on a terminal of this size; `force`: it takes itself for a real one."""
    out = io.StringIO()
    draw(Console(file=out, width=width, height=height, force_terminal=force, highlight=False, markup=False))
    return out.getvalue()
