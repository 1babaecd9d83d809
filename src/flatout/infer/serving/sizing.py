"""How large a batch should be, how long it is waited for and how many may wait: measured here."""

import time
from collections.abc import Callable

import torch

from flatout.infer.failing import words_of
from flatout.infer.serving.collating import Runner
from flatout.infer.serving.proving import Proof, example_item
from flatout.inside.out_of_memory import is_out_of_memory
from flatout.records.serving import BatchTime, Sizing

# As good as the fastest: within this of it. Three sizes in a row that give no more end the search.
_KNEE = 0.05
_NO_GAIN = 0.05
# A batch takes no more than this of the device, as its memory is not the model's alone.
_MEMORY_SHARE = 0.9
_RUN_S, _RUNS = 0.15, 20
_SEARCH_S = 30.0
# Where nobody said how long a batch may take: so many times what one item takes, and no less than this.
_ITEMS, _LEAST_BATCH_S = 10, 0.05
# What an accepted request may take where nobody said: so many batches, and no less than this.
_BATCHES, _LEAST_LATENCY_S = 4, 0.25
_LONGEST_WAIT_S = 0.01
_UNMEASURED = 8


def sized(
    runner: Runner,
    proof: Proof,
    *,
    most: int,
    latency_s: float | None,
    queue: int | None,
    wait_s: float | None,
    on_size: Callable[[int], None] = lambda _size: None,
) -> Sizing:
    """Measure, and decide."""
    if not runner.served.specs:
        size = min(most, _UNMEASURED)
        return _decided(size, "not measured: a function without example inputs", (), latency_s, queue, wait_s)
    if not proof.batches:
        tried, words = [_timed(runner, 1)], proof.notes[0]
    elif runner.sizes:
        tried, words = [_timed(runner, runner.sizes[0])], proof.notes[0]
    else:
        tried, words = _tried(runner, most, latency_s, on_size)
        # Once more, at another moment: what others do on this machine hits some sizes and not others.
        tried = [min(one, _timed(runner, one.batch), key=lambda each: each.seconds) for one in tried]
    fastest = max(one.items_per_s for one in tried)
    best = next(one for one in tried if one.items_per_s >= fastest * (1 - _KNEE))
    if best.batch < tried[-1].batch and proof.batches:
        words = f"larger ones give no more: {tried[-1].items_per_s:,.0f} items/s with {tried[-1].batch}"
    return _decided(best.batch, words, tuple(tried), latency_s, queue, wait_s)


def _tried(
    runner: Runner, most: int, latency_s: float | None, on_size: Callable[[int], None]
) -> tuple[list[BatchTime], str]:
    """Sizes from 1 on, doubled, until one is too large for something; and for what."""
    tried: list[BatchTime] = []
    size, began, idle = 1, time.monotonic(), 0
    while True:
        on_size(size)
        one = _timed_or_words(runner, size)
        if isinstance(one, str):
            return tried, one
        longest_s = latency_s / 2 if latency_s else max(_LEAST_BATCH_S, _ITEMS * (tried or [one])[0].seconds)
        if tried and one.seconds > longest_s:
            return (
                tried,
                f"{size} would take {1000 * one.seconds:.3g} ms, of {1000 * longest_s:.3g} ms allowed",
            )
        if tried and one.peak_share is not None and one.peak_share > _MEMORY_SHARE:
            return tried, f"{size} would leave too little memory free"
        idle = (
            idle + 1 if tried and one.items_per_s < (1 + _NO_GAIN) * max(o.items_per_s for o in tried) else 0
        )
        tried.append(one)
        if idle > 2:
            return tried, "larger ones give no more"
        if size >= most:
            return tried, f"no more than {most} were allowed"
        if time.monotonic() - began > _SEARCH_S:
            return tried, "the time for measuring was over"
        size = min(most, 2 * size)


def _timed_or_words(runner: Runner, size: int) -> BatchTime | str:
    """How long it takes, or why it cannot be: some models take a few items, and not more."""
    try:
        return _timed(runner, size)
    except Exception as error:
        if size == 1:
            raise
        if is_out_of_memory(error):
            words = f"{size} run out of memory"
        else:
            words = f"{size} make the model fail ({words_of(error)})"
    # Outside of the handler: the error holds what has to be given back.
    if runner.served.device.type == "cuda":
        torch.cuda.empty_cache()
    return words


def _timed(runner: Runner, size: int) -> BatchTime:
    """The quickest of some calls, copies included: others on this machine only add to it."""
    items = [example_item(runner)] * size
    on_gpu = runner.served.device.type == "cuda"
    runner(items)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(runner.served.device)
    times: list[float] = []
    while len(times) < _RUNS and (len(times) < 5 or sum(times) < _RUN_S):
        began = time.perf_counter()
        runner(items)
        times.append(time.perf_counter() - began)
    seconds, share = min(times), None
    if on_gpu:
        total = torch.cuda.get_device_properties(runner.served.device).total_memory
        share = torch.cuda.max_memory_allocated(runner.served.device) / total
    return BatchTime(batch=size, seconds=seconds, items_per_s=size / seconds, peak_share=share)


def _decided(
    size: int,
    words: str,
    tried: tuple[BatchTime, ...],
    latency_s: float | None,
    queue: int | None,
    wait_s: float | None,
) -> Sizing:
    took_s = next((one.seconds for one in tried if one.batch == size), None)
    limit_s = latency_s or max(_LEAST_LATENCY_S, _BATCHES * (took_s or 0.0))
    if wait_s is None:
        wait_s = min(_LONGEST_WAIT_S, (took_s or _LONGEST_WAIT_S) / 4)
    # Whoever is last in the queue waits for the batch under way and those before its own.
    rounds = max(1, int(limit_s / took_s) - 1) if took_s else _BATCHES
    return Sizing(
        most=size,
        reason=words,
        wait_s=wait_s,
        queue=queue or min(10_000, rounds * size),
        latency_limit_s=limit_s,
        tried=tried,
    )
