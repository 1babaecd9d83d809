"""Checkpoints that a kill at any instant cannot corrupt, written beside the training by another process.

`store.py` knows what a folder of checkpoints looks like, and how one comes into being; `plain.py` takes a
state apart into plain data and tensors; `layout.py` lays the tensors out as safetensors in one piece of
memory, which `snapshot.py` fills and `writer.py`, in a process of its own, writes to disk. `checkpointer.py`
is what users see. Nothing here executes what it reads.
"""
