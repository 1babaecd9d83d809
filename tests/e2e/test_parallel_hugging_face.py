"""A Llama of transformers, as it is, over two ranks: outputs in a class of their own, grouped heads."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import copy, json, sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM
import flatout

torch.set_num_threads(1)
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, use_cache=False,
)
made = LlamaForCausalLM(config)
tokens = torch.randint(64, (8, 16))
batch = {"input_ids": tokens}


def loss_of(output, targets):
    return torch.nn.functional.cross_entropy(output.logits.reshape(-1, 64), targets.reshape(-1))


def losses_of(model, optimizer, step):
    losses = []
    for _ in range(3):
        losses.append(step(model, batch, tokens))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def plain_step(model, batch, targets):
    loss = loss_of(model(**batch), targets)
    loss.backward()
    return loss.item()


told = {}
torch.distributed.init_process_group("gloo")
for strategy in ("alone", "tensor", "pipeline"):
    model = copy.deepcopy(made)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if strategy == "alone":
        told[strategy] = losses_of(model, optimizer, plain_step)
        continue
    with flatout.parallel(strategy, model=model, optimizer=optimizer, sample=batch) as world:
        step = lambda _model, batch, targets: world.train_step(batch, targets, loss_of).item()
        told[strategy] = losses_of(model, world.optimizer, step)
if torch.distributed.get_rank() == 0:
    json.dump(told, open(sys.argv[1], "w"))
torch.distributed.destroy_process_group()
"""


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_a_llama_as_it_is_learns_the_same_in_parts(tmp_path: Path) -> None:
    script, told = tmp_path / "train.py", tmp_path / "told.json"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, str(script), str(told)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    losses = json.loads(told.read_text())
    assert losses["tensor"] == pytest.approx(losses["alone"], rel=1e-4)
    assert losses["pipeline"] == pytest.approx(losses["alone"], rel=1e-4)
