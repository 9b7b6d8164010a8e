"""A core's part of a backup: its journal and its checkpoint stay as they are, and one moment is fixed for all cores.

The backup (`runtime/backup.py`) is a process of its own. It has an abstract Unix socket with a name that nobody can
guess; the supervisor passes the name on, and each core connects. In packets of JSON, core and backup say in turn:

1. core: ``held``. A checkpoint was made, and none follows, so that the journal keeps everything behind it;
2. backup: ``freeze``; core: ``frozen`` with the durable place of its journal. From here on the core's thread does
   nothing at all: no answer leaves it, and nothing that clients could have been told is behind that place;
3. backup, when all cores are frozen: ``go``, else ``abort``; core: ``went``, whether it had been frozen until then.
   Only when every core had been, the places are of one moment. Otherwise the backup begins again at 2;
4. the backup closes the socket: the core makes checkpoints again.

Nothing of that may harm the core: it is frozen for some milliseconds and never longer than `limits.BACKUP_FREEZE_MS`,
and holds its checkpoints no longer than `limits.BACKUP_HOLD_MS`, whatever becomes of the backup.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
from typing import TYPE_CHECKING, Any, Final

import trio

from tpc_broker import limits

if TYPE_CHECKING:
    from tpc_broker.model import CoreId
    from tpc_broker.storage.journalled_storage import JournalledStorage
    from tpc_broker.storage.ports import StoragePlane

log = logging.getLogger(__name__)

PACKET_BYTES: Final = 4096
_CREDENTIALS: Final = struct.Struct("3i")


def peer_is_trusted(connection: socket.socket) -> bool:
    """Whether the other end is a process of this user, or of root."""
    got = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, user, _group = _CREDENTIALS.unpack(got)
    return user in (0, os.geteuid())


def abstract_name(token: str) -> str:
    return f"\0tpc-broker-backup-{token}"


async def hold_for_backup(core: CoreId, token: str, storage: JournalledStorage, plane: StoragePlane) -> None:
    """Until the backup is done with this core, or its time is over. Never raises but `trio.Cancelled`."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(limits.BACKUP_FREEZE_MS / 1000)
            connection.connect(abstract_name(token))
            if not peer_is_trusted(connection):
                log.warning("a backup of another user was refused")
                return
            connection.setblocking(False)  # noqa: FBT003 (the name of the method says it)
            with trio.move_on_after(limits.BACKUP_HOLD_MS / 1000) as scope:
                async with storage.hold_checkpoints():
                    _send(connection, "held", core=core, pid=os.getpid())
                    await _freeze_when_told(connection, plane)
            if scope.cancelled_caught:
                log.warning("the backup took longer than %d ms with the journal; it was let go", limits.BACKUP_HOLD_MS)
    except (OSError, ValueError, KeyError) as error:
        log.warning("this core's part of a backup failed: %s", error)


async def _freeze_when_told(connection: socket.socket, plane: StoragePlane) -> None:
    while True:
        await trio.lowlevel.wait_readable(connection)
        packet = connection.recv(PACKET_BYTES)
        if not packet:
            return
        if json.loads(packet)["kind"] == "freeze":
            _freeze(connection, plane)


def _freeze(connection: socket.socket, plane: StoragePlane) -> None:
    """Without an await: the thread stands still in the midst of it."""
    place = plane.durable_cursor()
    connection.settimeout(limits.BACKUP_FREEZE_MS / 1000)
    try:
        _send(connection, "frozen", block=place.block, sequence=place.sequence)
        try:
            packet = connection.recv(PACKET_BYTES)
        except TimeoutError:
            packet = b""
        went = bool(packet) and json.loads(packet)["kind"] == "go"
    finally:
        connection.setblocking(False)  # noqa: FBT003
    _send(connection, "went", in_time=went)


def _send(connection: socket.socket, kind: str, **fields: Any) -> None:
    connection.send(json.dumps({"kind": kind, **fields}).encode())
