"""The map of keys: its hash is the one that is known to be sound, and it holds what it says. And zstd."""

import ctypes
from random import Random

import cramjam
import pytest

from tests.support.cleaned_logs import CleanedLog
from tests.support.record_batches import Record, batch
from tpc_broker.cleaner.codecs import codec_of_a_job
from tpc_broker.kafka.compression import Compression, decompress
from tpc_broker.kafka.records import Record as ClientRecord
from tpc_broker.kafka.records import build_batch
from tpc_broker.log.batch import BATCH_HEADER_BYTES, decode_header
from tpc_broker.log.cleaning import KEY_BYTES, NATIVE_BYTES_MAX, Cleaning, map_bytes
from tpc_broker.log.cleaning_job import CleaningSource

HASH_KEY = bytes(range(16))
OF_THE_AUTHORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
}
"""SipHash-2-4 with 128 bits of so many bytes 00 01 02 ..., with that key (vectors_sip128)."""


def collected(tmp_path, keys, *, places):
    """The map's memory, and the machine, after a batch of these keys."""
    data = batch([Record(b"v", key) for key in keys])
    source = CleaningSource(0, len(keys), len(data), 1, False, 0, 0)
    job = CleanedLog(tmp_path, [source]).job(dedupe_bytes=places * KEY_BYTES)
    memory = bytearray(map_bytes(job))
    with codec_of_a_job() as codec:
        cleaning = Cleaning(job, codec, memoryview(memory), HASH_KEY)
        cleaning.begin(source)
        cleaning.collect(memoryview(data))
    return memory, cleaning


def entries(memory):
    """Hash and offset of each key."""
    rows = [bytes(memory[at : at + KEY_BYTES]) for at in range(0, len(memory), KEY_BYTES)]
    return {row[:16]: int.from_bytes(row[16:], "little") - 1 for row in rows if any(row)}


@pytest.mark.parametrize("size", OF_THE_AUTHORS)
def test_the_hash_is_the_one_of_its_authors(tmp_path, size):
    memory, _ = collected(tmp_path, [bytes(range(size))], places=10)
    assert entries(memory) == {bytes.fromhex(OF_THE_AUTHORS[size]): 0}


def test_keys_of_all_lengths_have_entries_of_their_own(tmp_path):
    keys = [b"x" * size for size in range(100)] + [bytes(size) for size in range(1, 100)]
    memory, cleaning = collected(tmp_path, keys + keys, places=1000)
    assert sorted(entries(memory).values()) == list(range(len(keys), 2 * len(keys)))
    assert (cleaning.keys_count, cleaning.end_offset, cleaning.is_full) == (len(keys), 2 * len(keys), False)


@pytest.mark.parametrize("places", [2, 3, 10, 100, 1000])
def test_it_says_when_it_is_full(tmp_path, places):
    """Keys that it has may come again; the first one that has no room is where it ends."""
    keys = [b"%d" % n for n in range(places)]
    room = max(1, min(int(places * 0.9), places - 1))
    memory, cleaning = collected(tmp_path, [*keys[:room], *keys[:room], *keys[room:]], places=places)
    assert cleaning.is_full
    assert (cleaning.keys_count, cleaning.end_offset) == (room, 2 * room)
    assert sorted(entries(memory).values()) == list(range(room, 2 * room))


def test_a_job_takes_no_more_memory_than_its_offsets_need(tmp_path):
    log = CleanedLog(tmp_path)
    log.append(batch([Record(b"v", b"k")] * 10))
    assert map_bytes(log.job(dedupe_bytes=1 << 40)) == 36 * KEY_BYTES
    assert map_bytes(log.job(dedupe_bytes=100)) == 4 * KEY_BYTES
    assert map_bytes(log.job(dedupe_bytes=1 << 40, first_dirty_offset=10)) == 16 * KEY_BYTES


def packed_by(tmp_path, records_count):
    """Of a zstd batch every second record goes: the packed records that stay, and what they are."""
    random = Random(records_count)
    words = [b"%016x" % random.getrandbits(64) for _ in range(4096)]
    records = [Record(b" ".join(random.choices(words, k=59)), b"%d" % (n // 2)) for n in range(2 * records_count)]
    data = batch(records, codec=Compression.ZSTD)
    source = CleaningSource(0, len(records), len(data), 1, False, 0, 0)
    job = CleanedLog(tmp_path, [source]).job()
    written = bytearray()
    with codec_of_a_job() as codec:
        cleaning = Cleaning(job, codec, memoryview(bytearray(map_bytes(job))), HASH_KEY)
        cleaning.begin(source)
        assert cleaning.collect(memoryview(data)) == len(data)
        cleaning.end(source)
        cleaning.begin(source)
        assert cleaning.rewrite(memoryview(data), written.extend) == len(data)
    header = decode_header(written, 0)
    assert header.records_count == records_count
    return bytes(written[BATCH_HEADER_BYTES:]), records[1::2]


@pytest.mark.parametrize("records_count", [1, 8, 11, 13, 100, 500])
def test_zstd_is_as_small_as_kafka_makes_it(tmp_path, records_count):
    """Kafka's cleaner packs a stream whose length it does not know. From 12 of these records on they are not few."""
    packed, kept = packed_by(tmp_path, records_count)
    plain = bytes(decompress(Compression.ZSTD, memoryview(packed)))
    assert [plain.count(record.value) for record in kept] == [1] * records_count
    stream = cramjam.zstd.Compressor(level=3)
    stream.compress(plain)
    assert len(packed) < 1.005 * len(bytes(stream.finish()))


class Counted:
    """A library's function that counts its calls."""

    def __init__(self, address, kind):
        self.calls = 0
        self._real = kind(address)
        self._held = kind(self._call)
        self.address = ctypes.cast(self._held, ctypes.c_void_p).value

    def _call(self, *arguments):
        self.calls += 1
        return self._real(*arguments)


LZ4_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
ZSTD_FUNCTION = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t
)
BATCHES, BATCH_RECORDS = 12, 9
HEADER_BYTES = 80
"""Of one that is remembered, in front of its records."""


@pytest.mark.parametrize(("compression", "function"), [(Compression.LZ4, "lz4"), (Compression.ZSTD, "zstd")])
@pytest.mark.parametrize("spare_bytes", [0, 1000, 5000, 1 << 20])
def test_what_collecting_has_unpacked_is_not_unpacked_again_where_there_was_room(
    tmp_path, compression, function, spare_bytes
):
    """And what is written is the same, also when it is written a second time from the middle on."""
    every = [
        bytes(build_batch(
            [ClientRecord(bytes(100), b"%d" % (n % 7), 1) for n in range(at, at + BATCH_RECORDS)],
            base_offset=at, compression=compression, partition_leader_epoch=0,
        ))
        for at in range(0, BATCHES * BATCH_RECORDS, BATCH_RECORDS)
    ]  # fmt: skip
    data = b"".join(every)
    source = CleaningSource(0, BATCHES * BATCH_RECORDS, len(data), 1, False, 0, 0)
    job = CleanedLog(tmp_path, [source]).job()
    found, calls = [], []
    # Room for the largest batch has to be left, where one is to be remembered.
    for memory in (None, bytearray(NATIVE_BYTES_MAX + spare_bytes)):
        with codec_of_a_job() as codec:
            name = f"{function}_unpack"
            kind = LZ4_FUNCTION if compression is Compression.LZ4 else ZSTD_FUNCTION
            counted = Counted(getattr(codec.native, name), kind)
            counting = codec._replace(native=codec.native._replace(**{name: counted.address}))
            room = None if memory is None else memoryview(memory)
            cleaning = Cleaning(job, counting, memoryview(bytearray(map_bytes(job))), HASH_KEY, room)
            cleaning.begin(source)
            assert cleaning.collect(memoryview(data)) == len(data)
            cleaning.end(source)
            assert counted.calls == BATCHES
            written = bytearray()
            cleaning.begin(source)
            half = len(b"".join(every[: BATCHES // 2]))
            assert cleaning.rewrite(memoryview(data)[:half], written.extend) == half
            for again in (True, False):
                before = cleaning.progress()
                end = bytearray()
                assert cleaning.rewrite(memoryview(data)[half:], end.extend) == len(data) - half
                if again:
                    cleaning.go_back(before, may_grow=True)
            found.append(bytes(written + end))
            calls.append(counted.calls - BATCHES)
    assert found[0] == found[1]
    assert calls[0] == BATCHES + BATCHES // 2
    remembered = min(BATCHES, (spare_bytes - HEADER_BYTES) // (HEADER_BYTES + 992) + 1) if spare_bytes else 0
    second_half = max(0, remembered - BATCHES // 2)
    assert calls[1] == calls[0] - remembered - second_half
