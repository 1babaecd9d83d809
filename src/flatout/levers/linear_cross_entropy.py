"""The head of a language model and its loss in one, some tokens at a time."""

import contextlib
import dataclasses
import importlib
from collections.abc import Iterator
from typing import Any

from flatout.levers.chunked_loss import linear_cross_entropy, rows_at_a_time, why_no_kernel
from flatout.levers.head_reading import Form, NotProven, caller_of, form_of
from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Broken, Call, Lever, Refused, Scene, Settings
from flatout.levers.loss_function import loss_function
from flatout.levers.loss_reading import Checks, still_holds
from flatout.levers.places import users_frame

# Classes of a head whose logits are worth the trouble.
LARGE_VOCABULARY = 8192
# Around the loss: nobody else knows what stands in for logits.
_OUTERMOST = 50
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class LinearCrossEntropy(Lever):
    """The last linear layer and the cross entropy of what it gives, computed together in chunks of tokens.

    The logits of a language model are its largest tensor, and exist several times over: as they are, in
    float32, as probabilities, as a gradient. In chunks they never exist whole. On a GPU a kernel makes the
    gradient of a chunk in the place of its logits, in rows filled up to a multiple of 64 for the tensor
    cores: that saves time, too. Only for a head without bias
    onto a large vocabulary, and only where the source proves that nothing but a mean cross entropy gets its
    logits: a forward that returns them to a script that hands them on, or one that computes the loss itself
    (`return logits, loss`) and whose caller leaves the logits alone, which are NaN then. Refused for smoothed
    labels, class weights, hooks that would see the logits, several processes, second derivatives, and
    wherever the source leaves a doubt.
    """

    id = "linear-cross-entropy"
    title = "chunked loss"
    safety = "numeric"
    reorders = True
    # Around the compiler, whose graphs it changes at one place, and within autocast.
    layer = 20

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Needs a head with many outputs; the rest is read from the source when the model is called."""
        if job.habit("compiles"):
            return "the script compiles itself"
        if job.habit("infers"):
            return "the script infers: nothing needs the gradient that is made on the way"
        if int(job.habit("vocabulary", 0) or 0) < LARGE_VOCABULARY:
            return f"the model has no linear layer without bias onto {LARGE_VOCABULARY} classes or more"
        if job.ranks > 1:
            return "several processes train together, and each looks for gradients in what its model returns"
        return ""

    @classmethod
    def is_for_memory(cls, job: JobFacts) -> bool:
        """Without the kernel."""
        return not job.on_gpu

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """Of what the loss reads and writes two thirds go away; where the model computes it, nobody knows."""
        shares = job.device_shares or job.host_shares
        return amdahl(max(0.05, shares.get("loss", 0.0)), 3.0 if job.on_gpu else 1.5)

    @classmethod
    def stand_by(cls, torch: Any) -> None:
        """Torch's own cross entropy would get what stands in for logits, which is NaN."""
        loss_function(torch).stand_by()

    def __init__(self, scene: Scene, settings: Settings) -> None:
        super().__init__(scene, settings)
        self._is_on = False
        self._root: Any = None
        self._head: Any = None
        self._form = Form("output")
        # By place in the script: what must hold there.
        self._places: dict[tuple[Any, int], Checks] = {}
        # By the memory of what stands in for logits: what they would be made of.
        self._pending: dict[int, _Pending] = {}
        # Within one call of a model that computes its loss: what its head was given.
        self._given: list[Any] = []
        self._loss: Call = linear_cross_entropy
        # The same ones each time: models that were compiled with others would be compiled again.
        self._heads: dict[str, Call] = {"output": _same, "loss": self._standing_in}
        self._inside: Call = self._within_the_model

    def apply(self) -> None:
        """Find the head, and prove what becomes of its logits inside of the model."""
        torch = self.scene.torch
        distributed = getattr(torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            raise Refused("several processes train together")
        self._root, self._head = self._found()
        try:
            self._form = form_of(self._root, self._head, torch)
        except NotProven as reason:
            raise Refused(str(reason)) from reason
        self._loss = linear_cross_entropy(torch)
        self._places.clear()
        weight = self._head.weight
        missing = _why_slow(torch, weight, torch.bfloat16)
        if weight.is_cuda and missing:
            self.scene.note(self.id, f"without its kernel, and slower: {missing}")
        self._is_on = True
        if self._form.kind == "output":
            loss_function(torch).put(self.id, _OUTERMOST, self._around_the_loss)

    def undo(self) -> None:
        """Leave the loss alone, once it has seen what stands in for logits; the head has never left."""
        self._is_on = False
        self._leave_the_loss()

    def _leave_the_loss(self) -> None:
        self._pending = {key: one for key, one in self._pending.items() if not one.memory.expired()}
        if not self._is_on and not self._pending:
            loss_function(self.scene.torch).take(self.id)

    def around(self, root: Any, call: Call) -> Call:
        """The model without its head, where the caller's source allows; else as it is, once and for all."""

        def without_the_head(*args: Any, **kwargs: Any) -> Any:
            if root is not self._root or self.useless:
                return call(*args, **kwargs)
            try:
                self._insist_on_the_caller(root)
            except NotProven as reason:
                raise Broken(self.id, str(reason)) from reason
            with self._taken_off():
                result = call(*args, **kwargs)
            return self._stand_in(result) if self._form.kind == "output" else self._with_loss(result)

        return without_the_head

    # The proof

    def _found(self) -> tuple[Any, Any]:
        torch = self.scene.torch
        found = [
            (root, module)
            for root in self.scene.roots()
            for module in dict.fromkeys(root.modules())
            if is_large_head(module, torch)
        ]
        if len(found) != 1:
            raise Refused(f"the model has {len(found) or 'no'} linear layers without bias onto many classes")
        [(root, head)] = found
        if any(getattr(head, name, None) for name in _HOOKS) or "forward" in vars(head):
            raise Refused("something of the script's hangs on the model's head")
        if not head.weight.requires_grad:
            raise Refused("the model's head is not trained")
        return root, head

    def _insist_on_the_caller(self, root: Any) -> None:
        frame = users_frame(self.scene.torch)
        if frame is None:
            raise NotProven("nobody's source calls the model")
        place = (frame.f_code, frame.f_lineno)
        if place not in self._places:
            self._places[place] = caller_of(frame, root, self._head, self._form, self.scene.torch)
        if not still_holds(self._places[place], frame):
            raise NotProven("the script's loss is another now")

    # A model that computes its loss

    def _standing_in(self, x: Any) -> Any:
        """What the forward gets for logits: their shape, without their memory.

        And without a gradient: compiled code would make one of zeros, as large as the logits, for what the
        caller leaves alone.
        """
        self._given.append(x)
        return x.detach().narrow(-1, 0, 1).expand(*x.shape[:-1], self._head.out_features)

    def _within_the_model(
        self,
        input: Any,  # noqa: A002 - it is called so
        target: Any,
        weight: Any = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        """torch's cross entropy, while the model is called."""
        classes = self._head.out_features
        is_ours = self._given and input.shape[1] == classes and input.stride(1) == 0
        if not is_ours:
            return self._real(
                input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
            )
        x = self._given.pop()
        plain = weight is None and size_average is None and reduce is None and label_smoothing == 0.0
        if not plain or reduction != "mean" or target.is_floating_point():
            raise NotImplementedError("smoothed labels, weights or sums are not computed in chunks")
        if target.numel() * classes != input.numel():
            raise NotImplementedError("not every token has its target")
        dtype = _product_dtype(self.scene.torch, x)
        rows = x.reshape(-1, x.shape[-1])
        return self._loss(rows, self._head.weight, target.reshape(-1), ignore_index, dtype)

    def _with_loss(self, result: Any) -> Any:
        """What the model returned, with NaN for its logits: whoever uses them after all shall notice."""
        if self._given:
            self._given.clear()
            raise Broken(self.id, "the model was called without a loss")
        place = self._form.place
        if place is None:
            return result
        logits = result[place]
        self._note_the_size(logits.numel() // logits.shape[-1], logits)
        # In float32 within autocast: whoever gives back float32 would write all of it down.
        dtype = self._output_dtype(logits)
        nothing = logits.new_full((), float("nan"), dtype=dtype).expand(logits.shape)
        return (*result[:place], nothing, *result[place + 1 :])

    # A script that computes the loss

    def _stand_in(self, x: Any) -> Any:
        """Something of the logits' shape, whose strides tell rows apart, for what they would be made of."""
        torch, head = self.scene.torch, self._head
        if not isinstance(x, torch.Tensor) or x.shape[-1:] != (head.in_features,):
            raise Broken(self.id, "the model returned something else than what its head would be given")
        self._pending = {key: one for key, one in self._pending.items() if not one.memory.expired()}
        dtype = self._output_dtype(x)
        lead, rows = x.shape[:-1], x.numel() // head.in_features
        self._note_the_size(rows, x)
        base = torch.full((rows,), float("nan"), dtype=dtype, device=x.device)
        strides = (*base.view(lead).stride(), 0)
        logits = base.as_strided((*lead, head.out_features), strides).requires_grad_()
        reductions = importlib.import_module("torch.multiprocessing.reductions")
        memory = reductions.StorageWeakRef(base.untyped_storage())
        self._pending[_memory_number(base)] = _Pending(
            memory, x, head.weight, head.out_features, _product_dtype(torch, x)
        )
        return logits

    def _around_the_loss(self, real: Call) -> Call:
        def cross_entropy(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
            pending = self._pending_of(input)
            if pending is None:
                self._leave_the_loss()
                return real(input, target, *args, **kwargs)
            is_plain = not args and (set(kwargs) <= {"ignore_index"} or _is_plain(kwargs))
            if is_plain and pending.is_whole(input, target):
                x = pending.x.reshape(-1, pending.x.shape[-1])
                ignore_index = kwargs.get("ignore_index", -100)
                loss = self._loss(x, pending.weight, target.reshape(-1), ignore_index, pending.dtype)
                # With bf16 parameters of ours the script expects what it has without them.
                is_lowered = self.scene.is_on("bf16-parameters") is not None
                return loss if is_lowered else loss.to(input.dtype)
            self.useless = "the script's cross entropy is no plain mean over all tokens"
            return real(pending.logits(self.scene.torch, input), target, *args, **kwargs)

        return cross_entropy

    def _pending_of(self, input: Any) -> "_Pending | None":  # noqa: A002
        if not self._pending or not isinstance(input, self.scene.torch.Tensor):
            return None
        pending = self._pending.get(_memory_number(input))
        return pending if pending is not None and not pending.memory.expired() else None

    # Both

    @contextlib.contextmanager
    def _taken_off(self) -> Iterator[None]:
        """During the call the head gives on what it gets, and a loss in the model knows what to do."""
        functional, form = self.scene.torch.nn.functional, self._form.kind
        self._given.clear()
        self._head.__dict__["forward"] = self._heads[form]
        self._real = functional.cross_entropy
        if form == "loss":
            functional.cross_entropy = self._inside
        try:
            yield
        finally:
            del self._head.__dict__["forward"]
            if form == "loss":
                functional.cross_entropy = self._real

    def _output_dtype(self, like: Any) -> Any:
        torch = self.scene.torch
        return torch.float32 if torch.is_autocast_enabled(like.device.type) else like.dtype

    def _note_the_size(self, tokens: int, like: Any) -> None:
        torch = self.scene.torch
        is_slow = _why_slow(torch, like, _product_dtype(torch, like))
        if is_slow and tokens <= rows_at_a_time(self._head.out_features):
            self.useless = f"the logits of {tokens} tokens are one chunk"


@dataclasses.dataclass(frozen=True)
class _Pending:
    """What logits would be made of."""

    memory: Any
    x: Any
    weight: Any
    classes: int
    dtype: Any

    def is_whole(self, input: Any, target: Any) -> bool:  # noqa: A002
        """Whether each row of a view is there, in order, with its target."""
        if input.dim() < 2 or input.shape[1] != self.classes or target.is_floating_point():
            return False
        rows = input.movedim(1, -1)[..., 0]
        is_all = rows.is_contiguous() and rows.numel() * self.x.shape[-1] == self.x.numel()
        return bool(is_all and target.shape == rows.shape)

    def logits(self, torch: Any, input: Any) -> Any:  # noqa: A002
        """The logits themselves, in the place of a view that stands for them."""
        x = self.x.reshape(-1, self.x.shape[-1])
        real = torch.nn.functional.linear(x.to(self.dtype), self.weight.to(self.dtype)).to(input.dtype)
        view = input.movedim(1, -1) if input.dim() > 1 else input
        numbers = torch.arange(len(real), device=real.device)
        wanted = numbers.as_strided(view.shape[:-1], view.stride()[:-1], view.storage_offset())
        chosen = real[wanted]
        return chosen.movedim(-1, 1) if input.dim() > 1 else chosen


def is_large_head(module: Any, torch: Any) -> bool:
    """A plain linear layer without bias onto many classes."""
    nn = torch.nn
    if type(module) is not nn.Linear or module.bias is not None or module.out_features < LARGE_VOCABULARY:
        return False
    weight = module._parameters.get("weight")  # noqa: SLF001
    # Not one that is spread over devices.
    return type(weight) is nn.Parameter or (isinstance(weight, nn.Parameter) and _is_imagined(weight))


def _is_imagined(tensor: Any) -> bool:
    """On an imagined GPU tensors have no memory, and parameters are of their kind."""
    return type(tensor).__name__ == "FakeTensor"


def _why_slow(torch: Any, like: Any, dtype: Any) -> str:
    """Why there is no kernel for products of this kind; on an imagined GPU there is."""
    return "" if _is_imagined(like) and like.is_cuda else why_no_kernel(torch, like.device, dtype)


def _memory_number(tensor: Any) -> int:
    """The same for all that share its memory, also where that is imagined."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001


def _same(x: Any) -> Any:
    return x


def _is_plain(options: Settings) -> bool:
    """Arguments of a cross entropy as its object passes them."""
    return (
        options.get("weight") is None
        and options.get("reduction", "mean") == "mean"
        and not options.get("label_smoothing")
        and set(options) <= {"weight", "ignore_index", "reduction", "label_smoothing"}
    )


def _product_dtype(torch: Any, x: Any) -> Any:
    kind = x.device.type
    is_double = x.dtype == torch.float64
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) and not is_double else x.dtype
