"""What can be changed about a job: one lever a file, and `catalogue.py`, a plain list of them."""
