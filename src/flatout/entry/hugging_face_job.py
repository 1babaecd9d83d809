"""The script behind `flatout fit --hf`: a language model of transformers by its configuration alone.

python -m flatout.entry.hugging_face_job CONFIG USE BATCH CONTEXT
"""

import sys
from typing import Any

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
    tokens = torch.ones(int(batch), int(context), dtype=torch.long)
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
    """Two thin matrices beside each square-ish one of the attention; the rest stays as it is."""
    nn = torch.nn
    base: Any = nn.Module
    model.requires_grad_(False)

    class Adapted(base):  # type: ignore[misc]
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer = layer
            self.down = nn.Linear(layer.in_features, _RANK, bias=False, device="cuda")
            self.up = nn.Linear(_RANK, layer.out_features, bias=False, device="cuda")

        def forward(self, x: Any) -> Any:
            return self.layer(x) + self.up(self.down(x))

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and name.endswith("proj"):
                setattr(module, name, Adapted(child))


if __name__ == "__main__":
    main(*sys.argv[1:])
