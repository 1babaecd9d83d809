"""Writes of a trial go to a shadow of the user's files, where no overlay of the file system can be had."""

from flatout.inside.redirect.install import install_redirect

__all__ = ["install_redirect"]
