"""The model of the disk that crash images are made from, where its rules are easily got wrong."""

import errno
import random

import pytest

from tests.durability.crash_images import COMPLETED, CREATE, FLUSH, WRITE, DiskRecord, Replayer

INODE = (1, 7)


def record(kind, token=0, payload=b"", result=0, path="/data/f"):
    return DiskRecord(kind, 0, token, INODE, 0, len(payload), result, path, payload)


@pytest.fixture
def replayer():
    made = Replayer("/data")
    made.feed(record(CREATE, 1))
    made.feed(record(FLUSH, 2, path="/data"))
    made.feed(record(COMPLETED, 2))
    return made


def found(replayer):
    return {replayer.crash(random.Random(seed)).files["f"] for seed in range(50)}


def write(replayer, token, payload, result):
    replayer.feed(record(WRITE, token, payload))
    replayer.feed(record(COMPLETED, token, result=result))


def flush(replayer, token):
    replayer.feed(record(FLUSH, token))
    replayer.feed(record(COMPLETED, token))


def test_a_cancelled_write_is_not_there_and_not_over_a_later_one(replayer):
    """The kernel cancels what it has not begun."""
    write(replayer, 3, b"cancelled", -errno.ECANCELED)
    assert found(replayer) == {b""}
    write(replayer, 4, b"later", 5)
    flush(replayer, 5)
    assert found(replayer) == {b"later"}


def test_of_a_failed_write_anything_may_be_there(replayer):
    write(replayer, 3, b"failed", -errno.EIO)
    assert found(replayer) == {b"", b"failed"}


def test_what_a_flush_covers_is_there(replayer):
    write(replayer, 3, b"flushed", 7)
    assert found(replayer) == {b"", b"flushed"}
    flush(replayer, 4)
    assert found(replayer) == {b"flushed"}
