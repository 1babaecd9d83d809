"""`flatout.fit`: will a model fit, from Python."""

import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flatout.entry.importable import where_found
from flatout.memory.fit import fit_job
from flatout.records.fit import Fit
from flatout.runtime.command import JobCommand
from flatout.runtime.profiling import ProfileRequest


def fit(
    model_factory: Callable[[], Any],
    batch_factory: Callable[[], Any],
    *,
    optimizer: str | None = "AdamW",
    loss: Callable[[Any, Any], Any] | None = None,
    gpus: Iterable[str] = (),
    max_memory_bytes: int | None = None,
    on_progress: Callable[[str, int, int], None] = lambda _text, _done, _total: None,
) -> Fit:
    """What a model would take on a GPU, with batches like these; no GPU needed, and no memory for weights.

        def model():
            return Transformer(layers=32, width=4096)

        def batch():
            return torch.randint(32000, (4, 2048))

        found = flatout.fit(model, batch, gpus=["h100-80gb-sxm"])
        found.reserved_bytes, found.options[0].fits

    A batch is what the model is called with: a tensor, a tuple of arguments or a dict of keywords, on the
    host. `optimizer` is a name of `torch.optim`; None for inference. `loss(output, batch)` is the script's
    own; without, it is the model's (`output.loss`) or some number made of its output. The functions run in
    a process of their own, so they must be importable: at the top of a module or script.
    """
    wanted = [model_factory, batch_factory, *([loss] if loss is not None else [])]
    places = []
    for function in wanted:
        module, name, path = where_found(function)
        places += [path or module, name]
    command = (sys.executable, "-m", "flatout.entry.imagining", optimizer or "", *places)
    request = ProfileRequest(
        command=JobCommand(command, own_python=True, given=command),
        environment={"PYTHONPATH": ":".join(folder for folder in sys.path if folder)},
    )
    with tempfile.TemporaryDirectory(prefix="flatout-fit-") as folder:
        return fit_job(
            request,
            "fit",
            Path(folder),
            on_progress,
            gpus=list(gpus),
            max_memory_bytes=max_memory_bytes,
        )
