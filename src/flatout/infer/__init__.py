"""Inference: modules made fast, language models that decode near memory bandwidth, the server around them.

Everything here lives in the process that holds the model, and may import torch.
"""
