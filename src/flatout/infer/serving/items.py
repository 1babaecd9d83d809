"""A model of tensors, made ready: loaded, proven, measured, and behind its batcher."""

import asyncio
from typing import Any

from flatout.infer.serving.batching import Batcher
from flatout.infer.serving.collating import Runner
from flatout.infer.serving.loading import leave_a_core, load
from flatout.infer.serving.metrics import Metric
from flatout.infer.serving.openapi import described
from flatout.infer.serving.policy import Policy
from flatout.infer.serving.predicting import Predicting
from flatout.infer.serving.problems import Problem
from flatout.infer.serving.proving import example_item, prove
from flatout.infer.serving.sizing import sized
from flatout.infer.serving.specs import checked_pads
from flatout.inside.out_of_memory import is_out_of_memory
from flatout.records.serving import ServeOrder, Serving, Sizing


class ItemService:
    """/predict."""

    def __init__(self, runner: Runner, predicting: Predicting, order: ServeOrder) -> None:
        self._runner, self._predicting, self._order = runner, predicting, order

    def endpoints(self) -> dict[str, Any]:
        """By path."""
        return {"/predict": self._predicting}

    def metrics(self) -> list[Metric]:
        """For Prometheus."""
        return self._predicting.metrics()

    def document(self) -> dict[str, Any]:
        """With an example that is answered."""
        served = self._runner.served
        return described(served.name, served.specs, example_item(self._runner), token=bool(self._order.token))

    def shed(self, method: str, path: str) -> Problem | None:
        """What is refused unread."""
        return self._predicting.shed(method, path)

    def stuck(self) -> str:
        """A device that is lost, or a batch that takes longer than any request may."""
        if self._predicting.broken:
            return self._predicting.broken
        lasted = self._predicting.batcher.running_for_s
        return f"a batch has been under way for {lasted:.0f} s" if lasted > self._order.timeout_s else ""

    def drain(self, timeout_s: float) -> bool:
        """Answer what is here."""
        return self._predicting.batcher.drain(timeout_s)


def prepare(order: ServeOrder, events: Any, loop: asyncio.AbstractEventLoop) -> tuple[ItemService, Serving]:
    """Everything up to the first request; in a thread."""
    events.tell("stage", name="loading the model")
    leave_a_core()
    served = load(order.target, order.inputs, order.device)
    runner = Runner(served, checked_pads(order.pads, served.specs))
    events.tell("stage", name="looking whether batches leave answers as they are")
    proof = prove(runner)
    sizing = sized(
        runner,
        proof,
        most=order.most_batch,
        latency_s=order.latency_s,
        queue=order.queue,
        wait_s=order.wait_s,
        on_size=lambda size: events.tell("stage", name=f"measuring batches of {size}"),
    )
    rates = tuple((one.batch, one.items_per_s) for one in sizing.tried)
    policy = Policy(
        most=sizing.most,
        wait_s=sizing.wait_s,
        queue=sizing.queue,
        rates=rates,
        limit_s=_limit_s(order, sizing),
    )
    predicting: Predicting

    def deliver(tickets: Any) -> None:
        predicting.deliver(tickets)

    batcher = Batcher(runner, policy, deliver=deliver, too_large=is_out_of_memory, on_start=leave_a_core)
    if proof.batches and not runner.sizes:
        runner.filled = lambda count: policy.filled(count, batcher.most)
    predicting = Predicting(batcher, runner, served.specs, order, loop)
    batcher.start()
    about = Serving(
        url="",
        model=served.name,
        device=str(served.device),
        inputs=tuple(map(str, served.specs)),
        sizing=sizing,
        notes=proof.notes,
    )
    return ItemService(runner, predicting, order), about


def _limit_s(order: ServeOrder, sizing: Sizing) -> float:
    """The time beyond which nothing is accepted: as promised at the start.

    Who says how many may wait, and not for how long, is taken at their word.
    """
    by_count = order.queue is not None and order.latency_s is None
    return float("inf") if by_count else sizing.latency_limit_s
