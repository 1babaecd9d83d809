"""`flatout.generate`: what the model itself would say, ours where that is proven, its own way elsewhere."""

import copy
import gc
import pickle
import warnings
import weakref
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GPT2Config,
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
    with pytest.warns(UserWarning, match="its own generate") as told:
        found = flatout.generate(bloom, PROMPTS[:2], max_new_tokens=4)
    assert [one.filename for one in told if "its own generate" in str(one.message)] == [__file__]
    assert found == [own(bloom, prompt, 4) for prompt in PROMPTS[:2]]


def test_windows_shorter_than_the_sequence_are_refused() -> None:
    mistral = AutoModelForCausalLM.from_config(MistralConfig(**SMALL, sliding_window=32)).eval()
    assert "32" in refusal(mistral, 64) or "sliding" in refusal(mistral, 64)


def test_nothing_asked_nothing_said(model: Any) -> None:
    assert flatout.generate(model, []) == []


def small(**more: Any) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL, eos_token_id=None, pad_token_id=0, **more)).eval()


def test_a_window_is_heeded_when_sequences_get_longer_than_it() -> None:
    torch.manual_seed(0)
    config = MistralConfig(**SMALL, sliding_window=32, eos_token_id=None, pad_token_id=0)
    mistral = AutoModelForCausalLM.from_config(config).eval()
    assert flatout.generate(mistral, [[1, 2]], max_new_tokens=3) == [own(mistral, [1, 2], 3)]
    with pytest.warns(UserWarning, match="the last 32 only"):
        assert flatout.generate(mistral, [[5, 6]], max_new_tokens=60) == [own(mistral, [5, 6], 60)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flatout.generate(mistral, [[1, 2]], max_new_tokens=3)


def test_what_was_made_ready_goes_with_the_model_and_into_no_copy_or_file() -> None:
    mine = small()
    flatout.generate(mine, [[1, 2]], max_new_tokens=2)
    twin = copy.deepcopy(mine)
    assert flatout.generate(twin, [[1, 2]], max_new_tokens=2) == [own(mine, [1, 2], 2)]
    assert b"flatout" not in pickle.dumps(mine).replace(b"_flatout_generator", b"")
    gone = weakref.ref(mine)
    del mine
    gc.collect()
    assert gone() is None


def test_a_model_that_was_cast_or_put_into_eval_since_is_made_ready_anew() -> None:
    mine = small(attention_dropout=0.5).train()
    with pytest.warns(UserWarning, match="training mode"):
        flatout.generate(mine, [[1, 2]], max_new_tokens=2)
    mine.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert flatout.generate(mine, [[1, 2]], max_new_tokens=4) == [own(mine, [1, 2], 4)]
        mine.double()
        assert flatout.generate(mine, [[1, 2]], max_new_tokens=4) == [own(mine, [1, 2], 4)]


@pytest.mark.parametrize("wrong", [[], [300], [-1, 4]])
def test_a_prompt_that_cannot_be_answered_leaves_nothing_behind(model: Any, wrong: list[int]) -> None:
    heard: list[Any] = []
    with pytest.raises(ValueError, match="a prompt"):
        flatout.generate(model, [[1, 2], wrong], max_new_tokens=3, on_token=lambda *told: heard.append(told))
    assert flatout.generate(model, [[1, 2]], max_new_tokens=3) == [own(model, [1, 2], 3)]
    assert heard == []


def test_a_listener_that_fails_ends_its_call_and_no_other(model: Any) -> None:
    def fails(number: int, _token: int) -> None:
        raise KeyError(number)

    with pytest.raises(KeyError):
        flatout.generate(model, PROMPTS, max_new_tokens=6, on_token=fails)
    assert flatout.generate(model, PROMPTS, max_new_tokens=6) == [own(model, one, 6) for one in PROMPTS]


def test_positions_beyond_a_table_are_left_to_the_model() -> None:
    config = GPT2Config(n_embd=64, n_layer=1, n_head=4, n_positions=32, vocab_size=300)
    assert "32 positions" in refusal(AutoModelForCausalLM.from_config(config).eval(), 33)
    assert refusal(AutoModelForCausalLM.from_config(config).eval(), 32) == ""


def test_settings_of_the_model_that_draws_do_not_know_are_left_to_the_model() -> None:
    mine = small()
    mine.generation_config.repetition_penalty = 1.5
    with pytest.warns(UserWarning, match="repetition_penalty=1.5"):
        assert flatout.generate(mine, [[1, 2]], max_new_tokens=40) == [own(mine, [1, 2], 40)]


def test_settings_of_drawing_alone_count_where_tokens_are_drawn() -> None:
    from flatout.infer.generating.own_settings import own_sampling, unheeded

    mine = small()
    mine.generation_config.min_p = 0.1
    assert unheeded(mine, draws=False) == ()
    assert unheeded(mine) == ("min_p=0.1",)
    with pytest.warns(UserWarning, match=r"min_p=0\.1"):
        flatout.generate(mine, [[1, 2]], max_new_tokens=2, temperature=1.0)
    mine.generation_config.do_sample = True
    drawn = own_sampling(mine)
    assert drawn is not None
    assert drawn.top_k == 50, "as its own generate draws where nothing is said"


def test_what_was_made_before_is_gone_before_memory_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.infer.generating import readiness

    mine = small()
    first = readiness.generator_for(mine, rows=1, length=20)
    assert not isinstance(first, str)
    cache = weakref.ref(first.decoder)
    del first
    gone: list[bool] = []

    def counted(_model: object, wanted: int, _length: int) -> int:
        gone.append(cache() is None)
        return wanted

    monkeypatch.setattr(readiness, "rows_that_fit", counted)
    readiness.generator_for(mine, rows=1, length=300)
    assert gone == [True]


def test_a_trial_that_was_broken_off_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.infer.generating import readiness

    def ended(_model: object) -> str:
        raise KeyboardInterrupt

    mine = small()
    monkeypatch.setattr(readiness, "refusal_by_trial", ended)
    with pytest.raises(KeyboardInterrupt):
        readiness.generator_for(mine, rows=1, length=20)
    monkeypatch.setattr(readiness, "refusal_by_trial", lambda _model: "no")
    assert readiness.generator_for(mine, rows=1, length=20) == "no"


def test_who_asks_for_more_rows_and_longer_ones_by_turns_shares_one() -> None:
    from flatout.infer.generating.readiness import generator_for

    mine = small()
    wide = generator_for(mine, rows=3, length=20)
    both = generator_for(mine, rows=1, length=300)
    assert both is not wide
    assert generator_for(mine, rows=3, length=20) is both
    assert generator_for(mine, rows=2, length=290) is both
