"""A program that runs in the user's own environment, which may not have Flatout: it imports nothing of ours.

It has a folder to itself because Python puts a program's folder first on its path.
"""
