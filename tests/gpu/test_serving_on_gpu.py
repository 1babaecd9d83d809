"""The server on a GPU: memory that really runs out, batches on the device, texts from captured graphs."""

import json
import threading
from pathlib import Path

import pytest

from tests.e2e.servers import served
from tests.e2e.test_serve_llm import write_model

pytestmark = pytest.mark.gpu

GREEDY = """
import torch

class Greedy(torch.nn.Module):
    '''Each item takes an eighth of what this process may have; eight never fit.'''

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((1,), 2.0))
        torch.cuda.set_per_process_memory_fraction(0.05)
        self.each = int(0.05 * torch.cuda.get_device_properties(0).total_memory / 8)

    def forward(self, x):
        if (x[:, 0] > 1).all():
            held = [torch.empty(self.each, dtype=torch.int8, device=x.device) for _ in x]
            del held
        return x * self.scale

def make():
    return Greedy(), {"x": torch.zeros(1, 4)}
"""


def test_a_batch_that_runs_out_of_memory_is_split_and_everybody_answered(tmp_path: Path) -> None:
    (tmp_path / "greedy_model.py").write_text(GREEDY)
    with served(
        tmp_path, "greedy_model:make", "--max-batch", "16", "--queue", "256", "--max-wait", "0.2s"
    ) as server:
        assert server.about["device"].startswith("cuda")
        assert server.about["sizing"]["tried"][0]["peak_share"] is not None
        found: list[int] = []

        def ask() -> None:
            found.extend([server.predict(5)[0] for _ in range(4)])

        threads = [threading.Thread(target=ask) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [200] * 128
        assert server.metric("flatout_serve_split_batches") > 0, "memory never ran out"


def test_texts_come_from_the_gpu_whole_and_in_pieces(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny")
    with served(tmp_path, "--llm", "tiny", "--rows", "4") as server:
        asked = {"prompt": "Hello", "temperature": 0, "max_tokens": 16, "ignore_eos": True}
        whole = json.loads(server.ask("POST", "/v1/completions", asked)[2])["choices"][0]["text"]
        body = server.ask("POST", "/v1/completions", {**asked, "stream": True})[2].decode()
        events = [json.loads(line[6:]) for line in body.split("\n\n") if line and line != "data: [DONE]"]
        assert "".join(one["choices"][0]["text"] for one in events) == whole
