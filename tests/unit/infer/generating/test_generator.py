"""Text from language models: the tokens that the model itself would choose, whoever shares the batch."""

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from flatout.infer.generating.decoder import Decoder
from flatout.infer.generating.generator import Generator, Request
from flatout.infer.generating.sampling import Sampling, next_tokens

WORDS = 300
LLAMA = LlamaConfig(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=WORDS,
    eos_token_id=None,
    bos_token_id=None,
)
GPT2 = GPT2Config(
    n_embd=64, n_layer=2, n_head=4, vocab_size=WORDS, bos_token_id=0, eos_token_id=None, pad_token_id=0
)
PROMPTS = [[7, 3, 250], list(range(1, 20)), [42], [9, 8, 7, 6, 5], [100] * 7]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    torch.manual_seed(0)
    made = LlamaForCausalLM(LLAMA) if request.param == "llama" else GPT2LMHeadModel(GPT2)
    return made.eval()


def own(model: torch.nn.Module, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return [int(token) for token in out[0, len(prompt) :]]


def test_greedy_tokens_are_the_models_own_whoever_shares_the_batch(model: torch.nn.Module) -> None:
    generator = Generator(model, rows=2, length=64)
    counts = [12, 5, 30, 1, 17]
    requests = [Request(prompt, count) for prompt, count in zip(PROMPTS, counts, strict=True)]
    found = generator.generate(requests)
    assert found == [own(model, prompt, count) for prompt, count in zip(PROMPTS, counts, strict=True)]
    assert {request.ending for request in requests} == {"length"}
    assert generator.is_idle


def test_a_row_ends_at_its_stop_token_and_goes_to_the_next(model: torch.nn.Module) -> None:
    whole = own(model, PROMPTS[0], 20)
    stop = whole[6]
    first = whole.index(stop)
    generator = Generator(model, rows=1, length=64)
    request, after = Request(PROMPTS[0], 20, stops=(stop,)), Request(PROMPTS[1], 4)
    generator.generate([request, after])
    assert request.tokens == whole[: first + 1]
    assert request.ending == "stop"
    assert after.tokens == own(model, PROMPTS[1], 4)


def test_what_has_no_more_room_ends(model: torch.nn.Module) -> None:
    request = Request(PROMPTS[1], 100)
    Generator(model, rows=1, length=24).generate([request])
    assert request.tokens == own(model, PROMPTS[1], 24 - len(PROMPTS[1]))
    assert request.ending == "length"


def test_tokens_come_as_they_are_made_and_a_listener_may_leave(model: torch.nn.Module) -> None:
    generator = Generator(model, rows=2, length=64)
    request = Request(PROMPTS[3], 40)
    stream = generator.stream(request)
    heard = [next(stream) for _ in range(3)]
    stream.close()  # type: ignore[attr-defined]
    assert heard == own(model, PROMPTS[3], 3)
    assert request.ending == "left"
    assert len(request.tokens) < 40
    assert generator.generate([Request(PROMPTS[4], 3)]) == [own(model, PROMPTS[4], 3)]


@pytest.mark.parametrize("prompt", [[], [1] * 16])
def test_prompts_without_room_are_refused(model: torch.nn.Module, prompt: list[int]) -> None:
    with pytest.raises(ValueError, match="1 to 15"):
        Generator(model, rows=1, length=16).submit(Request(prompt, 1))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_step_gives_the_same(model: torch.nn.Module) -> None:
    if not isinstance(model, LlamaForCausalLM):
        pytest.skip("one model is enough: compiling takes long")
    generator = Generator(model, rows=2, length=300, compiled=True)
    requests = [Request(prompt, 6) for prompt in PROMPTS[:2]]
    # The second is longer than what attention looks at first: a second size, and nothing compiled anew.
    requests.append(Request([5] * 270, 6))
    before = counters["stats"]["unique_graphs"]
    found = generator.generate(requests)
    # The model, and what is made of its logits.
    assert counters["stats"]["unique_graphs"] - before == 2
    assert found == [own(model, list(request.prompt), 6) for request in requests]


def test_draws_follow_the_probabilities() -> None:
    torch.manual_seed(3)
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).repeat(20_000, 1)
    rows = logits.shape[0]
    ones, none = torch.ones(rows), torch.zeros(rows, dtype=torch.long)
    noise = torch.empty_like(logits).exponential_()
    for temperature in (0.5, 1.0):
        drawn = next_tokens("drawn", logits, temperature * ones, none, ones, noise)
        shares = torch.bincount(drawn, minlength=4) / rows
        expected = torch.softmax(logits[0] / temperature, -1)
        assert torch.allclose(shares, expected, atol=0.015)


def test_only_the_likeliest_are_drawn() -> None:
    torch.manual_seed(3)
    chances = torch.tensor([0.1, 0.4, 0.3, 0.15, 0.05])
    logits = chances.log().repeat(4000, 1)
    rows = logits.shape[0]
    noise = torch.empty_like(logits).exponential_()
    ones, none = torch.ones(rows), torch.zeros(rows, dtype=torch.long)

    def drawn(top_k: int, top_p: float) -> set[int]:
        found = next_tokens("filtered", logits, ones, none + top_k, ones * top_p, noise)
        return set(found.tolist())

    assert drawn(2, 1.0) == {1, 2}
    assert drawn(0, 0.6) == {1, 2}
    assert drawn(0, 0.75) == {1, 2, 3}
    assert drawn(1, 0.9) == {1}
    assert drawn(0, 1e-6) == {1}


def test_rows_draw_each_in_their_own_way(model: torch.nn.Module) -> None:
    torch.manual_seed(0)
    generator = Generator(model, rows=3, length=64)
    requests = [
        Request(PROMPTS[0], 8),
        Request(PROMPTS[0], 8, Sampling(temperature=5.0)),
        Request(PROMPTS[0], 8, Sampling(temperature=5.0, top_k=1)),
    ]
    greedy, warm, single = generator.generate(requests)
    assert greedy == single == own(model, PROMPTS[0], 8)
    assert warm != greedy


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_impossible_sampling_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Sampling(**wrong)  # type: ignore[arg-type]


def test_the_models_own_settings_stay(model: torch.nn.Module) -> None:
    before = model.config._attn_implementation
    decoder = Decoder(model, 1, 32)
    decoder.read(0, PROMPTS[0], Sampling(), 4)
    decoder.step("greedy", 5)
    assert model.config._attn_implementation == before


def test_a_prompt_that_cannot_be_read_ends_alone(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = Generator(model, rows=2, length=64)
    read = generator.decoder.read

    def reading(row: int, prompt: list[int], *more: object) -> None:
        if len(prompt) > 10:
            raise torch.OutOfMemoryError("out of memory")
        read(row, prompt, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(generator.decoder, "read", reading)
    requests = [Request(PROMPTS[0], 6), Request(PROMPTS[1], 6), Request(PROMPTS[2], 6)]
    with pytest.raises(torch.OutOfMemoryError):
        generator.generate(requests)
    assert [one.ending for one in requests] == ["length", "failed", "length"]
    assert requests[2].tokens == own(model, PROMPTS[2], 6)
    assert generator.is_idle


def test_everything_can_be_made_ready_before_it_is_needed(model: torch.nn.Module) -> None:
    generator = Generator(model, rows=2, length=600)
    generator.decoder.prepare()
    assert generator.generate([Request(PROMPTS[0], 6)]) == [own(model, PROMPTS[0], 6)]


def test_a_model_that_cannot_be_compiled_runs_as_written_with_a_word(model: torch.nn.Module) -> None:
    generator = Generator(model, rows=1, length=64, compiled=True)

    def broken() -> torch.Tensor:
        raise RuntimeError("no compiler here")

    generator.decoder._forward = broken
    with pytest.warns(UserWarning, match="no compiler here"):
        assert generator.generate([Request(PROMPTS[0], 6)]) == [own(model, PROMPTS[0], 6)]
