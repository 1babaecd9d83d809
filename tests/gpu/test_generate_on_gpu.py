"""Text on a GPU: compiled, captured, and still the tokens that the model itself would choose."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import flatout  # noqa: E402
from flatout.infer.generating.generator import Generator, Request  # noqa: E402
from flatout.infer.generating.sampling import Sampling  # noqa: E402

SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": 0,
}
# The last is longer than what attention looks at first.
PROMPTS = [[7, 3, 250], list(range(1, 40)), [42], [100] * 300]


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPE)
    return transformers.LlamaForCausalLM(config).eval().to("cuda")


def own(model: Any, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt], device="cuda")
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return [int(token) for token in out[0, len(prompt) :]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "heads", "shared", "width", "places"),
    [
        (1, 32, 8, 128, 256),
        (1, 32, 8, 64, 320),
        (3, 8, 2, 64, 1088),
        (2, 4, 4, 32, 4096),
        (40, 8, 8, 64, 1024),
    ],
)
def test_our_kernel_attends_as_torch_does(
    dtype: Any, rows: int, heads: int, shared: int, width: int, places: int
) -> None:
    from flatout.infer.generating.attention import by_kernel, by_torch, has_kernel

    torch.manual_seed(0)
    query = torch.randn(rows, heads, 1, width, device="cuda", dtype=dtype)
    keys, values = torch.randn(2, rows, shared, places + 1, width, device="cuda", dtype=dtype)[
        ..., :places, :
    ]
    assert has_kernel(query, keys, values)
    at = torch.randint(0, places, (rows,), device="cuda")
    at[0] = 3
    mask = (torch.arange(places, device="cuda")[None] <= at[:, None])[:, None, None, :]
    wanted = by_torch(*(one.double() for one in (query, keys, values)), mask, None)
    behind = ~mask[:, 0, 0, :, None][:, None]
    found = by_kernel(query, keys, values.masked_fill(behind, float("nan")), mask, None).double()
    assert float((found - wanted).norm() / wanted.norm()) < 1e-2


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_greedy_tokens_in_float32_are_the_models_own(model: Any) -> None:
    found = flatout.generate(model, PROMPTS, max_new_tokens=24)
    assert found == [own(model, prompt, 24) for prompt in PROMPTS]


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_graphs_draw_anew_at_each_step_and_rows_go_to_the_next(model: Any) -> None:
    generator = Generator(model, rows=2, length=128)
    warm = Sampling(temperature=3.0, top_k=50)
    requests = [Request([5, 6], 30, warm), Request([5, 6], 30, warm), Request([9], 10), Request([8], 10)]
    first, second, third, fourth = generator.generate(requests)
    assert first != second
    assert len(set(first)) > 5
    assert third == own(model, [9], 10)
    assert fourth == own(model, [8], 10)


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_in_bfloat16_logits_are_the_models_own_but_for_rounding(model: Any) -> None:
    from flatout.infer.generating.proving import refusal

    low = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).eval().to("cuda", torch.bfloat16)
    assert refusal(low, 256) == ""


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_generating_waits_for_nothing_but_what_is_read(model: Any) -> None:
    generator = Generator(model, rows=1, length=128)
    # One row has kernels of its own: products are sums there.
    assert generator.generate([Request([1, 2, 3], 24)]) == [own(model, [1, 2, 3], 24)]
    decoder = generator.decoder
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        decoder.step("greedy", 20)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_graphs_of_one_autocast_live_longer_than_it(model: Any) -> None:
    prompts = PROMPTS[:1]
    with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
        model(torch.tensor(prompts, device="cuda"))  # autocast keeps the weights that were cast for this
        first = flatout.generate(model, prompts, max_new_tokens=12)
    torch.full((1 << 24,), float("nan"), device="cuda")  # their memory is anybody's now
    with torch.autocast("cuda", torch.bfloat16), torch.inference_mode():
        assert flatout.generate(model, prompts, max_new_tokens=12) == first
    assert flatout.generate(model, prompts, max_new_tokens=12) == [own(model, prompts[0], 12)]


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_threads_on_streams_of_their_own_take_turns(model: Any) -> None:
    expected = [own(model, prompt, 12) for prompt in PROMPTS[:3]]

    def ask(number: int) -> list[bool]:
        with torch.cuda.stream(torch.cuda.Stream()):
            return [
                flatout.generate(model, [PROMPTS[number]], max_new_tokens=12) == [expected[number]]
                for _ in range(10)
            ]

    with ThreadPoolExecutor(3) as pool:
        assert all(all(found) for found in pool.map(ask, range(3)))
