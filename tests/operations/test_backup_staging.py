"""The folder of links that a backup works in: gone behind it, and behind one that was killed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import trio

from tests.support.waiting import PATIENCE_S
from tpc_broker.operations import backup_staging
from tpc_broker.operations.backup_staging import STAGING_FOLDER, keep_removing_left, remove_left, staging_folder
from tpc_broker.options import StartError

INTERRUPTED = """
import os, signal, sys
from tpc_broker.operations import backup
from tpc_broker.operations.backup_staging import staging_folder
from tpc_broker.process.main import main

def interrupted(data, *_arguments, **_options):
    with staging_folder(data) as staging:
        (staging / "topics").mkdir()
        os.kill(os.getpid(), signal.{name})

backup.backup = interrupted
signal.signal(signal.{name}, signal.SIG_DFL)
main(["backup", sys.argv[1], "--data", sys.argv[2]])
"""

ON_THE_RING = """
import os, signal, threading, trio
from tpc_broker.operations.data_commands import ended_by_signals
from tpc_broker.engine.trio_ring import run

def end():
    begun.wait()
    os.kill(os.getpid(), signal.{name})

async def main():
    try:
        begun.set()
        await trio.sleep_forever()
    finally:
        print("cleaned up", end=", ")

begun = threading.Event()
signal.signal(signal.{name}, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.SIG_IGN if {ignores} else signal.default_int_handler)
before = signal.getsignal(signal.SIGINT)
threading.Thread(target=end, daemon=True).start()
try:
    with ended_by_signals():
        run(main)
except KeyboardInterrupt:
    print("interrupted")
assert signal.getsignal(signal.SIGINT) == before
assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""


def leave_links(data):
    """As a backup that was killed does; the segment that is linked. A broker that looks meanwhile finds all or none."""
    segment, made = data / "topics" / "t-0" / "0.log", data / "made"
    for folder in (segment.parent, made / "topics" / "t-0"):
        folder.mkdir(parents=True, exist_ok=True)
    segment.write_bytes(b"records")
    os.link(segment, made / "topics" / "t-0" / "0.log")
    made.rename(data / STAGING_FOLDER)
    return segment


def test_what_a_killed_backup_left_is_removed_and_what_a_running_one_has_is_not(tmp_path):
    assert not remove_left(tmp_path)
    with staging_folder(tmp_path) as staging:
        assert not remove_left(tmp_path)
        assert staging.is_dir()
    segment = leave_links(tmp_path)
    assert remove_left(tmp_path)
    assert not (tmp_path / STAGING_FOLDER).exists()
    assert segment.stat().st_nlink == 1
    with staging_folder(tmp_path), pytest.raises(StartError, match="another backup"), staging_folder(tmp_path):
        pass


def test_a_backup_that_begins_while_what_another_left_is_removed_is_not_refused(tmp_path, monkeypatch):
    """Which may be hundreds of thousands of links. What cannot be removed is met again by the next look."""
    remove, refused = backup_staging.shutil.rmtree, []

    def back_up_meanwhile(path, **how):
        monkeypatch.setattr(backup_staging.shutil, "rmtree", remove)
        with staging_folder(tmp_path) as staging:
            (staging / "own").touch()
            remove(path, **how)
            assert (staging / "own").exists()

    def refuse(path):
        refused.append(path)
        raise PermissionError(13, "Permission denied", str(path))

    segment = leave_links(tmp_path)
    monkeypatch.setattr(backup_staging.shutil, "rmtree", refuse)
    for _ in range(2):
        with pytest.raises(PermissionError):
            remove_left(tmp_path)
    monkeypatch.setattr(backup_staging.shutil, "rmtree", back_up_meanwhile)
    assert remove_left(tmp_path)
    assert (segment.stat().st_nlink, len(set(refused))) == (1, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".backup.lock", "topics"]
    assert not remove_left(tmp_path)


def test_a_broker_that_runs_looks_again_and_says_what_it_cannot_remove_once(tmp_path, monkeypatch, caplog):
    """Not in the way of the next look: another user's folder may be gone by then."""
    looks = []

    def refuse_twice(path):
        looks.append(path)
        if len(looks) < 3:
            raise PermissionError(13, "Permission denied", str(path))
        remove(path)

    remove = backup_staging.shutil.rmtree
    monkeypatch.setattr(backup_staging, "LOOK_S", 0.001)
    monkeypatch.setattr(backup_staging.shutil, "rmtree", refuse_twice)

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_removing_left, tmp_path)
            for removed in (1, 2):
                segment = leave_links(tmp_path)
                with trio.fail_after(PATIENCE_S):
                    while len([one for one in caplog.messages if "are removed" in one]) < removed:
                        await trio.sleep(0.001)
                assert segment.stat().st_nlink == 1
                segment.unlink()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert len([one for one in caplog.messages if "cannot be removed" in one]) == 1
    assert len(looks) == 4


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_ends_a_backup_as_ctrl_c_does(tmp_path, name):
    data, target = tmp_path / "data", tmp_path / "backup"
    data.mkdir()
    command = [sys.executable, "-c", INTERRUPTED.format(name=name), str(target), str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert not (data / STAGING_FOLDER).exists()
    told = f"tpc-broker: interrupted; {target} is not whole, remove it\n"
    assert (done.returncode, done.stderr) == (130, told)


@pytest.mark.parametrize("ignores_ctrl_c", [False, True])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_ends_what_a_restore_does_on_the_ring(name, ignores_ctrl_c):
    """Between trio's own steps, which KeyboardInterrupt must not end; also as a script's job in the background."""
    command = [sys.executable, "-c", ON_THE_RING.format(name=name, ignores=ignores_ctrl_c)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "cleaned up, interrupted\n", "")
