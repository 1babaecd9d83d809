"""The command line: `main.py`, one file a command, and what they share."""
