"""Requests in, tokens out: rows of a decoder are given to requests as they come, and taken back as they end.

The host stays some steps behind the device: it launches the next ones while it reads what the earlier gave.
A row that has ended shows nothing until the host has noticed, and then goes to whoever waits.
"""

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch

from flatout.infer.generating.decoder import MOST_STOPS, NOTHING, Decoder
from flatout.infer.generating.sampling import GREEDY, KINDS, Sampling

# Steps that may be under way before the first of them is read.
_AHEAD = 4

# It said a token to stop at; it has all that it wanted or has room for; nobody waits for it; its prompt could
# not be read, or what it shared was ended.
Ending = Literal["", "stop", "length", "left", "failed"]


@dataclasses.dataclass(eq=False)
class Request:
    """One prompt and what came of it; `tokens` grows while it is worked on."""

    prompt: Sequence[int]
    new_tokens: int
    sampling: Sampling = GREEDY
    stops: Sequence[int] = ()
    on_token: Callable[[int], None] = lambda _token: None
    tokens: list[int] = dataclasses.field(default_factory=list)
    # Why it ended; empty while it has not.
    ending: Ending = ""
    # What went wrong with this one alone.
    error: BaseException | None = None

    def leave(self) -> None:
        """Nobody wants the rest."""
        self.ending = self.ending or "left"


class Generator:
    """A model that answers several requests at once; one thread drives it."""

    def __init__(self, model: Any, *, rows: int = 1, length: int, compiled: bool | None = None) -> None:
        self.decoder = Decoder(model, rows, length, compiled=compiled)
        self._words = model.get_input_embeddings().num_embeddings
        self._waiting: deque[Request] = deque()
        self._on: list[Request | None] = [None] * rows
        # Launched, and not read yet: what was emitted, who had the rows, and when it is there.
        self._under_way: deque[tuple[torch.Tensor, list[Request | None], Any]] = deque()
        self._longest = [0] * rows

    # Requests

    def submit(self, *requests: Request) -> None:
        """Put requests at the end of the queue: all of them, or none where one cannot be answered."""
        for request in requests:
            self._check(request)
        self._waiting.extend(requests)

    def _check(self, request: Request) -> None:
        room, prompt = self.decoder.length, request.prompt
        if not 0 < len(prompt) < room:
            raise ValueError(f"a prompt of {len(prompt)} tokens; 1 to {room - 1} have room here")
        if not 0 <= min(prompt) <= max(prompt) < self._words:
            # On a GPU, looking such a token up would end all work on it until the process does.
            raise ValueError(f"a prompt with token {max(prompt)}; 0 to {self._words - 1} are known")
        if request.new_tokens < 1:
            raise ValueError(f"new_tokens={request.new_tokens}; at least 1 is expected")
        if len(request.stops) > MOST_STOPS:
            raise ValueError(f"{len(request.stops)} tokens to stop at; at most {MOST_STOPS} are expected")

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits and nothing is under way."""
        return not self._waiting and not self._under_way and not any(self._on)

    def generate(self, requests: Sequence[Request]) -> list[list[int]]:
        """Answer all of these; raises what went wrong with one of them."""
        self.submit(*requests)
        try:
            while not self.is_idle:
                self.pump()
        except BaseException:
            self.forget()
            raise
        for request in requests:
            if request.error is not None:
                raise request.error
        return [request.tokens for request in requests]

    def stream(self, request: Request) -> Iterator[int]:
        """The tokens of one request as they come; others may be answered meanwhile, by the same thread."""
        self.submit(request)
        told = 0
        try:
            while not request.ending or told < len(request.tokens):
                if told == len(request.tokens):
                    self.pump()
                while told < len(request.tokens):  # more may come while one is handed out
                    told += 1
                    yield request.tokens[told - 1]
            if request.error is not None:
                raise request.error
        finally:
            # No more than that: whoever drops a stream may be another thread, or in the midst of a turn.
            request.leave()

    def forget(self) -> None:
        """Whatever was being done is not gone on with; who waits for it hears so, and no more tokens."""
        for request in (*self._waiting, *self._on):
            if request is not None and not request.ending:
                request.error = RuntimeError("a request beside this one failed, and ended what was under way")
                request.ending = "failed"
        for row in range(len(self._on)):
            self.decoder.empty(row)
        self._waiting.clear()
        self._under_way.clear()
        self._on = [None] * len(self._on)
        self._wait_for_the_device()

    def _wait_for_the_device(self) -> None:
        """What was launched still writes; the next one may come on another stream."""
        if self.decoder.device.type == "cuda":
            with contextlib.suppress(Exception):  # what has ended it is on its way to the caller
                torch.cuda.current_stream(self.decoder.device).synchronize()

    # Work

    def pump(self) -> None:
        """One turn: let requests in, launch a step, read what is far enough behind."""
        self._take_back()
        while self._waiting and None in self._on:
            self._let_in(self._waiting.popleft(), self._on.index(None))
        if any(self._on):
            self._launch()
        while self._under_way and (len(self._under_way) > _AHEAD or not any(self._on)):
            self._read_oldest()

    def _take_back(self) -> None:
        for row, request in enumerate(self._on):
            if request is not None and request.ending:
                if request.ending == "left":
                    self.decoder.empty(row)
                self._on[row] = None

    def _let_in(self, request: Request, row: int) -> None:
        if request.ending:
            return
        try:
            self.decoder.read(row, request.prompt, request.sampling, request.new_tokens, request.stops)
        except Exception as error:  # noqa: BLE001 - a prompt too long for memory: its neighbours go on
            error.__traceback__ = None
            request.error, request.ending = error, "failed"
            self.decoder.empty(row)
            return
        self._on[row] = request
        self._longest[row] = len(request.prompt) + 1
        whose: list[Request | None] = [None] * self.decoder.rows
        whose[row] = request
        self._note(whose)

    def _launch(self) -> None:
        rows = [row for row, request in enumerate(self._on) if request is not None]
        kinds = [request.sampling.kind for request in self._on if request is not None]
        self.decoder.step(max(kinds, key=KINDS.index), max(self._longest[row] for row in rows))
        for row in rows:
            self._longest[row] = min(self._longest[row] + 1, self.decoder.length)
        self._note(list(self._on))

    def _note(self, whose: list[Request | None]) -> None:
        """Let what was emitted travel to the host."""
        emitted, ready = self.decoder.emitted, None
        if emitted.is_cuda:
            here = torch.empty(emitted.shape, dtype=emitted.dtype, device="cpu", pin_memory=True)
            here.copy_(emitted, non_blocking=True)
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record(torch.cuda.current_stream(emitted.device))
        else:
            here = emitted.clone()
        self._under_way.append((here, whose, ready))

    def _read_oldest(self) -> None:
        here, whose, ready = self._under_way.popleft()
        if ready is not None:
            ready.synchronize()
        for token, request in zip(here.tolist(), whose, strict=True):
            if request is None or request.ending or token == NOTHING:
                continue
            request.tokens.append(token)
            if token in request.stops:
                request.ending = "stop"
            elif len(request.tokens) >= min(request.new_tokens, self.decoder.length - len(request.prompt)):
                request.ending = "length"
            request.on_token(token)
