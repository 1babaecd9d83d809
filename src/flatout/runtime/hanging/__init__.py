"""A job that makes no more steps: noticed from outside, with all ranks' stacks and the culprit's name."""
