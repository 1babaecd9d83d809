"""Where to listen: HOST:PORT, and whether others than this machine can reach it."""

import dataclasses

from flatout.monitor.bearer import is_here
from flatout.records.errors import CallerMistake

# Prometheus' list of default ports has given away 9100 to 9999, and goes on from 10000.
DEFAULT_PORT = 19838
DEFAULT_LISTEN = f"127.0.0.1:{DEFAULT_PORT}"


@dataclasses.dataclass(frozen=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_here(self.host)

    @property
    def shown_host(self) -> str:
        """As it is written before a port."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return f"{self.shown_host}:{self.port}"


def parse_address(text: str) -> Address:
    """`127.0.0.1:19838`, `:19838` for all addresses, `[::1]:19838`, or a host alone."""
    host, colon, port = text.rpartition(":")
    if not colon or (text.count(":") > 1 and not host.endswith("]")):
        host, port = text, str(DEFAULT_PORT)
    bare = host.removeprefix("[").removesuffix("]")
    if not port.isascii() or not port.isdigit() or int(port) > 65535 or any(sign.isspace() for sign in text):
        raise CallerMistake(
            f"{text!r} is no address to listen on",
            expected="HOST:PORT, with a port up to 65535",
            remedy=f"--listen {DEFAULT_LISTEN}",
        )
    return Address(bare or "0.0.0.0", int(port))  # noqa: S104 - as asked for
