"""Texts as they come: letters of several tokens, words to stop at, what is asked for."""

from typing import Any

import msgspec
import pytest

from flatout.infer.generating.sampling import Sampling
from flatout.infer.serving.asking import Chat, Completion, asked, sampling_of, stops_of
from flatout.infer.serving.problems import Problem
from flatout.infer.serving.spelling import Speller, Stops


def spelled(text: str) -> list[str]:
    """A token a byte."""
    speller = Speller(lambda tokens: bytes(tokens).decode("utf-8", "replace"))
    return [speller.add(byte) for byte in text.encode()] + [speller.rest()]


def test_a_letter_of_several_tokens_is_held_back_until_it_is_whole() -> None:
    pieces = spelled("aé€😀b")
    assert "".join(pieces) == "aé€😀b"
    assert [piece for piece in pieces if piece] == ["a", "é", "€", "😀", "b"]


def test_half_a_letter_at_the_end_is_shown_as_what_it_is() -> None:
    speller = Speller(lambda tokens: bytes(tokens).decode("utf-8", "replace"))
    assert speller.add("é".encode()[0]) == ""
    assert speller.rest() == "\N{REPLACEMENT CHARACTER}"


def test_words_to_stop_at_never_show_even_in_pieces() -> None:
    stops = Stops(["END", "\n\n"])
    shown, ended = "", False
    for piece in ("one E", "N", "x \n", "two E", "ND more"):
        more, ended = stops.add(piece)
        shown += more
        assert "END" not in shown
    assert ended
    assert shown == "one ENx \ntwo "


def test_what_only_looked_like_a_word_to_stop_at_comes_in_the_end() -> None:
    stops = Stops(["END"])
    assert stops.add("the EN") == ("the ", False)
    assert stops.rest() == "EN"


def ask(kind: Any = Completion, **fields: Any) -> Any:
    base = {"prompt": "a"} if kind is Completion else {"messages": [{"role": "user", "content": "a"}]}
    return asked(msgspec.json.encode({**base, **fields}), kind, "it")


def test_requests_of_usual_clients_are_read() -> None:
    found = ask(Chat, model="it", temperature=0, max_tokens=3, stop="x", user="me", n=1, tools=[], seed=None)
    assert sampling_of(found, Sampling(temperature=1.0)).temperature == 0
    assert stops_of(found) == ["x"]
    assert ask(prompt=[1, 2]).prompt == [1, 2]
    assert ask(prompt=["a"]).prompt == ["a"]
    parts = ask(Chat, messages=[{"role": "user", "content": [{"type": "text", "text": "b"}]}])
    assert parts.messages[0].content[0].text == "b"


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"n": 2}, 400, "n: 2"),
        ({"echo": True}, 400, "echo"),
        ({"seed": 1}, 400, "seed"),
        ({"repetition_penalty": 1.2}, 400, "repetition_penalty"),
        ({"min_p": 0.1}, 400, "min_p"),
        ({"min_tokens": 5}, 400, "min_tokens"),
        ({"logprobs": 5}, 400, "logprobs"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": 3}, 400, "prompt"),
        ({"stop": ["a"] * 17}, 400, "17 words"),
        ({"model": "other"}, 404, "other"),
    ],
)
def test_what_is_not_done_here_is_refused_and_never_left_out(
    fields: dict[str, Any], status: int, words: str
) -> None:
    with pytest.raises(Problem) as caught:
        ask(**fields)
    assert caught.value.status == status
    assert words in caught.value.received
