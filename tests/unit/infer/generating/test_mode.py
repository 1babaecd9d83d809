"""Whatever state of torch a caller is in, a model that was made ready serves the next caller as well."""

import contextlib
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

import flatout
from flatout.infer.generating.decoder import Decoder
from flatout.infer.generating.proving import refusal_by_trial
from flatout.infer.generating.sampling import GREEDY

PROMPT = [7, 3, 250]
WORDS: dict[str, Any] = {"vocab_size": 300, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}


def gpt2() -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=2, n_head=4, **WORDS)).eval()


def qwen2() -> Any:
    """Its products have biases."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    made = Qwen2ForCausalLM(Qwen2Config(num_key_value_heads=2, **sizes, **WORDS)).eval()
    for name, one in made.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(one)
    return made


def own(model: Any, count: int) -> list[int]:
    ids = torch.tensor([PROMPT])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    return [int(token) for token in out[0, len(PROMPT) :]]


def ours(model: Any, count: int) -> list[int]:
    [found] = flatout.generate(model, [PROMPT], max_new_tokens=count)
    return list(found)


def low() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize(
    "states",
    [
        (torch.inference_mode, contextlib.nullcontext),
        (torch.no_grad, torch.inference_mode),
        (contextlib.nullcontext, torch.inference_mode),
    ],
)
def test_inference_mode_around_one_call_holds_for_no_other(states: tuple[Any, ...]) -> None:
    model = gpt2()
    for state in (*states, *states):
        with state():
            found = ours(model, 6)
        assert found == own(model, 6)


@pytest.mark.filterwarnings("error:flatout.generate leaves")
def test_autocast_around_a_call_holds_for_that_call_alone() -> None:
    model = gpt2()
    with low():
        found, expected = ours(model, 8), own(model, 8)
        assert model.__dict__["_flatout_generator"].generator.decoder.cache.keys[0].dtype == torch.bfloat16
    assert found == expected
    assert ours(model, 8) == own(model, 8)
    assert model.__dict__["_flatout_generator"].generator.decoder.cache.keys[0].dtype == torch.float32
    with torch.inference_mode(), low():
        assert ours(model, 8) == expected


@pytest.mark.parametrize("make", [gpt2, qwen2])
def test_under_autocast_logits_are_the_models_own_but_for_rounding(make: Any) -> None:
    model = make()
    with low():
        assert refusal_by_trial(model) == ""


def test_a_decoder_goes_on_as_it_was_made_whoever_drives_it() -> None:
    model = gpt2()
    with low():
        cast = Decoder(model, 1, 32)
        expected = logits(cast)
    plain = Decoder(model, 1, 32)
    assert not torch.equal(expected, logits(plain))
    assert torch.equal(logits(cast), expected)
    with low(), torch.inference_mode():
        assert not torch.equal(logits(plain), expected)


def logits(decoder: Decoder) -> torch.Tensor:
    decoder.read(0, PROMPT, GREEDY, 4)
    return decoder.fed(0, 5)
