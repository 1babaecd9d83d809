"""Tools of the project's own kitchen; none of this is installed."""
