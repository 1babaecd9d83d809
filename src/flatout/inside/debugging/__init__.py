"""Debug switches of `flatout run --debug`: one a file, and `catalogue.py`, a plain list."""
