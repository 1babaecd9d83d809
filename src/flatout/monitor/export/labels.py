"""Label values: text from outside made inert, and no more of them than a server can bear."""

import dataclasses
import functools
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

_LONGEST = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelLimits:
    """How many values a label may take. A Prometheus server keeps each of them for weeks."""

    devices: int = 2048
    jobs: int = 64
    # Of one job.
    ranks: int = 256
    devices_of_job: int = 256
    # Of one device or job.
    reasons: int = 16


@functools.lru_cache(maxsize=8192)
def label(text: str) -> str:
    """One line without control characters; long ones are cut.

    Escapes are shown, not obeyed, for what we export is printed on terminals, too. Bytes that are not UTF-8
    reach us as lone surrogates, which no answer could be encoded with.
    """
    shown = "".join(
        sign.encode("unicode_escape").decode() if _acts(sign) else sign for sign in text[: _LONGEST + 1]
    )
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 3] + "..."


def _acts(sign: str) -> bool:
    """Whether a reader could obey it instead of showing it: controls, lone surrogates, ends of lines."""
    kind = unicodedata.category(sign)
    return kind[0] == "C" or kind in ("Zl", "Zp")


class Admission:
    """Lets so many in and counts those that it turns away, by the metric that they would have been in."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()

    def first(self, items: Iterable[T], most: int, metric: str) -> list[T]:
        """The first `most` of them."""
        found = list(items)
        if len(found) > most:
            self.dropped[metric] += len(found) - most
        return found[:most]

    def unique(self, items: Iterable[T], key: Callable[[T], object], metric: str) -> list[T]:
        """Each key once: a server refuses two samples of one name, and everything that came with them."""
        by_key: dict[object, T] = {}
        count = 0
        for item in items:
            count += 1
            by_key.setdefault(key(item), item)
        if count > len(by_key):
            self.dropped[metric] += count - len(by_key)
        return list(by_key.values())
