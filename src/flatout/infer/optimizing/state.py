"""What a module remembers from call to call: trials must leave it as they found it."""

import torch


class State:
    """Buffers as they are now."""

    def __init__(self, module: torch.nn.Module) -> None:
        named = dict(module.named_buffers())
        self._kept = {name: (one, one.detach().clone()) for name, one in named.items()}
        self._module = module

    @torch.no_grad()
    def changed(self) -> list[str]:
        """The names of those that calls have changed since; they are put back."""
        found = []
        now = dict(self._module.named_buffers())
        for name, (place, values) in self._kept.items():
            if now.get(name) is place and torch.equal(place, values):
                continue
            found.append(name)
            place.copy_(values)
            owner, _, own_name = name.rpartition(".")
            self._module.get_submodule(owner)._buffers[own_name] = place  # noqa: SLF001
        return found
