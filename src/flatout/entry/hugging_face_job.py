"""The script behind `flatout fit --hf`: a language model of transformers by its configuration alone.

python -m flatout.entry.hugging_face_job CONFIG USE BATCH CONTEXT
"""

import sys
from typing import Any

from flatout.levers.blocks import repeated_blocks

_RANK = 16


def main(config_path: str, use: str, batch: str, context: str) -> None:
    """Train it, train adapters of it, or let it read a prompt; again and again, until told to stop."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(config_path, local_files_only=True)
    low = getattr(config, "dtype", None) or torch.bfloat16
    kept = torch.float32 if use == "training" else low if isinstance(low, torch.dtype) else torch.bfloat16
    kind: Any = AutoModelForCausalLM
    model = kind.from_config(config, dtype=kept).to("cuda")
    tokens = torch.ones(int(batch), int(context), dtype=torch.long, device="cpu")
    if use == "inference":
        _read(torch, model.eval(), tokens)
    if use == "lora":
        _adapt(torch, model)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
    model.train()
    while True:
        here = tokens.to("cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=here, labels=here, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _read(torch: Any, model: Any, tokens: Any) -> None:
    """A prompt as long as the context, whose keys and values are kept; an update changes nothing."""
    nothing = torch.optim.SGD(model.parameters())
    while True:
        with torch.no_grad():
            held = model(input_ids=tokens.to("cuda"), use_cache=True, logits_to_keep=1)
        nothing.step()
        del held


def _adapt(torch: Any, model: Any) -> None:
    """Two thin matrices beside each projection, of attention and of what follows it; the rest stays."""
    nn = torch.nn
    base: Any = nn.Module
    model.requires_grad_(False)

    class Adapted(base):  # type: ignore[misc]
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer = layer
            weight = layer.weight
            outputs, inputs = weight.shape if isinstance(layer, nn.Linear) else weight.shape[::-1]
            self.down = nn.Linear(inputs, _RANK, bias=False, device=weight.device)
            self.up = nn.Linear(_RANK, outputs, bias=False, device=weight.device)

        @property
        def weight(self) -> Any:  # some models look at its precision
            return self.layer.weight

        def forward(self, x: Any) -> Any:
            return self.layer(x) + self.up(self.down(x))

    for module, name in _projections(torch, model):
        setattr(module, name, Adapted(getattr(module, name)))


def _projections(torch: Any, model: Any) -> list[tuple[Any, str]]:
    """What is called so; in models that call it otherwise, all products inside of their blocks."""
    everywhere = [(module, *one) for module in model.modules() for one in module.named_children()]
    named = [
        (module, name)
        for module, name, child in everywhere
        if isinstance(child, torch.nn.Linear) and name.endswith("proj")
    ]
    if named:
        return named
    inside = {id(part) for block in repeated_blocks(torch, [model]) for part in block.modules()}
    found = [
        (module, name)
        for module, name, child in everywhere
        # As GPT-2 has it: a Linear whose weight lies the other way round.
        if id(module) in inside and (isinstance(child, torch.nn.Linear) or type(child).__name__ == "Conv1D")
    ]
    if not found:
        sys.exit("no adapters for this model: its blocks have no linear layers that could be found")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
