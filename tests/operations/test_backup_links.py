"""The links of a backup, of partitions whose files go while they are made."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from tests.support.plain_disk import PlainDisk
from tpc_broker.model import CoreId
from tpc_broker.operations import backup
from tpc_broker.operations.backup import FOLDER_ATTEMPTS, _Backup
from tpc_broker.options import StartError
from tpc_broker.storage.recovery.checkpoint import JournalFile

FILES = [f"{number:020d}.log" for number in range(60)]


class Directory:
    """With one partition, whose files are linked into `linked`."""

    def __init__(self, path: Path, monkeypatch):
        self.data, self.staging = path / "data", path / "staging"
        self.folder = self.data / "topics" / "t-0"
        self.linked = self.staging / "topics" / "t-0"
        self.folder.mkdir(parents=True)
        self.staging.mkdir()
        for name in FILES:
            (self.folder / name).write_text(name)
        self.before_link = lambda _path: None
        monkeypatch.setattr(backup, "os", SimpleNamespace(scandir=os.scandir, link=self._link))

    def _link(self, source, target):
        self.before_link(Path(source))
        os.link(source, target)

    def link(self):
        _Backup(self.data, self.staging, self.data, lambda _done, _all: None, with_links=True)._link_partitions()
        return sorted(path.name for path in self.linked.iterdir())

    def in_their_order(self):
        return [entry.name for entry in os.scandir(self.folder)]


@pytest.fixture
def directory(tmp_path, monkeypatch):
    return Directory(tmp_path, monkeypatch)


def test_the_others_are_linked_however_many_go_meanwhile(directory):
    gone = directory.in_their_order()[: FOLDER_ATTEMPTS + 1]

    def remove(path):
        if path.name in gone:
            path.unlink()

    directory.before_link = remove
    assert directory.link() == sorted(set(FILES) - set(gone))


def test_one_whose_files_never_stay_is_named(directory):
    made = iter(range(100))

    def remove(path):
        if path.name.startswith("1"):
            path.unlink()
            (directory.folder / f"1{next(made):019d}.log").touch()

    (directory.folder / f"1{next(made):019d}.log").touch()
    directory.before_link = remove
    with pytest.raises(StartError, match=r"t-0: its segments go faster than they can be kept; begin again$"):
        directory.link()


def test_one_that_is_deleted_meanwhile_is_left_out(directory):
    def remove(path):
        shutil.rmtree(path.parent, ignore_errors=True)

    directory.before_link = remove
    assert directory.link() == []


def test_what_a_journal_names_comes_with_it(tmp_path):
    """Producers that go over, and are too many for an entry; others are of another journal."""
    data, staging = tmp_path / "data", tmp_path / "staging"
    journals = data / "journals"
    journals.mkdir(parents=True)
    staging.mkdir()

    async def make() -> None:
        file = await JournalFile.create(PlainDisk(), journals, CoreId(3), journal_id=bytes(16))
        await file.close()

    trio.run(make)
    for name in ("0003.handed-12ab", "0004.handed-12ab"):
        (journals / name).write_text(name)
    _Backup(data, staging, data, lambda _done, _all: None, with_links=True)._copy_journal(CoreId(3), None)
    assert sorted(path.name for path in (staging / "journals").iterdir()) == ["0003.handed-12ab", "0003.journal"]
    assert (staging / "journals" / "0003.handed-12ab").read_text() == "0003.handed-12ab"
