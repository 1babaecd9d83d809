"""The backward tap: time in `backward()`, and the loss that it starts from."""

from typing import TYPE_CHECKING, Any

from flatout.inside.tap import Patch, timed

if TYPE_CHECKING:
    from flatout.inside.session import Session


class BackwardTap:
    """Watches `torch.autograd.backward`, which `Tensor.backward` calls too."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._patch: Patch | None = None

    def install(self) -> None:
        """Patch the function where everybody looks it up."""
        autograd = self._session.torch.autograd
        self._patch = Patch(
            autograd, "backward", timed(self._session, "backward", autograd.backward, self._note)
        )

    def remove(self) -> None:
        """Put the function back."""
        if self._patch is not None:
            self._patch.undo()

    def _note(self, started_ns: int, ended_ns: int, args: Any, _result: Any) -> None:
        draft = self._session.draft
        draft.backward_ns += ended_ns - started_ns
        draft.backwards += 1
        roots = args[0] if args else ()
        root = roots[0] if isinstance(roots, list | tuple) and len(roots) == 1 else roots
        # Reading a number from a device would wait for it: only what lies in host memory is read here.
        if getattr(root, "device", None) is not None and root.device.type == "cpu" and root.numel() == 1:
            draft.losses.append(root.detach().item())
