"""What the guard needs to see: gradients and parameters of the first updates, as sketches; planted roundoff.

A sketch is a short vector of random projections. The distance of two sketches tells the distance of the
tensors that they stand for, without keeping either. Reads from the device at once: nobody is timed while it
looks.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.inside.by_hand import is_by_hand
from flatout.inside.pairing import tensors_in
from flatout.records.session import GUARD_FILE

if TYPE_CHECKING:
    from flatout.inside.session import Session

# Numbers in a sketch: distances are known to within a fifth.
WIDTH = 64
_COLUMNS = 4096
_ROWS_AT_A_TIME = 8192
# Of an output that looks like one score a class: for so many samples, which class is first.
_MOST_FIRSTS = 4096
# Of the distance to a representable number's neighbour, so that rounding ends there wherever it lies.
_TO_THE_NEXT = 0.75


class Guarding:
    """Sketches every gradient and every parameter around the first updates of each optimizer."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._names: dict[int, str] = {}
        self._seen: dict[int, int] = {}
        self._records: list[dict[str, Any]] = []
        self._signs: dict[Any, Any] = {}
        self._outputs: list[float] = []

    def begin(self, root: Any) -> None:
        """A root is about to train: its parameters have names, and get the roundoff that was ordered."""
        for name, parameter in root.named_parameters():
            self._names.setdefault(id(parameter), name)
        if self._session.order.perturb:
            self._perturb(root, self._session.order.perturb, self._session.order.perturbation)

    def _perturb(self, root: Any, by: float, which: int) -> None:
        """Change each trainable parameter by `by` of itself, up or down; no generator of the script's."""
        torch = self._session.torch
        with torch.no_grad():
            for number, parameter in enumerate(root.parameters()):
                if parameter.requires_grad and parameter.is_floating_point():
                    generator = torch.Generator().manual_seed(7919 * which + number)
                    own = {"generator": generator, "device": "cpu"}
                    signs = torch.randint(0, 2, (parameter.numel(),), dtype=torch.int8, **own)
                    step = float(torch.finfo(parameter.dtype).eps)
                    if by < step:  # or rounding would undo it: some values go to the next that there is
                        few = torch.rand(parameter.numel(), **own) < by / step
                        change = (signs * 2 - 1) * few
                        change = change.to(parameter.device).view(parameter.shape)
                        parameter.copy_(parameter.float() * (1 + _TO_THE_NEXT * step * change))
                        continue
                    change = (signs.to(parameter.device) * 2 - 1).view(parameter.shape).to(parameter.dtype)
                    parameter.mul_(1 + by * change)

    def before_update(self, optimizer: Any) -> None:
        """Gradients are complete."""
        if self._wants(optimizer):
            self._session.busy += 1
            try:
                number = list(self._seen).index(id(optimizer))
                before = self._sketches(optimizer, lambda parameter: parameter.detach())
                if is_by_hand(optimizer):  # which tells of an update when it is over
                    before = self._last_known(number, before)
                self._records.append(
                    {
                        "optimizer": number,
                        "gradients": self._sketches(optimizer, lambda parameter: parameter.grad),
                        "before": before,
                    }
                )
            finally:
                self._session.busy -= 1

    def _last_known(self, number: int, now: dict[str, Any]) -> dict[str, Any]:
        """The parameters after the update before this one; of the first update nothing is known."""
        own = (one["after"] for one in reversed(self._records) if one["optimizer"] == number)
        return next(own, now)

    def after_update(self, optimizer: Any) -> None:
        """Parameters have changed."""
        if self._records and "after" not in self._records[-1]:
            self._session.busy += 1
            try:
                after = self._sketches(optimizer, lambda parameter: parameter.detach())
                self._records[-1]["after"] = after
            finally:
                self._session.busy -= 1

    def inferred(self, module: Any, result: Any) -> None:
        """A model was called where nothing trains: what it returned is what must stay the same."""
        session = self._session
        tensors = [one.detach() for one in tensors_in(result) if one.is_floating_point()]
        session.busy += 1
        try:
            with session.torch.no_grad():
                total = sum(float(tensor.float().square().mean()) for tensor in tensors)
                self._outputs.append(total)
                if session.updates < session.order.guard_updates:
                    number = self._seen.setdefault(id(module), len(self._seen))
                    self._records.append(
                        {
                            "what": "outputs",
                            "optimizer": number,
                            "gradients": {
                                f"output {place} of {type(module).__name__}": self._sketch(tensor)
                                for place, tensor in enumerate(tensors)
                            },
                            "largest": [_largest(tensor) for tensor in tensors],
                            "before": {},
                            "after": {},
                        }
                    )
        finally:
            session.busy -= 1

    def outputs_so_far(self) -> dict[str, list[float]]:
        """The mean squares of what was returned since the last step."""
        found, self._outputs = self._outputs, []
        return {"losses": found}

    def write(self, folder: Path) -> None:
        """Leave everything where the parent reads it."""
        fresh = folder / f".{GUARD_FILE}.tmp"
        fresh.write_text(json.dumps({"width": WIDTH, "updates": self._records}))
        os.replace(fresh, folder / GUARD_FILE)  # noqa: PTH105

    def _wants(self, optimizer: Any) -> bool:
        seen = self._seen.get(id(optimizer), 0)
        if seen >= self._session.order.guard_updates:
            return False
        self._seen[id(optimizer)] = seen + 1
        return True

    def _sketches(self, optimizer: Any, of: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with self._session.torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    tensor = of(parameter)
                    name = self._names.get(id(parameter), f"parameter {len(found)}")
                    found[name] = None if tensor is None else self._sketch(tensor)
        return found

    def _sketch(self, tensor: Any) -> list[float]:
        """Random signs for rows and columns, then sums into a few buckets; in float32, by parts."""
        torch = self._session.torch
        flat = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
        flat = flat.reshape(-1)
        rows = -(-flat.numel() // _COLUMNS)
        by_column, by_row = self._random_signs(flat.device, rows)
        total = torch.zeros(_COLUMNS, dtype=torch.float64, device=flat.device)
        for start in range(0, rows, _ROWS_AT_A_TIME):
            part = flat[start * _COLUMNS : (start + _ROWS_AT_A_TIME) * _COLUMNS].float()
            missing = -part.numel() % _COLUMNS
            if missing:
                part = torch.nn.functional.pad(part, (0, missing))
            part = part.view(-1, _COLUMNS)
            total += (part * by_row[start : start + part.shape[0], None]).sum(0, dtype=torch.float64)
        # Neighbours go to different buckets: a small tensor is kept whole.
        buckets = (total * by_column).view(-1, WIDTH).sum(0)
        return [float(value) for value in buckets.tolist()]

    def _random_signs(self, device: Any, rows: int) -> tuple[Any, Any]:
        known = self._signs.get(device)
        if known is None or known[1].numel() < rows:
            torch = self._session.torch
            generator = torch.Generator().manual_seed(1)
            columns = torch.randint(0, 2, (_COLUMNS,), generator=generator, device="cpu").double() * 2 - 1
            generator.manual_seed(2)
            count = max(rows, 1 << 16)
            of_rows = torch.randint(0, 2, (count,), generator=generator, device="cpu").float() * 2 - 1
            known = self._signs[device] = (columns.to(device), of_rows.to(device))
        return known


def _largest(tensor: Any) -> list[int]:
    """Which of the last dimension is the largest, for each sample: the answer, where it is a classifier's."""
    if tensor.dim() < 2 or tensor.shape[-1] < 2:
        return []
    return [int(place) for place in tensor.argmax(-1).reshape(-1)[:_MOST_FIRSTS].tolist()]
