"""Is a plan, which people may edit, one that can be applied?"""

import dataclasses
from pathlib import Path
from typing import Any

from flatout.levers.catalogue import BY_ID
from flatout.levers.compile import MODES
from flatout.records.errors import BadConfig, nearest
from flatout.records.plan import Choice, Plan
from flatout.tune.batching import BATCH_SIZE

_SWITCHES = ("pin_memory", "persistent_workers", "drop_last", "in_order")
# Whose names do not begin with `_`; those are the lever's own. `batch-size` has the script's own options.
_LOADER = ("num_workers", "prefetch_factor", "multiprocessing_context", "timeout", "pin_memory_device")
_KNOWN: dict[str, tuple[str, ...]] = {
    "loader": (*_SWITCHES, *_LOADER),
    "compile": ("mode",),
    "cpu-threads": ("threads",),
    "sdpa-backend": ("first",),
    "activation-budget": ("budget",),
    "activation-offload": ("share",),
    "block-checkpointing": ("share",),
}
_COUNTS = {"num_workers": 0, "prefetch_factor": 1, "threads": 1, "loader": 1}


def sound(plan: Plan, path: Path) -> tuple[Plan, list[str]]:
    """The plan without levers that nobody knows, and a word for each of them.

    Raises BadConfig where a setting is none: to run a long job with it would be to run another job.
    """
    kept, words = [], []
    for choice in plan.levers:
        if choice.id not in BY_ID:
            near = nearest(choice.id, BY_ID)
            meant = f" (did you mean {near!r}?)" if near else ""
            words.append(f"dropped {choice.id}: this Flatout has no such lever{meant}")
            continue
        for name, value in choice.settings.items():
            expected = _expected(choice, name, value)
            if expected:
                raise BadConfig(
                    path,
                    f"{name} of {choice.id} is {value!r}",
                    expected=expected,
                    remedy=f"correct it, or take the lever {choice.id} out",
                    key=name,
                )
        kept.append(choice)
    return dataclasses.replace(plan, levers=tuple(kept)), words


def _expected(choice: Choice, name: str, value: Any) -> str:
    """What should stand there, or nothing where it does."""
    if choice.id != BATCH_SIZE and not name.startswith("_") and name not in _KNOWN.get(choice.id, ()):
        return f"one of: {', '.join(_KNOWN[choice.id])}" if choice.id in _KNOWN else "no settings"
    is_count = isinstance(value, int) and not isinstance(value, bool)
    if choice.id == "compile" and name == "mode":
        return "" if value in MODES else f"one of: {', '.join(MODES)}"
    if name in _SWITCHES and choice.id == "loader":
        return "" if isinstance(value, bool) else "true or false"
    is_batch = choice.id == BATCH_SIZE and not name.startswith("_")
    if (name in _COUNTS and choice.id in ("loader", "cpu-threads", BATCH_SIZE)) or is_batch:
        least = _COUNTS.get(name, 1)
        return "" if is_count and value >= least else f"a whole number, {least} or more"
    return ""
