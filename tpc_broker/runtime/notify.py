"""Readiness and watchdog messages to systemd (sd_notify(3)); silent where there is no service manager."""

from __future__ import annotations

import os
import socket


def notify_service_manager(state: str) -> bool:
    """Send one state, e.g. ``READY=1``; True when a service manager was told."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.sendto(state.encode(), address)
        except OSError:
            return False
    return True
