"""One model and several who ask it at the same time: each gets its own tokens, and nobody waits for ever."""

import threading
import warnings
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import flatout
from flatout.infer.generating.attention import KERNEL, TOGETHER, heads_ask_together
from flatout.infer.generating.generator import Generator, Request

CONFIG = LlamaConfig(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=300,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=0,
)
PROMPTS = [[7, 3, 250], list(range(1, 20)), [42]]
COUNT = 10


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG).eval()


def own(model: Any, prompt: list[int], count: int = COUNT) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    return [int(token) for token in out[0, len(prompt) :]]


@pytest.mark.timeout(120)
def test_threads_with_one_model_each_get_their_own_tokens(model: Any) -> None:
    expected = [own(model, prompt) for prompt in PROMPTS]
    wrong: list[Any] = []
    # From the very first call on: it is made ready by one of them.
    together = threading.Barrier(4)

    def ask(first: int) -> None:
        together.wait()
        for turn in range(8):
            number = (first + turn) % len(PROMPTS)
            try:
                # Of several lengths: some have it made anew while others wait.
                [found] = flatout.generate(model, [PROMPTS[number]], max_new_tokens=COUNT + 250 * (turn == 5))
                if found[:COUNT] != expected[number]:
                    wrong.append(found)
            except Exception as error:  # noqa: BLE001
                wrong.append(error)

    threads = [threading.Thread(target=ask, args=(first,), daemon=True) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


@pytest.mark.timeout(60)
def test_a_listener_that_asks_the_same_model_is_answered_and_disturbs_nothing(model: Any) -> None:
    within: list[list[int]] = []

    def listen(number: int, _token: int) -> None:
        if number == 1 and len(within) < 2:
            within.extend(flatout.generate(model, [PROMPTS[2]], max_new_tokens=4))

    with pytest.warns(UserWarning, match="from within another call"):
        found = flatout.generate(model, PROMPTS, max_new_tokens=COUNT, on_token=listen)
    assert found == [own(model, prompt) for prompt in PROMPTS]
    assert within == [own(model, PROMPTS[2], 4)] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert flatout.generate(model, PROMPTS[:1], max_new_tokens=3) == [own(model, PROMPTS[0], 3)]


@pytest.mark.timeout(60)
def test_a_call_that_fails_gives_its_turn_back(model: Any) -> None:
    def fails(_number: int, _token: int) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        flatout.generate(model, PROMPTS, max_new_tokens=COUNT, on_token=fails)
    heard: list[Any] = []
    thread = threading.Thread(
        target=lambda: heard.extend(flatout.generate(model, PROMPTS[:1], max_new_tokens=COUNT)), daemon=True
    )
    thread.start()
    thread.join(30)
    assert heard == [own(model, PROMPTS[0])]


def test_a_stream_goes_on_beside_other_requests(model: Any) -> None:
    generator = Generator(model, rows=2, length=64)
    stream = generator.stream(Request(PROMPTS[0], COUNT))
    heard = [next(stream) for _ in range(3)]
    assert generator.generate([Request(PROMPTS[1], COUNT)]) == [own(model, PROMPTS[1])]
    assert [*heard, *stream] == own(model, PROMPTS[0])


def test_a_stream_that_is_ended_by_another_request_says_so(model: Any) -> None:
    def fails(_token: int) -> None:
        raise KeyError

    generator = Generator(model, rows=2, length=64)
    stream = generator.stream(Request(PROMPTS[0], COUNT))
    heard = [next(stream) for _ in range(3)]
    with pytest.raises(KeyError):
        generator.generate([Request(PROMPTS[1], COUNT, on_token=fails)])
    with pytest.raises(RuntimeError, match="a request beside this one failed"):
        heard.extend(stream)
    assert heard == own(model, PROMPTS[0])[: len(heard)]
    assert generator.generate([Request(PROMPTS[2], COUNT)]) == [own(model, PROMPTS[2])]


def test_a_stream_that_is_dropped_in_the_midst_of_a_turn_disturbs_nothing(model: Any) -> None:
    generator = Generator(model, rows=2, length=64)
    dropped = generator.stream(Request(PROMPTS[0], 40))
    next(dropped)

    def drop(_token: int) -> None:
        dropped.close()  # type: ignore[attr-defined]

    requests = [Request(PROMPTS[1], COUNT, on_token=drop), Request(PROMPTS[2], COUNT, on_token=drop)]
    assert generator.generate(requests) == [own(model, PROMPTS[1]), own(model, PROMPTS[2])]


@pytest.mark.parametrize("how", [TOGETHER, KERNEL])
def test_who_calls_the_model_while_a_step_is_under_way_keeps_the_padding(model: Any, how: str) -> None:
    ids = torch.tensor([[0, 0, 7, 3, 250], [9, 8, 7, 6, 5]])
    given = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    expected = model.generate(**given, max_new_tokens=6, do_sample=False)
    with heads_ask_together(model, how):
        assert torch.equal(model.generate(**given, max_new_tokens=6, do_sample=False), expected)
