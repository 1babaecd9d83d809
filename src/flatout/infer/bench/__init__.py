"""Load for a server: requests at a rate or so many at a time, and what became of each."""
