"""Our cleaner beside Apache Kafka's own, on the same logs, at the same times: batch by batch, pass after pass."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

import pytest

from tests.support.cleaner_comparison import CONTROL, IntendedOfCleaning, Pair, visible
from tests.support.cleaner_referee import CleanerReferee
from tests.support.cleaning_stories import Append, Traits, log_story
from tests.support.native_batches import seal_batch
from tests.support.record_batches import DELETE_HORIZON
from tests.support.written_logs import OwnLog
from tpc_broker.cleaner.cleaning_run import clean
from tpc_broker.log.cleaning_job import CleanedGroup, CleaningJob, CleaningReport

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]

ATTRIBUTES_AT = 21
STORIES = 8
"""Of each kind."""
KINDS = {
    "plain": Traits(idempotent=0, transactional=0),
    "append times": Traits(idempotent=0, transactional=0, append_times=0.8),
    "many keys": Traits(keys=200, records=30),
    "idempotent": Traits(transactional=0, idempotent=3),
    "transactions": Traits(transactional=3, idempotent=1),
    "transactions without epochs": Traits(transactional=3, idempotent=1, first_version=True),
    "transactions left open": Traits(transactional=3, idempotent=1, left_open=0.4),
    "without keys": Traits(keyless=0.2),
    "gaps": Traits(gaps=0.5, gap_offsets=1 << 20),
    "gaps of a segment's length": Traits(gaps=0.7, gap_offsets=900_000_000, batches=2, segments=5),
    "small segments": Traits(segments=5, batches=4),
    "a last batch that goes": Traits(with_last_word=False),
    "bit 6 of clients": Traits(horizons=0.3),
}
GROUP_BYTES = {"small segments": 1500, "gaps": 5000}
INTENDED = [
    IntendedOfCleaning(
        "markers that stay keep what they say",
        "The marker that a producer wrote last stays, for its epoch. Kafka takes its record away, and does not know of "
        "the producer any more when it reads the log again; ours has it, so the epoch is still there.",
        lambda kafka, ours: (
            kafka is not None
            and ours is not None
            and kafka.count == 0
            and bool(kafka.attributes & CONTROL)
            and ours.count == 1
            and ours.horizon is not None
            and ours.producer == kafka.producer
        ),
    ),
]


@pytest.fixture(scope="module")
def referee(kafka_tools):
    with CleanerReferee() as running:
        yield running


def run(job: CleaningJob, take: Callable[[CleanedGroup], None]) -> CleaningReport:
    return clean(job, take, lambda _bytes: None, lambda: False)


def without_horizon(batch: bytes) -> bytes:
    """Attribute bit 6 is not set."""
    (attributes,) = struct.unpack_from(">h", batch, ATTRIBUTES_AT)
    if not attributes & DELETE_HORIZON:
        return batch
    changed = bytearray(batch)
    struct.pack_into(">h", changed, ATTRIBUTES_AT, attributes & ~DELETE_HORIZON)
    seal_batch(changed)
    return bytes(changed)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_batches(referee, tmp_path, kind):
    """And what readers find is what it was. A horizon that a client sends is none to us; Kafka believes it."""
    for number in range(STORIES):
        pair = Pair(referee, tmp_path / str(number), run, GROUP_BYTES.get(kind, 1 << 30), seen_by_kafka=without_horizon)
        written = OwnLog(tmp_path / f"{number}-all")
        for step in log_story(Random(f"{kind} {number}"), KINDS[kind]):
            if isinstance(step, Append):
                written.append(step.data)
            if pair.take(step) is not None:
                pair.judge(INTENDED)
        pair.own.flush()
        written.flush()
        assert visible(referee.dump(pair.own.folder)) == visible(referee.dump(written.folder))


@pytest.mark.parametrize("keys", [2, 5, 12])
def test_a_map_for_a_few_keys(referee, tmp_path, keys):
    """Both come to the end in several passes, each with the keys that it has room for; readers find the same."""
    for number in range(STORIES):
        folder = tmp_path / str(number)
        pair, written = Pair(referee, folder, run, map_bytes=24 * (keys + 2)), OwnLog(folder / "all")
        for step in log_story(Random(f"{keys} {number}"), Traits(batches=12)):
            if isinstance(step, Append):
                written.append(step.data)
            done = pair.take(step)
            while done is not None and done.ours.cleaned_upto < pair.upper:
                before = done.ours.cleaned_upto
                done = pair.take(step)
                assert done is not None
                assert done.ours.cleaned_upto > before
        written.flush()
        kafka, ours = pair.dumps()
        assert visible(ours) == visible(kafka)
        pair.own.flush()
        assert visible(referee.dump(pair.own.folder)) == visible(referee.dump(written.folder))
