"""The update of a live Adam or AdamW, with torchao's 8-bit state and arithmetic.

The optimizer stays the script's own object: its groups, hooks, closures and schedulers work as always. Only
the place where it gathers the parameters to update is taken over, which updates the large ones itself and
leaves the rest to torch.
"""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

# As torchao's own optimizers do: blocks of so many values share a scale, small parameters stay in float32.
_BLOCK = 256
_FEWEST = 4096
_SIGNED = {"exp_avg": True, "exp_avg_sq": False}


class EightBitAdam:
    """One optimizer between `take_over` and `give_back`."""

    def __init__(self, torch: Any, optimizer: Any, on_problem: Callable[[str], None]) -> None:
        self._torch = torch
        self._optimizer = optimizer
        # Told why everything was left to torch, where it had to be.
        self._on_problem = on_problem
        self._failed = False
        self._state_kind = importlib.import_module("torchao.optim.subclass_8bit").OptimState8bit
        adam = importlib.import_module("torchao.optim.adam").single_param_adam
        self._update = torch.compile(adam, fullgraph=True, dynamic=False)
        self._handle: Any = None

    def take_over(self) -> None:
        """From the next update on; until then the state stays as it is, bit for bit."""
        self._handle = self._optimizer.register_state_dict_post_hook(self._as_written)
        self._optimizer._init_group = self._init_group  # noqa: SLF001 - the one place between groups and update

    def give_back(self) -> None:
        """Float32 again, from where the 8 bits have come: the training goes on, its averages intact."""
        vars(self._optimizer).pop("_init_group", None)
        if self._handle is not None:
            self._handle.remove()
        self._in_float32(self._optimizer.state)

    def _init_group(self, group: dict[str, Any], *gathered: Any) -> Any:
        """What torch asks before each update of a group: here large parameters are updated, others go on."""
        rest = [one for one in group["params"] if not self._suits(one) or not self._updated(one, group)]
        self._in_float32([one for one in rest if one in self._optimizer.state])
        return type(self._optimizer)._init_group(  # noqa: SLF001
            self._optimizer, {**group, "params": rest}, *gathered
        )

    def _suits(self, parameter: Any) -> bool:
        gradient = parameter.grad
        return (
            not self._failed
            and gradient is not None
            and not gradient.is_sparse
            and parameter.is_contiguous()
            and parameter.numel() >= _FEWEST
            and parameter.numel() % _BLOCK == 0
        )

    def _updated(self, parameter: Any, group: dict[str, Any]) -> bool:
        torch, state = self._torch, self._optimizer.state[parameter]
        try:
            step = state["step"] + 1 if state else torch.ones((), dtype=torch.float32, device="cpu")
            low = {
                name: self._lowered(parameter, state.get(name), signed) for name, signed in _SIGNED.items()
            }
            lr = group["lr"]
            if not isinstance(lr, torch.Tensor):
                lr = torch.tensor(float(lr), device="cpu")
            with torch._dynamo.utils.disable_cache_limit():  # noqa: SLF001 - as many shapes as the model has
                self._update(
                    parameter.detach(),
                    parameter.grad,
                    step,
                    *(low["exp_avg"], low["exp_avg_sq"], None, lr, *group["betas"]),
                    *(group["weight_decay"], group["eps"]),
                    _is_decoupled(torch, self._optimizer, group),
                    False,  # stochastic rounding, which is for bfloat16
                )
        except Exception as error:  # noqa: BLE001 - it compiles, and that may fail; nothing was updated then
            words = str(error).strip().splitlines() or [""]
            self._failed = True
            self._on_problem(f"{type(error).__name__}: {words[0][:300]}")
            return False
        state.update(low | {"step": step})
        return True

    def _lowered(self, parameter: Any, tensor: Any, signed: bool) -> Any:
        """Found in float32 at first, and again after a checkpoint was loaded."""
        if isinstance(tensor, self._state_kind):
            return tensor
        low = self._state_kind.zeros(parameter.shape, signed, _BLOCK, parameter.device)
        if tensor is not None:
            low.copy_(tensor.float().contiguous())
        return low

    def _in_float32(self, parameters: Iterable[Any]) -> None:
        for parameter in parameters:
            state = self._optimizer.state[parameter]
            for name in _SIGNED:
                if isinstance(state.get(name), self._state_kind):
                    state[name] = state[name].dequantize(parameter.dtype)

    def _as_written(self, _optimizer: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Checkpoints hold what the script's optimizer can load, with or without Flatout."""
        kind = self._state_kind
        states = {
            key: {
                name: value.dequantize(self._torch.float32) if isinstance(value, kind) else value
                for name, value in state.items()
            }
            for key, state in state_dict["state"].items()
        }
        return {**state_dict, "state": states}


def _is_decoupled(torch: Any, optimizer: Any, group: dict[str, Any]) -> bool:
    return bool(group.get("decoupled_weight_decay", isinstance(optimizer, torch.optim.AdamW)))
