"""``tpc-broker repair`` of a partition that opens, though a scrub has found damage in its segments."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.engine.in_place_core import KEY, on_core, recovered
from tests.log.log_batches import batch
from tests.support.crash_copy import copy_as_crashed
from tpc_broker import limits
from tpc_broker._ring import lib
from tpc_broker.cluster.founding import Founding
from tpc_broker.cluster.raft_codec import encode_entry
from tpc_broker.engine.disk import RingDisk
from tpc_broker.engine.ring import Ring, name_of
from tpc_broker.engine.trio_ring import current_ring
from tpc_broker.engine.trio_ring import run as run_on_ring
from tpc_broker.log.batch import decode_header, walk_headers
from tpc_broker.model import CoreId, NodeId
from tpc_broker.native_bytes import find_batches_end
from tpc_broker.node.membership.identity import IdentityFile
from tpc_broker.node.replicas.core_replicas import group_of
from tpc_broker.operations.repair import PartlyRepairedError, RepairRequest, repair
from tpc_broker.operations.repair_damaged import take_offline
from tpc_broker.operations.scrub import Scrub
from tpc_broker.options import StartError
from tpc_broker.raft.items import Marker, Voter, simple
from tpc_broker.raft.journal import MarkerEntry
from tpc_broker.storage.recovery.recovery import recover_core
from tpc_broker.storage.recovery.scrub_report import read_report

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.engine.in_place_core import Bench

PARTITION = "topic-0"
RECORDS = 40
HURT = (5, 9)
ACCEPTED = RepairRequest(partition=PARTITION, apply=True, accept_loss=True)
OTHER = Voter(NodeId(2), 1)


class Stored:
    """What a core left that ended in order, or crashed, with more than one segment: damaged at two places since."""

    def __init__(self, tmp_path: Path, *, voters: Sequence[Voter] | None = None, crashed: bool = False) -> None:
        """`voters`: of the partition, beside this node, which is in a cluster then."""
        self.data = tmp_path / "data"
        self.acknowledged: dict[int, bytes] = {}
        place = tmp_path / "crashed" if crashed else None
        members = None if voters is None else [_in_cluster(self.data), *voters]

        async def body(bench: Bench) -> None:
            if members is not None:
                epoch = bench.files.leader_epoch
                entry = MarkerEntry(group_of(KEY), Marker(epoch, 0, simple(members)))
                bench.files.notes[epoch] = encode_entry(entry)
            for _ in range(RECORDS):
                await bench.append(200_000)
            await bench.storage.write_behind(all_of_it=True)
            assert await bench.storage.checkpoint()
            await bench.append(200_000)
            self.acknowledged.update(bench.acknowledged)
            if place is not None:
                copy_as_crashed(self.data, place)

        on_core(tmp_path, body)
        self.data = place or self.data
        self.sealed, *others = sorted((self.data / "topics" / PARTITION).glob("*.log"))
        assert others
        self.sound = self.sealed.read_bytes()
        self.damage(HURT)
        self.listed()  # makes it a broker's directory, which a scrub asks for

    def damage(self, offsets: Sequence[int]) -> None:
        """Eight bytes in the values of these records."""
        data = bytearray(self.sealed.read_bytes())
        for header, place in walk_headers(memoryview(self.sound)):
            if header.base_offset in offsets:
                data[place + 1000 : place + 1008] = bytes(one ^ 0xFF for one in data[place + 1000 : place + 1008])
        self.sealed.write_bytes(data)

    def scrub(self) -> int:
        return Scrub(self.data, 1e12, lambda _checked, _total: None).run().damaged_count

    def listed(self) -> dict[str, Any]:
        """There is no metadata log beside it, which is listed too."""
        told: dict[str, Any] = json.loads(repair(self.data, RepairRequest(as_json=True)))
        told["offline"] = [one for one in told["offline"] if one["partition"] == PARTITION]
        return told

    def held(self) -> dict[int, bytes]:
        """By another start, which opens it."""
        return recovered(self.data)

    @property
    def left(self) -> dict[int, bytes]:
        return {offset: data for offset, data in self.acknowledged.items() if offset not in HURT}

    def kept(self) -> list[bytes]:
        return [path.read_bytes() for path in (self.data / "lost+found").glob("*.repaired-*/*.log")]


def _in_cluster(data: Path) -> Voter:
    data.mkdir()
    identity = IdentityFile(data)
    me = Voter(NodeId(1), identity.open(1, 1).incarnation)
    identity.joined(Founding("the-cluster", (me, OTHER)))
    return me


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


def test_damage_is_listed_with_what_it_costs_and_goes_with_a_repair(stored: Stored) -> None:
    damaged = stored.sealed.read_bytes()
    assert stored.listed() == {"offline": [], "journals": [], "damaged": []}
    assert stored.scrub() == len(HURT)
    (one,) = stored.listed()["damaged"]
    assert (one["partition"], one["lost"]) == (PARTITION, [[5, 6], [9, 10]])
    assert f"topics/{PARTITION}/{stored.sealed.name}" in one["reason"]
    text = repair(stored.data, RepairRequest())
    assert f"{PARTITION} is damaged, though not offline (core 0): a scrub found" in text
    assert "cannot be read: offsets [5, 6), offsets [9, 10) (2 records); to see what a repair does:" in text

    shown = repair(stored.data, RepairRequest(partition=PARTITION))
    assert f"nothing was changed; to do it: --partition {PARTITION} --accept-loss" in shown
    with pytest.raises(StartError, match=r"offsets \[5, 6\), offsets \[9, 10\) would be lost"):
        repair(stored.data, RepairRequest(partition=PARTITION, apply=True))
    assert stored.sealed.read_bytes() == damaged
    assert not stored.kept()
    done = repair(stored.data, ACCEPTED)
    assert "lost: offsets [5, 6), offsets [9, 10) (2 records)" in done
    assert stored.kept() == [damaged]
    assert stored.held() == stored.left
    assert stored.listed() == {"offline": [], "journals": [], "damaged": []}, "what was found is mended"
    assert stored.scrub() == 0
    with pytest.raises(StartError, match="is not offline, and all of its records can be read"):
        repair(stored.data, ACCEPTED)


def test_all_repairs_what_a_scrub_has_named_and_without_one_it_is_named_by_hand(stored: Stored) -> None:
    everything = RepairRequest(every_partition=True, apply=True, accept_loss=True)
    assert repair(stored.data, everything) == "nothing is offline that could be brought back"
    stored.scrub()
    left = repair(stored.data, RepairRequest(every_partition=True, apply=True))
    assert left.startswith(f"{PARTITION} stays online and damaged: offsets [5, 6), offsets [9, 10) would be lost;")
    assert "(2 records)" in repair(stored.data, everything)
    assert stored.held() == stored.left


def test_what_a_scrub_has_not_named_goes_with_what_it_has(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair sees to all of a partition, and is not followed by an alarm about what is mended."""
    monkeypatch.setattr(limits, "SCRUB_DAMAGES_TOLD_MAX", 1)
    assert stored.scrub() == len(HURT)
    repair(stored.data, RepairRequest(every_partition=True, apply=True, accept_loss=True))
    report = read_report(stored.data)
    assert report is not None
    assert (report.damaged_count, report.damaged) == (0, [])
    assert stored.held() == stored.left


def test_what_a_scrub_has_named_and_is_sound_again_is_left_alone(stored: Stored) -> None:
    stored.scrub()
    stored.sealed.write_bytes(stored.sound)
    assert "all of its records can be read" in repair(stored.data, RepairRequest())
    everything = RepairRequest(every_partition=True, apply=True, accept_loss=True)
    assert repair(stored.data, everything) == "nothing is offline that could be brought back"
    assert stored.held() == stored.acknowledged


def test_what_an_earlier_repair_could_not_bring_back_is_not_lost_again(stored: Stored) -> None:
    repair(stored.data, ACCEPTED)
    data = bytearray(stored.sealed.read_bytes())
    last = [place for _header, place in walk_headers(memoryview(bytes(data)))][-1]
    offset = decode_header(data, last).base_offset
    data[last + 500] ^= 1
    stored.sealed.write_bytes(data)
    told = json.loads(repair(stored.data, RepairRequest(partition=PARTITION, as_json=True)))
    assert told["lost"] == [[offset, offset + 1]]


def test_what_a_crash_left_in_the_journal_is_not_lost_with_it(tmp_path: Path) -> None:
    stored = Stored(tmp_path, crashed=True)
    assert max(stored.left) == RECORDS
    repair(stored.data, ACCEPTED)
    assert stored.held() == stored.left
    assert len(stored.kept()) == 1, "what is not damaged is not replaced"


def test_what_a_crash_cut_short_behind_the_log_s_end_is_no_loss(tmp_path: Path) -> None:
    """It was never acknowledged, and the next start cuts it."""
    stored = Stored(tmp_path, crashed=True)
    stored.sealed.write_bytes(stored.sound)
    active = max(stored.sealed.parent.glob("*.log"))
    data = memoryview(active.read_bytes())
    sound = data[: find_batches_end(data, -1)[0]]
    *_others, (last, _place) = walk_headers(sound)
    torn = bytearray(batch(last.next_offset, [b"never", b"acknowledged", b"at all"]))
    torn[-1] ^= 1
    active.write_bytes(bytes(sound) + torn)
    with pytest.raises(StartError, match="is not offline, and all of its records can be read"):
        repair(stored.data, ACCEPTED)
    assert stored.held() == stored.acknowledged


def test_a_repair_that_ends_early_leaves_it_offline_for_the_next_one(stored: Stored) -> None:
    async def begin() -> None:
        await take_offline(RingDisk(current_ring()), stored.data, [CoreId(0)], [stored.sealed.parent])

    run_on_ring(begin)
    (one,) = stored.listed()["offline"]
    assert "a repair of them has begun" in one["reason"]
    assert one["log_end_offset"] == RECORDS + 1
    repair(stored.data, RepairRequest(every_partition=True, apply=True, accept_loss=True))
    assert stored.held() == stored.left


def test_a_journal_that_the_disk_refuses_keeps_no_partition_of_other_cores_from_being_repaired(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody is told to give up what it holds, which may be whole."""
    perform, refused = Ring.perform, stored.data / "journals" / "0001.journal"

    async def make_another() -> None:
        core = await recover_core(RingDisk(current_ring()), stored.data, CoreId(1), new_journal_id=bytes(16))
        await core.close()

    async def perform_or_refuse(ring: Ring, submit: Any, *arguments: Any, **options: Any) -> Any:
        if submit == lib.tpc_operation_read and name_of(arguments[0]) == str(refused):
            await trio.lowlevel.checkpoint()
            return -errno.EIO, 0
        return await perform(ring, submit, *arguments, **options)

    run_on_ring(make_another)
    before = refused.read_bytes()
    stored.scrub()
    everything = RepairRequest(every_partition=True, apply=True, accept_loss=True)
    with monkeypatch.context() as disk:
        disk.setattr(Ring, "perform", perform_or_refuse)
        listed = repair(stored.data, RepairRequest())
        assert "the journal of core 1 is not given by the disk, and may be whole" in listed
        assert "--accept-journal-damage" not in listed
        for one in (RepairRequest(core=1, apply=True), ACCEPTED):
            with pytest.raises(StartError, match="core 1 is not given by the disk"):
                repair(stored.data, one)
        assert not stored.kept()
        with pytest.raises(PartlyRepairedError) as told:
            repair(stored.data, everything)
        assert f"{PARTITION} is back with records [0, {RECORDS + 1})" in str(told.value)
        assert "the journal of core 1 is not given by the disk" in str(told.value)
    assert refused.read_bytes() == before
    assert stored.held() == stored.left
    assert repair(stored.data, everything) == "nothing is offline that could be brought back"


# What others hold is filled again from them. A replica that has lost something is never brought back as who it was.
def test_a_replica_of_several_is_not_repaired_by_itself(tmp_path: Path) -> None:
    stored = Stored(tmp_path, voters=[OTHER])
    stored.scrub()
    (one,) = stored.listed()["damaged"]
    assert one["is_replicated"]
    assert "it is filled again from its other replicas" in repair(stored.data, RepairRequest())
    with pytest.raises(StartError, match="start this node, and it is filled again from them; nothing was changed"):
        repair(stored.data, ACCEPTED)
    everything = RepairRequest(every_partition=True, apply=True, accept_loss=True)
    assert repair(stored.data, everything) == "nothing is offline that could be brought back"
    assert not stored.kept()
    assert stored.listed()["damaged"] == [one]


def test_the_only_replica_of_a_cluster_s_partition_is_repaired(tmp_path: Path) -> None:
    stored = Stored(tmp_path, voters=[])
    repair(stored.data, ACCEPTED)
    assert stored.held() == stored.left
