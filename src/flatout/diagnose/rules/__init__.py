"""One finding a file. Its docstring is its page."""
