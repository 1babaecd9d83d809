"""Makes a script believe in its GPU: what it puts there stays on the host's fake tensors, with a mark."""

import contextlib
from typing import Any

from flatout.memory.imagined import recurrent
from flatout.memory.imagined.ledger import Ledger

# Under autocast on CUDA these compute in float32, on the CPU in whatever comes.
_IN_FLOAT32 = frozenset(
    (
        *("softmax", "log_softmax", "layer_norm", "group_norm", "nll_loss", "mse_loss"),
        *("l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "kl_div", "norm"),
        *(
            "cosine_similarity",
            "cosine_embedding_loss",
            "exp",
            "expm1",
            "log",
            "log10",
            "log1p",
            "log2",
            "pow",
        ),
        *("__pow__", "rsqrt", "reciprocal", "cumsum", "cumprod", "prod", "sum", "softplus", "renorm", "dist"),
        *("cdist", "erfinv", "acos", "asin", "cosh", "sinh", "tan", "logsumexp", "multi_margin_loss"),
        "triplet_margin_loss",
    )
)


def is_on_gpu(torch: Any, device: Any) -> bool:
    """Whether a script means its GPU by this."""
    if device is None or isinstance(device, bool):
        return False
    return isinstance(device, int) or torch.device(device).type == "cuda"


def believe(torch: Any, fake_tensor: Any, ledger: Ledger, inside: list[int]) -> None:
    """Where a fake tensor lies is a property of its class, which no mode sees: on the device for all who
    ask, but on the host `inside` of torch's dispatch, where fakes are computed."""
    real = fake_tensor.device

    def device(self: Any) -> Any:
        if not inside[0] and ledger.has(self.untyped_storage()):
            return torch.device("cuda", 0)
        return real.fget(self)

    fake_tensor.device = property(device, real.fset)
    fake_tensor.is_cuda = property(lambda self: self.device.type == "cuda")
    fake_tensor.is_cpu = property(lambda self: self.device.type == "cpu")
    fake_tensor.get_device = lambda self: 0 if self.is_cuda else -1


def believer(torch: Any, ledger: Ledger, wanted: list[int], moving: list[int]) -> Any:
    """A mode that sees every function of torch before it is dispatched."""
    base: Any = torch.overrides.TorchFunctionMode
    tensor = torch.Tensor
    recurrent_kinds, run_recurrent = recurrent.kinds(torch), recurrent.stand_in(torch, ledger)

    def moved(value: Any, rest: list[Any], kwargs: dict[str, Any]) -> Any:
        """`value.to(device)`: a parameter stays itself, anything else is copied."""
        kept = {name: one for name, one in kwargs.items() if name in ("dtype", "copy", "memory_format")}
        other = value.to(*rest, **kept) if rest or kept else value
        if ledger.has(other.untyped_storage()):
            return other
        if moving[0]:
            ledger.take(other.untyped_storage(), moved=True)
            return other
        if other.dim():
            ledger.batch = int(other.shape[0])
        with on(wanted, 1):
            return other.clone()

    class Believer(base):  # type: ignore[misc]
        """Devices are rewritten; what autocast does on CUDA and not on the CPU is done here."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if getattr(func, "__name__", "") == "__get__":
                return self._property(func, args)
            if func in (tensor.to, tensor.cuda, tensor.cpu, tensor.pin_memory):
                return self._move(func, args, kwargs)
            if func is tensor.__deepcopy__ and getattr(args[0], "constant", None) is not None:
                return _copied(torch, *args)
            if func in (torch.nn.functional.dropout, torch.dropout) and args:
                return _dropout(torch, func, args, kwargs)
            if func in recurrent_kinds and ledger.has(args[0].untyped_storage()):
                return run_recurrent(recurrent_kinds[func], *args)
            if torch.is_autocast_enabled("cpu"):
                if func is torch.nn.functional.cross_entropy:
                    return _cross_entropy(torch, *args, **kwargs)
                if getattr(func, "__name__", "") in _IN_FLOAT32:
                    args = tuple(_float32(torch, value) for value in args)
            if "device" in kwargs:
                on_gpu = is_on_gpu(torch, kwargs["device"])
                kwargs["device"] = "cpu" if kwargs["device"] is not None else None
                with on(wanted, 1 if on_gpu else 0):
                    return func(*args, **kwargs)
            return func(*args, **kwargs)

        def _property(self, func: Any, args: Any) -> Any:
            name = getattr(getattr(func, "__self__", None), "__name__", "")
            if name in ("device", "is_cuda") and args and ledger.has(args[0].untyped_storage()):
                return True if name == "is_cuda" else torch.device("cuda", 0)
            return func(*args)

        def _move(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            value, *rest = args
            # A dtype that stays, and whether to wait for the copy.
            rest = [one for one in rest if one is not None and not isinstance(one, bool)]
            kwargs.pop("non_blocking", None)
            if func is tensor.pin_memory:
                return value
            if func is tensor.cpu:
                with on(wanted, -1):
                    return value.clone()
            if func is tensor.cuda:
                return moved(value, [], {})
            device = None
            if rest and isinstance(rest[0], str | torch.device | int):
                device = rest.pop(0)
            elif "device" in kwargs:
                device = kwargs.pop("device")
            elif rest and isinstance(rest[0], torch.Tensor):
                like = rest.pop(0)
                device = "cuda" if ledger.has(like.untyped_storage()) else None
                kwargs["dtype"] = like.dtype
            if is_on_gpu(torch, device):
                return moved(value, rest, kwargs)
            if device is not None and ledger.has(value.untyped_storage()):
                with on(wanted, -1):
                    return value.to(*rest, **kwargs).clone()
            return value.to(*rest, **kwargs) if rest or kwargs else value

    return Believer()


@contextlib.contextmanager
def on(wanted: list[int], where: int) -> Any:
    """Results are the device's (1), the host's (-1), or what their inputs are (0)."""
    before, wanted[0] = wanted[0], where
    try:
        yield
    finally:
        wanted[0] = before


def _copied(torch: Any, value: Any, memo: dict[int, Any]) -> Any:
    """A fake tensor that was made from a number holds that one, which torch's own copying trips over."""
    if id(value) not in memo:
        with torch.no_grad():
            memo[id(value)] = value.clone().requires_grad_(value.requires_grad)
    return memo[id(value)]


def _dropout(torch: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """On CUDA what is kept for the backward pass is a mask of one byte a value, on the CPU one in full."""
    names = ("input", "p", "training", "inplace") if func is not torch.dropout else ("input", "p", "train")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    share, trains = given.get("p", 0.5), given.get("training", given.get("train", True))
    if not trains or given.get("inplace") or not 0.0 < share < 1.0:
        return func(*args, **kwargs)
    return torch.native_dropout(given["input"], share, True)[0]


def _cross_entropy(torch: Any, logits: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    """As autocast has it on CUDA: the softmax in the precision that comes, only the rest in float32."""
    functional = torch.nn.functional
    with torch.autocast("cpu", enabled=False):
        if target.is_floating_point() or kwargs.get("label_smoothing"):
            return functional.cross_entropy(_float32(torch, logits), target, *args, **kwargs)
        kwargs.pop("label_smoothing", None)
        chances = functional.log_softmax(logits, 1 if logits.dim() > 1 else 0)
        return functional.nll_loss(_float32(torch, chances), target, *args, **kwargs)


def _float32(torch: Any, value: Any) -> Any:
    low = (torch.bfloat16, torch.float16)
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in low else value
