"""A model with room for some rows: reads prompts into them, and gives each row its next token, step by step.

All that a step needs lies on the device, at places that never change: on a GPU the step is compiled and
captured once, and each further token costs the host one launch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from flatout.infer.generating.attention import heads_ask_together
from flatout.infer.generating.cache import RowCache, of_one_token
from flatout.infer.generating.sampling import KINDS, Sampling, next_tokens

# Tokens at which a row may end.
MOST_STOPS = 8
# What a row without a token shows.
NOTHING = -1
# Attention looks at a part of the cache: this many places, and twice as many, and so on.
_SHORTEST = 256
_WARM_UPS = 3
# Products with one row are walks through a matrix: kernels made for that, tuned for this card.
COMPILING: dict[str, Any] = {"coordinate_descent_tuning": True, "triton.cudagraphs": False}


class Decoder:
    """`rows` sequences of at most `length` tokens side by side."""

    def __init__(self, model: Any, rows: int, length: int, *, compiled: bool | None = None) -> None:
        self.model = model
        self.rows, self.length = rows, length
        self.device = next(model.parameters()).device
        on_gpu = self.device.type == "cuda"
        self._compiles = on_gpu if compiled is None else compiled
        self._captures = on_gpu
        self.cache = RowCache()
        self.cache.reserve(rows, length, of_one_token(model))
        self._places = self.cache.places
        self.tokens = self._numbers(0)
        # How many more tokens a row gets, and what it got in the last step.
        self.left = self._numbers(0)
        self.emitted = self._numbers(NOTHING)
        self.stops = torch.full((rows, MOST_STOPS), NOTHING, device=self.device)
        self.temperature = torch.zeros(rows, device=self.device)
        self.top_k, self.top_p = self._numbers(0), torch.ones(rows, device=self.device)
        self._noise = torch.ones(rows, model.config.get_text_config().vocab_size, device=self.device)
        self._steps: dict[str, Callable[[], None]] = {}
        self._graphs: dict[tuple[str, int], Any] = {}
        self._pool: Any = None

    # Prompts

    @torch.no_grad()
    def read(
        self, row: int, prompt: Sequence[int], sampling: Sampling, new_tokens: int, stops: Sequence[int] = ()
    ) -> None:
        """Read a prompt into a row, and draw the first token after it into `emitted`."""
        count = len(prompt)
        if not 0 < count < self.length:
            raise ValueError(f"a prompt of {count} tokens; 1 to {self.length - 1} have room here")
        ids = torch.tensor([list(prompt)], device=self.device)
        positions = torch.arange(count, device=self.device)[None]
        self.cache.read_into(row)
        try:
            logits = self._logits(ids, positions, None)
        finally:
            self.cache.read_into(None)
        self.temperature[row], self.top_p[row] = sampling.temperature, sampling.top_p
        self.top_k[row] = sampling.top_k
        self.stops[row] = NOTHING
        self.stops[row, : len(stops)] = torch.tensor(list(stops)[:MOST_STOPS], dtype=torch.long)
        self.cache.at[row] = count
        self._noise.exponential_()
        first = next_tokens(
            sampling.kind,
            logits,
            self.temperature[row : row + 1],
            self.top_k[row : row + 1],
            self.top_p[row : row + 1],
            self._noise[row : row + 1],
        )[0]
        self.tokens[row] = self.emitted[row] = first
        more = min(new_tokens, self.length - count) - 1
        self.left[row] = torch.where((self.stops[row] == first).any(), 0, more)

    def empty(self, row: int) -> None:
        """Nobody wants more of this row."""
        self.left[row] = 0

    # Tokens

    @torch.no_grad()
    def step(self, kind: str, longest: int) -> None:
        """The next token of every row that wants one, into `emitted`. `longest`: of all rows, so far."""
        seen = self._seen(longest)
        self.cache.look_at(self._places[:seen])
        if self._captures:
            graph = self._graphs.get((kind, seen))
            if graph is None:
                graph = self._graphs[kind, seen] = self._captured(kind)
            graph.replay()
        else:
            self._step(kind)()

    @torch.no_grad()
    def fed(self, row: int, token: int) -> torch.Tensor:
        """The logits after a token that somebody else has chosen for a row; all rows go on by one."""
        cache = self.cache
        cache.look_at(self._places)
        self.tokens[row] = token
        with heads_ask_together(self.model):
            logits = self._logits(self.tokens[:, None], cache.at[:, None], cache.mask())
        cache.at.add_(1)
        return logits[row]

    def _one_step(self, kind: str) -> None:
        cache = self.cache
        logits = self._logits(self.tokens[:, None], cache.at[:, None], cache.mask())
        chosen = next_tokens(kind, logits, self.temperature, self.top_k, self.top_p, self._noise)
        lives = self.left > 0
        self.emitted.copy_(torch.where(lives, chosen, NOTHING))
        self.tokens.copy_(torch.where(lives, chosen, self.tokens))
        ends = (chosen[:, None] == self.stops).any(1)
        self.left.copy_(torch.where(lives & ~ends, self.left - 1, 0))
        cache.at.add_(lives)

    def _logits(self, ids: Any, positions: Any, mask: Any) -> torch.Tensor:
        out = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        last: torch.Tensor = out.logits[:, -1].float()
        return last

    def _step(self, kind: str) -> Callable[[], None]:
        if kind not in self._steps:
            assert kind in KINDS
            plain = lambda: self._one_step(kind)  # noqa: E731
            fast = torch.compile(plain, fullgraph=True, options=COMPILING) if self._compiles else plain

            def step() -> None:
                if kind != "greedy":
                    self._noise.exponential_()
                torch._dynamo.maybe_mark_dynamic(self.cache.places, 0)  # noqa: SLF001
                with heads_ask_together(self.model):
                    fast()

            self._steps[kind] = step
        return self._steps[kind]

    def _captured(self, kind: str) -> Any:
        """One step as a graph. It is tried with rows that want nothing: these stay as they are."""
        step, wanted = self._step(kind), self.left.clone()
        self.left.zero_()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UPS):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            step()
        self._pool = self._pool or graph.pool()
        self.left.copy_(wanted)
        return graph

    # Sizes

    def _seen(self, longest: int) -> int:
        seen = _SHORTEST
        while seen < longest:
            seen *= 2
        return min(seen, self.length)

    def _numbers(self, value: int) -> torch.Tensor:
        return torch.full((self.rows,), value, dtype=torch.long, device=self.device)
