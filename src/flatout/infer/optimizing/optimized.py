"""A module that was made fast: called like the module, and put back by `close()`."""

import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch

from flatout.infer.optimizing.search import Candidate
from flatout.infer.optimizing.shapes import Shapes
from flatout.infer.optimizing.weights import needs_twin
from flatout.records.inference import OptimizeReport

Call = Callable[..., Any]


class _Hearing:
    """Tells that a module was loaded; copies and pickles of the module take nothing of us along."""

    def __init__(self, told: Callable[[], None]) -> None:
        self._told = weakref.WeakMethod(told)

    def __call__(self, *_: Any) -> None:
        told = self._told()
        if told is not None:
            told()

    def __reduce__(self) -> tuple[Any, ...]:
        # Python's own, which takes anything and does nothing: pickles are read where Flatout is not.
        return getattr, (contextlib.nullcontext(), "__exit__")


class Optimized:
    """Call it like the module; every other name is the module's own, `state_dict` among them.

    `report` says what was tried, kept and refused; `str(report)` as text. `counts` says how many calls were
    padded and how many ran as written. After `close()`, or outside of its `with`, the module is as it was
    found, and calls go to it.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        report: OptimizeReport,
        candidate: Candidate | None,
        shapes: Shapes | None,
        training: dict[torch.nn.Module, bool],
    ) -> None:
        self.module = module
        self.report = report
        self._candidate = candidate
        self._shapes = shapes
        self._training = training
        self._run: Call | None = shapes or (candidate.run if candidate is not None else None)
        self._failures = 0
        self._in_training = 0
        self._lock = threading.Lock()
        self._stale = False
        self._hooks: list[Any] = []
        # A graph knows where the module's own weights lie, and a twin in the module's own dtype shares some.
        bound = candidate is not None and candidate.way.cuda_graph and candidate.way.dtype is None
        self._places = _places(module) if bound else None
        # Whoever casts or moves the module does so in the place of its parameters.
        self._first = next(module.parameters(), None) if candidate is not None else None
        self._kind = _kind(self._first)
        self._dtypes = [one.dtype for one in (*module.parameters(), *module.buffers())]
        if candidate is not None and (needs_twin(candidate.way) or bound):
            for part in module.modules():  # each may be loaded by itself
                hearing: Any = part.register_load_state_dict_post_hook
                self._hooks.append(hearing(_Hearing(self._loaded)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module answers, without gradients."""
        run = self._run
        if run is None or self.module.training:
            self._in_training += run is not None
            return self._as_written(*args, **kwargs)
        if (
            self._stale
            or _kind(self._first) != self._kind
            or (self._places is not None and self._has_moved())
        ):
            self._refresh()
            run = self._run or self._as_written
        try:
            return run(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the module itself has the last word
            first = (str(error).strip().splitlines() or [""])[0]
        # Outside of `except`: what failed holds its memory as long as its error lives.
        self._failures += 1
        answer = self._as_written(*args, **kwargs)  # raises where the call itself is wrong
        if self._failures == 1:
            warnings.warn(
                f"flatout.optimize: a call failed the fast way and ran as written: {first}", stacklevel=2
            )
        return answer

    @torch.no_grad()
    def _as_written(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @property
    def counts(self) -> dict[str, int]:
        """Calls that were padded, that ran as written (no shape fitted), and that failed the fast way."""
        shapes = self._shapes
        return {
            "padded": shapes.padded if shapes is not None else 0,
            "as_written": (shapes.as_written if shapes is not None else 0) + self._in_training,
            "failed": self._failures,
        }

    def prepare(self) -> "Optimized":
        """Make all bucket sizes ready now, not when they are first needed."""
        if self._shapes is not None:
            self._shapes.prepare()
        return self

    def refresh(self) -> None:
        """Take the module's weights over again; after `load_state_dict` this happens by itself."""
        self._refresh()

    def _loaded(self) -> None:
        self._stale = True

    def _has_moved(self) -> bool:
        """Whether the module was moved or cast; its first weight tells, as these take all of them along."""
        one = next(self.module.parameters(), None)
        return one is not None and self._places is not None and one.data_ptr() != self._places[0]

    @torch.no_grad()
    def _refresh(self) -> None:
        """In place: compiled functions and graphs know where weights lie."""
        with self._lock:
            self._stale = False
            if self._places is not None and self._places != _places(self.module):
                self._run, self._places = None, None
                warnings.warn(
                    "flatout.optimize: the module's weights lie elsewhere than when it was captured; calls "
                    "run as written from now on",
                    stacklevel=3,
                )
                return
            own = [*self.module.parameters(), *self.module.buffers()]
            if self._candidate is None:
                return
            if [one.dtype for one in own] != self._dtypes or _kind(self._first) != self._kind:
                self._run, self._first, self._kind = None, None, None
                warnings.warn(
                    "flatout.optimize: the module was cast, moved or rebuilt since; calls run as written "
                    "from now on",
                    stacklevel=3,
                )
                return
            inner = self._candidate.prepared.inner
            if inner is self.module:
                return
            twins = [*inner.parameters(), *inner.buffers()]
            plain = all(type(one.data) is torch.Tensor for one in twins)
            alike = [one.shape for one in own] == [one.shape for one in twins]
            if not plain or not alike:
                self._run = None
                copy = "its copy in another precision" if plain else "its quantized copy"
                warnings.warn(
                    f"flatout.optimize: weights were loaded that {copy} does not have; calls run as written "
                    "from now on",
                    stacklevel=3,
                )
                return
            for one, other in zip(twins, own, strict=True):
                if one is not other:
                    one.copy_(other)

    def close(self) -> None:
        """Put back what was found; calls go to the module from now on."""
        self._run = self._shapes = self._candidate = None
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for part, was_training in self._training.items():
            part.training = was_training
        self._training = {}

    def __enter__(self) -> "Optimized":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name == "module" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.module, name)

    def __repr__(self) -> str:
        with contextlib.suppress(AttributeError):
            ways = " + ".join(self.report.chosen) or "as written"
            return f"Optimized({type(self.module).__name__}, {ways}, {self.report.speedup:.2f}x)"
        return "Optimized()"


def _kind(one: torch.Tensor | None) -> tuple[torch.dtype, torch.device] | None:
    return (one.dtype, one.device) if one is not None else None


def _places(module: torch.nn.Module) -> tuple[int, ...]:
    return tuple(one.data_ptr() for one in (*module.parameters(), *module.buffers()))
