"""POST /predict: one item in, its outputs out, computed with whoever else is there."""

import asyncio
from collections.abc import Hashable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from flatout.infer.serving.batching import Batcher
from flatout.infer.serving.broken import lost_device
from flatout.infer.serving.door import GONE, read_body, say, told_when_gone
from flatout.infer.serving.metrics import HTTP_SECONDS, SIZES, Counter, Gauge, Histogram, Metric
from flatout.infer.serving.problems import Problem, bad, leaving, too_many
from flatout.infer.serving.specs import TensorSpec
from flatout.infer.serving.tickets import Closing, Expired, Full, Ticket
from flatout.infer.serving.wire import JSON, KINDS, Reader, answer, kind_of_answer
from flatout.inside.out_of_memory import is_out_of_memory
from flatout.records.serving import ServeOrder

# A larger body is read and written beside the loop, which has others to answer.
_LARGE = 256 << 10


class Predicting:
    """The endpoint, and its figures."""

    def __init__(
        self,
        batcher: Batcher,
        runner: Any,
        specs: tuple[TensorSpec, ...],
        order: ServeOrder,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.batcher, self._order = batcher, order
        self._runner = runner
        self._reader = Reader(specs) if specs else None
        self._loop = loop
        self._sizes = Histogram("flatout_serve_batch_items", "Items that were computed together.", SIZES)
        self._waits = Histogram(
            "flatout_serve_queue_seconds", "How long items waited for their batch.", HTTP_SECONDS
        )
        # What ended the device for this process; empty as long as it works.
        self.broken = ""
        self._items = Counter("flatout_serve_items_total", "Items, by what became of them.", ("outcome",))

    def metrics(self) -> list[Metric]:
        """All of them."""
        batcher = self.batcher
        return [
            self._sizes,
            self._waits,
            self._items,
            Gauge("flatout_serve_queue_items", "Items that wait.", lambda: float(batcher.waiting)),
            Gauge(
                "flatout_serve_batch_limit", "Items that a batch may hold now.", lambda: float(batcher.most)
            ),
            Gauge(
                "flatout_serve_split_batches",
                "Batches that failed and were halved.",
                lambda: float(batcher.splits),
            ),
            Gauge(
                "flatout_serve_items_per_second",
                "What the model answers while it works.",
                lambda: batcher.pace.items_per_s,
            ),
        ]

    def deliver(self, tickets: list[Ticket]) -> None:
        """From the thread of the model: wake those who wait, with one call for all of them."""
        self._loop.call_soon_threadsafe(_wake, tickets)

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in KINDS or (self._reader is None and kind != JSON):
            raise Problem(
                415,
                f"content-type {kind[:100]!r}",
                expected=f"one of {', '.join(KINDS)}",
                remedy=f"content-type: {JSON}",
            )
        wanted = kind_of_answer(request.headers.get("accept", ""))
        body = await read_body(request, self._order)
        shape = request.headers.get("x-shape", "")
        if len(body) > _LARGE:
            value, key = await asyncio.to_thread(self._item, kind, body, shape)
        else:
            value, key = self._item(kind, body, shape)
        del body
        ticket = await self._computed(request, value, key)
        if ticket is None:
            return Response(status_code=GONE)
        result = self._result(ticket)
        size = sum(getattr(one, "nbytes", 0) for one in result.values())
        made = await asyncio.to_thread(answer, wanted, result) if size > _LARGE else answer(wanted, result)
        return Response(made, media_type=wanted)

    def shed(self, method: str, path: str) -> Problem | None:
        """No for an item, before it is read, where there is no room for it."""
        if method != "POST" or path != "/predict" or not self.batcher.is_full:
            return None
        return self._too_many(self.batcher.retry_after_s)

    def _too_many(self, retry_after_s: float) -> Problem:
        self._items.add(1, "refused")
        return too_many(f"{self.batcher.waiting} requests", retry_after_s)

    def _item(self, kind: str, body: bytes, shape: str) -> tuple[Any, Hashable]:
        if self._reader is not None:
            item = self._reader.read(kind, body, shape)
            return item, self._runner.key(item)
        try:
            return msgspec.json.decode(body, type=_Anything).inputs, None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise bad(f"the body does not fit: {error}", 'JSON such as {"inputs": ...}') from None

    async def _computed(self, request: Request, value: Any, key: Hashable) -> Ticket | None:
        """The answered ticket; None where the client has gone."""
        future: asyncio.Future[str] = self._loop.create_future()
        try:
            ticket = self.batcher.submit(value, key=key, timeout_s=self._order.timeout_s, owner=future)
        except Full as full:
            raise self._too_many(full.retry_after_s) from None
        except Closing:
            raise leaving() from None
        timer = self._loop.call_later(self._order.timeout_s, _set, future, "expired")
        try:
            with told_when_gone(request, lambda: _set(future, "left")):
                why = await future
        finally:
            timer.cancel()
            if ticket.state != "answered":
                self.batcher.leave(ticket)
        if ticket.state == "answered":
            self.batcher.delivered(ticket)
            return ticket
        self._items.add(1, why)
        if why == "left":
            return None
        raise _too_late(self._order.timeout_s)

    def _result(self, ticket: Ticket) -> dict[str, Any]:
        error = ticket.error
        if isinstance(error, Expired):
            self._items.add(1, "expired")
            raise _too_late(self._order.timeout_s)
        self._sizes.see(ticket.batch)
        self._waits.see(ticket.waited_s)
        self._items.add(1, "failed" if error is not None else "answered")
        if error is not None:
            self.broken = self.broken or lost_device(error)
            raise _failed(error)
        result: dict[str, Any] = ticket.result
        ticket.result = None
        return result


class _Anything(msgspec.Struct, forbid_unknown_fields=True):
    inputs: Any


def _failed(error: BaseException) -> Problem:
    said = (str(error).splitlines() or [""])[0][:300]
    say(f"an item failed: {type(error).__name__}: {said}")
    if is_out_of_memory(error):
        return Problem(
            503,
            "this item alone runs out of memory",
            expected="a smaller one",
            remedy="a smaller item, or a larger device",
        )
    if isinstance(error, ValueError):
        return Problem(
            422, f"the model refuses it: {said}", expected="an item that it takes", remedy="change the item"
        )
    return Problem(
        500,
        f"the model failed with {type(error).__name__}",
        expected="an answer",
        remedy="the server's log says more",
    )


def _too_late(timeout_s: float) -> Problem:
    return Problem(
        504,
        f"no answer within {timeout_s:g} s",
        expected="one in that time",
        remedy="ask again when the server has less to do",
    )


def _wake(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        _set(ticket.owner, "answered")


def _set(future: "asyncio.Future[str]", why: str) -> None:
    if not future.done():
        future.set_result(why)
