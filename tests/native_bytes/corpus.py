"""Valid inputs for the mutation tests, for Python and for the C driver (``native/tests/bytes_mutations.c``)."""

import struct

from tests.kafka.test_golden import VECTORS
from tests.native_bytes.built_batches import NOW_MS, batch, patched, with_records
from tests.support.native_batches import stamp
from tests.support.native_journal import EntryKind, EntryToWrite, make_commit
from tpc_broker.kafka.compression import LZ4_HEADER
from tpc_broker.kafka.records import ControlType, control_batch

(
    PRODUCE, FETCH, HEADER, BATCH, LOG, JOURNAL, COLUMNS, LINK, PRODUCE_ANSWER, FETCH_ANSWER, DATAGRAM, CLEAN, ROWS,
    PACKED, SEGMENT,
) = range(15)  # fmt: skip
JOURNAL_ID = b"j" * 16


def record_batches():
    headers = [("name", b"value"), ("null", None)]
    plain = [batch(n, key=key, headers=headers[:n]) for n in (1, 2, 9) for key in (b"k", None, b"")]
    packed = [batch(20, compression=1), batch(5, compression=4)]
    return [*plain, batch(3, value=bytes(300), producer=(5, 1, 7)), *packed]


def log_of(batches):
    log, offset = bytearray(), 100
    for count, data in batches:
        stamp(data, offset, 3)
        log += data
        offset += count
    return log


def journal():
    region, crc = b"", 0
    for sequence in range(1, 5):
        payload = bytes(batch(sequence))
        entries = [EntryToWrite(EntryKind.APPEND, b"t" * 16, n, n, n + 1, payload) for n in range(sequence * 5)]
        commit, crc = make_commit(journal_id=JOURNAL_ID, sequence=sequence, previous_crc=crc, entries=entries)
        region += commit
    return region + bytes(4096)


def datagrams():
    head = struct.Struct(">BBHIII")
    yield head.pack(1, 1, 0, 5, 6, 7) + b"value"
    yield head.pack(1, 3, 3, 5, 6, 7) + b"keyvalue"
    yield head.pack(1, 7, 1, 5, 6, 7) + struct.pack(">q", 1_700_000_000_000) + b"k"
    yield head.pack(1, 128, 0, 5, 6, 7)


def link_frames():
    hello = b"TLNK" + struct.pack("<HHIIQ", 1, 0, 3, 0, 99)
    subject = struct.pack("<H", 10) + b"User:alice" + b"10.0.0.1"
    return [
        struct.pack("<BBHIQ", 1, 1, 0, 0, 0) + hello,
        struct.pack("<BBHIQ", 1, 2, 1, 7, 5 << 32) + b"\0\0\0\4body",
        struct.pack("<BBHIQ", 1, 8, 1, 0, 5 << 32) + subject,
    ]


def logs_to_clean():
    """Single batches first: those are sealed again when something is changed in them."""
    contents = [(key, value) for key in (b"a", b"b", None) for value in (b"v", None)]
    of_producer = [batch(4, key=key, value=value, producer=(5, 1, 7)) for key, value in contents]
    for attributes in (0x10, 0x40, 0x50):
        of_producer.append(patched(batch(4, key=b"a", value=None, producer=(6, 1, 7)), 21, ">h", attributes))
    marker = control_batch(ControlType.ABORT, producer_id=5, producer_epoch=1, coordinator_epoch=2, timestamp_ms=NOW_MS)
    yield from (log_of([(4, data)]) for data in of_producer)
    yield log_of([(1, bytearray(marker))])
    yield log_of([(20, batch(20, compression=4))])
    plain = batch(6, key=b"a")[61:]
    for stored in (0, 1 << 31):
        parts = [plain[:100], plain[100:]]
        blocks = b"".join((len(part) | stored).to_bytes(4, "little") + part for part in parts) + bytes(4)
        packed = patched(with_records(batch(6, key=b"a"), LZ4_HEADER + blocks), 21, ">h", 3)
        yield log_of([(6, packed)])
    headers = [(n, batch(n, key=b"%d" % (n % 3), headers=[("n", b"v")], step_ms=n * 1000)) for n in range(1, 9)]
    yield log_of([*headers, *((4, data) for data in of_producer), (1, bytearray(marker)), (9, batch(9, compression=1))])


def packed():
    """What columns are like: see native/tests/packed_mutations.h."""
    times = (NOW_MS, NOW_MS + 5, 0, -1, 2**63 - 1, -(2**63))
    for flags in range(4):
        for count in (1, 2, 16):
            kinds = [(17 * n % 256, 31 * n % 256, n, 9 * n % 256, 5 * n, times[n % 6]) for n in range(count)]
            yield struct.pack("<BB", count - 1, flags) + b"".join(struct.pack("<5Bq", *kind) for kind in kinds)


def answer(version, flexible_from, body):
    """A whole one, as it is sent."""
    header = struct.pack(">i", 77) + (b"\0" if version >= flexible_from else b"")
    return struct.pack(">i", len(header) + len(body)) + header + body


def cases():
    """``(target, version, bytes)`` of everything."""
    found = [(PRODUCE, version, data) for version, _, data in VECTORS["ProduceRequest"]]
    found += [(FETCH, version, data) for version, _, data in VECTORS["FetchRequest"]]
    for key, version, tags in ((0, 9, b"\0"), (0, 8, b""), (1, 12, b"\x01\x05\x02ab"), (18, 3, b"\0"), (18, 0, b"")):
        found.append((HEADER, 0, struct.pack(">hhih6s", key, version, 7, 6, b"client") + tags + b"body"))
    found += [(LINK, 0, frame) for frame in link_frames()]
    found += [(DATAGRAM, 0, data) for data in datagrams()]
    found += [(PRODUCE_ANSWER, version, answer(version, 9, data)) for version, _, data in VECTORS["ProduceResponse"]]
    found += [(FETCH_ANSWER, version, answer(version, 12, data)) for version, _, data in VECTORS["FetchResponse"]]
    for number, data in enumerate(record_batches()):
        found.append((BATCH, 12 + number % 2, bytes(data)))
    for flags in range(4):
        found.append((LOG, flags, bytes(log_of([(n, batch(n)) for n in range(1, 14)]))))
    for flags in range(4):
        with_headers = [(n, batch(n, key=b"k", headers=[("n", b"v")] * (n % 3))) for n in range(1, 9)]
        for target in (COLUMNS, ROWS):
            mixed = [(9, batch(9)), (2, batch(2, producer=(5, 1, 7), compression=1))]
            found.append((target, flags, bytes(log_of(with_headers))))
            found.append((target, flags, bytes(log_of(mixed))))
            found += [(target, flags, bytes(log_of([(1, data)]))) for data in record_batches()]
    found += [(CLEAN, flags, bytes(log)) for flags in range(8) for log in logs_to_clean()]
    found += [(SEGMENT, 0, bytes(log)) for log in logs_to_clean()]
    found += [(PACKED, 0, data) for data in packed()]
    return [*found, (JOURNAL, 0, journal())]


def corpus_file():
    return b"".join(struct.pack("<BhI", target, version, len(data)) + data for target, version, data in cases())
