"""How many bytes this process has sent to others, as the kernel counts them."""

import contextlib
import os
import socket
import struct
import sys
from pathlib import Path

# struct tcp_info of Linux: where tcpi_bytes_sent stands, with tcpi_bytes_retrans behind it, and how long the
# answer then is (since 4.19).
_BYTES_SENT_AT, _LONG_ENOUGH = 200, 216
_ASKED = 256


def can_count() -> bool:
    """Whether this system tells."""
    return sys.platform == "linux" and hasattr(socket, "TCP_INFO")


def sent_bytes() -> int:
    """All bytes that this process's open connections have sent; what had to be sent again counts once."""
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(entry.readlink()).startswith("socket:"):
                # A copy of the descriptor: closing it leaves the owner's open.
                with contextlib.closing(socket.socket(fileno=os.dup(int(entry.name)))) as copy:
                    total += sent_by(copy)
    return total


def sent_by(connection: socket.socket) -> int:
    """All bytes that one connection has sent."""
    answer = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ASKED)
    if len(answer) < _LONG_ENOUGH:
        return 0
    sent, again = struct.unpack_from("QQ", answer, _BYTES_SENT_AT)
    return int(sent - again)
