"""`flatout serve --llm`: a small language model behind OpenAI's endpoints, and load for it."""

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Run
from tests.e2e.servers import Server, served


def write_model(folder: Path) -> None:
    """Llama's shape with two layers; a token for each byte."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = {
        letter: number
        for number, letter in enumerate(("<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())))
    }
    made = Tokenizer(models.BPE(vocab=letters, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = (
        "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}assistant: "
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(letters),
        max_position_embeddings=256,
        eos_token_id=1,
        bos_token_id=0,
        pad_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("llm")
    write_model(folder / "tiny")
    with served(folder, "--llm", "tiny", "--rows", "3", "--queue", "4", "--timeout", "20s") as one:
        yield one
        one.wait_for("flatout_serve_running_items", 0)


def completed(server: Server, **asked: Any) -> tuple[int, Any]:
    path = "/v1/chat/completions" if "messages" in asked else "/v1/completions"
    status, _, body = server.ask("POST", path, {"temperature": 0, "max_tokens": 8, **asked})
    return status, json.loads(body)


def events(server: Server, path: str, **asked: Any) -> list[Any]:
    body = server.ask("POST", path, {"stream": True, "temperature": 0, "max_tokens": 8, **asked})[2]
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_text_is_the_same_whole_and_in_pieces_and_beside_others(server: Server) -> None:
    status, whole = completed(server, prompt="Hello", ignore_eos=True)
    assert status == 200
    assert whole["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
    text = whole["choices"][0]["text"]
    pieces = events(server, "/v1/completions", prompt="Hello", ignore_eos=True)
    assert "".join(one["choices"][0]["text"] for one in pieces) == text
    assert pieces[-1]["choices"][0]["finish_reason"] == "length"
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(completed(server, prompt="Hello", ignore_eos=True)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one["choices"][0]["text"] for status, one in found] == [text] * 6


def test_a_conversation_goes_through_the_model_s_template(server: Server) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    status, whole = completed(server, messages=messages, ignore_eos=True)
    assert status == 200
    assert whole["object"] == "chat.completion"
    assert whole["usage"]["prompt_tokens"] == len("user: Hi\nassistant: ")
    pieces = events(
        server,
        "/v1/chat/completions",
        messages=messages,
        ignore_eos=True,
        stream_options={"include_usage": True},
    )
    assert pieces[0]["choices"][0]["delta"]["role"] == "assistant"
    assert pieces[-1]["usage"] == whole["usage"]
    text = "".join(one["choices"][0]["delta"]["content"] for one in pieces[:-1])
    assert text == whole["choices"][0]["message"]["content"]


def test_a_text_ends_before_a_word_to_stop_at(server: Server) -> None:
    text = completed(server, prompt="Hello", ignore_eos=True, max_tokens=40)[1]["choices"][0]["text"]
    word = next(letter for letter in text[3:] if letter.isascii() and letter not in text[:3])
    status, cut = completed(server, prompt="Hello", ignore_eos=True, max_tokens=40, stop=[word])
    assert status == 200
    assert cut["choices"][0] == {
        **cut["choices"][0],
        "text": text[: text.index(word)],
        "finish_reason": "stop",
    }


def test_models_are_listed_and_bad_requests_told(server: Server) -> None:
    listed = json.loads(server.ask("GET", "/v1/models")[2])
    assert [one["id"] for one in listed["data"]] == ["tiny"]
    for asked, status in (
        ({"prompt": ""}, 400),
        ({"prompt": "x" * 1000}, 400),
        ({"prompt": [99999]}, 400),
        ({"prompt": [1, "a"]}, 400),
        ({"prompt": "x", "model": "other"}, 404),
        ({"prompt": "x", "n": 2}, 400),
        ({"messages": []}, 400),
    ):
        found, body = completed(server, **asked)
        assert found == status
        assert body["error"]["remedy"]
    assert server.ask("POST", "/v1/completions", b"{}", {"content-type": "text/plain"})[0] == 415


def test_a_stream_that_nobody_reads_any_more_frees_its_row(server: Server) -> None:
    before = server.metric('flatout_serve_items_total{outcome="left"}')
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = json.dumps({"prompt": "x", "max_tokens": 250, "stream": True, "ignore_eos": True})
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read(10)
    answer.close()
    connection.close()
    server.wait_for("flatout_serve_running_items", 0)
    assert server.metric('flatout_serve_items_total{outcome="left"}') >= before


def test_bench_measures_tokens_of_its_stream(server: Server, flatout: Run) -> None:
    found = flatout("bench", "--json", server.about["url"], "--concurrency", "2", "--duration", "1s")
    assert found.returncode == 0, found.stderr
    (point,) = json.loads(found.stdout)["points"]
    assert point["tokens_per_s"] > 0
    assert 0 < point["first_token_ms"]["p50"] <= point["latency_ms"]["p50"]
    assert "gen_ai_server_time_to_first_token_seconds_count" in server.ask("GET", "/metrics")[2].decode()
