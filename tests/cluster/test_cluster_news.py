"""What a node's log says of the others: who can be missed and who cannot, by name, and when it is over."""

from __future__ import annotations

import logging
import uuid
from types import SimpleNamespace

import pytest

from tpc_broker.model import NodeId
from tpc_broker.node.membership.cluster_news import LEADERLESS_TOLD_S, ClusterNews
from tpc_broker.swim.model import Address, Change, MemberEvent, NodeInfo

OWN = 1
IMAGE = SimpleNamespace(nodes={NodeId(node): None for node in (1, 2, 3)})


@pytest.fixture
def news(caplog):
    caplog.set_level(logging.INFO)
    return ClusterNews(OWN)


def warnings(caplog):
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return found


def event(change, node=3, *, is_full=False):
    info = NodeInfo(address=Address("127.0.0.1", 9100), boot_id=uuid.UUID(int=1), lacks_space=is_full)
    return MemberEvent(change, NodeId(node), 1, info)


def test_a_death_and_the_return_of_the_dead_are_warnings(news, caplog):
    for change in (Change.JOINED, Change.SUSPECTED, Change.CLEARED, Change.CHANGED, Change.RESTARTED):
        news.member_changed(event(change))
    assert not warnings(caplog)
    news.member_changed(event(Change.SUSPECTED))
    news.member_changed(event(Change.DIED))
    (line,) = warnings(caplog)
    assert line.startswith("node 3 is dead")
    news.member_changed(event(Change.JOINED))
    assert warnings(caplog) == ["node 3 is back"]
    news.member_changed(event(Change.LEFT))
    news.member_changed(event(Change.JOINED))
    assert not warnings(caplog), "it said good-bye"
    news.member_changed(event(Change.CONFLICT))
    assert warnings(caplog)


def test_another_node_that_is_full_is_a_warning_once(news, caplog):
    news.member_changed(event(Change.JOINED))
    for _ in range(5):
        news.member_changed(event(Change.CHANGED, is_full=True))
    (line,) = warnings(caplog)
    assert line.startswith("node 3 is full")
    news.member_changed(event(Change.CHANGED))
    assert warnings(caplog) == ["node 3 has space again for new replicas"]
    news.member_changed(event(Change.CHANGED, node=OWN, is_full=True))
    assert not warnings(caplog), "of itself it is told where it was found"


def test_a_lost_majority_is_a_warning_that_names_the_nodes_and_so_is_its_end(news, caplog):
    news.look_at_metadata(0.0, 2, IMAGE, {2, 3})
    news.look_at_metadata(1.0, None, IMAGE, {2, 3})
    news.look_at_metadata(1.0 + LEADERLESS_TOLD_S / 2, 3, IMAGE, {2, 3})
    assert not warnings(caplog), "an election"
    for number in range(20):
        news.look_at_metadata(10.0 + number, None, IMAGE, ())
    (line,) = warnings(caplog)
    assert "no link to nodes 2, 3, node 1 is there" in line
    news.look_at_metadata(30.0, 2, IMAGE, {2})
    assert warnings(caplog) == ["the metadata have a leader again, node 2, after 20.0 s"]
    news.look_at_metadata(31.0, 2, IMAGE, {2})
    assert not warnings(caplog)
