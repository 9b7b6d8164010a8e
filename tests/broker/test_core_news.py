"""What the cores of a node tell each other of leaders: one that does not answer keeps nobody from hearing it."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import trio
import trio.testing

from tests.support.memory_clients import create_topic
from tests.support.memory_node import MemoryClock, running_node
from tpc_broker.broker.core_news import WAIT_S, CoreNews
from tpc_broker.broker.metadata_service import PUSH_TIMEOUT_MS, MetadataService
from tpc_broker.broker.replicated import ReplicatedPartitions
from tpc_broker.broker.view import NOBODY, ClusterView, Leader
from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import TopicCreated, TopicDeleted
from tpc_broker.model import (
    NO_LEADER_EPOCH,
    CoreId,
    LeaderEpoch,
    MetadataVersion,
    NodeId,
    PartitionIndex,
    Replica,
    TopicId,
)
from tpc_broker.model import TopicPartition as Key

TOPIC = TopicId(uuid.UUID(int=3))
OTHERS = [CoreId(1), CoreId(2)]


def led(index: int, epoch: int = 1) -> tuple[Key, Leader]:
    return Key(TOPIC, PartitionIndex(index)), Leader(LeaderEpoch(epoch))


class Cores:
    """`told`: what each has heard, message by message; one that hangs answers when it is let go."""

    def __init__(self) -> None:
        self.told: dict[CoreId, list[list[tuple[int, int]]]] = {core: [] for core in OTHERS}
        self.hangs: dict[CoreId, trio.Event] = {}

    async def ask(self, core: CoreId, leaders: list[tuple[Key, Leader]]) -> None:
        self.told[core].append([(key.partition, leader.epoch) for key, leader in leaders])
        if core in self.hangs:
            await self.hangs[core].wait()


@pytest.fixture
def cores() -> Cores:
    return Cores()


@pytest.fixture
def news(cores: Cores, nursery: trio.Nursery) -> CoreNews:
    return CoreNews(cores.ask, nursery.start_soon)


async def test_what_comes_while_a_core_does_not_answer_goes_to_the_others_at_once(cores, news):
    hangs = cores.hangs[OTHERS[0]] = trio.Event()
    for told in ([led(0)], [led(1)], [led(0, 2), led(2)]):
        news.tell(OTHERS, told)
        await trio.testing.wait_all_tasks_blocked()
    assert cores.told[OTHERS[1]] == [[(0, 1)], [(1, 1)], [(0, 2), (2, 1)]]
    assert cores.told[OTHERS[0]] == [[(0, 1)]]
    hangs.set()
    await trio.testing.wait_all_tasks_blocked()
    assert cores.told[OTHERS[0]] == [[(0, 1)], [(1, 1), (0, 2), (2, 1)]]


async def test_that_there_is_no_leader_is_told_between_two_that_there_are(cores, news):
    """Else the later one's epoch, of a partition that has begun anew, would be an old one."""
    hangs = cores.hangs[OTHERS[0]] = trio.Event()
    none = NO_LEADER_EPOCH
    for epoch in (9, 8, none, 1):
        news.tell(OTHERS[:1], [led(0, epoch)])
        await trio.testing.wait_all_tasks_blocked()
    hangs.set()
    await trio.testing.wait_all_tasks_blocked()
    assert cores.told[OTHERS[0]] == [[(0, 9)], [(0, none), (0, 1)]]


async def test_a_core_that_does_not_answer_is_waited_for_once_and_not_for_long(cores, news, autojump_clock):
    cores.hangs[OTHERS[0]] = trio.Event()
    began_s = trio.current_time()
    for index in range(3):
        news.tell(OTHERS, [led(index)])
        await news.wait_told()
    assert trio.current_time() == pytest.approx(began_s + WAIT_S)
    assert len(cores.told[OTHERS[1]]) == 3
    cores.hangs.pop(OTHERS[0]).set()
    await trio.testing.wait_all_tasks_blocked()
    assert cores.told[OTHERS[0]] == [[(0, 1)], [(1, 1), (2, 1)]]


async def test_topics_are_made_while_a_core_does_not_answer_who_tells_it_of_leaders(autojump_clock):
    async with running_node(cores=3) as node:

        async def hang(*_arguments):
            await trio.sleep_forever()

        node.lives[CoreId(1)].mailboxes.serve("leaders", hang)
        began_s = trio.current_time()
        for name in "abcd":
            assert await create_topic(node, 0, name, 3) == ErrorCode.NONE
        assert trio.current_time() - began_s <= 2 * WAIT_S, "core 0 and core 2 each wait once"


async def test_a_core_that_hangs_holds_up_one_change_until_it_is_told_of_none(autojump_clock):
    async with running_node(cores=3) as node:

        async def hang(*_arguments, **_options):
            await trio.sleep_forever()

        mailboxes = node.lives[CoreId(1)].mailboxes
        mailboxes.call = hang  # it does not ask anew either
        for method in ("leaders", "metadata.apply", "nodes"):
            mailboxes.serve(method, hang)
        took_s = []
        for name in "abcd":
            began_s = trio.current_time()
            assert await create_topic(node, 0, name, 3) == ErrorCode.NONE
            took_s.append(trio.current_time() - began_s)
        first_s, *next_s = took_s
        assert first_s <= PUSH_TIMEOUT_MS / 1000 + 2 * WAIT_S
        assert max(next_s) <= 2 * WAIT_S


async def test_other_nodes_hear_of_an_election_while_a_core_of_this_one_hangs(nursery):
    heard: list[int] = []

    async def ask(_node, _method, payload):
        await trio.lowlevel.checkpoint()
        heard.extend(row[1] for row in payload["leaders"])

    async def hang(*_arguments, timeout_ms):
        del timeout_ms
        await trio.sleep_forever()

    view = ClusterView(NodeId(1), 2, (), None, in_cluster=True)
    view.set_up([CoreId(0), CoreId(1)])
    cluster = Mock(linked=lambda: [NodeId(2)], ask=ask, start_soon=nursery.start_soon)
    mailboxes = Mock(call=hang)
    service = MetadataService(CoreId(0), view, mailboxes, Mock(), MemoryClock(), nursery.start_soon, cluster)
    core = SimpleNamespace(view=view, core_id=CoreId(0), metadata=service)
    made = ReplicatedPartitions(core, Mock(followers=Mock(in_sync=lambda _key: (NodeId(1),))))  # type: ignore[arg-type]
    made.near = Mock()
    nursery.start_soon(made.run)
    for index in range(3):
        made._announce(led(index)[0], LeaderEpoch(4), Replica(NodeId(1), CoreId(0)))
        await trio.testing.wait_all_tasks_blocked()
    assert heard == [0, 1, 2]


def test_nothing_is_kept_of_the_leaders_of_topics_that_are_gone():
    """That they lead no more is told behind the image in which the topic is gone, here and by other nodes."""
    view = ClusterView(NodeId(1), 2, (), None, in_cluster=True)
    here = Replica(NodeId(1), CoreId(0))
    with_topic = ClusterImage().apply([TopicCreated("t", TOPIC, (CoreId(0),) * 2, 1)], MetadataVersion(1))
    view.note_leaders([(led(0)[0], Leader(LeaderEpoch(4), 0, here))])
    view.image = with_topic
    assert view.told(led(0)[0]).place == here, "who leads may be faster than the image"
    view.image = with_topic.apply([TopicDeleted(TOPIC)], MetadataVersion(2))
    view.forget_leaders(with_topic.topics[TOPIC])
    view.note_leaders([(led(index)[0], Leader(LeaderEpoch(4), 1, NOBODY)) for index in range(2)])
    assert not view._leaders


def test_nothing_is_kept_of_the_leaders_of_topics_that_came_and_went_between_two_images():
    view = ClusterView(NodeId(1), 2, (), None, in_cluster=True)
    view.note_leaders([(led(0)[0], Leader(LeaderEpoch(4), 0, Replica(NodeId(2), CoreId(0))))])
    gone = [TopicCreated("t", TOPIC, (CoreId(0),), 1), TopicDeleted(TOPIC)]
    view.image = ClusterImage().apply(gone, MetadataVersion(2))
    assert not view._leaders
