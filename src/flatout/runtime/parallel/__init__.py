"""Models that several processes or devices train together, by torch.distributed's own means.

`joining.py` finds the other ranks; one file a strategy (`ddp.py`, `fsdp.py`, `tensor.py`, `pipeline.py`,
`layers.py`) wraps a model and answers for it as a `Wrapped`; `data.py` gives each rank its part of the data;
`saving.py` puts together what is spread. `world.py` is what users hold.
"""
