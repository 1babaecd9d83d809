"""`flatout.generate`: what the model itself would say, ours where that is proven, its own way elsewhere."""

import warnings
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
)

import flatout
from flatout.infer.generating.proving import refusal

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "bos_token_id": None,
}
PROMPTS = [[7, 3, 250], list(range(1, 20)), [42]]


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL, eos_token_id=None, pad_token_id=0)).eval()


def own(model: Any, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return [int(token) for token in out[0, len(prompt) :]]


class Letters:
    """A tokenizer."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return "".join(map(chr, tokens))


def test_answers_are_the_models_own_in_the_order_of_the_prompts(model: Any) -> None:
    heard: list[tuple[int, int]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = flatout.generate(model, PROMPTS, max_new_tokens=9, on_token=lambda *told: heard.append(told))
        again = flatout.generate(model, PROMPTS[::-1], max_new_tokens=5)
    assert found == [own(model, prompt, 9) for prompt in PROMPTS]
    assert again == [answer[:5] for answer in found[::-1]]
    assert [token for number, token in heard if number == 1] == found[1]


def test_longer_ones_get_more_room(model: Any) -> None:
    assert flatout.generate(model, [[1, 2]], max_new_tokens=3) == [own(model, [1, 2], 3)]
    long = [5] * 300
    assert flatout.generate(model, [long], max_new_tokens=3) == [own(model, long, 3)]


def test_texts_become_texts(model: Any) -> None:
    [found] = flatout.generate(model, ["abc"], tokenizer=Letters(), max_new_tokens=4)
    assert [ord(letter) for letter in found] == own(model, [97, 98, 99], 4)
    with pytest.raises(TypeError, match="tokenizer"):
        flatout.generate(model, ["abc"])


def test_it_ends_where_the_model_would(model: Any) -> None:
    whole = own(model, PROMPTS[0], 12)
    [found] = flatout.generate(model, PROMPTS[:1], max_new_tokens=12, stop=[whole[4]])
    assert found == whole[: whole.index(whole[4]) + 1]


def test_a_model_with_another_cache_answers_by_itself_with_a_word() -> None:
    torch.manual_seed(0)
    bloom = AutoModelForCausalLM.from_config(
        BloomConfig(hidden_size=64, n_layer=2, n_head=4, vocab_size=300, pad_token_id=0, eos_token_id=None)
    ).eval()
    with pytest.warns(UserWarning, match="its own generate"):
        found = flatout.generate(bloom, PROMPTS[:2], max_new_tokens=4)
    assert found == [own(bloom, prompt, 4) for prompt in PROMPTS[:2]]


def test_windows_shorter_than_the_sequence_are_refused() -> None:
    mistral = AutoModelForCausalLM.from_config(MistralConfig(**SMALL, sliding_window=32)).eval()
    assert "32" in refusal(mistral, 64) or "sliding" in refusal(mistral, 64)


def test_nothing_asked_nothing_said(model: Any) -> None:
    assert flatout.generate(model, []) == []
