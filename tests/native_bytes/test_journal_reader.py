import random
import struct

import crc32c as other_crc32c
import pytest

from tests.support import native_journal
from tests.support.native_journal import BLOCK_BYTES, EntryKind, EntryToWrite, JournalReader, make_commit

JOURNAL, OTHER_JOURNAL = bytes(range(16)), bytes(16)
TOPIC = b"topic-id-16bytes"
REGION_BLOCKS = 64


def append(index, size=100):
    return EntryToWrite(EntryKind.APPEND, TOPIC, index % 7, index, index + 1, bytes([index % 251]) * size)


class Writer:
    """A journal's region in memory, written by the rules of the format."""

    def __init__(self, blocks=REGION_BLOCKS, first_sequence=1):
        self.region = bytearray(blocks * BLOCK_BYTES)
        self.position, self.sequence, self.crc = 0, first_sequence, 0
        self.run_id = 1
        self.places = {}

    def commit(self, *entries, durable=None, journal_id=JOURNAL):
        durable = max(0, self.sequence - 1) if durable is None else durable
        data, self.crc = make_commit(
            journal_id=journal_id,
            sequence=self.sequence,
            previous_crc=self.crc,
            entries=entries,
            run_id=self.run_id,
            durable_sequence=durable,
            submitted_ms=self.sequence * 10,
        )
        if self.position + len(data) > len(self.region):
            self.position = 0
        self.region[self.position : self.position + len(data)] = data
        self.places[self.sequence] = (self.position, len(data))
        self.position += len(data)
        self.sequence += 1


def reader_of(region, position=0, next_sequence=1, previous_crc=0):
    return JournalReader(
        region_bytes=len(region),
        journal_id=JOURNAL,
        position=position,
        next_sequence=next_sequence,
        previous_crc=previous_crc,
    )


def drain(reader, region):
    entries = []
    while reader.wanted is not None:
        position, size = reader.wanted
        entries += reader.feed(position, bytes(region[position : position + size]))
    return entries


def test_a_chain_is_read_back():
    writer = Writer()
    written = [[append(n * 10 + i, size=n * 37 + i) for i in range(n % 5)] for n in range(12)]
    for entries in written:
        writer.commit(*entries)
    reader = reader_of(writer.region)
    found = drain(reader, writer.region)
    flat = [(1 + n, entry) for n, entries in enumerate(written) for entry in entries]
    assert [(e.sequence, (e.kind, e.topic_id, e.partition, e.offset, e.argument, bytes(e.payload))) for e in found] == [
        (sequence, tuple(entry)) for sequence, entry in flat
    ]
    for entry in found:
        assert writer.region[entry.payload_position : entry.payload_position + len(entry.payload)] == entry.payload
    assert (reader.next_sequence, reader.previous_crc, reader.position) == (13, writer.crc, writer.position)
    assert (reader.commits_count, reader.durable_sequence, reader.submitted_ms, reader.run_id) == (12, 11, 120, 1)
    assert reader.damage is None


def test_the_checksum_is_the_one_the_format_describes():
    data, crc = make_commit(journal_id=JOURNAL, sequence=5, previous_crc=9, entries=[append(3)])
    size = struct.unpack_from("<I", data, 60)[0]
    assert size == 96 + 48 + 100
    cleared = bytearray(data[:size])
    cleared[68:72] = bytes(4)
    assert crc == struct.unpack_from("<I", data, 68)[0] == other_crc32c.crc32c(bytes(cleared))
    assert struct.unpack_from("<I", data)[0] == 0x4A435054
    assert data[:4] == b"TPCJ"


def test_an_empty_region():
    reader = reader_of(bytearray(BLOCK_BYTES * 4))
    assert drain(reader, bytearray(BLOCK_BYTES * 4)) == []
    assert (reader.damage, reader.next_sequence, reader.position) == (None, 1, 0)


@pytest.mark.parametrize("window", [BLOCK_BYTES, 3 * BLOCK_BYTES, 1 << 22])
def test_many_laps_with_windows_of_any_size(window, monkeypatch):
    monkeypatch.setattr(native_journal, "WINDOW_BYTES", window)
    rng = random.Random(4)
    writer = Writer(blocks=32)
    crcs = {0: 0}
    for _ in range(400):
        writer.commit(*[append(rng.randrange(1000), rng.randrange(6000)) for _ in range(rng.randrange(4))])
        crcs[writer.sequence - 1] = writer.crc
        live, used = writer.sequence, 0
        while live - 1 in writer.places and used + writer.places[live - 1][1] <= 16 * BLOCK_BYTES:
            live -= 1
            used += writer.places[live][1]
        reader = reader_of(writer.region, writer.places[live][0], live, crcs[live - 1])
        drain(reader, writer.region)
        assert (reader.next_sequence, reader.damage) == (writer.sequence, None)
        assert reader.position == writer.position


def test_more_entries_in_a_commit_than_fit_one_call():
    writer = Writer(blocks=256)
    writer.commit(*[append(n, size=n % 9) for n in range(5000)])
    writer.commit(append(1))
    found = drain(reader_of(writer.region), writer.region)
    assert len(found) == 5001
    assert [entry.offset for entry in found[:5000]] == list(range(5000))


def test_a_torn_tail_ends_the_chain_and_is_no_damage():
    writer = Writer()
    for n in range(6):
        writer.commit(append(n, size=5000), durable=max(0, n - 1))
    position, size = writer.places[6]
    for torn in range(0, 96 + 48 + 5000, 512):
        region = bytearray(writer.region)
        region[position + torn : position + size] = bytes(size - torn)
        reader = reader_of(region)
        assert [entry.offset for entry in drain(reader, region)] == [0, 1, 2, 3, 4]
        assert (reader.next_sequence, reader.damage) == (6, None)


def test_a_hole_in_what_was_durable_is_damage():
    writer = Writer()
    for n in range(6):
        writer.commit(append(n), durable=n)
    for sequence in range(1, 6):
        region = bytearray(writer.region)
        region[writer.places[sequence][0] + 150] ^= 1
        reader = reader_of(region)
        drain(reader, region)
        assert reader.next_sequence == sequence
        assert reader.damage is not None
        assert (reader.damage.missing_sequence, reader.damage.sequence) == (sequence, sequence + 1)
        assert reader.damage.durable_sequence >= sequence


def test_a_hole_among_what_was_in_flight_is_no_damage():
    """Commits 3, 4 and 5 were submitted together, when 2 was the last durable one; 3 did not reach the disk."""
    writer = Writer()
    for n in range(5):
        writer.commit(append(n), durable=min(n, 2))
    region = bytearray(writer.region)
    position, size = writer.places[3]
    region[position : position + size] = bytes(size)
    reader = reader_of(region)
    assert len(drain(reader, region)) == 2
    assert reader.damage is None


def test_leftovers_of_an_earlier_run_are_neither_replayed_nor_damage():
    """A run crashed with 3 and 4 unacknowledged on the disk, 3 torn; the next run writes its own, shorter 3."""
    writer = Writer()
    for n in range(4):
        writer.commit(append(n, size=100), durable=min(n, 2))
    region, place = writer.region, writer.places[3][0]
    region[place : place + BLOCK_BYTES] = bytes(BLOCK_BYTES)
    reader = reader_of(region)
    drain(reader, region)
    assert reader.next_sequence == 3
    writer.position, writer.sequence, writer.crc, writer.run_id = reader.position, 3, reader.previous_crc, 2
    writer.commit(append(77), durable=2)
    reader = reader_of(region)
    assert [entry.offset for entry in drain(reader, region)] == [0, 1, 77]
    assert (reader.next_sequence, reader.run_id, reader.damage) == (4, 2, None)


def test_another_journals_commits_are_strangers():
    writer = Writer()
    writer.commit(append(1))
    crc = writer.crc
    writer.commit(append(2), journal_id=OTHER_JOURNAL, durable=100)
    reader = reader_of(writer.region)
    assert len(drain(reader, writer.region)) == 1
    assert (reader.previous_crc, reader.damage) == (crc, None)


def test_a_wrong_predecessor_is_not_followed_unless_any_will_do():
    writer = Writer()
    writer.commit(append(1), durable=0)
    for previous_crc, entries in ((0, 1), (1, 0), (None, 1)):
        assert len(drain(reader_of(writer.region, previous_crc=previous_crc), writer.region)) == entries


@pytest.mark.parametrize(
    ("position", "layout", "value"),
    [(96, "<I", 47), (96, "<I", 2**32 - 1), (96, "<I", 149), (64, "<I", 2), (64, "<I", 0), (64, "<I", 2**32 - 1)],
)
def test_impossible_entries_under_a_right_checksum_are_damage(position, layout, value):
    writer = Writer()
    writer.commit(append(1))
    struct.pack_into(layout, writer.region, position, value)
    size = struct.unpack_from("<I", writer.region, 60)[0]
    struct.pack_into("<I", writer.region, 68, 0)
    struct.pack_into("<I", writer.region, 68, other_crc32c.crc32c(bytes(writer.region[:size])))
    reader = reader_of(writer.region)
    assert drain(reader, writer.region) == []
    assert reader.damage is not None
    assert reader.damage.missing_sequence == 1


def test_every_flipped_byte_is_noticed():
    writer = Writer(blocks=4)
    writer.commit(append(1, size=200), durable=0)
    for position in range(96 + 48 + 200):
        region = bytearray(writer.region)
        region[position] ^= 0x41
        assert drain(reader_of(region), region) == []


def test_the_reader_insists_on_what_it_asked_for():
    reader = reader_of(bytes(BLOCK_BYTES * 4))
    with pytest.raises(ValueError, match="wanted"):
        reader.feed(0, bytes(BLOCK_BYTES))
    with pytest.raises(ValueError, match="multiple"):
        reader_of(bytes(BLOCK_BYTES + 1))
    drain(reader, bytes(BLOCK_BYTES * 4))
    with pytest.raises(ValueError, match="end"):
        reader.feed(0, bytes(BLOCK_BYTES))
