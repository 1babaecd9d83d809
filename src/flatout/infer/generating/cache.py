"""Keys and values of all layers in memory of a fixed size; each row of the batch is filled at its own place.

Rows do not wait for each other: where a row writes next is a number on the device, so that one captured graph
serves every step, and a row can be given to another request while its neighbours go on.
"""

from typing import Any

import torch
from transformers import Cache


class RowCache(Cache):
    """A cache for a model that is handed its own mask and positions."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        # Where each row writes next, and the places that are looked at: as many as the first `seen` numbers.
        self.at = torch.zeros(0, dtype=torch.long, device="cpu")
        self.places = torch.zeros(0, dtype=torch.long, device="cpu")
        self._each = torch.zeros(0, dtype=torch.long, device="cpu")
        # While a prompt is read, the row that it goes to.
        self._row: int | None = None

    def reserve(self, rows: int, length: int, like: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Take the memory; `like` are keys and values of one token, for each layer."""
        self.keys = [keys.new_zeros(rows, keys.shape[1], length, keys.shape[3]) for keys, _ in like]
        self.values = [values.new_zeros(rows, values.shape[1], length, values.shape[3]) for _, values in like]
        device = like[0][0].device
        self.at = torch.zeros(rows, dtype=torch.long, device=device)
        self.places = torch.arange(length, device=device)
        self._each = torch.arange(rows, device=device)

    def read_into(self, row: int | None) -> None:
        """The next call reads a prompt into this row, from its beginning; None: each row gets one token."""
        self._row = row

    def look_at(self, places: torch.Tensor) -> None:
        """Attend to no more than these, the first ones."""
        self.places = places

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep what a layer computed; return what its queries may look at."""
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        if self._row is not None:
            count = key_states.shape[2]
            keys[self._row, :, :count] = key_states[0]
            values[self._row, :, :count] = value_states[0]
            return key_states, value_states
        keys[self._each, :, self.at] = key_states[:, :, 0]
        values[self._each, :, self.at] = value_states[:, :, 0]
        seen = self.places.shape[0]
        return keys[:, :, :seen], values[:, :, :seen]

    def mask(self) -> torch.Tensor:
        """For each row, which places its newest token may look at: its own and those before."""
        return (self.places[None, :] <= self.at[:, None])[:, None, None, :]

    # What transformers asks when it makes masks for a prompt: nothing came before it.

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Before a prompt there is nothing."""
        return 0

    def get_mask_sizes(self, query_length: Any, layer_idx: int) -> tuple[int, int]:  # noqa: ARG002
        """A prompt looks at itself; older versions give its positions instead of their count."""
        count = query_length if isinstance(query_length, int) else query_length.shape[0]
        return count, 0

    def get_query_offset(self, layer_idx: int | None = None) -> int:  # noqa: ARG002
        """A prompt begins at its beginning."""
        return 0


class _Noted(Cache):
    """Keeps nothing: only what the keys and values of each layer look like."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Look, and hand back."""
        self.seen[layer_idx] = (key_states, value_states)
        return key_states, value_states

    get_seq_length = RowCache.get_seq_length
    get_mask_sizes = RowCache.get_mask_sizes
    get_query_offset = RowCache.get_query_offset


@torch.no_grad()
def of_one_token(model: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of one token, layer by layer: what a cache has to hold of each."""
    noted = _Noted()
    ids = torch.zeros(1, 1, dtype=torch.long, device=next(model.parameters()).device)
    model(input_ids=ids, position_ids=ids, past_key_values=noted, use_cache=True)
    return [noted.seen[layer] for layer in sorted(noted.seen)]
