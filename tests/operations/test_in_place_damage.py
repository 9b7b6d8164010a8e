"""Damage to batches written in place, and to the journal that names them: noticed, kept to its partition, repaired as
far as it goes.

The repairs are those of ``tpc-broker repair``, on what a crash left of a folder.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from tests.durability.test_repair import read_journal
from tests.engine.in_place_core import KEY, on_core, recover, recovered
from tests.support.crash_copy import copy_as_crashed
from tests.support.descriptors import open_descriptors
from tpc_broker._ring import lib
from tpc_broker.engine.ring import Ring, name_of
from tpc_broker.engine.trio_ring import run as run_on_ring
from tpc_broker.log.batch import BATCH_HEADER_BYTES
from tpc_broker.log.files import HANDOVER_FILE, encode_partition_metadata
from tpc_broker.log.in_place import decode_extent
from tpc_broker.log.journal import EntryKind
from tpc_broker.model import TopicId
from tpc_broker.native_bytes import crc32c
from tpc_broker.operations.repair import PartlyRepairedError, RepairRequest, repair
from tpc_broker.options import StartError
from tpc_broker.process.main import main
from tpc_broker.storage.recovery import in_place_replay
from tpc_broker.storage.recovery.journal_opening import JournalDamagedError

PARTITION = "topic-0"
JOURNAL = "journals/0000.journal"
FAULTS = ["first byte", "last byte", "zeros"]


def set_aside(data: Path) -> str:
    """Start on a crashed folder in which the partition is damaged; the reason why it is offline."""

    async def body():
        core = await recover(data)
        try:
            return core.offline[KEY].reason
        finally:
            await core.close()

    return run_on_ring(body)


def in_place_entries(data: Path):
    return [one for one in read_journal((data / JOURNAL).read_bytes()).entries if one.kind == EntryKind.IN_PLACE]


def harm_batch(data: Path, offset: int, fault: str) -> None:
    """A batch that the journal says was written in place is not as it was written."""
    place = next(decode_extent(one.payload) for one in in_place_entries(data) if one.offset == offset)
    (path,) = (data / "topics" / PARTITION).glob(f"{place.segment_base_offset:020d}.log")
    log, (begin, end) = bytearray(path.read_bytes()), place.in_place
    if fault == "zeros":
        log[begin:end] = bytes(end - begin)
    else:
        log[begin if fault == "first byte" else end - 1] ^= 1
    path.write_bytes(log)


def offline_in(data: Path) -> dict | None:
    """What `tpc-broker repair` lists of the partition; there is no metadata log beside it, which it lists too."""
    listed = json.loads(repair(data, RepairRequest(as_json=True)))["offline"]
    return next((one for one in listed if one["partition"] == PARTITION), None)


def below(acknowledged: dict[int, bytes], offset: int) -> dict[int, bytes]:
    return {base: records for base, records in acknowledged.items() if base < offset}


@pytest.fixture
def crashed(tmp_path):
    """The folder of a core that died with eight batches written in place behind its checkpoint and small ones in
    between, each in a commit of its own; and what was acknowledged.
    """
    told = {}

    async def body(bench):
        await bench.begin_in_place()
        for _ in range(8):
            await bench.append(150_000)
            await bench.append(70)
        told.update(bench.acknowledged)
        copy_as_crashed(bench.files.folder.path.parents[1], tmp_path / "crashed")

    on_core(tmp_path, body)
    return tmp_path / "crashed", told


@pytest.mark.parametrize("fault", FAULTS)
def test_a_partition_with_a_damaged_batch_is_repaired_up_to_it(crashed, fault):
    data, acknowledged = crashed
    entries = in_place_entries(data)
    assert len(entries) == 8
    lost_from, end_offset = entries[4].offset, max(acknowledged) + 1
    harm_batch(data, lost_from, fault)
    assert f"offset {lost_from}" in set_aside(data)
    listed = offline_in(data)
    ((_path, salvage_first, salvage_end),) = listed["salvaged"]
    assert (salvage_first, salvage_end) == (entries[0].offset, end_offset), "what is whole was not kept"
    repair(data, RepairRequest(partition=PARTITION, accept_loss=True, apply=True))
    assert offline_in(data) is None
    assert recovered(data) == {base: records for base, records in acknowledged.items() if base != lost_from}


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_what_is_lost_in_place_is_said_before_a_repair_and_not_after_it(crashed, fault):
    """No start has looked yet, so the journal still names the batches when the repair is planned."""
    data, acknowledged = crashed
    lost_from = in_place_entries(data)[4].offset
    if fault is not None:
        harm_batch(data, lost_from, fault)
    (data / "topics" / PARTITION / "partition.metadata").write_bytes(b"")
    lost = [] if fault is None else [[lost_from, lost_from + 1]]
    (plan,) = json.loads(repair(data, RepairRequest(every_partition=True, as_json=True)))["partitions"]
    assert plan["lost"] == lost
    done = json.loads(repair(data, RepairRequest(every_partition=True, apply=True, as_json=True)))
    if fault is not None:
        assert [done["partitions"], done["left"][0]["lost"]] == [[], lost]
        repair(data, RepairRequest(every_partition=True, apply=True, accept_loss=True))
    kept = {base: records for base, records in acknowledged.items() if fault is None or base != lost_from}
    assert recovered(data) == kept


@pytest.mark.parametrize("refused", ["tpc_operation_read", "tpc_operation_fsync"])
def test_a_repair_that_the_disk_refuses_ends_in_one_line_that_names_the_file(crashed, monkeypatch, refused):
    """Also where it is another partition's, which is only recovered beside what is repaired."""
    data, _acknowledged = crashed
    folder = data / "topics" / PARTITION
    unknown = shutil.copytree(folder, folder.with_name("unknown-0"))
    (unknown / "partition.metadata").write_bytes(encode_partition_metadata(TopicId(uuid.UUID(int=78))))
    perform = Ring.perform

    async def perform_or_refuse(ring, submit, *arguments, **options):
        if submit == getattr(lib, refused) and name_of(arguments[0]).startswith(f"{folder}/"):
            await trio.lowlevel.checkpoint()
            return -errno.EIO, 0
        return await perform(ring, submit, *arguments, **options)

    monkeypatch.setattr(Ring, "perform", perform_or_refuse)
    before = open_files(data)
    with pytest.raises(StartError) as caught:
        repair(data, RepairRequest(every_partition=True, apply=True))
    assert f"{folder}/" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert open_files(data) == before == []


def open_files(data: Path) -> list[str]:
    """Those of a data directory that this process has open."""
    found = []
    for number in open_descriptors():
        with suppress(FileNotFoundError):  # it was the listing's own
            found.append(str(Path(f"/proc/self/fd/{number}").readlink()))
    return [name for name in found if name.startswith(f"{data}/")]


def beside(data: Path, *labels: str) -> list[Path]:
    """More partitions, which no core knows of."""
    folders = []
    for number, label in enumerate(labels):
        folders.append(shutil.copytree(data / "topics" / PARTITION, data / "topics" / label))
        (folders[-1] / "partition.metadata").write_bytes(encode_partition_metadata(TopicId(uuid.UUID(int=78 + number))))
    return folders


def labels_offline(data: Path) -> list[str]:
    return [one["partition"] for one in json.loads(repair(data, RepairRequest(as_json=True)))["offline"]]


def test_all_of_a_core_are_back_when_several_were_offline(crashed):
    data, _acknowledged = crashed
    beside(data, "unknown-0", "unknown-1", "unknown-2")
    before = labels_offline(data)
    repair(data, RepairRequest(every_partition=True, apply=True, accept_loss=True))
    assert labels_offline(data) == [label for label in before if not label.startswith("unknown-")]


@pytest.mark.parametrize(
    ("refused", "what"),
    [("tpc_operation_read", "files"), ("tpc_operation_fsync", "files"), ("tpc_operation_fsync", "folder")],
)
def test_a_partition_that_the_disk_refuses_is_named_and_keeps_no_other_from_being_repaired(
    crashed, monkeypatch, refused, what
):
    """Where it cannot be read, before anything is changed; and where it cannot be written, in the midst of it."""
    data, _acknowledged = crashed
    folders = beside(data, "unknown-0", "unknown-1", "unknown-2")
    for folder in folders:
        with (folder / "00000000000000000000.log").open("ab") as log:
            log.write(b"damage")
    perform = Ring.perform

    async def perform_or_refuse(ring, submit, *arguments, **options):
        name = name_of(arguments[0]) or ""
        is_hit = name == str(folders[1]) if what == "folder" else name.startswith(f"{folders[1]}/")
        if submit == getattr(lib, refused) and is_hit:
            await trio.lowlevel.checkpoint()
            return -errno.EIO, 0
        return await perform(ring, submit, *arguments, **options)

    with monkeypatch.context() as disk:
        disk.setattr(Ring, "perform", perform_or_refuse)
        done = CliRunner().invoke(main, ["repair", "--data", str(data), "--all", "--accept-loss"])
        told = [line for line in done.stdout.splitlines() if line.startswith("unknown-")]
        assert done.exit_code == 1, done.output
        assert [line.split()[:2] for line in told] == [["unknown-0", "is"], ["unknown-2", "is"], ["unknown-1", "stays"]]
        assert "stays as it is, the disk refuses its files" in told[2]
        assert str(folders[1]) in told[2]
        with pytest.raises(PartlyRepairedError) as caught:
            repair(data, RepairRequest(every_partition=True, apply=True, accept_loss=True, as_json=True))
        (left,) = json.loads(str(caught.value))["unreadable"]
        assert left["label"] == "unknown-1"
        with pytest.raises(StartError, match=str(folders[1])):
            repair(data, RepairRequest(partition="unknown-1", apply=True, accept_loss=True))
        assert [label for label in labels_offline(data) if label.startswith("unknown-")] == ["unknown-1"]
    repair(data, RepairRequest(every_partition=True, apply=True, accept_loss=True))
    assert not [label for label in labels_offline(data) if label.startswith("unknown-")]


def test_a_lost_folder_that_the_disk_cannot_make_again_keeps_no_other_partition_from_being_repaired(
    crashed, monkeypatch
):
    data, _acknowledged = crashed
    beside(data, "unknown-0")
    lost = data / "topics" / PARTITION
    shutil.rmtree(lost)
    perform = Ring.perform

    async def perform_or_refuse(ring, submit, *arguments, **options):
        if submit == lib.tpc_operation_fsync and name_of(arguments[0]) == str(lost):
            await trio.lowlevel.checkpoint()
            return -errno.EIO, 0
        return await perform(ring, submit, *arguments, **options)

    request = RepairRequest(every_partition=True, apply=True, accept_loss=True, as_json=True)
    with monkeypatch.context() as disk:
        disk.setattr(Ring, "perform", perform_or_refuse)
        with pytest.raises(PartlyRepairedError) as caught:
            repair(data, request)
    told = json.loads(str(caught.value))
    assert [one["label"] for one in told["partitions"]] == ["unknown-0"]
    assert [one["label"] for one in told["unreadable"]] == [PARTITION]
    assert {PARTITION, "unknown-0"} & set(labels_offline(data)) == {PARTITION}
    repair(data, request)
    assert PARTITION not in labels_offline(data)


def test_a_partition_without_a_core_is_handed_to_its_own_also_when_its_repair_ended_behind_the_checkpoint(
    crashed, monkeypatch
):
    """A core's checkpoint has it from there on, and the core may be another one's than the metadata say."""
    data, _acknowledged = crashed
    (folder,) = beside(data, "unknown-0")

    async def refuse(_disk, _data, _key):
        await trio.lowlevel.checkpoint()
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))

    monkeypatch.setattr("tpc_broker.storage.recovery.repair.remove_lost_mark", refuse)
    with pytest.raises(PartlyRepairedError, match=f"unknown-0 .*{folder}"):
        repair(data, RepairRequest(every_partition=True, apply=True, accept_loss=True))
    assert (data / "journals" / HANDOVER_FILE).exists()


def test_the_journal_is_damaged_in_front_of_batches_written_once(crashed):
    """Accepting it loses them: nothing of them comes back by itself, though the segment holds them whole."""
    data, acknowledged = crashed
    entries = in_place_entries(data)
    journal = bytearray((data / JOURNAL).read_bytes())
    journal[entries[3].payload_position] ^= 1
    (data / JOURNAL).write_bytes(journal)
    with pytest.raises(JournalDamagedError):
        run_on_ring(partial(recover, data))
    (listed,) = json.loads(repair(data, RepairRequest(as_json=True)))["journals"]
    assert listed["core"] == 0
    done = json.loads(repair(data, RepairRequest(core=0, apply=True, as_json=True)))
    assert done["offline"] == [PARTITION]
    repair(data, RepairRequest(partition=PARTITION, accept_loss=True, apply=True))
    assert recovered(data) == below(acknowledged, entries[3].offset)
    assert recovered(data) == below(acknowledged, entries[3].offset)


def believe_everything(_entry, _place, _batch) -> None:
    """In place of `check_batch`: as if an entry in the chain were proof enough."""


def believe_records(_entry, place, batch) -> None:
    """In place of `check_batch`: as if records were right when their header is."""
    assert crc32c(batch[:BATCH_HEADER_BYTES]) == place.header_crc


@pytest.mark.parametrize("mutant", [believe_everything, believe_records])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_recovery_that_believes_an_entry_is_caught(crashed, monkeypatch, mutant, fault):
    """It takes damage in; so the tests above, and the check, see what nothing else would."""
    data, acknowledged = crashed
    monkeypatch.setattr(in_place_replay, "check_batch", mutant)
    assert recovered(shutil.copytree(data, data.with_name("sound"))) == acknowledged
    lost_from = in_place_entries(data)[4].offset
    harm_batch(data, lost_from, fault)
    found = recovered(data)
    assert found.keys() == acknowledged.keys(), "something else than the check has noticed"
    assert found[lost_from] != acknowledged[lost_from]
