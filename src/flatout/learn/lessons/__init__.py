"""One lesson a file: what it measures in a child process, and what it says about that."""
