"""What a backup and a restore do with the directory that they fill, where it or its disk does not work."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tpc_broker.runtime import backup_files
from tpc_broker.runtime.backup_files import unfinished
from tpc_broker.runtime.options import StartError

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
