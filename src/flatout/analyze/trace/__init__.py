"""Traces of any origin and size: reading them, and what they say."""
