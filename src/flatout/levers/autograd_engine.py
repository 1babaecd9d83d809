"""The way into autograd's engine."""

# Below `torch.autograd.backward`, where both it and `autograd.grad` arrive: a frame of ours above would shift
# the line that Python's warnings name.
ENGINE = "_engine_run_backward"
