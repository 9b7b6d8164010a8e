"""Free loopback ports for the servers that tests start."""

from __future__ import annotations

import random
import socket

_LOWEST = 20_000
"""Well under Linux's default range of ephemeral ports, so that no outgoing connection takes one meanwhile."""
_HIGHEST = 32_000


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port_range(count: int) -> int:
    """First of `count` consecutive loopback ports that nothing listened on a moment ago.

    Nothing holds them afterwards: another process may take one before the server does, so a server that fails to bind
    is started again on another range by whoever calls this.
    """
    chooser = random.Random()
    for _ in range(1000):
        first = chooser.randrange(_LOWEST, _HIGHEST - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise RuntimeError(f"no {count} consecutive free ports in {_LOWEST}-{_HIGHEST}")
