"""Disks as a crash may leave them, made from a record of every write and flush (`native/io/recorder.h`).

The model, on the strict side of what file systems promise:

* a write is durable once it completed with RWF_DSYNC, or once a flush of its file completed that was asked for when
  the write was over (a linked flush is asked for at the end of its write);
* until then each of its 512-byte sectors may be on the disk or not, in any order with other such writes;
* changes of length are durable after a flush of the file; before, each may be there or not;
* a name made, moved or removed in a folder is durable once a flush of that folder completed; before, some first part of
  the folder's changes may be there;
* a flush that has not completed has done nothing for sure;
* a write that the kernel cancelled before it began has done nothing; of one that failed anything may be there.

`Replayer` follows the record; at any point `crash` makes one possible disk. Names outside `root` are ignored. Marks
(`MARK`) are what the recorded program said about itself, such as "this was acknowledged".
"""

from __future__ import annotations

import errno
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

SECTOR_BYTES = 512
_HEADER = struct.Struct("<IHHQQQQqqqII")
_MAGIC = 0x52435054
WRITE, FLUSH, TRUNCATE, ALLOCATE, RENAME, UNLINK, CREATE, COMPLETED = range(1, 9)
FLUSH_ALL = 20
"""syncfs, recorded by `recorded_core` as a name."""
MARK = 21
"""A note of the recorded program: its text lies where the path would."""
DSYNC = 1
DIRECT = 2
LINKED = 8
NEVER_BEGUN = (-errno.ECANCELED, -errno.EINTR)
"""Results of an operation whose task was cancelled before the kernel did anything."""


class DiskRecord(NamedTuple):
    """One entry; what the fields mean depends on `kind`, see the recorder."""

    kind: int
    flags: int
    token: int
    inode: tuple[int, int]
    offset: int
    length: int
    result: int
    path: str
    payload: bytes


def read_record(path: Path) -> Iterator[DiskRecord]:
    """The entries of a record file in order; a last one that is cut short ends it."""
    data = path.read_bytes()
    place = order = 0
    while place + _HEADER.size <= len(data):
        (magic, kind, flags, found_order, token, device, inode, offset, length, result, path_bytes, payload_bytes) = (
            _HEADER.unpack_from(data, place)
        )
        assert (magic, found_order) == (_MAGIC, order), (path, place)
        place += _HEADER.size
        name, payload = data[place : place + path_bytes], data[place + path_bytes : place + path_bytes + payload_bytes]
        if place + path_bytes + payload_bytes > len(data):
            return
        place += path_bytes + payload_bytes
        order += 1
        yield DiskRecord(kind, flags, token, (device, inode), offset, length, result, name.decode(), payload)


@dataclass
class _Change:
    """Of a file's bytes (`data`) or of its length (`data` None)."""

    offset: int
    data: bytes | None
    completed: bool = False
    dsync: bool = False


@dataclass
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[_Change] = field(default_factory=list)

    def settle(self, changes: list[_Change]) -> None:
        """Changes became durable, in their order."""
        for change in self.pending:
            if any(change is one for one in changes):
                _apply(self.durable, change.offset, change.data)
        self.pending = [one for one in self.pending if not any(one is change for change in changes)]

    def after_crash(self, chooser: random.Random, style: str) -> bytearray:
        content = bytearray(self.durable)
        run: list[tuple[int, bytes]] = []
        for change in self.pending:
            if change.data is not None:
                run += _sectors_kept(change, chooser, style)
            elif style == "everything" or (style != "nothing" and chooser.random() < 0.5):
                _write_shuffled(content, run, chooser, style)
                run = []
                _apply(content, change.offset, None)
        _write_shuffled(content, run, chooser, style)
        return content


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
        return
    content.extend(bytes(max(offset + len(data) - len(content), 0)))
    content[offset : offset + len(data)] = data


def _sectors_kept(change: _Change, chooser: random.Random, style: str) -> list[tuple[int, bytes]]:
    """The parts of a write that reached the disk. Sectors are those of the file, not of the write."""
    assert change.data is not None
    if style in ("everything", "nothing"):
        return [(change.offset, change.data)] if style == "everything" else []
    share = chooser.choice([0.1, 0.5, 0.9])
    kept, start, end = [], change.offset, change.offset + len(change.data)
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        if chooser.random() < share:
            kept.append((start, change.data[start - change.offset : stop - change.offset]))
        start = stop
    return kept


def _write_shuffled(content: bytearray, run: list[tuple[int, bytes]], chooser: random.Random, style: str) -> None:
    if style == "some":
        chooser.shuffle(run)
    for offset, data in run:
        _apply(content, offset, data)


class CrashImage(NamedTuple):
    """Files by their path under the root, and folders."""

    folders: list[str]
    files: dict[str, bytes]

    def write_to(self, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        for folder in sorted(self.folders):
            (target / folder).mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (target / name).write_bytes(content)


_Name = tuple[str, str, int | str | None]
"""("add", path, number of the file), ("remove", path, None), ("move", path, other path). A folder's number is None."""


class Replayer:
    """The state of the disk behind one record after another. `marks` are those seen so far.

    `folders` were there, durably, when the record began.
    """

    def __init__(self, root: str, folders: Sequence[str] = ()) -> None:
        self._root = root.rstrip("/") + "/"
        self._files: list[_File] = []
        self._by_inode: dict[tuple[int, int], int] = {}
        self._now: dict[str, int | None] = dict.fromkeys(folders)
        self._durable: dict[str, int | None] = dict.fromkeys(folders)
        self._pending_names: dict[str, list[_Name]] = {}
        self._open: dict[int, tuple[DiskRecord, list[tuple[_File, _Change]], dict[str, int]]] = {}
        self.marks: list[str] = []

    def feed(self, record: DiskRecord) -> None:
        if record.kind == MARK:
            self.marks.append(record.path)
        elif record.kind == COMPLETED:
            self._completed(record)
        elif record.kind in (FLUSH, FLUSH_ALL):
            self._flush_begins(record)
        elif record.kind in (WRITE, TRUNCATE, ALLOCATE):
            self._change(record)
        else:
            self._change_name(record)

    def _file(self, inode: tuple[int, int]) -> _File:
        """The file that has this inode now; numbers are used again after an unlink."""
        if inode not in self._by_inode:
            self._new_file(inode)
        return self._files[self._by_inode[inode]]

    def _new_file(self, inode: tuple[int, int]) -> int:
        self._by_inode[inode] = len(self._files)
        self._files.append(_File())
        return len(self._files) - 1

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def _change(self, record: DiskRecord) -> None:
        file = self._file(record.inode)
        if record.kind == WRITE:
            change = _Change(record.offset, record.payload, dsync=bool(record.flags & DSYNC))
        elif record.kind == TRUNCATE:
            change = _Change(record.offset, None)
        else:  # space beyond the end, with the length: `offset` is the new length, or the record is not made
            change = _Change(record.offset + record.length, None)
        file.pending.append(change)
        self._open[record.token] = (record, [(file, change)], {})

    def _flush_begins(self, record: DiskRecord) -> None:
        names: dict[str, int] = {}
        path = record.path.removeprefix(self._root)
        if record.kind == FLUSH_ALL:
            files = list(self._files)
            names = {folder: len(changes) for folder, changes in self._pending_names.items()}
        elif record.path + "/" == self._root or self._now.get(path, "") is None:
            folder = "" if record.path + "/" == self._root else path
            files, names = [], {folder: len(self._pending_names.get(folder, []))}
        else:
            files = [self._file(record.inode)]
        covered = [(file, change) for file in files for change in file.pending if change.completed]
        if record.flags & LINKED:
            covered += [(file, file.pending[-1]) for file in files]
        self._open[record.token] = (record, covered, names)

    def _completed(self, record: DiskRecord) -> None:
        begun = self._open.pop(record.token, None)
        if begun is None:
            return
        what, changes, names = begun
        if record.result in NEVER_BEGUN and what.kind not in (FLUSH, FLUSH_ALL):
            for file, change in changes:
                file.pending = [one for one in file.pending if one is not change]
        if record.result < 0:
            return
        if what.kind in (FLUSH, FLUSH_ALL):
            for file in {id(file): file for file, _ in changes}.values():
                file.settle([change for one, change in changes if one is file and change.completed])
            for folder, count in names.items():
                for change in self._pending_names.get(folder, [])[:count]:
                    _apply_name(self._durable, change)
                del self._pending_names.get(folder, [])[:count]
            return
        for file, change in changes:
            change.completed = True
            if change.dsync:
                file.settle([change])

    # -- names ---------------------------------------------------------------------------------------------------------

    def _change_name(self, record: DiskRecord) -> None:
        if not record.path.startswith(self._root):
            return
        path = record.path.removeprefix(self._root)
        change: _Name
        if record.kind == CREATE:
            if path in self._now:
                return
            change = ("add", path, self._new_file(record.inode) if record.inode != (0, 0) else None)
        elif record.kind == RENAME:
            change = ("move", path, record.payload.decode().removeprefix(self._root))
        else:
            change = ("remove", path, None)
        if change[0] == "move":
            self._move_pending(path, str(change[2]))
        _apply_name(self._now, change)
        self._pending_names.setdefault(path.rpartition("/")[0], []).append(change)

    def _move_pending(self, path: str, target: str) -> None:
        """What is not durable yet in a folder that gets another name goes with it."""
        for folder in [one for one in self._pending_names if one == path or one.startswith(path + "/")]:
            changes = self._pending_names.pop(folder)
            self._pending_names[target + folder.removeprefix(path)] = [
                (kind, target + name.removeprefix(path),
                 target + other.removeprefix(path) if isinstance(other, str) else other)
                for kind, name, other in changes
            ]  # fmt: skip

    # -- the crash -----------------------------------------------------------------------------------------------------

    def crash(self, chooser: random.Random) -> CrashImage:
        """One disk that the next boot may find."""
        style = chooser.choice(["nothing", "everything", "some", "some"])
        names = dict(self._durable)
        for changes in self._pending_names.values():
            count = {"nothing": 0, "everything": len(changes)}.get(style, chooser.randint(0, len(changes)))
            for change in changes[:count]:
                _apply_name(names, change)
        reachable = {
            path: number
            for path, number in names.items()
            if all(str(parent) in names for parent in Path(path).parents if str(parent) != ".")
        }
        files = {
            path: bytes(self._files[number].after_crash(chooser, style))
            for path, number in reachable.items()
            if number is not None
        }
        return CrashImage([path for path, number in reachable.items() if number is None], files)


def _apply_name(names: dict[str, int | None], change: _Name) -> None:
    kind, path, other = change
    if kind == "add":
        assert not isinstance(other, str)
        names[path] = other
    elif kind == "remove":
        names.pop(path, None)
    else:
        moved = [name for name in names if name == path or name.startswith(path + "/")]
        numbers = {name: names.pop(name) for name in moved}
        for name, number in numbers.items():
            names[f"{other}{name.removeprefix(path)}"] = number
