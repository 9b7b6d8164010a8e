"""What other nodes are told of leaders: all of it, in few messages, whatever a link refuses."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from tpc_broker.broker import leader_news
from tpc_broker.broker.leader_news import ASKED_BY, FOR_NODE, LED_ON, LeaderNews
from tpc_broker.broker.view import Leader
from tpc_broker.errors import MailboxFullError, NotDeliveredError
from tpc_broker.model import LeaderEpoch, NodeId, PartitionIndex, TopicId, TopicPartition

TOPIC = TopicId(uuid.UUID(int=3))
OWN = NodeId(1)
OTHERS = [NodeId(2), NodeId(3)]
LED_BY = {OWN: 7, OTHERS[0]: 8, OTHERS[1]: 9}
"""One partition each, as is known here."""


def led(index: int, epoch: int = 1) -> tuple[TopicPartition, Leader]:
    return TopicPartition(TOPIC, PartitionIndex(index)), Leader(LeaderEpoch(epoch))


class Nodes:
    """As `ClusterNode` as far as news need it. `asked` has what each node was told, message by message."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.start_soon = nursery.start_soon
        self.on_peer_up: Callable[[NodeId], None]
        self.up = list(OTHERS)
        self.asked: dict[NodeId, list[dict[int, int]]] = {node: [] for node in OTHERS}
        self.takes = trio.Event()
        self.refuses = 0
        self.passes_on: Callable[[dict[str, Any]], Awaitable[object]] = self._has_no_link
        self.asked_of: list[tuple[NodeId, list[int]]] = []

    def linked(self) -> list[NodeId]:
        return list(self.up)

    async def ask(self, node: NodeId, method: str, payload: dict[str, Any]) -> None:
        assert method == "leaders"
        if node not in self.up:
            raise NotDeliveredError("there is no link")
        if FOR_NODE in payload:
            await self.passes_on(payload)
            return
        if ASKED_BY in payload:
            assert payload["leaders"] == [], "an earlier release takes it for news"
            assert payload[ASKED_BY] == OWN
            self.asked_of.append((node, payload[LED_ON]))
            return
        if self.refuses:
            self.refuses -= 1
            raise MailboxFullError("the link is full")
        self.asked[node].append(dict(payload["leaders"]))
        await self.takes.wait()

    def pass_all_on(self) -> list[tuple[NodeId, list[list[int]]]]:
        """What each is told by another node."""
        helped: list[tuple[NodeId, list[list[int]]]] = []

        async def pass_on(payload: dict[str, Any]) -> None:
            helped.append((NodeId(payload[FOR_NODE]), payload["leaders"]))

        self.passes_on = pass_on
        return helped

    async def _has_no_link(self, _payload: dict[str, Any]) -> None:
        raise NotDeliveredError("nor has this one a link")


@pytest.fixture
def nodes(nursery: trio.Nursery) -> Nodes:
    return Nodes(nursery)


@pytest.fixture
def news(nodes: Nodes) -> LeaderNews:
    rows = lambda told: [[key.partition, leader.epoch] for key, leader in told]  # noqa: E731
    known = lambda on: [led(LED_BY[node]) for node in sorted(on)]  # noqa: E731
    return LeaderNews(nodes, OWN, known, rows, lambda: OTHERS)  # type: ignore[arg-type]


async def test_what_comes_while_a_message_is_under_way_goes_with_the_next_one(
    nodes: Nodes, news: LeaderNews, autojump_clock: object
) -> None:
    for index in range(5):
        news.tell([led(index)])
        await trio.testing.wait_all_tasks_blocked()
    news.tell([led(3, 2)])
    nodes.takes.set()
    await trio.testing.wait_all_tasks_blocked()
    for node in OTHERS:
        assert nodes.asked[node] == [{0: 1}, {1: 1, 2: 1, 3: 2, 4: 1}]


async def test_what_a_link_did_not_take_is_told_again_as_it_is_by_then(
    nodes: Nodes, news: LeaderNews, autojump_clock: object
) -> None:
    nodes.up = OTHERS[:1]
    nodes.takes.set()
    nodes.refuses = 3
    news.tell([led(0), led(1)])
    await trio.testing.wait_all_tasks_blocked()
    news.tell([led(1, 2)])
    await trio.sleep(10 * leader_news.AGAIN_S)
    assert nodes.asked[OTHERS[0]] == [{0: 1, 1: 2}]
    assert nodes.asked[OTHERS[1]] == []


async def test_many_go_in_parts(
    nodes: Nodes, news: LeaderNews, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_news, "TOLD_AT_ONCE", 3)
    nodes.takes.set()
    news.tell(led(index) for index in range(7))
    await trio.testing.wait_all_tasks_blocked()
    assert [len(told) for told in nodes.asked[OTHERS[0]]] == [3, 3, 1]


async def test_a_node_that_is_there_again_is_told_everything(
    nodes: Nodes, news: LeaderNews, autojump_clock: object
) -> None:
    nodes.refuses = 2
    news.tell([led(0)])
    await trio.testing.wait_all_tasks_blocked()
    nodes.up, nodes.refuses = [], 0
    await trio.sleep(10 * leader_news.AGAIN_S)
    assert nodes.asked == {node: [] for node in OTHERS}, "what was lost with the link is not kept for ever"
    nodes.up = list(OTHERS)
    nodes.takes.set()
    nodes.on_peer_up(OTHERS[0])
    await trio.testing.wait_all_tasks_blocked()
    assert nodes.asked == {OTHERS[0]: [{7: 1}], OTHERS[1]: []}


async def test_who_cannot_be_told_is_told_by_the_first_that_can(
    nodes: Nodes, news: LeaderNews, autojump_clock: object
) -> None:
    nodes.takes.set()
    helped = nodes.pass_all_on()
    nodes.up = OTHERS[1:]
    news.tell([led(0), led(1)])
    await trio.testing.wait_all_tasks_blocked()
    assert nodes.asked == {OTHERS[0]: [], OTHERS[1]: [{0: 1, 1: 1}]}
    assert helped == [(OTHERS[0], [[0, 1], [1, 1]])]


async def test_news_are_passed_on_as_they_are_to_who_is_named(
    nodes: Nodes, news: LeaderNews, autojump_clock: object
) -> None:
    nodes.takes.set()
    told = {"leaders": [[4, 2]]}
    assert not await news.pass_on(told)
    assert await news.pass_on({**told, FOR_NODE: 3})
    assert nodes.asked == {OTHERS[0]: [], OTHERS[1]: [{4: 2}]}
    nodes.up = OTHERS[:1]
    with pytest.raises(NotDeliveredError):
        await news.pass_on({**told, FOR_NODE: 3})


async def test_who_has_started_asks_who_hears_it_of_leaders_on_nodes_that_it_does_not_hear(
    nodes: Nodes, news: LeaderNews, autojump_clock: object
) -> None:
    nodes.takes.set()
    nodes.up = OTHERS[:1]
    nodes.on_peer_up(OTHERS[0])
    await trio.sleep(2 * leader_news.LINKED_S)
    assert nodes.asked_of == [(OTHERS[0], [OTHERS[1]])]


async def test_who_starts_slowly_asks_when_it_knows_of_whom(
    nodes: Nodes, news: LeaderNews, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[NodeId] = []
    monkeypatch.setattr(news, "_others", lambda: known)
    nodes.takes.set()
    nodes.up = OTHERS[:1]
    nodes.on_peer_up(OTHERS[0])
    await trio.sleep(3.5 * leader_news.LINKED_S)
    assert nodes.asked_of == []
    known += OTHERS
    await trio.sleep(leader_news.LINKED_S)
    assert nodes.asked_of == [(OTHERS[0], [OTHERS[1]])]


async def test_who_was_refused_or_may_have_asked_too_early_asks_again_and_ever_more_seldom(
    nodes: Nodes, news: LeaderNews, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_s: list[float] = []
    begun_s = trio.current_time()

    async def refuse_first(_node: NodeId, _method: str, payload: dict[str, Any]) -> None:
        if ASKED_BY in payload:
            at_s.append(trio.current_time() - begun_s)
            if len(at_s) == 1:
                raise MailboxFullError("the link is full")

    monkeypatch.setattr(nodes, "ask", refuse_first)
    nodes.up = OTHERS[:1]
    nodes.on_peer_up(OTHERS[0])
    nodes.on_peer_up(OTHERS[0])
    await trio.sleep(400)
    assert at_s == pytest.approx([1, 2, 4, 8, 16, 32, 64, 124, 184, 244, 304, 364])
    nodes.up = list(OTHERS)
    asked = len(at_s)
    await trio.sleep(2 * leader_news.ASK_S_MAX)
    assert len(at_s) == asked, "it hears all"


async def test_who_hears_all_soon_asks_nobody(nodes: Nodes, news: LeaderNews, autojump_clock: object) -> None:
    nodes.takes.set()
    nodes.up = OTHERS[:1]
    nodes.on_peer_up(OTHERS[0])
    await trio.sleep(leader_news.LINKED_S / 2)
    nodes.up = list(OTHERS)
    nodes.on_peer_up(OTHERS[1])
    news.are_back(frozenset(OTHERS))
    await trio.sleep(2 * leader_news.LINKED_S)
    assert nodes.asked_of == []
    assert nodes.asked == {node: [{7: 1}] for node in OTHERS}


async def test_who_asks_is_told_what_is_known_of_leaders_on_other_nodes(
    nodes: Nodes, news: LeaderNews, autojump_clock: object
) -> None:
    nodes.takes.set()
    assert not await news.pass_on({"leaders": [], LED_ON: [OTHERS[1]], ASKED_BY: OTHERS[0]})
    await trio.testing.wait_all_tasks_blocked()
    assert nodes.asked == {OTHERS[0]: [{9: 1}], OTHERS[1]: []}


async def test_who_was_taken_for_gone_is_told_by_others_and_they_are_asked(
    nodes: Nodes, news: LeaderNews, autojump_clock: object
) -> None:
    nodes.takes.set()
    helped = nodes.pass_all_on()
    nodes.up = OTHERS[:1]
    news.are_back(frozenset([OTHERS[1], NodeId(9)]))  # the last one was removed
    await trio.sleep(2 * leader_news.LINKED_S)
    assert helped == [(OTHERS[1], [[7, 1]])]
    assert nodes.asked_of == [(OTHERS[0], [OTHERS[1]])]
