"""Listening sockets that outlive the process: so a restart refuses no connection, because they wait in the backlog.

They come from an earlier life in two ways. When the supervisor is told to take a new binary and configuration
(SIGUSR2), it executes it in its own place, and the sockets stay open (`TPC_HANDED_FDS`). When it is ended and started
again, the service manager has kept them: systemd's file descriptor store, sd_notify(3), gives them back from descriptor
3 on (`LISTEN_FDS`, `LISTEN_PID`, sd_listen_fds(3)).

Those of listeners that all cores share are not handed over: the kernel's program chooses among the sockets of one life.
"""

from __future__ import annotations

import array
import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING, Final

from tpc_broker.runtime.notify import notify_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

log = logging.getLogger(__name__)

HANDED_VARIABLE: Final = "TPC_HANDED_FDS"
FIRST_DESCRIPTOR: Final = 3
STORED_AT_ONCE: Final = 64
"""Descriptors in one message; the kernel's bound is 253 (SCM_MAX_FD)."""
_BY_MANAGER: Final = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


class HandedSockets:
    """Those that an earlier life left, until somebody takes them."""

    def __init__(self, descriptors: Iterable[int] = ()) -> None:
        self._sockets: dict[tuple[str, int], list[socket.socket]] = {}
        for descriptor in descriptors:
            try:
                found = socket.socket(fileno=descriptor)
            except OSError as error:
                log.warning("descriptor %d was handed over and is no socket: %s", descriptor, error)
                continue
            found.set_inheritable(False)
            if not _listens(found):
                found.close()
                continue
            self._sockets.setdefault(found.getsockname()[:2], []).append(found)

    @classmethod
    def of_environment(cls) -> HandedSockets:
        """What the environment names, once: no process that is started from here on shall believe it."""
        handed = os.environ.pop(HANDED_VARIABLE, "")
        count, pid, _names = (os.environ.pop(name, "") for name in _BY_MANAGER)
        descriptors = [int(each) for each in handed.split(",") if each.isdecimal()]
        if count.isdecimal() and pid == str(os.getpid()):
            descriptors += range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(count))
        return cls(dict.fromkeys(descriptors))

    def take(self, host: str, port: int) -> socket.socket | None:
        """The one that listens there; None: there is none."""
        with contextlib.suppress(OSError):
            for *_kind, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                found = self._sockets.get((str(address[0]), int(address[1])))
                if found:
                    return found.pop()
        return None

    def close(self) -> None:
        """Those that nobody took: of listeners that are configured no more."""
        for found in self._sockets.values():
            for each in found:
                each.close()
        self._sockets.clear()


def store_at_service_manager(sockets: Sequence[socket.socket]) -> bool:
    """Have the service manager keep them for the next life; what it has already it does not keep twice. False: there is
    none. It takes as many as `FileDescriptorStoreMax=` says, and none by default.
    """
    address = notify_address()
    if address is None:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
        for first in range(0, len(sockets), STORED_AT_ONCE):
            numbers = array.array("i", [each.fileno() for each in sockets[first : first + STORED_AT_ONCE]])
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers.tobytes())]
            try:
                manager.sendmsg([b"FDSTORE=1\nFDNAME=listener"], rights, 0, address)
            except OSError as error:
                log.warning("the service manager does not keep the listening sockets: %s", error)
                return False
    return True


def environment_with(sockets: Sequence[socket.socket]) -> dict[str, str]:
    """That of a program to be executed in this one's place, which gets them."""
    for each in sockets:
        each.set_inheritable(True)
    return {**os.environ, HANDED_VARIABLE: ",".join(str(each.fileno()) for each in sockets)}


def _listens(found: socket.socket) -> bool:
    try:
        return found.family in (socket.AF_INET, socket.AF_INET6) and bool(
            found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        )
    except OSError:
        return False
