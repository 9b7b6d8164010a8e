"""Which replicas get segments and when they are asked for, without nodes."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.disk_operations import refusing, taking
from tests.support.fake_disk import FakeDisk
from tpc_broker.limits import MIB
from tpc_broker.model import CoreId, NodeId
from tpc_broker.node.replicas.filling import ReplicaFilling
from tpc_broker.node.replicas.offers import FillingFailedError
from tpc_broker.node.replicas.shipping import AGAIN_MS, END, FILL, UNUSED_MS, SegmentSource
from tpc_broker.raft.items import Address, Position, Voter
from tpc_broker.storage.replicas.shipments import Shipments
from tpc_broker.storage.segments.files import FileCache
from tpc_broker.storage.segments.swap_guard import SwapGuard

GROUP, TARGET = "topic-0", Voter(NodeId(3), 1)
COMMIT = Position(4, 900)
RECENTLY_FILLED_MIB = 64


class Source:
    """Of a core that leads one group with one segment of 900 records; `asked`: how often the replica was asked."""

    def __init__(self, size_bytes: int, shipments: Any = None) -> None:
        segment = SimpleNamespace(base_offset=0, size_bytes=size_bytes)
        self.files = SimpleNamespace(segments=[segment], written_end_offset=COMMIT.offset)
        self.now_ms, self.asked = 0, 0
        self.answer: dict[str, Any] = {}
        self.answered = trio.Event()
        self.answered.set()
        machine = SimpleNamespace(
            term=4, commit=COMMIT, log=SimpleNamespace(position_at=None), awaits_segments=lambda _target: True,
            address_of=lambda voter: Address(voter.node, CoreId(0)),
        )  # fmt: skip
        groups = {GROUP: machine}
        core = SimpleNamespace(groups=groups, find=groups.get, shipped=lambda *_: None)
        self.driver = SimpleNamespace(
            core=core, files_of=lambda _group: self.files, item_reads=SimpleNamespace(), wake=lambda: None
        )
        clock = SimpleNamespace(monotonic_ms=lambda: self.now_ms)
        self.made = SegmentSource(shipments, None, clock)
        self.made.begin(self.driver, SimpleNamespace(ask=self._ask))
        self.driver.on_ship(GROUP, TARGET)

    async def _ask(self, address: Address, method: str, _payload: dict[str, Any]) -> dict[str, Any]:
        assert (address, method) == (Address(TARGET.node, CoreId(0)), FILL)
        self.asked += 1
        await self.answered.wait()
        return self.answer

    def ships(self, offset: int = 0) -> bool:
        return self.driver.item_reads.ships_instead(GROUP, TARGET, offset)

    async def is_filled(self, *, had: bool) -> None:
        """The replica says so when it is asked."""
        self.answer = {"filled": list(COMMIT), "had": had}
        await self.told()

    async def told(self, group: str = GROUP, node: int = TARGET.node) -> None:
        await self.made.serve_filled(SimpleNamespace(node=node), {"group": group}, [])


@pytest.mark.parametrize(("mib", "offset", "ships"), [(7, 0, False), (9, 0, True), (32, 300, True), (32, 500, False)])
def test_a_replica_that_comes_back_gets_segments_for_little_already(mib, offset, ships):
    """When they are mostly what it lacks."""
    assert Source(mib * MIB).ships(offset) is ships


def test_a_replica_that_was_filled_just_now_gets_items_unless_it_lacks_a_lot():
    async def body():
        source = Source((RECENTLY_FILLED_MIB - 1) * MIB)
        assert source.ships()
        await source.is_filled(had=False)
        assert not source.ships()
        source.files.segments[0].size_bytes = (RECENTLY_FILLED_MIB + 1) * MIB
        assert source.ships()
        source.files.segments[0].size_bytes = 9 * MIB
        source.now_ms = AGAIN_MS - 1
        assert not source.ships()
        source.now_ms = AGAIN_MS
        assert source.ships()

    trio.run(body, clock=MockClock(autojump_threshold=0))


def test_a_replica_that_had_it_all_gets_items_for_some_time():
    async def body():
        source = Source(RECENTLY_FILLED_MIB * 2 * MIB)
        await source.is_filled(had=True)
        source.now_ms = AGAIN_MS - 1
        assert not source.ships()
        source.now_ms = AGAIN_MS
        assert source.ships(), "it may have been away since, in the same term"

    trio.run(body, clock=MockClock(autojump_threshold=0))


def test_who_says_that_it_was_filled_is_asked_at_once_and_once_at_a_time():
    async def body():
        source = Source(MIB)
        source.answered = trio.Event()
        async with trio.open_nursery() as nursery:
            for _time in range(3):
                nursery.start_soon(source.told)
            await wait_all_tasks_blocked()
            assert source.asked == 1
            source.answered.set()
        await source.told()
        assert source.asked == 2
        await source.told(group="another")
        await source.told(node=2)
        assert source.asked == 2

    trio.run(body, clock=MockClock(autojump_threshold=0))


def test_who_was_filled_says_so_also_up_to_where_it_was_asked_to_be():
    async def body():
        """Who had it already says that, and is not filled for some time."""
        machine = SimpleNamespace(log=SimpleNamespace(contains=lambda position: position <= COMMIT))
        made = ReplicaFilling(SimpleNamespace(files=None, remove_later=None), Path("/data"), CoreId(0))
        made.is_allowed = True
        made.begin(SimpleNamespace(core=SimpleNamespace(find=lambda _group: machine)), None, None, {}, None)
        made._filled[GROUP] = COMMIT
        answers = [
            (await made.serve_fill(SimpleNamespace(node=2, core=0), {"group": GROUP, "position": list(COMMIT)}, []))[0]
            for _time in range(2)
        ]
        assert answers == [{"filled": COMMIT, "had": False}, {"filled": COMMIT, "had": True}]

    trio.run(body, clock=MockClock(autojump_threshold=0))


def stubborn_disk() -> FakeDisk:
    """It removes no folders."""
    disk = FakeDisk()
    disk.during("rmdir", do=refusing(errno.EIO))
    return disk


async def shipments_on(disk: FakeDisk) -> tuple[Shipments, list[str]]:
    """Two of no files, begun at 0, and their names."""
    shipments = Shipments(FileCache(disk), Path("/"), CoreId(0))
    storage: Any = SimpleNamespace(segments=[], active=None, swaps_held=SwapGuard().held)
    return shipments, [(await shipments.begin(storage, 0, 0, 0)).name for _time in range(2)]


def test_shipments_that_nobody_reads_end_although_their_folders_cannot_be_removed(caplog):
    async def body():
        shipments, names = await shipments_on(stubborn_disk())
        source = Source(MIB, shipments)
        source.now_ms = UNUSED_MS + 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(source.made.run)
            await trio.sleep(10)
            assert source.asked > 10, "it goes on asking"
            nursery.cancel_scope.cancel()
        assert len(shipments) == 0
        for name in names:
            assert f"shipment {name}: its folder stays until the next start" in caplog.text

    trio.run(body, clock=MockClock(autojump_threshold=0))


def test_who_has_read_a_shipment_is_answered_although_its_folder_cannot_be_removed():
    async def body():
        shipments, names = await shipments_on(stubborn_disk())
        source = Source(MIB, shipments)
        for left, name in ((1, names[0]), (1, names[0]), (0, names[1])):
            await source.made.serve_end(SimpleNamespace(), {"shipment": name}, [])
            assert len(shipments) == left

    trio.run(body, clock=MockClock(autojump_threshold=0))


OFFERED = {
    "shipment": "s", "term": 4, "position": list(COMMIT), "starts": 0, "markers": [[4, 0, ""]], "files": [],
}  # fmt: skip


class Leader:
    """Of whom a replica fetches segments: what it was asked, and what a replica has that it tells so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def place_of(self, _address: Address) -> str:
        return "place"

    async def ask(self, _address: Address, method: str, payload: dict[str, Any]) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        self.asked.append((method, payload))
        return OFFERED


@pytest.mark.parametrize("trouble", [refusing(errno.EIO), taking(3600)], ids=["refused", "an hour"])
def test_a_leader_hears_of_the_end_of_a_fill_whose_folder_cannot_be_removed(trouble):
    async def body():
        disk, leader, later = FakeDisk(), Leader(), []
        disk.during("rmdir", do=trouble)
        files = SimpleNamespace(segments=[SimpleNamespace(base_offset=0)], written_end_offset=0)
        core = SimpleNamespace(look=lambda _group: SimpleNamespace(high_watermark=0))
        storage = SimpleNamespace(files=FileCache(disk), remove_later=later.append)
        made = ReplicaFilling(storage, Path("/"), CoreId(0))
        driver: Any = SimpleNamespace(core=core, files_of=lambda _group: files)
        made.begin(driver, leader, None, {GROUP: "key"}, None)

        async def fails(*_: Any) -> None:
            raise FillingFailedError("for a test")

        made._fetch_all = fails
        with pytest.raises(FillingFailedError):
            await made._fetch_and_install(GROUP, Address(NodeId(2), CoreId(0)))
        assert leader.asked[-1] == (END, {"shipment": "s"})
        assert [folder.parent for folder in later] == [Path("/filling")]

    trio.run(body, clock=MockClock(autojump_threshold=0))
