"""Text from tokens as they come, and words at which it stops."""

from collections.abc import Callable


class Speller:
    """Tokens to text as they come: a letter of several tokens is held back until it is whole."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        # Up to where tokens were spelled, and from where they are looked at again: spaces hang on neighbours.
        self._done, self._from = 0, 0

    def add(self, token: int) -> str:
        """The text that this token completes; often some, sometimes none."""
        self._tokens.append(token)
        return self._new(final=False)

    def rest(self) -> str:
        """What was held back."""
        return self._new(final=True)

    def _new(self, *, final: bool) -> str:
        before = self._decode(self._tokens[self._from : self._done])
        now = self._decode(self._tokens[self._from :])
        if not final and now.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        text = now[len(before) :]
        if text:
            self._from, self._done = self._done, len(self._tokens)
        return text


class Stops:
    """Looks for words at which to stop in a text that comes in pieces; nothing of them is let out."""

    def __init__(self, words: list[str]) -> None:
        self._words = [word for word in words if word]
        self._held = ""

    def add(self, text: str) -> tuple[str, bool]:
        """What may be shown, and whether a word to stop at has come."""
        self._held += text
        places = [place for word in self._words if (place := self._held.find(word)) >= 0]
        if places:
            shown, self._held = self._held[: min(places)], ""
            return shown, True
        keep = max((_overlap(self._held, word) for word in self._words), default=0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown, False

    def rest(self) -> str:
        """What looked like the beginning of one, and was none."""
        shown, self._held = self._held, ""
        return shown


def _overlap(text: str, word: str) -> int:
    """How much of the word's beginning is at the text's end."""
    return next(
        (size for size in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:size])), 0
    )
