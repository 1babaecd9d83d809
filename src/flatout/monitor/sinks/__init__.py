"""Where the numbers of a training go: TensorBoard, W&B, MLflow, or a plain file.

Scripts open sinks in their own process, too (`flatout.log`): what is here uses the standard library and the
tracker's own package, and imports that package when the sink is opened, not before.
"""
