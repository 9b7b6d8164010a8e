"""What a job that writes an archive leaves behind when it ends: only what is listed, whatever ends it.

A job that ends by itself, by an error or by a signal deletes what its merges replaced and what it did not commit
(`FileList.finish`), on a local file system without Spark, whose JVM a signal may have ended too. ``kill -9`` lets
nobody do anything, so beside a job that writes to a local file system there is a process that waits for its end and
does it then. It leaves an archive alone that another run has taken over; and where it dies too (a container that ends,
loss of power), the next run clears up.
"""

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tpc_broker.spark.pipelines.dated_files import is_local
from tpc_broker.spark.pipelines.file_list import AnotherJobError, FileList
from tpc_broker.spark.pipelines.local_folder import LocalFolder

_ENDED: Final = b"ended"
_WAIT_SECONDS: Final = 10.0
logger = logging.getLogger("tpc.spark")


# Rule: An archive whose job ended holds only files that are listed. See also tpc_broker/spark/pipelines/file_list.py.
# Held by tests/spark/test_file_list.py.
@contextmanager
def only_what_is_listed(files: FileList) -> Iterator[None]:
    """For the life of the job that has taken ``files`` over. Nothing that fails here hides what ended the job."""
    url = files.folder.url
    watcher = _watch(url, files.owner) if is_local(url) else None
    try:
        yield
    finally:
        try:
            if watcher is not None:
                files.folder = LocalFolder(url)
            files.finish()
        except AnotherJobError as error:
            logger.info("%s", error)
        except Exception as error:  # noqa: BLE001 - a JVM that is gone has many ways to say so
            logger.warning("%s: what is in no list stays until the next run: %s", url, error)
        if watcher is not None:
            _dismiss(watcher)


def _watch(url: str, owner: str) -> subprocess.Popen[bytes]:
    """In a session of its own, so that what ends the job's group does not end it."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, url, owner],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def _dismiss(watcher: subprocess.Popen[bytes]) -> None:
    try:
        watcher.communicate(_ENDED, _WAIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        watcher.kill()
        watcher.wait()


def clear_up(url: str, owner: str) -> None:
    """After the end of a job: its archive as `FileList.finish` leaves it, unless another run has it now."""
    files = FileList(LocalFolder(url))
    files.listing = files.read()
    if files.listing.owner == owner:
        files.finish()


def main(url: str, owner: str) -> None:
    """The process beside a job: its standard input ends with the job."""
    if sys.stdin.buffer.read() != _ENDED:
        clear_up(url, owner)


if __name__ == "__main__":
    main(*sys.argv[1:])
