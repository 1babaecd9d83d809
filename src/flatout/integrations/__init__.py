"""Flatout inside of other people's trainers: one package a library, which is imported when it is used.

from flatout.integrations.hugging_face import FlatoutCallback     # Trainer(callbacks=[FlatoutCallback()])
from flatout.integrations.lightning import FlatoutCallback        # lightning or pytorch_lightning
from flatout.integrations.accelerate import Flatout               # flat = Flatout(accelerator)
"""
