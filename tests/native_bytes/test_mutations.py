"""Mutated inputs through the Python face: each decoder has an invariant, and a canary shows that a fault is seen.

`ROUNDS` are made for each decoder, more in the long tier; `--seed` repeats a run. Memory errors are the business of
test_sanitizers; here it is whether what is accepted is understood rightly.
"""

import struct

import pytest

from tests.native_bytes import corpus
from tests.native_bytes.built_batches import NOW_MS
from tests.native_bytes.hot_structs import decode_fetch, decode_produce, fetch_request_of, produce_request_of
from tests.support.native_batches import BatchLimits, read_records, scan_batches, seal_batch, validate_batch
from tests.support.native_journal import JournalReader
from tpc_broker.kafka import DecodeError, decode
from tpc_broker.native_bytes import crc32c

ROUNDS = 1_000
MANY_ROUNDS = 50_000
CASES = corpus.cases()
EBADMSG, E2BIG = -74, -7


def mutated(rng, data):
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed)) if changed else 0
        kind = rng.randrange(5)
        if kind == 0 and changed:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and changed:
            changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF))
        elif kind == 2:
            del changed[at : at + rng.randrange(1, 6)]
        elif kind == 3:
            changed[at:at] = rng.randbytes(rng.randrange(1, 6))
        else:
            changed[at : at + 4] = rng.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4), b"\x80\0\0\0"))
    return bytes(changed)


@pytest.fixture(params=[ROUNDS, pytest.param(MANY_ROUNDS, marks=pytest.mark.asan)])
def mutations(request, chance):
    """mutations(target): mutated cases of one target."""

    def make(target):
        chosen = [(version, data) for case_target, version, data in CASES if case_target == target]
        for _ in range(request.param):
            version, data = chance.choice(chosen)
            yield version, mutated(chance, data)

    return make


def check_request(name, decode_in_c, flatten, version, data):
    """What both codecs accept, they understand alike; what one refuses, so does the other.

    Save strings that are no UTF-8: C does not look at them.
    """
    result, found = decode_in_c(data, version)
    assert result in (0, EBADMSG, E2BIG)
    message, complaint = None, ""
    try:
        message = decode(name, version, data)
    except DecodeError as error:
        complaint = str(error)
    if message is None:
        assert result != 0 or "UTF-8" in complaint, f"C accepts what Python refuses: {complaint}"
        return result == 0
    assert result != EBADMSG, "C refuses what Python accepts"
    assert result == E2BIG or found == flatten(message, version)
    return result == 0


@pytest.mark.parametrize("name", ["ProduceRequest", "FetchRequest"])
def test_requests(name, mutations):
    produce = name == "ProduceRequest"
    decode_in_c, flatten = (decode_produce, produce_request_of) if produce else (decode_fetch, fetch_request_of)
    accepted = 0
    for version, data in mutations(corpus.PRODUCE if produce else corpus.FETCH):
        accepted += check_request(name, decode_in_c, flatten, version, data)
    assert accepted > 0


def test_the_canary_in_a_request_is_seen(mutations):
    def forgetful(data, version):
        result, found = decode_produce(data, version)
        if found:
            found["acks"] &= 0x7FFE
        return result, found

    with pytest.raises(AssertionError):
        for version, data in mutations(corpus.PRODUCE):
            check_request("ProduceRequest", forgetful, produce_request_of, version, data)


LIMITS = BatchLimits(now_ms=NOW_MS + 1000)


def check_batch(data, validate=validate_batch):
    """What is accepted has the checksum, the count and the records that it says."""
    report = validate(data, LIMITS)
    if report.error_code:
        return False
    header = report.header
    whole = data[: header.batch_bytes]
    assert header.crc == crc32c(whole[21:])
    assert header.records_count == header.last_offset_delta + 1 > 0
    assert header.base_offset == 0
    assert not header.is_control
    assert header.compression <= 4
    if report.walked:
        records = list(read_records(whole[61:]))
        assert [record.offset_delta for record in records] == list(range(header.records_count))
        wide = 2**64
        stamps = [(header.base_timestamp + record.timestamp_delta + wide // 2) % wide - wide // 2 for record in records]
        assert header.is_append_time or report.records_max_timestamp == max([-1, *stamps])
    return True


def sealed(data):
    changed = bytearray(data)
    if len(changed) >= 61:
        struct.pack_into(">i", changed, 8, len(changed) - 12)
        changed[16] = 2
        seal_batch(changed)
    return bytes(changed)


def test_batches(mutations):
    accepted = refused = 0
    for _, data in mutations(corpus.BATCH):
        for variant in (data, sealed(data)):
            if check_batch(variant):
                accepted += 1
            else:
                refused += 1
    assert accepted > 0
    assert refused > 0


def test_the_canary_in_a_batch_is_seen(mutations):
    def blind(data, limits):
        report = validate_batch(data, limits)
        return report._replace(error_code=0) if report.header else report

    with pytest.raises((AssertionError, ValueError)):
        for _, data in mutations(corpus.BATCH):
            check_batch(sealed(data), blind)


def test_logs(mutations):
    """A scan yields whole valid batches from the beginning on, whatever comes after."""
    for flags, data in mutations(corpus.LOG):
        scan = scan_batches(data, allow_gaps=bool(flags & 2))
        position, next_offset = 0, None
        for entry in scan.batches:
            assert entry.position == position
            assert next_offset is None or entry.base_offset == next_offset or flags & 2
            position, next_offset = entry.position + entry.batch_bytes, entry.last_offset + 1
            batch = data[entry.position : position]
            assert struct.unpack_from(">I", batch, 17)[0] == crc32c(batch[21:])
        assert scan.end_position == position
        assert (scan.reason == "ok") == (position == len(data))


def read_journal(region):
    reader = JournalReader(
        region_bytes=len(region), journal_id=corpus.JOURNAL_ID, position=0, next_sequence=1, previous_crc=0
    )
    entries = []
    while reader.wanted is not None:
        position, size = reader.wanted
        entries += reader.feed(position, region[position : position + size])
    return [(entry.sequence, entry.offset, bytes(entry.payload)) for entry in entries]


def test_journals(mutations):
    """What is read from a damaged journal is a prefix of what was written: nothing invented, nothing skipped."""
    whole = corpus.journal()
    written, shorter = read_journal(whole), 0
    for _, data in mutations(corpus.JOURNAL):
        found = read_journal((data + bytes(len(whole)))[: len(whole)])
        assert found == written[: len(found)]
        shorter += len(found) < len(written)
    assert shorter > 0
