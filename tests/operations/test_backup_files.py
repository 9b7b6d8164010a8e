"""What a backup and a restore do with the directory that they fill, where it or its disk does not work."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from tests.support.contents import content
from tpc_broker.operations import backup, backup_files
from tpc_broker.operations.backup_files import unfinished
from tpc_broker.options import StartError

MARK = "restore-unfinished"


def test_a_directory_that_cannot_be_made_is_refused_in_a_line():
    target = Path("/proc/none")
    with pytest.raises(StartError, match=f"^{target}: No such file or directory$"), unfinished(target, MARK):
        pytest.fail("nothing is written there")


@pytest.mark.parametrize("call", range(3))
def test_a_directory_that_cannot_be_made_durable_is_said_to_be_not_whole(tmp_path, monkeypatch, call):
    """At the beginning, or at the end."""
    calls = iter(range(9))

    def sync(path):
        if next(calls) == call:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(backup_files, "sync_folder", sync)
    target = tmp_path / "target"
    with pytest.raises(StartError, match=f"error; {target} is not whole, remove it"), unfinished(target, MARK):
        pass


def test_a_file_system_that_cannot_be_synced_leaves_the_mark(tmp_path, monkeypatch):
    def sync(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(backup_files, "sync_file_system", sync)
    with pytest.raises(StartError, match="is not whole, remove it"), unfinished(tmp_path / "target", MARK):
        pass
    assert (tmp_path / "target" / MARK).exists()


@pytest.fixture
def stopped_broker(tmp_path):
    """A data directory with one sealed segment."""
    data = tmp_path / "data"
    for folder in ("journals", "topics/t-0"):
        (data / folder).mkdir(parents=True)
    (data / ".lock").touch()
    (data / "meta.properties").write_text("version=1\ncores=1\n")
    (data / "topics" / "t-0" / f"{0:020d}.log").write_bytes(content(1_000_000))
    return data


def test_space_and_links_are_judged_where_the_directory_lies_that_is_there(tmp_path, monkeypatch, stopped_broker):
    """It may be a mount: here a folder of another file system by another name."""
    asked = []
    monkeypatch.setattr(backup, "check_space", lambda folder, wanted_bytes: asked.append((folder, wanted_bytes)))
    monkeypatch.setattr(backup._Backup, "_sealed_below", lambda _self, _names: {"t-0": 1})
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        target = tmp_path / "target"
        target.symlink_to(elsewhere)
        if target.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("there is one file system only")
        backup.backup(stopped_broker, target, lambda _done, _all: None, with_links=True)
    ((folder, wanted_bytes),) = asked
    assert folder == target
    assert wanted_bytes > 1_000_000
