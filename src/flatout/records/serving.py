"""How a model is served: what a server is told when it starts, and the document of `flatout serve`."""

import dataclasses

# What one request may carry, where nobody said.
MOST_BODY_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchTime:
    """A size of batch, as measured when the server started."""

    batch: int
    seconds: float
    items_per_s: float
    # Of the device's memory; None where it has none of its own.
    peak_share: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizing:
    """Batches, and why these."""

    most: int
    reason: str
    wait_s: float
    queue: int
    # By the times measured, no accepted request takes longer.
    latency_limit_s: float
    tried: tuple[BatchTime, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeOrder:
    """All that the serving process needs to know."""

    # `module:factory`, a file, or a folder of a language model.
    target: str
    llm: bool = False
    inputs: tuple[str, ...] = ()
    # As typed: JSON has no infinity, which masks are filled up with.
    pads: dict[str, str] = dataclasses.field(default_factory=dict)
    device: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    token: str = ""
    most_batch: int = 1024
    latency_s: float | None = None
    wait_s: float | None = None
    queue: int | None = None
    timeout_s: float = 60.0
    body_bytes: int = MOST_BODY_BYTES
    body_timeout_s: float = 30.0
    header_timeout_s: float = 10.0
    drain_s: float = 30.0
    connections: int = 2048
    # Of a language model: sequences at once, and how long each may become.
    rows: int | None = None
    context: int | None = None
    # Pipe on which it tells how it is doing; None: nobody listens.
    events_fd: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Serving:
    """A server that is ready: the document of `flatout serve`."""

    url: str
    model: str
    device: str
    inputs: tuple[str, ...]
    sizing: Sizing
    notes: tuple[str, ...] = ()
    # Of a language model: sequences at once, and their length in tokens.
    rows: int | None = None
    context: int | None = None


@dataclasses.dataclass(frozen=True)
class Setting:
    """An option of a command, and why it has this value."""

    name: str
    value: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """Another engine's command: the document of `flatout serve --engine vllm --dry-run`."""

    command: tuple[str, ...]
    settings: tuple[Setting, ...]
    weight_bytes: int
    # One token in the cache, and how that comes about.
    token_bytes: int
    token_words: str
    cache_tokens: int
    gpu: str
    gpus: int
