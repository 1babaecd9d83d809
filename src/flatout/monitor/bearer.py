"""Bearer tokens: read from a file, and whether others could read them on their way."""

import ipaddress
import urllib.parse
from pathlib import Path

from flatout.records.errors import CallerMistake


def token_from(file: Path, *, remedy: str = "check the path, and that it holds the token alone") -> str:
    """The one line of a file."""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CallerMistake(
            f"--token-file {file}: {getattr(error, 'strerror', None) or 'not text'}",
            expected="a file with one line",
            remedy=remedy,
        ) from error
    if not token or not token.isascii() or any(sign <= " " for sign in token):
        raise CallerMistake(
            f"--token-file {file} holds no token",
            expected="one line of ASCII without spaces",
            remedy=remedy,
        )
    return token


def is_in_the_clear(url: str) -> bool:
    """Whether what is sent there leaves this machine unencrypted."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme == "http" and not is_here(parts.hostname or "")


def is_here(host: str) -> bool:
    """Whether only this machine can be reached by that name."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
