"""The folder of links that a backup works in, and what is left of it when the backup was killed.

The links hold the space of segments that retention has removed since. So while a broker runs it looks for such a folder
that no backup has, at its start and then every minute, and removes it. Whose the folder is, `.backup.lock` says.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import outcome
import trio

from tpc_broker.options import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

STAGING_FOLDER: Final = "backup-staging"
"""In the data directory while a backup runs: links to the files as they were."""
LOOK_S: Final = 60.0
_LEFT_PREFIX: Final = f"{STAGING_FOLDER}.left-"
"""Of a backup that was killed, while it is removed."""
_LOCK_FILE: Final = ".backup.lock"


@contextmanager
def staging_folder(data: Path) -> Iterator[Path]:
    """An empty folder in the data directory that is gone afterwards. StartError: another backup has it."""
    try:
        lock = _open_lock(data)
    except OSError as error:
        raise StartError(f"{error.filename}: {error.strerror}; back up as the user whose broker it is") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StartError(f"another backup of {data} is under way") from error
        staging = data / STAGING_FOLDER
        try:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(mode=0o700)
            yield staging
        except OSError as error:
            raise StartError(f"{error.filename or staging}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    finally:
        os.close(lock)


def remove_left(data: Path) -> bool:
    """Remove the folder where there is one that no backup has; whether there was. OSError: it cannot be removed.

    It gets another name first, so that a backup that begins meanwhile finds the lock free and makes its own.
    """
    if (data / STAGING_FOLDER).exists():
        lock = _open_lock(data)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (data / STAGING_FOLDER).rename(data / f"{_LEFT_PREFIX}{time.time_ns()}")
        except (BlockingIOError, FileNotFoundError):  # a backup has it, or had it and has ended
            pass
        finally:
            os.close(lock)
    left = sorted(data.glob(f"{_LEFT_PREFIX}*"))
    for folder in left:
        shutil.rmtree(folder)
    return bool(left)


async def keep_removing_left(data: Path) -> None:
    """Until cancelled."""
    told = ""
    while True:
        try:
            if await _remove_left_aside(data):
                log.warning("a backup was killed; the links that it left in %s are removed", data / STAGING_FOLDER)
        except OSError as error:
            if str(error) != told:
                log.warning("a backup was killed, and the links that it left cannot be removed: %s; they hold the space"
                            " of what retention removes", error)  # fmt: skip
            told = str(error)
        await trio.sleep(LOOK_S)


async def _remove_left_aside(data: Path) -> bool:
    """`remove_left` in a thread of its own that takes no signals. One of trio's lives on for seconds and takes them: a
    second SIGTERM, when the supervisor has ended its work and blocked it in its own thread, would end the process.
    """
    ended, token, ends = trio.Event(), trio.lowlevel.current_trio_token(), list[outcome.Outcome[bool]]()

    def work() -> None:
        ends.append(outcome.capture(remove_left, data))
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(ended.set)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        threading.Thread(target=work, name="backup-left", daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    await ended.wait()
    return ends[0].unwrap()


def _open_lock(data: Path) -> int:
    return os.open(data / _LOCK_FILE, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
