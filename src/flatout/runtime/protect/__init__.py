"""`flatout run --protect`: an unmodified script, killed at any instant, goes on where it was.

A script keeps half of its state in variables of its own: the epoch it is in, the best loss so far, the next
learning rate. Nobody can put these back from outside, but the script can: its loop is run again up to the
update that was saved, with all that takes time made void (`ghost.py`). Models answer with an output that they
have given before, passes backward and updates do nothing, batches are not loaded (`loaders.py`), nothing is
printed or written (`quiet.py`). What the loop reads from tensors is what it read the first time (`reads.py`,
`journal.py`), so that it decides as it did. Arrived at the saved update, all that has a state gets it back
(`found.py`, `parts.py`), and from there on everything is real. `guest.py` puts it all together.
"""
