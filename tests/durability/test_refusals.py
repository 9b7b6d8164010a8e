"""What a broker refuses leaves nothing behind: no record, no offset, no producer state, also after a crash."""

from __future__ import annotations

import pytest

from tests.durability.conftest import new_broker
from tests.durability.raw_produce import PartitionClient
from tests.durability.workload import create_topics
from tests.support.record_batches import GZIP, Record, batch, old_message

pytestmark = pytest.mark.crash

CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_RECORD = 2, 10, 87
PRODUCER = (4711, 0, 0)


def _one(**wrong):
    return batch([Record(b"wrong"), Record(b"wrong too")], **wrong)


REFUSED = {
    "magic 0": (old_message(b"old", 0), INVALID_RECORD),
    "magic 1": (old_message(b"old", 1), INVALID_RECORD),
    "bad crc": (_one(crc=1), CORRUPT_MESSAGE),
    "bad crc of a producer": (_one(crc=1, producer=PRODUCER), CORRUPT_MESSAGE),
    "too many records claimed": (_one(records_count=3), INVALID_RECORD),
    "too few records claimed": (_one(records_count=1), INVALID_RECORD),
    "last offset delta too large": (_one(last_offset_delta=5), INVALID_RECORD),
    "no records": (_one(records_count=0), INVALID_RECORD),
    "two batches": (_one() + _one(), INVALID_RECORD),
    "over max.message.bytes": (batch([Record(bytes(3000))]), MESSAGE_TOO_LARGE),
    "over max.message.bytes, compressed": (
        batch([Record(bytes(range(256)) * 400 + str(n).encode()) for n in range(90)], codec=GZIP),
        MESSAGE_TOO_LARGE,
    ),
}


@pytest.fixture(scope="module")
def broker(module_tmp_path):
    peer = new_broker(module_tmp_path / "refusals", 2)
    peer.start()
    yield peer
    peer.kill()


@pytest.fixture(scope="module")
def refused_everything(broker):
    """(error code, base offset) per case, all sent to one partition with one good batch before and one after."""
    create_topics(broker.bootstrap, {"refusing": 1}, {"max.message.bytes": "2000"})
    with PartitionClient(broker, "refusing") as client:
        assert client.produce(b"before") == (0, 0)
        answers = {name: client.produce_bytes(records) for name, (records, _code) in REFUSED.items()}
        answers["after"] = client.produce_bytes(batch([Record(b"after")], producer=PRODUCER))
    return answers


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_right_code(refused_everything, name):
    assert refused_everything[name] == (REFUSED[name][1], -1)


def test_nothing_is_left_behind(broker, refused_everything):
    assert refused_everything["after"] == (0, 1)
    with PartitionClient(broker, "refusing") as client:
        assert client.values() == {0: b"before", 1: b"after"}


def test_nothing_is_left_behind_after_a_crash(broker, refused_everything):
    broker.kill()
    broker.start()
    with PartitionClient(broker, "refusing") as client:
        assert client.values() == {0: b"before", 1: b"after"}
        last = batch([Record(b"next")], producer=(PRODUCER[0], 0, 1))
        assert client.produce_bytes(last) == (0, 2), "the refused batch of this producer counted"


def test_batches_with_any_negative_producer_id_are_taken_and_keep_no_core_from_starting(tmp_path):
    """As for Kafka, they have no producer: a log kept one for each id but -1, with which its core could not start."""
    peer = new_broker(tmp_path / "negative", 1)
    peer.start()
    try:
        create_topics(peer.bootstrap, {"negative": 1})
        ids = (-2, -(2**63), -1)
        with PartitionClient(peer, "negative") as client:
            for number, producer_id in enumerate(ids):
                data = batch([Record(str(producer_id).encode())], producer=(producer_id, -1, -1))
                assert client.produce_bytes(data) == (0, number)
        wanted = {number: str(producer_id).encode() for number, producer_id in enumerate(ids)}
        for end in (peer.stop, peer.kill, peer.stop):
            end()
            peer.start()
            with PartitionClient(peer, "negative") as client:
                assert client.values() == wanted
    finally:
        peer.kill()
