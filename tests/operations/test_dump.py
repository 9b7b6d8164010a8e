"""`tpc-broker dump`: what a segment file holds, what is damaged in it, and what is behind its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.cleaned_folder import make_cleaned, swap
from tests.support.record_batches import DELETE_HORIZON, batch
from tests.support.record_batches import Record as Record_
from tests.support.segment_log import Log
from tpc_broker.kafka.compression import Compression
from tpc_broker.kafka.records import HEADER_BYTES, Record, build_batch
from tpc_broker.process.main import main

FIRST = build_batch([Record(b"one", b"k", 1000), Record(None, None, 1001, (("h", b"x"),))], base_offset=7)
SECOND = build_batch(
    [Record(b"\xff", None, 2000)], base_offset=9, compression=Compression.ZSTD, producer_id=5, producer_epoch=1,
    base_sequence=3, partition_leader_epoch=4,
)  # fmt: skip


def dumped(path: Path, *options: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["dump", str(path), *options], catch_exceptions=False)
    assert done.exit_code == code, (done.stdout, done.stderr)
    return done.stderr if code == 2 else done.stdout


def rows(path: Path, *options: str, code: int = 0) -> list[dict[str, object]]:
    return [json.loads(line) for line in dumped(path, "--json", *options, code=code).splitlines()]


def segment(folder: Path, content: bytes) -> Path:
    path = folder / "00000000000000000007.log"
    path.write_bytes(content)
    return path


def test_batches_and_records_are_shown(tmp_path: Path) -> None:
    path = segment(tmp_path, FIRST + SECOND)
    first, one, none, second, invalid = rows(path, "--records")
    assert (first["first_offset"], first["last_offset"], first["records"]) == (7, 8, 2)
    assert (first["position"], first["bytes"], first["compression"]) == (0, len(FIRST), "none")
    assert (one["offset"], one["key"], one["value"], one["headers"]) == (7, "k", "one", [])
    assert (none["offset"], none["value"], none["timestamp_ms"], none["headers"]) == (8, None, 1001, [["h", "x"]])
    assert (second["position"], second["compression"], second["leader_epoch"]) == (len(FIRST), "zstd", 4)
    assert (second["producer_id"], second["producer_epoch"], second["first_sequence"]) == (5, 1, 3)
    assert invalid["value"] == "\\xff"
    lines = dumped(path, "--records").splitlines()
    assert lines[0].startswith("at 0: offsets 7 to 8, 2 records, ")
    assert lines[2] == '  8 time 1001 key None value None headers [["h", "x"]]'
    assert "producer 5 epoch 1 sequence 3" in lines[3]


def test_space_behind_the_last_batch_is_no_damage(tmp_path: Path) -> None:
    *_batches, rest = rows(segment(tmp_path, FIRST + bytes(5000)))
    assert (rest["position"], rest["unused_bytes"]) == (len(FIRST), 5000)
    assert dumped(segment(tmp_path, FIRST + bytes(7))).splitlines()[-1] == f"at {len(FIRST)}: 7 bytes without a batch"


def test_a_batch_whose_checksum_is_wrong_is_damaged_and_the_next_one_is_read(tmp_path: Path) -> None:
    damaged = bytearray(FIRST)
    damaged[HEADER_BYTES + 3] ^= 1
    first, second = rows(segment(tmp_path, bytes(damaged) + SECOND), "--records", code=1)[:2]
    assert "CRC" in str(first["problem"])
    assert second["first_offset"] == 9
    assert "DAMAGED" in dumped(segment(tmp_path, bytes(damaged)), code=1)


TOO_LONG = SECOND[:8] + b"\x7f\xff\xff\xff" + SECOND[12:]


@pytest.mark.parametrize("content", [FIRST + b"no batch at all" * 9, FIRST + SECOND[:-1], FIRST + TOO_LONG])
def test_what_is_no_whole_batch_is_damage_and_takes_no_memory(tmp_path: Path, content: bytes) -> None:
    whole, damage = rows(segment(tmp_path, content), code=1)
    assert whole["first_offset"] == 7
    assert damage["position"] == len(FIRST)
    assert damage["problem"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "nothing.log: No such file" in dumped(tmp_path / "nothing.log", code=2)
    assert f"{tmp_path}: Is a directory" in dumped(tmp_path, code=2)


def cleaned(folder: Path) -> Path:
    log = Log(folder)
    for number in range(10):
        log.values(b"%d" % number)
    log.roll()
    swap(log.place, make_cleaned(log.place, (0,), 10))
    return log.place / "00000000000000000000.log"


def test_of_a_cleaned_segment_it_is_told_what_its_seal_says(tmp_path: Path) -> None:
    path = cleaned(tmp_path)
    seal, *batches = rows(path)
    assert (seal["first_offset"], seal["end_offset"], seal["batches"], seal["replaced"]) == (0, 10, 5, [0])
    assert [one["first_offset"] for one in batches] == [0, 2, 4, 6, 8]
    name = path.with_suffix(".seal").name
    line = f"{name}: cleaned, offsets 0 to 9, 5 batches, in place of 0"
    assert dumped(path).splitlines()[0] == line
    assert dumped(path.with_suffix(".seal")).splitlines() == [line]


def test_a_cleaned_segment_that_is_not_what_its_seal_says_is_damaged(tmp_path: Path) -> None:
    path = cleaned(tmp_path)
    kept = path.read_bytes()
    path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    assert rows(path, code=1)[0]["problem"] == f"{path.name}: its checksum is not the one of its seal"
    path.write_bytes(kept)
    path.with_suffix(".index").write_bytes(b"")
    assert "00000.index: it has 0 bytes" in dumped(path, code=1).splitlines()[0]
    path.with_suffix(".seal").write_bytes(b"tpc-seal 1 ")
    assert dumped(path, code=1).splitlines()[0].endswith(".seal: DAMAGED: a seal whose checksum is wrong")


def test_a_swap_that_was_cut_short_is_told(tmp_path: Path) -> None:
    path = cleaned(tmp_path)
    made = f"{path.name}.cleaned-{1:016x}"
    path.rename(path.with_name(made))
    path.write_bytes(b"old")
    line = dumped(path).splitlines()[0]
    assert line.endswith(f"in place of 0, not in their places yet: {made}")


def test_the_horizon_of_tombstones_is_shown(tmp_path: Path) -> None:
    marked = batch([Record_(None, b"k")], base_offset=3, attributes=DELETE_HORIZON, base_timestamp_ms=1234)
    assert rows(segment(tmp_path, marked))[0]["delete_horizon_ms"] == 1234
    assert "delete horizon 1234" in dumped(segment(tmp_path, marked))
