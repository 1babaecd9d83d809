"""torchao is an extra: what is said where it is missing."""

MISSING = "torchao is not installed: pip install 'flatout[torchao]'"
