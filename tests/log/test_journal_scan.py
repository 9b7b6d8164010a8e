"""Reading a journal back: the chain, wraps, torn tails, damage; and that the C scan agrees."""

import uuid
from dataclasses import replace

import pytest

from tests.support.journal_file import encode_commit, encode_entry, encode_vote
from tpc_broker.log.journal import (
    BLOCK_BYTES,
    ENTRY_MAY_SKIP,
    REGION_BLOCK_FIRST,
    CommitCursor,
    EntryKind,
    JournalTooNewError,
    JournalUnreadableError,
    Superblock,
    WantedRun,
    choose_superblock,
    decode_superblock,
    journal_region_blocks,
    scan_journal,
)
from tpc_broker.model import TopicPartition
from tpc_broker.native_bytes import crc32c, ffi, lib

KEY = TopicPartition(uuid.UUID(int=5), 3)
ID = b"journal of tests"
BLOCKS = 64


class Image:
    """A journal file in memory, written like the real one."""

    def __init__(self, block=REGION_BLOCK_FIRST):
        self.data = bytearray((REGION_BLOCK_FIRST + BLOCKS) * BLOCK_BYTES)
        self.superblock = Superblock(ID, 1, BLOCKS, BLOCKS, block, 10, 77, 0)
        self.place = CommitCursor(block, 10, 77)
        self.starts = []

    def commit(self, *entries, durable=None, run_id=1):
        data, crc = encode_commit(self.place, entries, journal_id=ID, run_id=run_id,
                                  durable_sequence=self.place.sequence - 1 if durable is None else durable)
        block = self.place.block
        if block * BLOCK_BYTES + len(data) > len(self.data):
            block = REGION_BLOCK_FIRST
        self.data[block * BLOCK_BYTES : block * BLOCK_BYTES + len(data)] = data
        self.starts.append(block)
        self.place = CommitCursor(block + len(data) // BLOCK_BYTES, self.place.sequence + 1, crc)

    def appends(self, count, size=100):
        for _number in range(count):
            offset = self.place.sequence
            self.commit(encode_entry(EntryKind.APPEND, KEY, offset, offset + 1, bytes([offset % 256]) * size))

    def scan(self):
        machine = scan_journal(self.superblock)
        try:
            request = next(machine)
            while True:
                request = machine.send(bytes(self.data[request.position : request.position + request.length]).ljust(
                    request.length, b"\0"))
        except StopIteration as end:
            return end.value

    def payloads(self, scan, wanted):
        reader, found = scan.payloads.reader(wanted, 1), b""
        while reader.request is not None:
            position, length = reader.request
            data = bytes(self.data[position : position + length])
            found += b"".join(bytes(view) for _target, view in reader.take(data))
        return found

    def native_offsets(self):
        """Offsets of the entries as the scan in C finds them, and whether it calls the end damage."""
        region = bytes(self.data[REGION_BLOCK_FIRST * BLOCK_BYTES :])
        state = ffi.new("tpc_journal_scan_state *", {
            "region_bytes": len(region), "position": (self.superblock.replay_block - REGION_BLOCK_FIRST) * BLOCK_BYTES,
            "next_sequence": 10, "journal_id": ID, "previous_crc": 77})
        out = ffi.new("tpc_journal_entry[]", 1000)
        count = lib.tpc_journal_scan(region, len(region), 0, state, out, 1000)
        assert state.stop == lib.TPC_JOURNAL_CHAIN_ENDS
        damage = ffi.new("tpc_journal_damage *", {"region_bytes": len(region), "journal_id": ID,
                                                  "first_missing_sequence": state.next_sequence})
        return ([out[number].offset for number in range(count)],
                bool(lib.tpc_journal_find_damage(region, len(region), 0, damage)))

    def check(self, offsets, *, damaged=False, singly=True):
        found = self.scan()
        every = [offset for entry in found.entries
                 for offset in (range(entry.offset, entry.argument) if singly else [entry.offset])]
        assert every == offsets
        assert (found.damage is not None) is damaged, found.damage
        assert self.native_offsets() == (offsets, damaged)
        return found


def test_an_empty_journal():
    found = Image().check([])
    assert found.next == (REGION_BLOCK_FIRST, 10, 77)


def test_entries_of_every_kind_come_back():
    image = Image()
    image.commit(encode_entry(EntryKind.APPEND, KEY, 5, 9, b"batches"), encode_entry(EntryKind.CUT, KEY, 7),
                 encode_entry(EntryKind.EPOCH, KEY, 7, 4, encode_vote(2)), encode_entry(EntryKind.LOG_START, KEY, 6),
                 encode_entry(EntryKind.PARTITION_DELETED, KEY), run_id=9)
    found = image.check([5, 7, 7, 6, 0], singly=False)
    assert [entry.kind for entry in found.entries] == [1, 2, 3, 4, 5]
    assert found.entries[2].voted_for == 2
    assert found.last_run_id == 9
    first = found.entries[0]
    assert image.payloads(found, {0: WantedRun(5, 9, 0)}) == b"batches"
    assert all(entry.partition is first.partition for entry in found.entries)


def test_the_chain_goes_round_the_end_of_the_region():
    image = Image(block=REGION_BLOCK_FIRST + BLOCKS - 5)
    image.appends(8, size=6000)
    image.check(list(range(10, 18)))
    assert image.starts[2] == REGION_BLOCK_FIRST


def test_a_torn_tail_is_trimmed():
    image = Image()
    image.appends(5)
    image.commit(encode_entry(EntryKind.APPEND, KEY, 15, 16, bytes(9000)), durable=14)
    image.data[(image.starts[-1] + 1) * BLOCK_BYTES + 5] ^= 1
    image.check(list(range(10, 15)))


def test_commits_behind_a_hole_are_torn_when_the_missing_one_was_not_durable():
    image = Image()
    image.appends(5)
    image.commit(encode_entry(EntryKind.APPEND, KEY, 15, 16, b"x"), durable=13)
    image.data[image.starts[4] * BLOCK_BYTES + 200] ^= 1
    assert image.check(list(range(10, 14))).torn_commits_count == 1


def test_commits_behind_a_hole_prove_damage_when_the_missing_one_was_durable():
    image = Image()
    image.appends(8)
    image.data[image.starts[3] * BLOCK_BYTES + 150] ^= 1
    found = image.check([10, 11, 12], damaged=True)
    assert "commits 13 to" in found.damage


def test_what_an_earlier_lap_left_behind_is_no_alarm():
    image = Image()
    image.appends(30)
    image.superblock = image.superblock.next(replay_block=image.starts[20], replay_sequence=30, replay_previous_crc=0)
    image.place = CommitCursor(image.starts[20], 30, 0)
    image.appends(3)
    found = image.scan()
    assert [(entry.offset, entry.argument) for entry in found.entries] == [(30, 33)]


def test_another_journals_commits_are_strangers():
    image = Image()
    image.appends(3)
    image.superblock = Superblock(b"another journal!", 1, BLOCKS, BLOCKS, REGION_BLOCK_FIRST, 10, 77, 0)
    assert image.scan().entries == ()


def test_superblocks_alternate_and_a_torn_one_leaves_its_predecessor():
    old = Superblock(ID, 6, 100, 50, 2, 1, 0, 3)
    new = old.next(replay_block=9, replay_sequence=20, clean=True)
    blocks = {old.slot: old.encode(), new.slot: new.encode()}
    assert old.slot != new.slot
    assert choose_superblock(blocks[0] + blocks[1]) == new
    torn = bytearray(blocks[new.slot])
    torn[60] ^= 1
    blocks[new.slot] = bytes(torn)
    assert choose_superblock(blocks[0] + blocks[1]) == old
    with pytest.raises(JournalUnreadableError, match="superblock 0: no superblock"):
        choose_superblock(bytes(2 * BLOCK_BYTES))
    with pytest.raises(JournalUnreadableError):
        decode_superblock(b"")


def version_1(superblock):
    """As the first releases wrote it: no features, the CRC right behind the fields."""
    block = bytearray(superblock.encode())
    block[4:6] = (1).to_bytes(2, "little")
    fields = bytes(block[:FIELDS_BYTES])
    return (fields + crc32c(fields).to_bytes(4, "little")).ljust(BLOCK_BYTES, b"\0")


def with_crc(block):
    return block[:-4] + crc32c(bytes(block[:-4])).to_bytes(4, "little")


FIELDS_BYTES = 80
OLD = Superblock(ID, 6, 100, 50, 2, 1, 0, 3)


def test_a_superblock_of_version_1_is_read_and_its_successor_is_of_version_2():
    old = decode_superblock(version_1(OLD))
    assert old == replace(OLD, features_required=0, features_optional=0)
    assert old.is_of_version_1
    assert decode_superblock(old.next().encode()) == OLD.next()


@pytest.mark.parametrize("later", [
    replace(OLD.next(), features_required=1 | 1 << 5 | 1 << 63).encode(),
    with_crc(OLD.next().encode()[:4] + b"\x03\0" + OLD.next().encode()[6:]),
], ids=["required features", "version 3"])  # fmt: skip
def test_what_a_later_release_requires_is_refused_by_name(later):
    """And the other superblock, which would be readable, is not taken instead."""
    for blocks in (later + OLD.encode(), OLD.encode() + later):
        with pytest.raises(JournalTooNewError, match=r"features not known here: bit 5, 63|version 3 with"):
            choose_superblock(blocks)


def test_unknown_optional_features_are_kept():
    later = replace(OLD, features_optional=1 << 40)
    assert decode_superblock(later.encode()) == later
    assert later.next().features_optional == 1 << 40 | OLD.features_optional


def test_an_entry_of_an_unknown_kind_is_passed_over_only_where_it_says_so():
    image = Image()
    image.appends(1)
    image.commit(encode_entry(99, KEY, 1, 2, b"later", flags=ENTRY_MAY_SKIP))
    assert image.scan().too_new is None
    assert [entry.kind for entry in image.scan().entries] == [EntryKind.APPEND]
    image.commit(encode_entry(98, KEY, 1, 2, b"later"))
    assert "commit 12 has an entry of kind 98" in image.scan().too_new


def test_the_size_of_a_journal():
    gibibyte = 1024**3
    assert journal_region_blocks(gibibyte // 4, 1000 * gibibyte) == gibibyte // 4 // 4096 - 2
    assert journal_region_blocks(gibibyte // 4, gibibyte) == int(gibibyte * 0.05) // 4096 - 2
    assert journal_region_blocks(gibibyte // 4, 10**6) == 1022
    assert journal_region_blocks(gibibyte // 4, gibibyte, 5) == int(gibibyte * 0.05) // 5 // 4096 - 2
