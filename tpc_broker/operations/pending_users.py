"""Users that were made while no broker ran: before the first start, or because nobody can log in any more.

They wait in `users.pending` of the data directory, which only its user may read: a metadata record a line, the last of
a user and mechanism counts. The next start writes them into the metadata log, then removes the file, and only then
serves anybody; so a crash in between does it once more, and nothing that a client changes later is undone. A node that
founds a cluster brings them into it. One that is in a cluster has its users from there, and takes none by this way.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tpc_broker.engine.data_directory import PENDING_USERS_FILE
from tpc_broker.engine.durable_files import sync_folder
from tpc_broker.feature_levels import FIRST_WITH_SECURITY, SPOKEN
from tpc_broker.metadata.records import (
    MetadataDamagedError,
    ScramCredentialChanged,
    decode_record,
    encode_record,
)
from tpc_broker.node.membership.identity import is_in_cluster
from tpc_broker.options import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import MetadataRecord

FILE_BYTES_MAX: Final = 4 * 1024 * 1024


# Rule: Users that wait in the file are in the metadata log, durably, and the file is gone, before anybody is answered:
# so a crash repeats it, and nothing that a client changes is undone. See also tpc_broker/broker/core.py. Held by
# tests/integration/test_users.py.
class PendingUsers:
    """The file of one data directory. Blocking: it is small."""

    def __init__(self, data: Path) -> None:
        self._path = data / PENDING_USERS_FILE

    def read(self) -> list[ScramCredentialChanged]:
        """StartError: it is there and cannot be used, which nothing is told of what is in it."""
        try:
            with self._path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StartError(f"{self._path}: {error.strerror or error}") from error
        if len(content) > FILE_BYTES_MAX:
            raise StartError(f"{self._path} has more than {FILE_BYTES_MAX} bytes")
        found = []
        for number, line in enumerate(content.splitlines(), 1):
            try:
                record = decode_record(line)
            except MetadataDamagedError:
                record = None
            if not isinstance(record, ScramCredentialChanged):
                raise StartError(
                    f"{self._path}, line {number}: not a user; remove the file and see: tpc-broker user add"
                )
            found.append(record)
        return found

    def add(self, records: Iterable[ScramCredentialChanged]) -> None:
        """In place of those of the same users and mechanisms; durable afterwards."""
        known = {(one.user, one.mechanism): one for one in (*self.read(), *records)}
        content = b"".join(encode_record(one) + b"\n" for one in known.values())
        if len(content) > FILE_BYTES_MAX:
            raise StartError(f"{self._path} would have more than {FILE_BYTES_MAX} bytes; start the broker first")
        temporary = self._path.with_suffix(".tmp")
        with suppress(FileNotFoundError):
            temporary.unlink()
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fdatasync(file.fileno())
            temporary.rename(self._path)
            sync_folder(self._path.parent)
        except OSError as error:
            raise StartError(f"{self._path}: {error.strerror or error}") from error

    def forget(self) -> None:
        """They are durable elsewhere."""
        with suppress(FileNotFoundError):
            self._path.unlink()
            sync_folder(self._path.parent)


def read_before_start(data: Path, *, in_cluster: bool) -> list[ScramCredentialChanged]:
    """What core 0 has to write. `in_cluster`: it is to be a node of one. StartError: it may not start like this."""
    found = PendingUsers(data).read()
    if found and SPOKEN.highest < FIRST_WITH_SECURITY:
        raise StartError(f"{data / PENDING_USERS_FILE}: this release keeps no users below level {FIRST_WITH_SECURITY}")
    if found and in_cluster and is_in_cluster(data):
        raise StartError(
            f"{data / PENDING_USERS_FILE}: this node is in a cluster, which has its users; remove the file, and make "
            "them by `tpc user add`"
        )
    return found


def missing_users(given: Iterable[MetadataRecord], image: ClusterImage) -> str:
    """What is to be said where a cluster that was founded took none of them; "" where it has them."""
    there = {name for name, _mechanism in image.scram_users}
    names = sorted({one.user for one in given if isinstance(one, ScramCredentialChanged)} - there)
    if not names:
        return ""
    why = "the cluster has what another founder has brought"
    if not image.knows_security:
        why = f"the cluster's feature level is {image.level}, and users are from {FIRST_WITH_SECURITY} on; raise it "
        why += "(tpc cluster level)"
    return f"users {', '.join(map(repr, names))} are not there: {why}; make them by `tpc user add`"
