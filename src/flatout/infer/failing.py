"""What an error says, in one line."""

from flatout.inside.out_of_memory import is_out_of_memory
from flatout.records.errors import FlatoutError


def words_of(error: BaseException) -> str:
    """Its kind and its first line; in our words where they are ours."""
    if is_out_of_memory(error):
        return "it ran out of memory"
    if isinstance(error, FlatoutError):
        return error.received
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:300]
