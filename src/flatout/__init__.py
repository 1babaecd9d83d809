"""Flatout makes PyTorch jobs run at what the GPU can do, and keeps them from running out of memory.

with flatout.observe():                                    # what these training steps cost
    train(model)

found = flatout.tune(build)                                # the closed loop, from Python
model, optimizer, loader = flatout.apply("flatout.toml", model, optimizer, loader)

for batch in flatout.prefetch(loader, "cuda"):             # the next batch travels meanwhile
    ...
flatout.loader_settings(data_set, batch_size=32).settings  # how many workers, by trying

flatout.fit(make_model, make_batch).reserved_bytes         # what it would take on a GPU, without one
step = flatout.Microbatch(loss_of, model)                  # splits a batch where memory runs out
flatout.find_batch_size(loss_of, make_batch, model).size   # as fast as any, with memory to spare
with flatout.MemoryTracker() as tracker: ...               # what steps leave behind, and who holds it

world = flatout.parallel("fsdp", model=model, optimizer=optimizer, loader=loader)   # under torchrun, or alone

checkpointer = flatout.Checkpointer("kept", model=model)   # a kill at any instant loses a few steps at most
flatout.stop_requested()                                   # a signal came, on any rank
flatout.generate(model, prompts, max_new_tokens=100)       # text, near what memory bandwidth allows
fast = flatout.optimize(model, example_inputs)             # the same outputs, the fastest way
flatout.batch_inference(fast, data_set, out="outputs")     # a whole data set; killed, it goes on where it was
flatout.load_model("model.pt2")                            # what `flatout export-model` made
update = flatout.Update(model, optimizer, clip_norm=1.0)   # skips updates that are not finite

flatout.log({"loss": loss}, step=i)                        # to a file or a tracker; no step waits for it
"""

import importlib
from typing import TYPE_CHECKING, Any

from flatout.records.version import __version__

if TYPE_CHECKING:
    from flatout.entry.applying import apply
    from flatout.entry.batch_inference import batch_inference
    from flatout.entry.checkpointing import Checkpointer, Stopped, stop_requested
    from flatout.entry.exported import load_model
    from flatout.entry.fitting import fit
    from flatout.entry.generating import generate
    from flatout.entry.loading import loader_settings, prefetch
    from flatout.entry.log import log
    from flatout.entry.memory_tracker import MemoryTracker
    from flatout.entry.microbatching import Microbatch, find_batch_size, microbatch
    from flatout.entry.observe import observe
    from flatout.entry.optimizing import Buckets, optimize
    from flatout.entry.paralleling import parallel
    from flatout.entry.tuning import tune
    from flatout.entry.updating import NotFinite, Update

__all__ = [
    "Buckets",
    "Checkpointer",
    "MemoryTracker",
    "Microbatch",
    "NotFinite",
    "Stopped",
    "Update",
    "__version__",
    "apply",
    "batch_inference",
    "find_batch_size",
    "fit",
    "generate",
    "load_model",
    "loader_settings",
    "log",
    "microbatch",
    "observe",
    "optimize",
    "parallel",
    "prefetch",
    "stop_requested",
    "tune",
]

_ROOMS = {
    "Buckets": "optimizing",
    "Checkpointer": "checkpointing",
    "MemoryTracker": "memory_tracker",
    "Microbatch": "microbatching",
    "NotFinite": "updating",
    "Stopped": "checkpointing",
    "Update": "updating",
    "apply": "applying",
    "batch_inference": "batch_inference",
    "find_batch_size": "microbatching",
    "fit": "fitting",
    "generate": "generating",
    "load_model": "exported",
    "loader_settings": "loading",
    "log": "log",
    "microbatch": "microbatching",
    "observe": "observe",
    "optimize": "optimizing",
    "parallel": "paralleling",
    "prefetch": "loading",
    "stop_requested": "checkpointing",
}


def __getattr__(name: str) -> Any:
    # Loaded when used: `import flatout` reads nothing and loads no torch.
    if name == "tune":  # a room, too, which answers to a call
        return importlib.import_module("flatout.tune")
    if name in _ROOMS:
        found = getattr(importlib.import_module(f"flatout.entry.{_ROOMS[name]}"), name)
        globals()[name] = found  # loops call some of them at every step
        return found
    raise AttributeError(f"module 'flatout' has no attribute {name!r}")
