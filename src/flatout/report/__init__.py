"""Draws records, for a terminal or as one HTML file, and knows nothing else of Flatout."""
