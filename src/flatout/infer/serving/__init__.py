"""A model behind HTTP: batches of requests as they come, limits that hold, answers for all accepted."""
