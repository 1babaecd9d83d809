"""`flatout.microbatch`, `flatout.Microbatch` and `flatout.find_batch_size`: batches that fit into memory."""

from collections.abc import Callable
from typing import Any

from flatout.memory.batch_search import BatchSize
from flatout.memory.batch_trials import Wish, find
from flatout.memory.microbatching import Microbatch, Microbatched, Weigh

__all__ = ["Microbatch", "find_batch_size", "microbatch"]


def microbatch(
    step: Callable[[Any], Any],
    batch: Any,
    model: Any,
    *,
    size: int | None = None,
    weigh: str | Weigh = "samples",
    samples: Callable[[Any], int] | None = None,
    group: Any = None,
) -> Microbatched:
    """Forward and backward for a batch, in parts where memory runs out, with the whole batch's gradients.

        def step(part):
            return cross_entropy(model(part["x"]), part["y"])    # the mean over the part; no backward()

        done = flatout.microbatch(step, batch, model)
        optimizer.step()
        optimizer.zero_grad()
        print(float(done.loss), done.parts)

    The whole batch is tried first, or parts of `size`. When memory runs out, everything is put back, the size
    is halved, and the batch begins anew. Each part's loss is scaled by its share of the batch before
    `backward()`, so that the gradients are those of the whole. In a loop, use `flatout.Microbatch`, which
    remembers what fitted.

    `model` is the module whose gradients are computed (its DistributedDataParallel where it is wrapped), or
    a list of parameters: without it, gradients could not be put back. Earlier gradients are kept exactly, and
    the new ones are added; they need their memory twice for as long as this takes, so call `zero_grad()`
    before where nothing is accumulated.

    `batch` is any nesting of tensors: tuples, lists, dicts, named tuples, dataclasses. Those whose first
    dimension is that of the samples are cut; scalars, other tensors and everything else go into each part
    whole. Where a tensor that is shared has by chance as many rows as there are samples, keep it out of the
    batch. `samples(batch)` says how many samples there are, where tensors disagree.

    `weigh` says what a part counts. The default suits losses that are means over samples. For a mean over
    tokens, count those that the loss counts: `weigh=lambda part: (part["labels"] != -100).sum()`.

    Only running out of memory is recovered from; other errors come as they are, with earlier gradients back
    in place. A single sample that does not fit is an error that says so.

    What a split cannot keep: dropout and other randomness draw other numbers in parts than in the whole, and
    batch norm in training mode normalises each part by itself, which is warned of once. Torch's random
    numbers begin anew with each attempt; Python's and numpy's do not. Hooks that update parameters during
    backward see parts.

    Across ranks (`group`, else the model's or the default group) all ranks must call this together. If one
    runs out, all split to the same size and begin anew; if one fails, all raise. Gradients of a
    DistributedDataParallel are averaged once, after the last part and not during it: a rank that ran out in
    the middle would leave the others waiting. Steps with collectives of their own, such as SyncBatchNorm's,
    cannot be recovered, and sharded models are refused.
    """
    return Microbatch(step, model, size=size, weigh=weigh, samples=samples, group=group)(batch)


def find_batch_size(
    step: Callable[[Any], Any],
    make_batch: Callable[[int], Any],
    model: Any,
    *,
    optimizer: Any = None,
    longest: Callable[[int], Any] | None = None,
    evaluate: Callable[[], Any] | None = None,
    headroom: float = 0.1,
    budget_bytes: int | None = None,
    memory: Callable[[], int] | None = None,
    most: int = 65536,
    first: int = 8,
    steps: int = 4,
) -> BatchSize:
    """The smallest batch size that is as fast as any, and leaves memory free, by running a few.

        found = flatout.find_batch_size(
            step, lambda size: next(iter(DataLoader(data, size))), model, optimizer=optimizer, most=len(data)
        )
        loader = DataLoader(data, batch_size=found.size)

    `step(batch)` returns the loss; backward and `optimizer.step()` follow. A size is chosen only if it ran,
    its peak left `headroom` of the memory free, and it was within 3 % of the fastest; of those, the smallest.
    Two sizes that ran predict where memory ends, and the next trial goes there. Each trial takes `steps`
    steps, 2 or more, of which the first is not timed: the optimizer's states come with it.

    A batch that varies must be as large as it gets: let `make_batch(size)` return the longest samples, or
    give `longest(size)`, of which each trial takes a step as well, untimed. `most` is the largest size to
    try, for instance that of the data set; `first` is where to begin, and is halved until it fits.
    `evaluate()` is run once at the end: if it runs out of memory, the result's `evaluation` says so, and the
    size stays what it is.

    On CUDA, memory is what torch reserves at its peak, out of what is free on the device; `budget_bytes` sets
    a smaller limit. Elsewhere there is no limit unless you give both `budget_bytes` and `memory()`, which
    returns the peak of the last trial in bytes.

    Parameters, buffers, gradients, the optimizer and torch's random numbers are put back bit for bit. All
    ranks must call this together; gradients are not exchanged in trials.
    """
    wish = Wish(
        step=step,
        make_batch=make_batch,
        optimizer=optimizer,
        longest=longest,
        evaluate=evaluate,
        headroom=headroom,
        budget_bytes=budget_bytes,
        memory=memory,
        most=most,
        first=first,
        steps=steps,
    )
    return find(wish, model)
