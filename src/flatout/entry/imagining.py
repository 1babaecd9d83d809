"""The script behind `flatout.fit(model, batch)`: trains a model on one batch, until it is told to stop.

python -m flatout.entry.imagining OPTIMIZER MODEL_PLACE MODEL_NAME BATCH_PLACE BATCH_NAME [LOSS_PLACE NAME]
"""

import sys
from typing import Any

from flatout.entry.importable import import_again
from flatout.levers.outputs import map_tensors


def main(optimizer_name: str, *places: str) -> None:
    """Train, or only compute where there is no optimizer."""
    import torch

    model_of, batch_of, *more = (import_again(*pair) for pair in zip(places[::2], places[1::2], strict=True))
    loss_of = more[0] if more else _loss_of
    model = model_of().to("cuda")
    if not optimizer_name:
        _only_compute(torch, model.eval(), batch_of)
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters())
    while True:
        batch = _moved(batch_of())
        loss = loss_of(_called(model, batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _only_compute(torch: Any, model: Any, batch_of: Any) -> None:
    """Inference; updates without gradients, which change nothing, mark its steps."""
    nothing = torch.optim.SGD(model.parameters())
    while True:
        with torch.no_grad():
            _called(model, _moved(batch_of()))
        nothing.step()


def _called(model: Any, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def _loss_of(output: Any, _batch: Any) -> Any:
    """The model's own where it has one; else some number made of all that it gives."""
    if getattr(output, "loss", None) is not None:
        return output.loss
    if isinstance(output, dict):
        output = next(iter(output.values()))
    while isinstance(output, tuple | list):
        output = output[0]
    return output if output.dim() == 0 else output.float().pow(2).mean()


def _moved(batch: Any) -> Any:
    return map_tensors(lambda tensor: tensor.to("cuda"), batch)


if __name__ == "__main__":
    main(*sys.argv[1:])
