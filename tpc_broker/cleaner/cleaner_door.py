"""How cores reach cleaners: a pair of sockets that the supervisor makes and hands to both, and that nobody else has.

A core makes a pair of its own for each conversation, keeps one end, and sends the other one through the door
(SCM_RIGHTS, unix(7)). It waits in the door until a cleaner takes it out. There is no name: another process of the
machine, of whatever user, can neither ask for a cleaner nor be one.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final

MESSAGE: Final = b"\0"


def make_door() -> tuple[socket.socket, socket.socket]:
    """Where conversations come out, which blocks nobody, and where they are put in."""
    out, into = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (out, into):
        end.setblocking(False)  # noqa: FBT003 (the name of the method says it)
    return out, into


def take_out(door: socket.socket) -> socket.socket | None:
    """The next conversation. None: another one was faster, or it was lost for want of descriptors. EOFError: there will
    be none any more.
    """
    received: list[int] = []
    with suppress(BlockingIOError):
        message, received, _flags, _address = socket.recv_fds(door, len(MESSAGE), 1)
        if not message:
            raise EOFError
    if not received:
        return None
    conversation = socket.socket(fileno=received[0])
    conversation.setblocking(True)  # noqa: FBT003
    return conversation
