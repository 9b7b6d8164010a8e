"""What a backup and a restore do with files: links, copies, space, and the marks that tell what a directory is."""

from __future__ import annotations

import errno
import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tpc_broker._ring import lib
from tpc_broker.engine.data_directory import mark_of
from tpc_broker.engine.direct_file import SegmentFile
from tpc_broker.engine.durable_files import sync_folder
from tpc_broker.options import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COPY_BYTES: Final = 4 * 1024 * 1024
SPARSE_BYTES: Final = 64 * 1024
_REFUSED_COPIES: Final = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


def check_target(target: Path, what: str) -> None:
    """StartError: where something is already, or nothing can be."""
    try:
        names = sorted(path.name for path in target.iterdir()) if target.exists() else []
    except OSError as error:
        raise StartError(f"{what} {target}: {error.strerror}") from error
    if names:
        raise StartError(mark_of(target) or f"{what} {target} is not empty: it has {names[0]}; give another one")
    if not target.parent.is_dir():
        raise StartError(f"{what} {target}: there is no directory {target.parent}")


def place_of(target: Path) -> Path:
    """A folder of the file system that it lies on, or will: an empty one that is there may be a mount."""
    return target if target.exists() else target.parent


def check_space(folder: Path, wanted_bytes: int) -> None:
    """StartError: there is not as much."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        raise StartError(f"{folder}: {error.strerror}") from error
    free_bytes = found.f_bavail * found.f_frsize
    if free_bytes < wanted_bytes:
        raise StartError(f"{folder} has {free_bytes:,} bytes free, and {wanted_bytes:,} are needed")


@contextmanager
def unfinished(target: Path, mark: str) -> Iterator[None]:
    """A directory that says that it is not whole until the end of the block; what goes wrong leaves it so."""
    is_begun = False
    try:
        target.mkdir(exist_ok=True)
        (target / mark).touch()
        is_begun = True
        sync_folder(target)
        sync_folder(target.parent)
        yield
        sync_file_system(target)
        (target / mark).unlink()
        sync_folder(target)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        left = f"; {target} is not whole, remove it" if is_begun else ""
        raise StartError(f"{error.filename or target}: {reason}{left}") from error


def write_json(path: Path, fields: dict[str, Any]) -> None:
    with path.open("w") as file:
        json.dump(fields, file)
        file.flush()
        os.fdatasync(file.fileno())


def sync_file_system(path: Path) -> None:
    """Everything that was written to it: one call for many files."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        result = lib.tpc_syncfs(fd)
    finally:
        os.close(fd)
    if result < 0:
        raise OSError(-result, os.strerror(-result), str(path))


def link_or_copy(source: Path, target: Path, spend: Callable[[int], None]) -> int:
    """A second name of the same file, where both are on one file system; else a copy. Its size."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (*_REFUSED_COPIES, errno.EPERM, errno.EMLINK):
            raise
        return copy(source, target, spend)
    size = target.stat().st_size
    spend(size)
    return size


def copy(source: Path, target: Path, spend: Callable[[int], None], *, is_sparse: bool = True) -> int:
    """What the file holds, with its time of change (retention goes by it); how many bytes.

    The kernel copies, by sharing blocks where the file system can. Not sparse: every block is written, for a journal.
    """
    done = 0
    with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
        while True:
            count = _copied_by_kernel(reader.fileno(), writer.fileno(), done) if is_sparse else -1
            if count < 0:
                count = _write_all(writer.fileno(), os.pread(reader.fileno(), COPY_BYTES, done), done)
            if count == 0:
                break
            done += count
            spend(count)
        _keep_time(os.fstat(reader.fileno()), writer.fileno())
    return done


def copy_sparse(source: Path, target: Path, spend: Callable[[int], None]) -> int:
    """The same of a journal, of which mostly little is in use: stretches of zeros take no space."""
    done = 0
    with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
        while part := os.pread(reader.fileno(), SPARSE_BYTES, done):
            if part.count(0) < len(part):
                _write_all(writer.fileno(), part, done)
            done += len(part)
            spend(len(part))
        writer.truncate(done)
        _keep_time(os.fstat(reader.fileno()), writer.fileno())
    return done


def copy_written_to(source: Path, target: Path, spend: Callable[[int], None]) -> int:
    """The same of a segment that a core goes on writing, past the page cache in part: nothing of it is brought into
    the page cache, where it could stay as it was beside such a write.
    """
    file, done = SegmentFile(source), 0
    try:
        end = file.size()
        with target.open("xb", buffering=0) as writer:
            while done < end and len(data := file.read(done, min(COPY_BYTES, end - done))):
                _write_all(writer.fileno(), data, done)
                done += len(data)
                spend(len(data))
            _keep_time(source.stat(), writer.fileno())
    finally:
        file.close()
    return done


def _copied_by_kernel(source_fd: int, target_fd: int, position: int) -> int:
    """-1: it does not do that here."""
    try:
        return os.copy_file_range(source_fd, target_fd, COPY_BYTES, position, position)
    except OSError as error:
        if error.errno not in _REFUSED_COPIES:
            raise
        return -1


def _write_all(fd: int, data: bytes | memoryview, position: int) -> int:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, memoryview(data)[done:], position + done)
    return done


def _keep_time(status: os.stat_result, fd: int) -> None:
    os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
