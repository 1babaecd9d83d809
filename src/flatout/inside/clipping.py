"""The clipping tap: the gradient norm, where the script computes one to clip by it."""

import importlib
from typing import TYPE_CHECKING, Any

from flatout.inside.tap import Patch, timed, undo_all

if TYPE_CHECKING:
    from flatout.inside.session import Session


class ClippingTap:
    """Watches `clip_grad_norm_` under both of its addresses."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._patches: list[Patch] = []

    def install(self) -> None:
        """Patch the function where it is defined and where everybody imports it from."""
        home = importlib.import_module("torch.nn.utils.clip_grad")
        watched = timed(self._session, "clipping", home.clip_grad_norm_, self._norm, tap="clipping")
        self._patches = [
            Patch(home, "clip_grad_norm_", watched),
            Patch(self._session.torch.nn.utils, "clip_grad_norm_", watched),
        ]

    def remove(self) -> None:
        """Put the function back."""
        undo_all(self._patches)

    def _norm(self, _args: Any, result: Any) -> Any:
        return self._session.gpu.norm(result)
