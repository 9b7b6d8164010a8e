"""The data sources `tpc` and `tpc_files` for tests that interrupt jobs at a certain place, whatever the machine's load.

A task whose range of partition 0 holds the offset (one task of a job, so that others have room) waits there until a
file appears, so the job stays in the middle of an epoch for as long as the test likes; or its process dies there after
it has done its work, once for each source. Or the driver stops in the middle of the commit of an epoch.
"""

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

from tpc_broker.spark import TpcDataSource
from tpc_broker.spark.pipelines import files_source
from tpc_broker.spark.readers import TpcStreamReader
from tpc_broker.spark.sink import TpcStreamWriter
from tpc_broker.spark.task_sizes import TaskGroup

WAIT_SECONDS = 150
RELEASED = "released"
DIED = "died"
STOPPED = "stopped"


def _interrupted(source, before, after):
    """The data source, with something that a task does before and after it reads a range."""

    class Reader(TpcStreamReader):
        def __init__(self, whole):
            self.__dict__.update(whole.__dict__)
            self._whole = whole

        def read(self, partition):
            before(partition.value)
            yield from self._whole.read(partition)
            after(partition.value)

    class Source(source):
        def streamReader(self, schema):  # noqa: N802
            return Reader(super().streamReader(schema))

    return Source


def _holds(task, offset):
    pieces = task.pieces if isinstance(task, TaskGroup) else [task] if task is not None else []
    return any(piece.where.partition == 0 and piece.first_offset <= offset < piece.end_offset for piece in pieces)


def waiting(source, folder, offset):
    """Waits for the file `RELEASED` in the folder."""

    def wait(piece):
        give_up_at = time.monotonic() + WAIT_SECONDS
        while _holds(piece, offset):
            if (Path(folder) / RELEASED).exists() or time.monotonic() > give_up_at:
                return
            time.sleep(0.05)

    return _interrupted(source, wait, lambda _piece: None)


def dying(source, folder, offset):
    """Dies as by `kill -9`, and leaves a file `DIED`-NAME in the folder."""
    marker = Path(folder) / f"{DIED}-{source.name()}"

    def die(piece):
        if not _holds(piece, offset):
            return
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    return _interrupted(source, lambda _piece: None, die)


def committing(source, folder, place):
    """The copy's driver stops in the commit of epoch 1, for good: when it is decided (`decided`), when the first of its
    transactions is committed (`half`), or when all is done and Spark does not know it (`noted`). A file `STOPPED` has
    the number of transactions.
    """

    def stop(listed):
        (Path(folder) / STOPPED).write_text(str(len(listed)))
        give_up_at = time.monotonic() + WAIT_SECONDS
        parent = os.getppid()
        while os.getppid() == parent and time.monotonic() < give_up_at:
            time.sleep(0.05)
        os._exit(1)

    class Writer(TpcStreamWriter):
        def __init__(self, whole):
            self.__dict__.update(whole.__dict__)

        def commit(self, messages, batchId):  # noqa: N803
            from tpc_broker.client import transacting
            from tpc_broker.spark.exactly_once import TransactionalWrite

            finish = TransactionalWrite._finish

            def stopping(whole, decision):
                listed = whole._ledger.transactions(whole._about.name, decision.version, decision.list_offset)
                if place == "half":
                    transacting.end_all(whole._cluster, listed[:1], commits=True)
                if place == "noted":
                    finish(whole, decision)
                stop(listed)

            if batchId == 1:
                TransactionalWrite._finish = stopping
            super().commit(messages, batchId)

    class Source(source):
        def streamWriter(self, schema, overwrite):  # noqa: N802
            return Writer(super().streamWriter(schema, overwrite))

    return Source if source is TpcDataSource else source


@contextmanager
def installed(spark, interrupt, folder, offset):
    """While inside, both data sources are like that for queries that begin."""
    plain = files_source.FilesDataSource
    spark.dataSource.register(interrupt(TpcDataSource, str(folder), offset))
    files_source.FilesDataSource = interrupt(plain, str(folder), offset)
    try:
        yield
    finally:
        files_source.FilesDataSource = plain
        spark.dataSource.register(TpcDataSource)
