"""The metadata log's driver on core 0, over a log in memory."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import trio
import trio.testing

from tests.support.memory_clients import create_topic
from tests.support.memory_node import MemoryClock, running_node
from tpc_broker.broker.metadata_service import MetadataService
from tpc_broker.broker.view import ClusterView
from tpc_broker.errors import JournalStoppedError
from tpc_broker.kafka.records import Record, build_batch, read_batches
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import ProducerIdsReserved, TopicCreated, decode_record, encode_record
from tpc_broker.model import CoreId, NodeId, Offset, TopicId

CORE, OTHER = CoreId(0), CoreId(1)


class Log:
    """A partition with one record a batch; its reader waits until it is let go."""

    def __init__(self, records) -> None:
        self.records = list(records)
        self.may_be_read = trio.Event()

    def bounds(self):
        return SimpleNamespace(log_start_offset=0, high_watermark=len(self.records))

    async def read_bytes(self, offset, _upto, _bytes_max):
        await self.may_be_read.wait()
        batch = bytearray(build_batch([Record(encode_record(self.records[offset]))]))
        batch[:8] = Offset(offset).to_bytes(8)
        return bytes(batch)

    async def append_durably(self, batch):
        self.records += [decode_record(record.value) for one in read_batches(batch) for record in one.records()]


async def test_nothing_is_decided_before_the_whole_log_is_loaded() -> None:
    """Another core may ask for producer ids while core 0 still reads: what the log says was given out stays so."""
    log = Log([ProducerIdsReserved(CORE, 1000 * number, 1000) for number in range(3)])
    view = ClusterView(NodeId(0), 1, (), None)
    seen: list[int] = []

    async def apply(_before: ClusterImage, after: ClusterImage) -> None:
        view.image = after

    def decide(image: ClusterImage):
        seen.append(image.next_producer_id)
        return [], None

    async with trio.open_nursery() as nursery:
        mailboxes = SimpleNamespace(serve=lambda *_: None)
        service = MetadataService(CORE, view, mailboxes, apply, Mock(), nursery.start_soon)  # type: ignore[arg-type]
        nursery.start_soon(service.load, log)
        nursery.start_soon(service.change, decide)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        log.may_be_read.set()
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        await service.apply_loaded()
    assert seen == [3000]


class Service:
    """Of a core whose log has one record, and is loaded. `error`: what the next image is met with."""

    def __init__(self, core: CoreId = CORE) -> None:
        self.log = Log([ProducerIdsReserved(CORE, 0, 1000)])
        self.log.may_be_read.set()
        self.view = ClusterView(NodeId(0), 1, (), None)
        self.error: Exception | None = None
        self.ended: list[Exception] = []
        self.handlers: dict = {}
        self.made = MetadataService(
            core, self.view, SimpleNamespace(serve=self.handlers.__setitem__), self._apply, MemoryClock(), Mock()
        )
        self.made.end_core = self.ended.append

    async def begin(self) -> Service:
        await self.made.load(self.log)
        await self.made.apply_loaded()
        return self

    async def _apply(self, _before: ClusterImage, after: ClusterImage) -> None:
        if self.error is not None:
            raise self.error
        self.view.image = after

    async def reserve(self) -> None:
        await self.made.change(lambda image: ([ProducerIdsReserved(CORE, image.next_producer_id, 1000)], None))


async def test_a_change_that_is_made_and_not_carried_out_ends_the_core_and_nothing_is_decided_without_it() -> None:
    """The error was told to who had asked, and the next change was decided by the image before: here, the same producer
    ids were given out twice.
    """
    service = await Service().begin()
    service.error = error = ExceptionGroup("of a nursery", [OSError("a disk that fails")])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.reserve)
        nursery.start_soon(service.reserve)
        await trio.testing.wait_all_tasks_blocked()
        assert service.ended == [error]
        assert len(service.log.records) == 2
        assert len(nursery.child_tasks) == 2, "nobody is answered"
        nursery.cancel_scope.cancel()
    service.error = None
    await service.begin()
    assert service.view.image.next_producer_id == 2000


async def test_a_core_that_cannot_carry_out_what_core_0_tells_ends() -> None:
    service = await Service(CoreId(1)).begin()
    service.error = RuntimeError("a bug")
    blobs = [encode_record(ProducerIdsReserved(CORE, 1000, 1000))]
    async with trio.open_nursery() as nursery:
        payload = {"before": 1, "version": 2}
        nursery.start_soon(service.handlers["metadata.apply"], CORE, payload, blobs)
        await trio.testing.wait_all_tasks_blocked()
        assert service.ended == [service.error]
        nursery.cancel_scope.cancel()


async def test_a_core_that_has_the_newest_image_is_not_sent_it_again() -> None:
    service = await Service().begin()
    fetch = service.handlers["metadata.fetch"]
    have = service.view.image.version
    for version in (0, have - 1, have + 1):
        told, (whole,) = await fetch(CoreId(1), {"version": version}, [])
        assert told["ready"]
        assert ClusterImage.from_bytes(whole).version == have
    told, blobs = await fetch(CoreId(1), {"version": have}, [])
    assert (told["ready"], blobs) == (True, [])
    await service.reserve()
    assert len((await fetch(CoreId(1), {"version": have}, []))[1]) == 1


async def test_a_core_that_is_ending_already_answers_that() -> None:
    service = await Service().begin()
    service.error = ExceptionGroup("of a nursery", [JournalStoppedError("the core is stopping")])
    with pytest.raises(ExceptionGroup):
        await service.reserve()
    assert not service.ended


async def test_what_cannot_be_applied_is_not_made() -> None:
    """Else every start would fail at it."""
    service = await Service().begin()
    same_name = [TopicCreated("t", TopicId(uuid.UUID(int=number)), (CORE,), 0) for number in range(2)]
    with pytest.raises(AssertionError):
        await service.made.change(lambda _image: (same_name, None))
    assert len(service.log.records) == 1
    await service.reserve()
    assert (service.view.image.version, service.ended) == (2, [])


async def test_a_core_ends_by_it_as_by_any_error_of_its_tasks(autojump_clock) -> None:
    async def fail(*_arguments):
        raise RuntimeError("a bug")

    with pytest.raises(BaseExceptionGroup) as raised:
        async with running_node(cores=1) as node:
            node[0].groups.follow = fail
            await create_topic(node, 0, "t", 1)
    assert raised.group_contains(AssertionError, match="not what the metadata say")


class TwoCores:
    """Core 0 of a node of a cluster, and another core, which takes a second for each image. `serves`: what answers
    other nodes, by what they ask.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._handlers: dict[CoreId, dict[str, Any]] = {CORE: {}, OTHER: {}}
        self.views = {core: ClusterView(NodeId(1), 2, [], None, in_cluster=True) for core in self._handlers}
        self.views[CORE].set_up(self._handlers)
        self.applies = trio.Event()
        self.serves: dict[str, Any] = {}
        self.cluster = Mock(start_soon=nursery.start_soon, serve=self.serves.__setitem__, linked=list)

    async def start(self, core: CoreId) -> MetadataService:
        async def apply(_before: ClusterImage, after: ClusterImage) -> None:
            self.views[core].image = after
            if core == OTHER:
                self.applies.set()
                await trio.sleep(1)

        async def call(to: CoreId, method: str, payload: Any, blobs: Any = ()) -> Any:
            return await self._handlers[to][method](CORE, payload, blobs)

        mailboxes = SimpleNamespace(serve=self._handlers[core].__setitem__, call=call, notify=call)
        cluster = self.cluster if core == CORE else None
        clock, start_soon = MemoryClock(), self._nursery.start_soon
        service = MetadataService(core, self.views[core], mailboxes, apply, clock, start_soon, cluster)  # type: ignore[arg-type]
        if core == CORE:
            log = Log([ProducerIdsReserved(CORE, 0, 1000)])
            log.may_be_read.set()
            await service.load(log)  # type: ignore[arg-type]
            await service.apply_loaded()
        return service


async def test_the_newest_word_of_who_is_away_counts_whatever_is_applied_meanwhile(nursery, autojump_clock) -> None:
    """A core takes a newer image, for which it has to open partitions; what came with it is older by then."""
    cores = TwoCores(nursery)
    views, cluster, applies = cores.views, cores.cluster, cores.applies
    await cores.start(CORE)
    other = await cores.start(OTHER)
    cluster.on_absent_changed(frozenset({NodeId(2)}))
    cluster.on_controller_changed(NodeId(2))
    nursery.start_soon(other.subscribe)
    await applies.wait()
    assert views[OTHER].absent == {NodeId(2)}
    cluster.on_absent_changed(frozenset())
    cluster.on_controller_changed(NodeId(3))
    await trio.sleep(2)
    assert views[OTHER].image.version == views[CORE].image.version > 0
    assert (views[OTHER].absent, views[OTHER].controller) == (frozenset(), NodeId(3))


async def test_a_core_0_that_is_back_is_believed_however_much_was_told_of_leaders(nursery, autojump_clock) -> None:
    cores = TwoCores(nursery)
    await cores.start(CORE)
    await cores.start(OTHER)
    cores.cluster.on_absent_changed(frozenset({NodeId(2)}))
    for _ in range(2000):
        await cores.serves["leaders"]({"leaders": []}, [])
    await trio.sleep(1)
    assert cores.views[OTHER].absent == {NodeId(2)}
    await cores.start(CORE)
    cores.cluster.on_absent_changed(frozenset({NodeId(3)}))
    await trio.testing.wait_all_tasks_blocked()
    assert cores.views[OTHER].absent == {NodeId(3)}


async def test_a_word_that_was_lost_comes_with_the_next_news_of_leaders(nursery, autojump_clock) -> None:
    cores = TwoCores(nursery)
    await cores.start(CORE)
    await cores.start(OTHER)
    cores.views[CORE].set_up(frozenset({CORE}))
    cores.cluster.on_absent_changed(frozenset({NodeId(2)}))
    cores.views[CORE].set_up(frozenset({CORE, OTHER}))
    await cores.serves["leaders"]({"leaders": []}, [])
    await trio.testing.wait_all_tasks_blocked()
    assert cores.views[OTHER].absent == {NodeId(2)}


async def test_a_core_0_of_an_earlier_release_that_numbers_nothing_is_believed(nursery, autojump_clock) -> None:
    cores = TwoCores(nursery)
    other = await cores.start(OTHER)
    for away in (2, 3):
        await other._serve_nodes(CORE, {"absent": [away], "controller": away}, [])
        assert (cores.views[OTHER].absent, cores.views[OTHER].controller) == ({NodeId(away)}, NodeId(away))
