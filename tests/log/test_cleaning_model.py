"""Logs of chance, cleaned several times, by what cleans and by a model in plain words: batches, indexes, bounds."""

import pytest

from tests.support.cleaned_logs import CleanedLog
from tests.support.cleaning_model import APPEND_TIME, HORIZON, TRANSACTIONAL, Cleaning, Transaction, replay
from tests.support.record_batches import Record, batch
from tpc_broker.cleaner import cleaning_run, codecs
from tpc_broker.kafka.records import ControlType, control_batch
from tpc_broker.log import cleaning
from tpc_broker.log.cleaning import KEY_BYTES
from tpc_broker.log.cleaning_job import KeptProducer
from tpc_broker.log.indexes import AbortedTransaction

LOGS = 40
NOW_MS = 1_800_000_000_000
RETENTION_MS = 1_000
PRODUCERS = range(5, 9)


class Writer:
    """Batches of chance, in segments; all transactions come to their end."""

    def __init__(self, chance, log):
        self.chance, self.log = chance, log
        self.transactions = []
        self.open = {}
        self.unreadable = set()
        self.last_data = {}
        self.last_marker = {}
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.offset = 0
        self.keys = [b"k%d" % n for n in range(chance.choice((3, 8, 40)))] + [b"", bytes(200)]

    def value(self):
        kind = self.chance.random()
        if kind < 0.25:
            return None
        return b"" if kind < 0.3 else self.chance.randbytes(self.chance.choice((1, 5, 70, 300)))

    def records(self):
        def record():
            key = None if self.chance.random() < 0.05 else self.chance.choice(self.keys)
            delta = self.chance.choice((0, 0, 1, 5, 3000, -2, -70_000, 1 << 35))
            headers = (("h", b"v"), ("", None))[: self.chance.choice((0, 0, 0, 1, 2))]
            return Record(self.value(), key, delta, headers)

        return [record() for _ in range(self.chance.choice((1, 1, 2, 3, 9)))]

    def data(self, producer=(-1, -1, -1), *, attributes=0):
        """A batch of it."""
        records = self.records()
        base_timestamp_ms = self.chance.choice((NOW_MS, NOW_MS - 10**9, 0, -5, 7))
        codec = self.chance.choice((0, 0, 0, 1, 2, 3, 4))
        if self.chance.random() < 0.1:
            attributes |= HORIZON
        given = {}
        if self.chance.random() < 0.1:
            attributes, given = attributes | APPEND_TIME, {"max_timestamp_ms": NOW_MS - 77}
        else:
            given = {"max_timestamp_ms": max(-1, *(base_timestamp_ms + one.timestamp_delta for one in records))}
        if self.chance.random() < 0.02:
            self.unreadable.add(self.offset)
            attributes, codec = attributes | 4, 0
        made = batch(
            records, base_offset=self.offset, base_timestamp_ms=base_timestamp_ms, codec=codec, attributes=attributes,
            producer=producer, leader_epoch=self.chance.randrange(3), **given,
        )  # fmt: skip
        self.offset += len(records)
        return made

    def of_producer(self, producer_id):
        """Data of it, or the end of its transaction."""
        transactional = producer_id in self.open or self.chance.random() < 0.6
        if producer_id in self.open and self.chance.random() < 0.4:
            return self.marker(producer_id)
        if transactional:
            self.open.setdefault(producer_id, self.offset)
        producer = (producer_id, self.epochs[producer_id], self.chance.randrange(1000))
        made = self.data(producer, attributes=TRANSACTIONAL if transactional else 0)
        self.last_data[producer_id] = self.offset - 1
        return made

    def marker(self, producer_id):
        is_aborted = self.chance.random() < 0.5
        first = self.open.pop(producer_id)
        self.transactions.append(Transaction(producer_id, first, self.offset, is_aborted))
        kind = ControlType.ABORT if is_aborted else ControlType.COMMIT
        made = control_batch(
            kind, producer_id=producer_id, producer_epoch=self.epochs[producer_id], coordinator_epoch=3,
            timestamp_ms=NOW_MS - 5, base_offset=self.offset, partition_leader_epoch=1,
        )  # fmt: skip
        if is_aborted:
            self.aborted.append(AbortedTransaction(producer_id, first, self.offset, self.offset + 1))
        self.last_marker[producer_id] = self.offset
        self.offset += 1
        return made

    def write(self):
        """Some segments, with whole transactions."""
        segments = self.chance.choice((1, 2, 4))
        for number in range(segments):
            self.aborted = []
            made = []
            for _ in range(self.chance.choice((0, 3, 12))):
                is_plain = self.chance.random() < 0.5
                made.append(self.data() if is_plain else self.of_producer(self.chance.choice(PRODUCERS)))
            if number == segments - 1:
                made += [self.marker(producer_id) for producer_id in list(self.open)]
            if made:
                self.log.append(b"".join(made), aborted=self.aborted, end_offset=self.offset)

    def producers(self):
        """Some of them, as they are known at the log's end."""
        known = []
        for producer_id in self.last_data:
            kind = self.chance.random()
            if kind < 0.4:
                known.append(KeptProducer(producer_id, self.last_data[producer_id], -1))
            elif kind < 0.6 and producer_id in self.last_marker:
                known.append(KeptProducer(producer_id, -1, self.last_marker[producer_id]))
        return tuple(known)


def clean_as_the_model(writer, now_ms):
    """One cleaning, held against the model; the log is as the cleaner left it."""
    log, chance = writer.log, writer.chance
    unreadable = frozenset(writer.unreadable)
    sources = log.sources[: -1 if len(log.sources) > 1 and chance.random() < 0.3 else None]
    if log.first_dirty_offset > sources[-1].end_offset:
        sources = list(log.sources)
    producers, first_offset = writer.producers(), log.first_dirty_offset
    before, indexed = log.read(unreadable=unreadable), {one.last_offset for one in log.aborted}
    removed_before = {source.base_offset: source.removed_upto for source in sources}
    later = before[len(sources) :]
    places = chance.choice((2, 5, 20, 1000))
    report = log.clean(
        producers=producers, now_ms=now_ms, delete_retention_ms=RETENTION_MS, sources=tuple(sources),
        dedupe_bytes=places * KEY_BYTES, segment_bytes=chance.choice((1, 2_000, 1 << 30)),
    )  # fmt: skip
    model = Cleaning(
        first_offset, report.cleaned_upto, now_ms, RETENTION_MS, tuple(writer.transactions),
        frozenset(one.last_offset for one in producers), frozenset(one.marker_offset for one in producers), unreadable,
    )  # fmt: skip
    expected = model.clean(before[: len(sources)])
    untouched = before[len(expected) : len(sources)] + later
    found = log.read(unreadable=unreadable)
    done = [segment for segment in found if segment.end_offset <= expected[-1].end_offset]
    assert [one for segment in done for one in segment.batches] == [
        one for segment in expected for one in segment.batches
    ]
    assert all(segment.is_cleaned for segment in done)
    assert found[len(done) :] == untouched
    ends = {one.marker_offset for one in writer.transactions if one.marker_offset < expected[-1].end_offset}
    kept = model.aborted(before[: len(expected)], indexed & ends) | indexed - ends
    assert {one.last_offset for one in log.aborted} == kept
    assert replay(found, tuple(writer.transactions)) == replay(before, tuple(writer.transactions))
    assert {seal.first_dirty_offset for seal in log.seals[:-1]} <= {first_offset}
    assert log.seals[-1].first_dirty_offset == report.cleaned_upto
    for seal in log.seals:
        removed = {*model.removed, *(indexed - kept)}  # an entry counts as its marker
        gone = [offset + 1 for offset in removed if seal.base_offset <= offset < seal.end_offset]
        assert seal.removed_upto == max(gone + [removed_before[base] for base in seal.replaced])
    return expected != before


@pytest.mark.parametrize("number", [*range(LOGS)])
def test_what_is_cleaned_is_what_the_model_says(chance, tmp_path, monkeypatch, number):
    del number
    monkeypatch.setattr(cleaning, "OUT_BYTES", chance.choice((1, 200, 1 << 20)))
    if chance.random() < 0.3:
        monkeypatch.setattr(codecs, "_library", lambda _name: None)
    monkeypatch.setattr(cleaning_run, "READ_BYTES", chance.choice((50, 900, 1 << 20)))
    log = CleanedLog(tmp_path)
    writer = Writer(chance, log)
    now_ms = NOW_MS
    writer.write()
    for _ in range(chance.choice((2, 4, 7))):
        if not log.sources:
            writer.write()
            continue
        clean_as_the_model(writer, now_ms)
        now_ms += chance.choice((0, 1, RETENTION_MS, RETENTION_MS // 2))
        if chance.random() < 0.5:
            writer.write()
