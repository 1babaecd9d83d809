"""Concepts explained with figures of the reader's own machine: one lesson a file, in `lessons/`."""
