"""The live view in a terminal. Only `app.py` and `widgets.py` need textual; the rest makes lines of text."""
