"""Where logs start: a leader tells its followers, which delete what it has deleted, as far as it is committed."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import trio

from tpc_broker.errors import MailboxError
from tpc_broker.model import LeaderEpoch, NodeId, PartitionIndex, TopicId, TopicPartition
from tpc_broker.raft.items import Address, Voter
from tpc_broker.runtime.cluster.replication import LOG_STARTS, CoreReplication, group_of

KEY = TopicPartition(TopicId(uuid.UUID(int=5)), PartitionIndex(0))
HANDLE, TERM = 9, 4
FOLLOWER = Address(NodeId(2), 0)


def replication(bounds: SimpleNamespace, leader: int, sent: list) -> CoreReplication:
    """Of a core with one partition; what it tells others and what it deletes is in `sent`."""
    made = object.__new__(CoreReplication)
    machine = SimpleNamespace(
        leader=Voter(NodeId(leader), 1), term=TERM, others=lambda: [Voter(NodeId(2), 1)], address_of=lambda _v: FOLLOWER
    )

    async def tell(address, method, payload) -> None:
        sent.append((address, method, payload))
        if bounds.is_lost:
            raise MailboxError("lost")

    async def set_log_start(handle, offset) -> None:
        sent.append((handle, offset))
        bounds.log_start_offset = offset

    made._keys, made._handles, made._starts_told = {group_of(KEY): KEY}, {group_of(KEY): HANDLE}, {}
    made._led, made._to_look = {KEY: LeaderEpoch(TERM)}, []
    made._plane = SimpleNamespace(bounds=lambda _handle: bounds)
    made._storage = SimpleNamespace(set_log_start=set_log_start)
    groups = {group_of(KEY): machine}
    made._driver = SimpleNamespace(core=SimpleNamespace(groups=groups), connected=lambda _address: None)
    made.links = SimpleNamespace(tell=tell, is_up=lambda _address: True)
    return made


def state(log_start_offset: int, high_watermark: int = 100) -> SimpleNamespace:
    return SimpleNamespace(log_start_offset=log_start_offset, high_watermark=high_watermark, is_lost=False)


def test_one_that_was_removed_since_its_round_began_is_passed_over():
    """With thousands of partitions a round takes seconds, and replicas go meanwhile: that ended the core."""
    sent, bounds = [], state(40)
    leader = replication(bounds, 1, sent)
    gone = TopicPartition(KEY.topic_id, PartitionIndex(KEY.partition + 1))
    leader._to_look = [gone, KEY]
    trio.run(leader._tell_log_starts)
    assert sent == [(FOLLOWER, LOG_STARTS, {group_of(KEY): [TERM, 40]})]


def test_a_leader_tells_until_it_was_heard_and_again_after_a_new_connection():
    sent, bounds = [], state(0)
    leader = replication(bounds, 1, sent)
    trio.run(leader._tell_log_starts)
    assert sent == [], "every log starts at 0"
    bounds.log_start_offset, bounds.is_lost = 40, True
    trio.run(leader._tell_log_starts)
    bounds.is_lost = False
    trio.run(leader._tell_log_starts)
    trio.run(leader._tell_log_starts)
    leader._is_connected(FOLLOWER)
    trio.run(leader._tell_log_starts)
    assert sent == [(FOLLOWER, LOG_STARTS, {group_of(KEY): [TERM, 40]})] * 3


def test_a_follower_deletes_what_is_committed_for_its_leader_alone():
    sent, bounds = [], state(10)
    follower = replication(bounds, 1, sent)
    for node, term, starts, expected in (
        (3, TERM, 40, []),  # it is not the leader
        (1, TERM - 1, 40, []),  # nor in that term
        (1, TERM, 10, []),
        (1, TERM, 40, [(HANDLE, 40)]),
        (1, TERM, 400, [(HANDLE, 40), (HANDLE, 100)]),
    ):
        hello = SimpleNamespace(node=node)
        trio.run(follower.serve_log_starts, hello, {group_of(KEY): [term, starts], "another": [1, 1]}, [])
        assert sent == expected, (node, term, starts)
