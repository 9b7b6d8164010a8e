"""A core's part of a backup: its journal and its checkpoint stay as they are, and one moment is fixed for all cores.

The backup (`operations/backup.py`) is a process of its own. It has an abstract Unix socket with a name that nobody can
guess; the supervisor passes the name on, and each core connects. In packets of JSON, core and backup say in turn:

1. core: ``held``. A checkpoint was made, and none follows, so that the journal keeps everything behind it;
2. backup: ``freeze``; core: ``frozen`` with the durable place of its journal. From here on the core's thread does
   nothing at all: no answer leaves it, and nothing that clients could have been told is behind that place;
3. backup, when all cores are frozen: ``go``, else ``abort``; core: ``went``, whether it had been frozen until then, and
   how long.
   Only when every core had been, the places are of one moment. Otherwise the backup begins again at 2;
4. the backup says ``release``, or closes the socket: the core makes checkpoints again;
5. the backup says ``cuts``; core: ``cuts``, how many logs of replicas it has cut since 1. A cut changes files that a
   checkpoint has named already, so what was copied meanwhile may be neither the one nor the other.

On a node of a cluster the backup asks for more. In front of 1, twice: ``catch_up`` (`node/replicas/catching_up`:
first what names other topics' records, then the rest, so that no committed offset in the copy is beyond the records);
core: ``replicas``, some rows a packet, and ``caught_up``; then ``hold``. Behind 3, of core 0: ``image``, the metadata
as they were at the moment, in packets of a part each and an empty one.

Nothing of that may harm the core: it is frozen for some milliseconds and never longer than `limits.BACKUP_FREEZE_MS`,
and holds its checkpoints no longer than `limits.BACKUP_HOLD_MS`, whatever becomes of the backup.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, Final

import trio

from tpc_broker import limits

if TYPE_CHECKING:
    from tpc_broker.model import CoreId
    from tpc_broker.node.replicas.catching_up import CatchingUp
    from tpc_broker.storage.journalled_storage import JournalledStorage
    from tpc_broker.storage.ports import StoragePlane

log = logging.getLogger(__name__)

PACKET_BYTES: Final = limits.BACKUP_PACKET_BYTES
ROWS_A_PACKET: Final = 256
PART_BYTES: Final = PACKET_BYTES // 2
_CREDENTIALS: Final = struct.Struct("3i")


def peer_is_trusted(connection: socket.socket) -> bool:
    """Whether the other end is a process of this user, or of root."""
    got = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, user, _group = _CREDENTIALS.unpack(got)
    return user in (0, os.geteuid())


def abstract_name(token: str) -> str:
    return f"\0tpc-broker-backup-{token}"


async def hold_for_backup(
    core: CoreId, token: str, storage: JournalledStorage, plane: StoragePlane, replicas: CatchingUp | None = None
) -> None:
    """Until the backup is done with this core, or its time is over. Never raises but `trio.Cancelled`. `replicas`: of
    a node of a cluster.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(limits.BACKUP_FREEZE_MS / 1000)
            connection.connect(abstract_name(token))
            if not peer_is_trusted(connection):
                log.warning("a backup of another user was refused")
                return
            connection.setblocking(False)  # noqa: FBT003 (the name of the method says it)
            if replicas is not None and not await _catch_up(connection, replicas):
                return
            with trio.move_on_after(limits.BACKUP_HOLD_MS / 1000) as scope:
                async with storage.hold_checkpoints():
                    cuts = storage.cuts_begun
                    _send(connection, "held", core=core, pid=os.getpid())
                    await _freeze_when_told(connection, plane, replicas)
            if scope.cancelled_caught:
                log.warning("the backup took longer than %d ms with the journal; it was let go", limits.BACKUP_HOLD_MS)
                return
            while told := await _receive(connection):
                if told["kind"] == "cuts":
                    _send(connection, "cuts", count=storage.cuts_begun - cuts)
    except (OSError, ValueError, KeyError) as error:
        log.warning("this core's part of a backup failed: %s", error)


async def _catch_up(connection: socket.socket, replicas: CatchingUp) -> bool:
    """Until the backup says that it has all rows; False: it has ended."""
    while told := await _receive(connection):
        if told["kind"] == "hold":
            return True
        if told["kind"] == "catch_up":
            found = await replicas.run(first=bool(told["first"]), patience_s=limits.BACKUP_CATCH_UP_MS / 1000)
            rows = [(str(one.key.topic_id), one.key.partition, *one[1:]) for one in found]
            for begin in range(0, len(rows), ROWS_A_PACKET):
                await _send_when_taken(connection, "replicas", rows=rows[begin : begin + ROWS_A_PACKET])
            await _send_when_taken(connection, "caught_up")
    return False


async def _freeze_when_told(connection: socket.socket, plane: StoragePlane, replicas: CatchingUp | None) -> None:
    image = None
    while told := await _receive(connection):
        if told["kind"] == "freeze":
            image = None if replicas is None else replicas.image
            _freeze(connection, plane)
        elif told["kind"] == "release":
            return
        elif told["kind"] == "image" and image is not None:
            encoded = image.to_bytes()
            for begin in range(0, len(encoded), PART_BYTES):
                part = base64.b64encode(encoded[begin : begin + PART_BYTES]).decode()
                await _send_when_taken(connection, "image", part=part)
            await _send_when_taken(connection, "image", part="")


def _freeze(connection: socket.socket, plane: StoragePlane) -> None:
    """Without an await: the thread stands still in the midst of it."""
    place = plane.durable_cursor()
    connection.settimeout(limits.BACKUP_FREEZE_MS / 1000)
    began_s = time.monotonic()
    try:
        _send(connection, "frozen", block=place.block, sequence=place.sequence)
        try:
            packet = connection.recv(PACKET_BYTES)
        except TimeoutError:
            packet = b""
        went = bool(packet) and json.loads(packet)["kind"] == "go"
    finally:
        connection.setblocking(False)  # noqa: FBT003
    _send(connection, "went", in_time=went, stood_still_ms=(time.monotonic() - began_s) * 1000)


async def _receive(connection: socket.socket) -> dict[str, Any] | None:
    """None: the backup has ended."""
    await trio.lowlevel.wait_readable(connection)
    packet = connection.recv(PACKET_BYTES)
    told: dict[str, Any] | None = json.loads(packet) if packet else None
    return told


async def _send_when_taken(connection: socket.socket, kind: str, **fields: Any) -> None:
    while True:
        try:
            return _send(connection, kind, **fields)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(connection)


def _send(connection: socket.socket, kind: str, **fields: Any) -> None:
    connection.send(json.dumps({"kind": kind, **fields}).encode())
