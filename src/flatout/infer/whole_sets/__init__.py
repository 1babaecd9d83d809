"""A model over a whole data set: reading, copying, computing and writing at the same time, resumable."""
