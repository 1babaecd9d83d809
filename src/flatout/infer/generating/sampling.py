"""The next token from its logits, on the device: greedy, by temperature, or among the likeliest alone."""

import dataclasses

import torch


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a request draws its tokens; a temperature of 0 takes the likeliest."""

    temperature: float = 0.0
    # Only among so many of the likeliest; 0: all.
    top_k: int = 0
    # Only among the likeliest that together have so much of the probability.
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(
                f"temperature={self.temperature}, top_k={self.top_k}, top_p={self.top_p}: a temperature and "
                "a top_k of 0 or more, and a top_p above 0 and up to 1 are expected"
            )

    @property
    def kind(self) -> str:
        """What has to be computed for it: each kind has graphs of its own."""
        if self.temperature == 0:
            return "greedy"
        return "filtered" if self.top_k or self.top_p < 1 else "drawn"


GREEDY = Sampling()
KINDS = ("greedy", "drawn", "filtered")


def next_tokens(
    kind: str,
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    noise: torch.Tensor,
) -> torch.Tensor:
    """One token a row. `noise` is drawn from an exponential distribution: the largest of probability over
    noise is a draw by these probabilities, without a wait for the host."""
    likeliest = logits.argmax(-1)
    if kind == "greedy":
        return likeliest
    warm = logits / temperature.clamp_min(1e-6)[:, None]
    if kind == "filtered":
        warm = _only_likely(warm, top_k, top_p)
    drawn = (torch.softmax(warm, -1) / noise).argmax(-1)
    return torch.where(temperature == 0, likeliest, drawn)


def _only_likely(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The others get no chance; of a row, the likeliest always stays."""
    ordered, order = logits.sort(-1, descending=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    count = torch.where(top_k > 0, top_k, logits.shape[-1])
    # As others do it, the nucleus is taken of what top_k has left.
    ordered = ordered.masked_fill(rank[None, :] >= count[:, None], float("-inf"))
    chances = torch.softmax(ordered, -1)
    before = chances.cumsum(-1) - chances
    ordered = ordered.masked_fill(before >= top_p[:, None], float("-inf"))
    return torch.full_like(logits, float("-inf")).scatter(-1, order, ordered)
