"""`flatout.batch_inference`: a model over a whole data set."""

import os
from collections.abc import Callable
from typing import Any

from flatout.infer.whole_sets.running import Function, WholeSet, Wish, run_over
from flatout.records.whole_set import Format

__all__ = ["batch_inference"]


def batch_inference(
    module: Any,
    dataset: Any,
    *,
    out: str | os.PathLike[str] | Function,
    batch_size: int | None = None,
    workers: int | None = None,
    inputs: Callable[[Any], Any] | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    format: Format = "safetensors",  # noqa: A002
    shard_samples: int | None = None,
) -> WholeSet:
    """A model's outputs for every sample of a data set, in its order, in files that a kill cannot spoil.

        done = flatout.batch_inference(model, images, out="outputs", inputs=lambda batch: batch[0])
        done.samples_per_s, done.output("output").shape

    Reading (a DataLoader), copying to the device (pinned, on a stream of its own), computing, and writing
    (a thread) go on at the same time. `inputs(batch)` is what the module is called with: a tensor, a tuple
    of arguments or a dict of keywords; by default the batch itself. Outputs are tensors in any nesting with
    one entry a sample.

    `out` is a folder, or a function `out(first, outputs)` that a thread calls in order. A folder gets
    shards of about `shard_samples` samples (safetensors, or npy files) and `index.json`, which names the
    whole ones. Killed at any moment and called again, it keeps whole shards and computes the rest, in the
    very same batches. A folder of another model, other data or other sizes is refused: code, settings and
    all weights are compared, and a few samples of the data set.

    Without `batch_size`, a few are run and the smallest is taken that is nearly as fast as any. A batch
    that runs out of memory is split, and so are those after it. `workers` read; a data set that can only be
    iterated over is read by one, so that its order holds, and is read from its start when resumed. A module
    in training mode is put into eval() meanwhile.
    """
    return run_over(
        Wish(
            module=module,
            dataset=dataset,
            out=out,
            batch_size=batch_size,
            workers=workers,
            inputs=inputs,
            collate=collate_fn,
            format=format,
            shard_samples=shard_samples,
        )
    )
