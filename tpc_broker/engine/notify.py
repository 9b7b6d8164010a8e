"""Readiness and watchdog messages to systemd (sd_notify(3)); silent where there is no service manager."""

from __future__ import annotations

import os
import socket


def notify_address() -> str | None:
    """Where the service manager listens; None: there is none."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return None
    return "\0" + address[1:] if address.startswith("@") else address


def notify_service_manager(state: str) -> bool:
    """Send one state, e.g. ``READY=1``; True when a service manager was told."""
    address = notify_address()
    if address is None:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(state.encode(), socket.MSG_DONTWAIT, address)  # a manager that reads nothing holds nobody up
    except OSError:
        return False
    return True
