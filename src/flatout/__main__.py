"""`python -m flatout`, for environments whose scripts folder is not on the path."""

from flatout.cli.main import main

if __name__ == "__main__":
    main()
