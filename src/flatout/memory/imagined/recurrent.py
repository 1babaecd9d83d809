"""Recurrent layers as cuDNN runs them: one call for all layers and steps, with a reserve for the way back."""

from typing import Any

from flatout.memory.imagined.ledger import Ledger

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
# Of a layer's output, how much a layer's reserve holds beside its gates, and another between two layers.
_BESIDE_GATES = 1
# While it runs: of a layer's output, and of the weights. Read off an H200, as everything in `scratch.py`.
_SCRATCH_OUTPUTS, _SCRATCH_WEIGHTS = 5.0, 1.5

# Dimensions of one sequence alone.
_UNBATCHED = 2


def kinds(torch: Any) -> dict[Any, str]:
    """torch's functions for recurrent layers, each with its name."""
    return {getattr(torch, name): name for name in _GATES}


def stand_in(torch: Any, ledger: Ledger) -> Any:
    """A function that takes what torch.lstm and its like take, and the memory that cuDNN would."""

    class Recurrent(torch.autograd.Function):  # type: ignore[misc]
        """Below autograd's sight: what is saved is what cuDNN saves."""

        @staticmethod
        def forward(ctx: Any, kind: str, layers: int, directions: int, x: Any, *weights: Any) -> Any:
            # Weights of both kinds, and where there are any their biases, for every layer and direction.
            hidden = max(weights, key=lambda one: one.dim()).shape[0] // _GATES[kind]
            *steps, _ = x.shape
            out = x.new_empty(*steps, hidden * directions)
            kept = layers * (_GATES[kind] + _BESIDE_GATES) + layers - 1
            reserve = x.new_empty(kept * out.numel())
            ctx.save_for_backward(x, out, reserve, *weights)
            ctx.scratch = int(
                _SCRATCH_OUTPUTS * out.numel() * x.element_size()
                + _SCRATCH_WEIGHTS * sum(one.numel() * one.element_size() for one in weights)
            )
            ledger.scratch(ctx.scratch, f"aten::{kind}")
            return out

        @staticmethod
        def backward(ctx: Any, _gradient: Any) -> Any:
            x, _, _, *weights = ctx.saved_tensors
            of_input = x.new_empty(x.shape)
            ledger.scratch(ctx.scratch, "aten::_cudnn_rnn_backward")
            return (None, None, None, of_input, *(one.new_empty(one.shape) for one in weights))

    def recurrent(kind: str, *args: Any) -> Any:
        # Sequences of unequal length come with their sizes.
        packed = isinstance(args[1], torch.Tensor) and not args[1].is_floating_point()
        x, hx, weights = (args[0], args[2], args[3]) if packed else args[:3]
        layers, bidirectional = (args[5], args[8]) if packed else (args[4], args[7])
        if torch.is_autocast_enabled("cpu"):
            low = torch.get_autocast_dtype("cpu")
            x, weights = x.to(low), [one.to(low) for one in weights]
        batch_first = not packed and bool(args[8]) and x.dim() > _UNBATCHED
        if batch_first:
            x = x.transpose(0, 1).contiguous()
        out = Recurrent.apply(kind, layers, 2 if bidirectional else 1, x, *weights)
        if batch_first:
            out = out.transpose(0, 1)
        states = hx if isinstance(hx, tuple | list) else (hx,)
        return (out, *(torch.empty_like(state, dtype=out.dtype) for state in states))

    return recurrent
