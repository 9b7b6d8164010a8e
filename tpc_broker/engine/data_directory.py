"""The data directory as the supervisor sees it: its lock, its identity, and how many cores used it last.

``meta.properties`` holds ``version``, ``cluster.id``, ``node.id`` and ``cores``; it is replaced whole, with fdatasync,
rename and fsync of the directory, so that it is either the old or the new one.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import os
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tpc_broker.engine.durable_files import replace_file, sync_folder
from tpc_broker.log.files import HANDOVER_FILE
from tpc_broker.model import CoreId
from tpc_broker.options import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORMAT_VERSION = "1"
PROPERTIES_FILE = "meta.properties"
PENDING_USERS_FILE = "users.pending"
"""Users that the next start takes (`pending_users`)."""
MANIFEST_FILE = "backup.json"
"""In a backup that is whole: what it is, and each file with its size."""
UNFINISHED_BACKUP_FILE = "backup-unfinished"
UNFINISHED_RESTORE_FILE = "restore-unfinished"
_OTHERS = 0o007
_GROUP_AND_OTHERS = 0o077


def mark_of(folder: Path) -> str | None:
    """Why a broker must not be started in this directory; None: nothing speaks against it."""
    if (folder / UNFINISHED_RESTORE_FILE).exists():
        return f"{folder} holds a restore that was not finished; remove it and restore again"
    if (folder / UNFINISHED_BACKUP_FILE).exists():
        return f"{folder} holds a backup that was not finished; remove it"
    if (folder / MANIFEST_FILE).exists():
        return f"{folder} is a backup; see: tpc-broker restore {folder} --data DIR"
    return None


# Rule: What the broker stores, and backups of it, is readable by its user alone, or also by its group where the service
# was given such a umask (0027, for who reads segments directly): never by others. Held by
# tests/integration/test_file_modes.py.
def closed_to_others(umask: int) -> int:
    """The umask to go on with: as it was given when it keeps others out, else one that keeps the group out, too."""
    return umask if umask & _OTHERS == _OTHERS else umask | _GROUP_AND_OTHERS


class DataDirectory:
    def __init__(self, path: Path, properties: dict[str, str]) -> None:
        self.path = path
        self._properties = properties

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[DataDirectory]:
        """Make it where it is missing, lock it until the end of the ``with``."""
        mark = mark_of(path)
        if mark is not None:
            raise StartError(mark)
        folders = (path, path / "topics", path / "journals")
        try:
            is_new = not all(one.exists() for one in (*folders, path / PROPERTIES_FILE))
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartError(_unusable(path, error)) from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise StartError(
                    f"data directory {path} is locked by another broker; stop that one or choose another --data"
                ) from error
            try:
                if is_new:
                    _sync_names(path)
                directory = cls(path, read_properties(path / PROPERTIES_FILE))
                directory._complete()
            except UnicodeDecodeError as error:
                raise StartError(f"{path / 'meta.properties'} is not text: damaged, or another file") from error
            except OSError as error:
                raise StartError(_unusable(path, error)) from error
            yield directory
        finally:
            os.close(lock)

    @property
    def cluster_id(self) -> str:
        return self._properties["cluster.id"]

    @property
    def cores(self) -> int | None:
        """How many cores used it last; None for a new one."""
        text = self._properties.get("cores")
        return int(text) if text else None

    def journal_cores(self) -> list[CoreId]:
        """Cores that have a journal here, whatever the number of cores is now."""
        return sorted(CoreId(int(file.stem)) for file in (self.path / "journals").glob("[0-9]*.journal"))

    @property
    def is_handover_unfinished(self) -> bool:
        """Partitions were being handed to other cores when the broker was stopped: to be done again."""
        return (self.path / "journals" / HANDOVER_FILE).exists()

    def write_cores(self, cores: int) -> None:
        if self._properties.get("cores") != str(cores):
            self._properties["cores"] = str(cores)
            write_properties(self.path / PROPERTIES_FILE, self._properties)

    def _complete(self) -> None:
        version = self._properties.setdefault("version", FORMAT_VERSION)
        if version != FORMAT_VERSION:
            raise StartError(
                f"data directory {self.path} has format version {version}; this broker reads {FORMAT_VERSION}"
            )
        if not self._properties.get("cores", "1").isdigit():
            raise StartError(
                f"{self.path / 'meta.properties'}: cores={self._properties['cores']} is not a number; "
                "it is how many cores the broker ran with last"
            )
        if "cluster.id" not in self._properties:
            identity = new_cluster_id()
            self._properties["cluster.id"] = identity
            write_properties(self.path / PROPERTIES_FILE, self._properties)


def new_cluster_id(drawn: uuid.UUID | None = None) -> str:
    """A random one, written as Kafka writes them."""
    return base64.urlsafe_b64encode((drawn or uuid.uuid4()).bytes).decode().rstrip("=")


def read_properties(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    lines = (line.strip() for line in path.read_text().splitlines())
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#") and "=" in line)


def write_properties(path: Path, properties: dict[str, str]) -> None:
    text = "".join(f"{name}={value}\n" for name, value in sorted(properties.items()))
    replace_file(path, text.encode())


# Rule: The data directory's own name and those of its parents are synced before anything in it is acknowledged. Held by
# tests/engine/test_data_directory.py.
def _sync_names(path: Path) -> None:
    """At the first start: the directory's own name is durable, and those of its parents. Any of them may have just been
    made, by this start or by one that did not get here; one that this user may not read was not.
    """
    for folder in (path, *path.parents):
        with suppress(PermissionError):
            sync_folder(folder)


def _unusable(path: Path, error: OSError) -> str:
    reason = os.strerror(error.errno) if error.errno else str(error)
    hint = {
        errno.ENOSPC: "free some space or choose another --data",
        errno.EACCES: "make it writable for this user or choose another --data",
        errno.EROFS: "its file system is read-only; choose another --data",
    }.get(error.errno or 0, "choose another --data")
    return f"data directory {path} cannot be used: {reason}; {hint}"
