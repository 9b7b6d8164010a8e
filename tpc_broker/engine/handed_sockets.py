"""Sockets that outlive the process: so a restart refuses no connection, because they wait in the backlog, and datagrams
wait in the sockets that take them.

They come from an earlier life in two ways. When the supervisor is told to take a new binary and configuration
(SIGUSR2), it executes it in its own place, and the sockets stay open (`TPC_HANDED_FDS`). When it is ended and started
again, the service manager has kept them: systemd's file descriptor store, sd_notify(3), gives them back from descriptor
3 on (`LISTEN_FDS`, `LISTEN_PID`, sd_listen_fds(3)).

Of a port that the cores share (SO_REUSEPORT) all sockets are handed over, in any order. The kernel's program is not: it
knows the cores of one life. Until the next one has its own, the kernel chooses by a hash, and whichever it chose is
served in the end. A port that was shared and is not any more, or the other way round, is opened anew.
"""

from __future__ import annotations

import array
import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING, Final

from tpc_broker.ebpf.steering import detach
from tpc_broker.engine.notify import notify_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

log = logging.getLogger(__name__)

HANDED_VARIABLE: Final = "TPC_HANDED_FDS"
FIRST_DESCRIPTOR: Final = 3
STORED_AT_ONCE: Final = 64
"""Descriptors in one message; the kernel's bound is 253 (SCM_MAX_FD)."""
_NAME: Final = b"FDNAME=listener"
_BY_MANAGER: Final = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


# Rule: A reload refuses no connection, also at a port that cores share. No wrong configuration ends a broker that
# works. See also tpc_broker/process/listening.py, tpc_broker/process/supervisor.py. Held by
# tests/process/test_reload.py.
class HandedSockets:
    """Those that an earlier life left, until somebody takes them."""

    def __init__(self, descriptors: Iterable[int] = ()) -> None:
        self._sockets: dict[tuple[int, str, int], list[socket.socket]] = {}
        self.has_closed = False
        """One whose port may be bound anew: the service manager, if there is one, may have it open for a moment."""
        for descriptor in descriptors:
            try:
                found = socket.socket(fileno=descriptor)
            except OSError as error:
                log.warning("descriptor %d was handed over and is no socket: %s", descriptor, error)
                continue
            found.set_inheritable(False)
            if not _is_server(found):
                found.close()
                continue
            host, port = found.getsockname()[:2]
            self._sockets.setdefault((found.type, host, port), []).append(found)

    @classmethod
    def of_environment(cls) -> HandedSockets:
        """What the environment names, once: no process that is started from here on shall believe it."""
        handed = os.environ.pop(HANDED_VARIABLE, "")
        count, pid, _names = (os.environ.pop(name, "") for name in _BY_MANAGER)
        descriptors = [int(each) for each in handed.split(",") if each.isdecimal()]
        if count.isdecimal() and pid == str(os.getpid()):
            descriptors += range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + int(count))
        return cls(dict.fromkeys(descriptors))

    def take(
        self, host: str, port: int, *, kind: int = socket.SOCK_STREAM, is_shared: bool = False
    ) -> socket.socket | None:
        """One that is bound there; None: there is none. `is_shared`: one of several at this port."""
        with contextlib.suppress(OSError):
            for *_kind, address in socket.getaddrinfo(host, port, type=kind):
                found = self._sockets.get((kind, str(address[0]), int(address[1])), [])
                self._close_unlike(found, is_shared=is_shared)
                if found:
                    if is_shared:
                        detach(found[0])
                    return found.pop(0)
        return None

    def _close_unlike(self, found: list[socket.socket], *, is_shared: bool) -> None:
        """Those that would keep the port from whom they do not fit."""
        unlike = [each for each in found if _shares_port(each) != is_shared]
        for each in unlike:
            found.remove(each)
            each.close()
        if unlike and not self.has_closed:
            self.has_closed = True
            forget_at_service_manager()

    def close(self) -> None:
        """Those that nobody took: of listeners that are configured no more."""
        for found in self._sockets.values():
            for each in found:
                each.close()
        self._sockets.clear()


def forget_at_service_manager() -> None:
    """Have the service manager close what it keeps of earlier lives."""
    address = notify_address()
    if address is not None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            _tell(manager, b"FDSTOREREMOVE=1\n" + _NAME, [], address)


def store_at_service_manager(sockets: Sequence[socket.socket]) -> bool:
    """Have the service manager keep these for the next life, and nothing else of ours: one that it keeps and that
    nobody serves would take connections. False: there is none. It takes as many as `FileDescriptorStoreMax=` says, and
    none by default.
    """
    address = notify_address()
    if address is None:
        return False
    forget_at_service_manager()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
        for first in range(0, len(sockets), STORED_AT_ONCE):
            numbers = array.array("i", [each.fileno() for each in sockets[first : first + STORED_AT_ONCE]])
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers.tobytes())]
            if not _tell(manager, b"FDSTORE=1\nFDPOLL=0\n" + _NAME, rights, address):
                return False
    return True


def _tell(manager: socket.socket, text: bytes, rights: list[tuple[int, int, bytes]], address: str) -> bool:
    try:
        manager.sendmsg([text], rights, 0, address)
    except OSError as error:
        log.warning("the service manager does not keep the listening sockets: %s", error)
        return False
    return True


def environment_with(sockets: Sequence[socket.socket]) -> dict[str, str]:
    """That of a program to be executed in this one's place, which gets them."""
    for each in sockets:
        each.set_inheritable(True)
    return {**os.environ, HANDED_VARIABLE: ",".join(str(each.fileno()) for each in sockets)}


def _is_server(found: socket.socket) -> bool:
    """Listens, or is bound and takes datagrams."""
    try:
        if found.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        if found.type == socket.SOCK_DGRAM:
            return bool(found.getsockname()[1])
        return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


def _shares_port(found: socket.socket) -> bool:
    return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT))
