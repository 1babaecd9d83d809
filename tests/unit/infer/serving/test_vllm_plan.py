"""vLLM's command, from a config and the headers of weights."""

import dataclasses
import json
import struct
from pathlib import Path

import pytest

from flatout.infer.serving.vllm import vllm_plan
from flatout.memory.language_models import LanguageModel, read_language_model
from flatout.records.errors import CallerMistake, EnvironmentProblem
from flatout.records.serving import EnginePlan

GIB = 1 << 30
LLAMA_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


def folder(path: Path, config: dict[str, object], elements: int = 1000) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    header = json.dumps(
        {"w": {"dtype": "BF16", "shape": [elements], "data_offsets": [0, 2 * elements]}}
    ).encode()
    with (path / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.truncate(8 + len(header) + 2 * elements)
    return path


def planned(
    model: LanguageModel, gib: int, gpus: int = 1, context: int | None = None, texts: int | None = None
) -> EnginePlan:
    return vllm_plan(
        Path("m"),
        model,
        gpu="a GPU",
        gpu_bytes=gib * GIB,
        gpus=gpus,
        host="::1",
        port=1,
        context=context,
        texts=texts,
    )


def value(plan: EnginePlan, name: str) -> str:
    return next(one.value for one in plan.settings if one.name == name)


def test_bytes_of_a_token_come_from_the_config(tmp_path: Path) -> None:
    found = read_language_model(folder(tmp_path / "llama", LLAMA_8B))
    assert found.token_bytes == 131072
    assert found.weight_bytes == 2000
    assert found.positions == 131072
    nested = read_language_model(folder(tmp_path / "nested", {"text_config": LLAMA_8B}))
    assert nested.token_bytes == 131072
    latent = {**LLAMA_8B, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert read_language_model(folder(tmp_path / "latent", latent)).token_bytes == 32 * 576 * 2
    kinds = {**LLAMA_8B, "layer_types": ["full_attention", "sliding_attention"] * 16}
    assert read_language_model(folder(tmp_path / "sliding", kinds)).token_bytes == 131072 // 2


def test_a_model_whose_layers_all_keep_the_last_tokens_takes_what_they_take(tmp_path: Path) -> None:
    sliding = {**LLAMA_8B, "layer_types": ["sliding_attention"] * 32}
    assert read_language_model(folder(tmp_path / "sliding", sliding)).token_bytes == 131072
    linear = {**LLAMA_8B, "layer_types": ["linear_attention"] * 32}
    with pytest.raises(CallerMistake, match="does not say of any layer that it keeps"):
        read_language_model(folder(tmp_path / "linear", linear))


def test_the_precision_may_stand_beside_the_text_model(tmp_path: Path) -> None:
    inner = {name: value for name, value in LLAMA_8B.items() if name != "torch_dtype"}
    whole = {"text_config": inner, "dtype": "float32"}
    assert read_language_model(folder(tmp_path / "whole", whole)).token_bytes == 2 * 131072


def test_a_cache_that_cannot_be_divided_is_copied_to_each_gpu(tmp_path: Path) -> None:
    latent = {**LLAMA_8B, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    models = [read_language_model(folder(tmp_path / str(n), one)) for n, one in enumerate((LLAMA_8B, latent))]
    assert [model.cache_parts for model in models] == [8, 1]
    for model, copies in zip(models, (1, 4), strict=True):
        large = dataclasses.replace(model, weight_bytes=140 * GIB)
        plan = planned(large, 80, gpus=4)
        assert plan.cache_tokens == int((4 * 80 * 0.82 - 140) * GIB // (model.token_bytes * copies))


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(CallerMistake, match=r"config\.json cannot be read"):
        read_language_model(tmp_path)
    with pytest.raises(CallerMistake, match="num_hidden_layers"):
        read_language_model(folder(tmp_path / "odd", {"hidden_size": 3}))


def test_a_model_that_fits_one_gpu_gets_one_and_what_is_left_is_cache() -> None:
    model = LanguageModel(
        weight_bytes=16 * GIB, token_bytes=131072, positions=131072, heads=32, words="", cache_parts=8
    )
    plan = planned(model, 80, gpus=8)
    assert value(plan, "--tensor-parallel-size") == "1"
    assert plan.cache_tokens == int((80 * 0.82 - 16) * GIB / 131072)
    assert value(plan, "--max-model-len") == "8192"
    assert int(value(plan, "--max-num-seqs")) == plan.cache_tokens // 4096
    assert plan.command[:3] == ("vllm", "serve", "m")
    assert value(planned(model, 80, context=32768, texts=3), "--max-model-len") == "32768"
    assert value(planned(model, 80, texts=3), "--max-num-seqs") == "3"


def test_weights_too_large_for_one_are_spread_over_as_many_as_heads_allow() -> None:
    model = LanguageModel(
        weight_bytes=140 * GIB, token_bytes=327680, positions=131072, heads=64, words="", cache_parts=8
    )
    assert value(planned(model, 80, gpus=8), "--tensor-parallel-size") == "4"
    with pytest.raises(EnvironmentProblem, match="for the cache"):
        planned(model, 80, gpus=2)


def test_a_context_that_does_not_fit_is_shortened_and_said() -> None:
    model = LanguageModel(
        weight_bytes=19 * GIB, token_bytes=131072 * 8, positions=131072, heads=32, words="", cache_parts=8
    )
    plan = planned(model, 24)
    assert int(value(plan, "--max-model-len")) == plan.cache_tokens < 8192
    assert "were wanted" in next(one.reason for one in plan.settings if one.name == "--max-model-len")
