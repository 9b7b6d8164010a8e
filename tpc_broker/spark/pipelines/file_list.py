"""Which files make up an archive: a list that changes as a whole.

Theory of operation
    A folder of Parquet files cannot be changed in one step, a list of its files can. The list is kept where Spark's own
    file sink keeps one, in `_spark_metadata`, and in the same form (one JSON object a line after `v1`), so every
    `spark.read.parquet(folder)` reads exactly the listed files. Each change writes the next number, always as a whole
    list (Spark calls such a file `N.compact`; when the last two of them have neighbouring numbers, it reads only the
    last). Appearing under its name is the commit: no file may have been there before, so of two jobs that write the
    same archive one is refused. Spark passes over fields that it does not know; the first line carries our state.

    A file that is not listed does not exist: it is the remainder of a job that was killed before its commit, and the
    next job deletes it. Whoever is about to delete such files first commits a list of its own (`take_over`), so that a
    job that is still alive and has moved files into place cannot commit them any more. Files that a merge replaced are
    kept for a while, for readers that began with the older list, and no longer than the job lasts (`finish`): readers
    that know no list count every file, and theirs would be the wrong number until the next run.

    The list names whole paths, as Spark's does. A folder that was moved is repaired by `take_over`.
"""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol
from uuid import uuid4

from tpc_broker.spark.pipelines.errors import PipelineError
from tpc_broker.spark.pipelines.folder import Entry

LIST_FOLDER: Final = "_spark_metadata"
STAGING: Final = "_staging"
_LISTS_KEPT: Final = 8
_TAKE_OVERS_MAX: Final = 5
_BLOCK_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DataFile:
    """``name`` is relative to the archive's folder, e.g. ``date=2026-11-21/part-….parquet``."""

    name: str
    size_bytes: int
    rows_count: int
    modified_ms: int

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Listing:
    """One state of the archive.

    ``epochs``: by query, the last epoch that is in the files. ``replaced``: files that merges replaced, with the time
    (ms). ``state``: what a job keeps beside its rows, committed with them; plain JSON. ``owner``: the run that
    wrote it; a list without files names none.
    """

    number: int = -1
    files: tuple[DataFile, ...] = ()
    epochs: Mapping[str, int] = field(default_factory=dict)
    replaced: Mapping[str, int] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    owner: str = ""

    @property
    def rows_count(self) -> int:
        return sum(file.rows_count for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def to_text(listing: Listing, url: str) -> str:
    """The list as Spark reads it, for an archive at ``url``."""
    lines = ["v1"]
    ours = {
        "epochs": dict(listing.epochs), "replaced": dict(listing.replaced), "state": dict(listing.state),
        "owner": listing.owner,
    }  # fmt: skip
    for file in listing.files:
        line: dict[str, Any] = {
            "path": f"{url}/{file.name}", "size": file.size_bytes, "isDir": False, "modificationTime": file.modified_ms,
            "blockReplication": 1, "blockSize": _BLOCK_BYTES, "action": "add",
            "tpcName": file.name, "tpcRows": file.rows_count,
        }  # fmt: skip
        if len(lines) == 1:
            line["tpc"] = ours
        lines.append(json.dumps(line))
    return "\n".join(lines)


def from_text(number: int, text: str) -> Listing:
    """`ValueError` when it is not a list of ours."""
    lines = text.splitlines()
    if not lines or lines[0] != "v1":
        raise ValueError("not a list of files")
    files = []
    ours: dict[str, Any] = {}
    for line in lines[1:]:
        row = json.loads(line)
        if "tpcName" not in row:
            raise ValueError("written by another program than tpc pipeline")
        files.append(DataFile(row["tpcName"], row["size"], row["tpcRows"], row["modificationTime"]))
        ours = row.get("tpc", ours)
    epochs, replaced, state = (ours.get(name, {}) for name in ("epochs", "replaced", "state"))
    return Listing(number, tuple(files), epochs, replaced, state, ours.get("owner", ""))


class ListFolder(Protocol):
    """What a list needs of the folder it is in: `folder.Folder`, or `local_folder.LocalFolder`."""

    path: str
    url: str

    def inside(self, name: str) -> str: ...
    def entries(self, name: str = "") -> list[Entry]: ...
    def make(self, name: str = "") -> None: ...
    def read_text(self, name: str) -> str: ...
    def write_new(self, name: str, text: str) -> bool: ...
    def move(self, old: str, new: str) -> None: ...
    def delete(self, name: str) -> None: ...
    def rows_in_parquet(self, name: str) -> int: ...


class AnotherJobError(PipelineError):
    """Another job has taken the archive over."""


class FileList:
    """The list of one archive, for one job (`take_over`) or for readers (`read`)."""

    def __init__(self, folder: ListFolder, owner: str = "") -> None:
        """``owner``: of the run that this is part of; a new one, where none is given."""
        self.folder = folder
        self.owner = owner or uuid4().hex
        self.listing = Listing()
        self._has_ended = False

    def read(self) -> Listing:
        """The newest list; an empty one with number -1 where there is none."""
        numbers = self._numbers()
        if not numbers:
            return Listing()
        name = _list_name(numbers[-1])
        try:
            return from_text(numbers[-1], self.folder.read_text(name))
        except (ValueError, KeyError) as error:
            raise PipelineError(f"{self.folder.inside(name)}: {error}") from None

    def take_over(self, keep_replaced_seconds: float) -> Listing:
        """Become the one job that writes here, and delete what earlier ones left behind.

        `PipelineError`: the folder holds something else.
        """
        self._become_owner()
        self.folder.delete(STAGING)
        for name in self._unlisted(self.listing.replaced):
            self.folder.delete(name)
        self.forget_replaced(keep_replaced_seconds)
        return self.listing

    def _become_owner(self) -> None:
        """Whatever the one before commits meanwhile: what clears up behind a job that was killed does so once."""
        for attempt in range(_TAKE_OVERS_MAX):
            self.listing = self.read()
            if self.listing.number < 0:
                strange = [entry.name for entry in self.folder.entries() if not entry.name.startswith(("_", "."))]
                if strange:
                    raise PipelineError(
                        f"{self.folder.path} holds {strange[0]} and is no archive; take an empty folder"
                    )
                self.folder.make(LIST_FOLDER)
            try:
                return self.commit(self.listing)
            except AnotherJobError:
                if attempt + 1 == _TAKE_OVERS_MAX:
                    raise
        return None

    def finish(self) -> None:
        """Only what is listed stays, and nothing is committed any more. `AnotherJobError`: the files are another's."""
        unlisted = self._unlisted(())  # before the commit: a job that takes over behind it has others
        self.commit(replace(self.listing, replaced={}))
        self._has_ended = True
        for name in unlisted:
            self.folder.delete(name)
        self.folder.delete(STAGING)

    def commit(self, listing: Listing) -> None:
        """``listing`` is what readers see from now on."""
        if self._has_ended:
            raise PipelineError(f"{self.folder.path}: the job has ended")
        number = self.listing.number + 1
        changed = replace(listing, number=number, owner=self.owner)
        if not self.folder.write_new(_list_name(number), to_text(changed, self.folder.url)):
            raise AnotherJobError(f"{self.folder.path} is being written by another job; only one may")
        self.listing = changed
        for old in self._numbers():
            if old <= number - _LISTS_KEPT:
                self.folder.delete(_list_name(old))

    def stage(self, name: str) -> str:
        """An empty place for new files, seen by nobody."""
        self.folder.delete(f"{STAGING}/{name}")
        return f"{STAGING}/{name}"

    def move_in(self, staged: str, folder: str = "", counts: Mapping[str, int] | None = None) -> list[DataFile]:
        """Parquet files out of a staged folder (and of the folders inside it) to their place, not listed yet.

        ``counts``: names (relative to the staged folder) of those that are meant, with their rows; without it, all are.
        `PipelineError`: one of these is missing, or has other rows.
        """
        found = self._move_in(staged, folder, counts)
        missing = (counts or {}).keys() - {file.name for file in found}
        if missing:
            raise PipelineError(
                f"{self.folder.inside(staged)}/{min(missing)} was written by a task and is not there: "
                "the driver and all executors have to see the same folder"
            )
        return found

    def _move_in(self, staged: str, folder: str, counts: Mapping[str, int] | None) -> list[DataFile]:
        found = []
        self.folder.make(folder)
        for entry in self.folder.entries(staged):
            here = f"{staged}/{entry.name}"
            name = f"{folder}/{entry.name}".lstrip("/")
            if entry.is_folder:
                found += self._move_in(here, name, counts)
            elif entry.name.endswith(".parquet") and (counts is None or name in counts):
                rows_count = self.folder.rows_in_parquet(here)
                if counts is not None and rows_count != counts[name]:
                    raise PipelineError(f"{self.folder.inside(here)} has {rows_count} rows, not {counts[name]}")
                self.folder.move(here, name)
                found.append(DataFile(name, entry.size_bytes, rows_count, entry.modified_ms))
        return found

    def replace(self, old: Iterable[DataFile], new: Iterable[DataFile], state: Mapping[str, Any] | None = None) -> None:
        """In one commit, ``new`` instead of ``old``; the old ones stay on the disk until `forget_replaced`."""
        gone = {file.name for file in old}
        kept = tuple(file for file in self.listing.files if file.name not in gone)
        replaced = {**self.listing.replaced, **dict.fromkeys(sorted(gone), int(time.time() * 1000))}
        state = self.listing.state if state is None else state
        self.commit(replace(self.listing, files=(*kept, *new), replaced=replaced, state=state))

    def forget_replaced(self, keep_seconds: float) -> None:
        """Delete files that were replaced longer ago than that."""
        before_ms = (time.time() - keep_seconds) * 1000
        old = {name for name, replaced_ms in self.listing.replaced.items() if replaced_ms <= before_ms}
        if old:
            for name in sorted(old):
                self.folder.delete(name)
            kept = {name: at for name, at in self.listing.replaced.items() if name not in old}
            self.commit(replace(self.listing, replaced=kept))

    def _unlisted(self, kept: Iterable[str]) -> list[str]:
        """Files of rows that are there and not in the list, but for those that are kept all the same."""
        known = {file.name for file in self.listing.files}.union(kept)
        return [name for name in self._files_below("") if name.endswith(".parquet") and name not in known]

    def _files_below(self, folder: str) -> Iterable[str]:
        for entry in self.folder.entries(folder):
            if entry.name.startswith(("_", ".")):
                continue
            name = f"{folder}/{entry.name}".lstrip("/")
            if entry.is_folder:
                yield from self._files_below(name)
            else:
                yield name

    def _numbers(self) -> list[int]:
        names = [entry.name.partition(".") for entry in self.folder.entries(LIST_FOLDER)]
        foreign = [number for number, _, kind in names if number.isdigit() and kind != "compact"]
        if foreign:
            raise PipelineError(f"{self.folder.path} was written by another program than tpc pipeline")
        return sorted(int(number) for number, _, _ in names if number.isdigit())


def _list_name(number: int) -> str:
    return f"{LIST_FOLDER}/{number}.compact"
