"""A model with room for some rows: reads prompts into them, and gives each row its next token, step by step.

All that a step needs lies on the device, at places that never change: on a GPU the step is compiled and
captured once, and each further token costs the host one launch.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from flatout.infer.capturing import capturing, on_device
from flatout.infer.generating.attention import TOGETHER, heads_ask_together
from flatout.infer.generating.cache import RowCache, of_one_token
from flatout.infer.generating.choosing_attention import faster_attention
from flatout.infer.generating.mode import Mode
from flatout.infer.generating.sampling import KINDS, Sampling, next_tokens
from flatout.infer.generating.vectors import ArrangeProducts
from flatout.levers.capture import fresh

# Tokens at which a row may end.
MOST_STOPS = 8
# What a row without a token shows.
NOTHING = -1
# Attention looks at a part of the cache: this many places, and twice as many, and so on.
_SHORTEST = 256
# Kernels of attention read masks in pieces of this many: of other lengths they would be copied first.
_ALIGNED = 64
_WARM_UPS = 3
# Products with one row are walks through a matrix: kernels made for that, tuned for this card.
COMPILING: dict[str, Any] = {
    "coordinate_descent_tuning": True,
    "triton.cudagraphs": False,
    "pre_grad_custom_pass": ArrangeProducts(),
}


class Decoder:
    """`rows` sequences of at most `length` tokens side by side."""

    def __init__(self, model: Any, rows: int, length: int, *, compiled: bool | None = None) -> None:
        self.model = model
        self.rows, self.length = rows, length
        self.device = next(model.parameters()).device
        on_gpu = self.device.type == "cuda"
        self._compiles = on_gpu if compiled is None else compiled
        self._captures = on_gpu
        self.mode = Mode.of_caller(model)
        with self.mode.driving():
            self._take_memory()
        self._forward = self._one_forward
        self._choose: dict[str, Callable[[torch.Tensor], None]] = {}
        self._graphs: dict[tuple[str, int], Any] = {}
        self._pool: Any = None
        if self._compiles:
            # The model is compiled once, whatever is made of its logits: it takes a minute.
            self._forward = torch.compile(fresh(self._one_forward), fullgraph=True, options=COMPILING)

    def _take_memory(self) -> None:
        rows, model = self.rows, self.model
        self.cache = RowCache()
        room = -(-self.length // _ALIGNED) * _ALIGNED
        # One place more than is ever looked at: to look at all of them would be another case to compile.
        self.cache.reserve(rows, room + 1, of_one_token(model))
        self._places = self.cache.places[:room]
        self.attention = TOGETHER
        if self.device.type == "cuda":
            with on_device(self.device):
                self.attention = faster_attention(model, self.cache)
        self.tokens = self._numbers(0)
        # How many more tokens a row gets, and what it got in the last step.
        self.left = self._numbers(0)
        self.emitted = self._numbers(NOTHING)
        self.stops = torch.full((rows, MOST_STOPS), NOTHING, device=self.device)
        self.temperature = torch.zeros(rows, device=self.device)
        self.top_k, self.top_p = self._numbers(0), torch.ones(rows, device=self.device)
        self._noise = torch.ones(rows, model.config.get_text_config().vocab_size, device=self.device)

    # Prompts

    def read(
        self, row: int, prompt: Sequence[int], sampling: Sampling, new_tokens: int, stops: Sequence[int] = ()
    ) -> None:
        """Read a prompt into a row, and draw the first token after it into `emitted`."""
        count = len(prompt)
        if not 0 < count < self.length:
            raise ValueError(f"a prompt of {count} tokens; 1 to {self.length - 1} have room here")
        with self.mode.driving(), on_device(self.device):
            logits = self._prompt_logits(row, prompt)
            self.temperature[row], self.top_p[row] = sampling.temperature, sampling.top_p
            self.top_k[row] = sampling.top_k
            self.stops[row] = NOTHING
            known = torch.tensor(list(stops)[:MOST_STOPS], dtype=torch.long, device="cpu")
            self.stops[row, : len(stops)] = known
            self.cache.at[row] = count
            own = slice(row, row + 1)
            if sampling.kind != "greedy":
                self._noise[own].exponential_()
            settings = (self.temperature[own], self.top_k[own], self.top_p[own], self._noise[own])
            first = next_tokens(sampling.kind, logits.float(), *settings)[0]
            self.tokens[row] = self.emitted[row] = first
            more = min(new_tokens, self.length - count) - 1
            self.left[row] = torch.where((self.stops[row] == first).any(), 0, more)

    def _prompt_logits(self, row: int, prompt: Sequence[int]) -> torch.Tensor:
        ids = torch.tensor([list(prompt)], device=self.device)
        positions = torch.arange(len(prompt), device=self.device)[None]
        self.cache.read_into(row)
        try:
            return self._logits(ids, positions, None)
        finally:
            self.cache.read_into(None)

    def empty(self, row: int) -> None:
        """Nobody wants more of this row."""
        with self.mode.driving():
            self.left[row] = 0

    # Tokens

    def step(self, kind: str, longest: int) -> None:
        """The next token of every row that wants one, into `emitted`. `longest`: of all rows, so far."""
        seen = self._seen(longest)
        with self.mode.driving(), on_device(self.device):
            self.cache.look_at(self._places[:seen])
            graph = self._graph(kind, seen) if self._captures else None
            if graph is not None:
                graph.replay()
            else:
                self._tried(kind)

    def prepare(self, kinds: Sequence[str] = KINDS) -> None:
        """Compile and capture now what would else be when it is first needed, while others wait."""
        wanted = self.left.clone()
        self.left.zero_()
        for kind in kinds:
            seen = 0
            while seen < self._seen(self.length):
                seen = self._seen(seen + 1)
                self.step(kind, seen)
                if not self._captures:
                    break
        self.left.copy_(wanted)

    def fed(self, row: int, token: int) -> torch.Tensor:
        """The logits after a token that somebody else has chosen for a row; all rows go on by one."""
        cache = self.cache
        with self.mode.driving(), on_device(self.device):
            cache.look_at(self._places)
            self.tokens[row] = token
            with heads_ask_together(self.model, self.attention):
                logits = self._one_forward()
            cache.at.add_(1)
            return logits[row].float()

    def _one_forward(self) -> torch.Tensor:
        cache = self.cache
        return self._logits(self.tokens[:, None], cache.at[:, None], cache.mask())

    def _logits(self, ids: Any, positions: Any, mask: Any) -> torch.Tensor:
        out = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        last: torch.Tensor = out.logits[:, -1]
        return last

    def _chosen(self, kind: str, logits: torch.Tensor) -> None:
        """What follows from logits for each row that wants a token."""
        settings = (self.temperature, self.top_k, self.top_p, self._noise)
        chosen = next_tokens(kind, logits.float(), *settings)
        lives = self.left > 0
        self.emitted.copy_(torch.where(lives, chosen, NOTHING))
        self.tokens.copy_(torch.where(lives, chosen, self.tokens))
        ends = (chosen[:, None] == self.stops).any(1)
        self.left.copy_(torch.where(lives & ~ends, self.left - 1, 0))
        self.cache.at.add_(lives)

    def _step(self, kind: str) -> None:
        """One step by single launches: compiled, or as written where that is not possible."""
        if kind not in self._choose:
            assert kind in KINDS
            choose = fresh(lambda logits: self._chosen(kind, logits))
            self._choose[kind] = torch.compile(choose, fullgraph=True) if self._compiles else choose
        if kind != "greedy":
            self._noise.exponential_()
        torch._dynamo.maybe_mark_dynamic(self.cache.places, 0)  # noqa: SLF001
        with heads_ask_together(self.model, self.attention):
            logits = self._forward()
        self._choose[kind](logits)

    # Graphs

    def _graph(self, kind: str, seen: int) -> Any:
        """The captured step for these; None where it cannot be captured."""
        if (kind, seen) not in self._graphs:
            # Rows that want nothing stay as they are: with such, it is tried.
            wanted = self.left.clone()
            self.left.zero_()
            try:
                self._warm_up(kind)
                self._graphs[kind, seen] = self._captured(kind)
            finally:
                self.left.copy_(wanted)
        return self._graphs[kind, seen]

    def _warm_up(self, kind: str) -> None:
        """Until everything is compiled and has its memory; as written where the compiler fails."""
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UPS):
                self._tried(kind)
        torch.cuda.current_stream().wait_stream(aside)

    def _tried(self, kind: str) -> None:
        try:
            self._step(kind)
        except Exception as error:
            if not self._compiles:
                raise
            words = f"it is not compiled: {_said(error)}"
        else:
            return
        # Outside of `except`: the error holds what the compiler was doing.
        warnings.warn(f"flatout.generate runs this model slower than it could: {words}", stacklevel=2)
        self._compiles, self._forward, self._choose = False, self._one_forward, {}
        self._step(kind)

    def _captured(self, kind: str) -> Any:
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            with capturing(graph, self.device, self._pool):
                self._step(kind)
        except Exception as error:  # noqa: BLE001 - whatever cannot be captured runs by single launches
            words = f"a step of it cannot be captured: {_said(error)}"
        else:
            return graph
        warnings.warn(f"flatout.generate runs this model slower than it could: {words}", stacklevel=2)
        self._captures = False
        return None

    # Sizes

    def _seen(self, longest: int) -> int:
        seen = _SHORTEST
        while seen < longest:
            seen *= 2
        return min(seen, self._places.shape[0])

    def _numbers(self, value: int) -> torch.Tensor:
        return torch.full((self.rows,), value, dtype=torch.long, device=self.device)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
