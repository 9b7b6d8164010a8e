"""Where logs start: a leader tells its followers, which delete what it has deleted, as far as it is committed."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import trio

from tpc_broker.errors import MailboxError, PartitionOfflineError
from tpc_broker.model import CoreId, NodeId, PartitionIndex, TopicId, TopicPartition
from tpc_broker.node.replicas.core_replicas import CoreReplicas, group_of
from tpc_broker.node.replicas.log_starts import LOG_STARTS, LogStarts
from tpc_broker.node.replicas.replication import CoreReplication
from tpc_broker.raft.items import Address, Voter

KEY = TopicPartition(TopicId(uuid.UUID(int=5)), PartitionIndex(0))
HANDLE, TERM = 9, 4
FOLLOWER = Address(NodeId(2), 0)


def log_starts_of(bounds: SimpleNamespace, leader: int, sent: list) -> LogStarts:
    """Of a core with one partition; what it tells others and what it deletes is in `sent`."""
    machine = SimpleNamespace(
        me=Voter(NodeId(2), 1),
        leader=Voter(NodeId(leader), 1),
        term=TERM,
        others=lambda: [Voter(NodeId(2), 1)],
        address_of=lambda _v: FOLLOWER,
    )

    async def ask(address, method, payload):
        sent.append((address, method, payload))
        if bounds.is_lost:
            raise MailboxError("lost")
        return bounds.answer

    async def set_log_start(handle, offset) -> None:
        sent.append((handle, offset))
        if bounds.is_closed:
            raise PartitionOfflineError("its journal fails")
        bounds.log_start_offset = offset

    plane = SimpleNamespace(bounds=lambda _handle: bounds)
    made = CoreReplicas(CoreId(0), plane, SimpleNamespace(set_log_start=set_log_start), SimpleNamespace())
    made.add(KEY, HANDLE)
    made.groups = {group_of(KEY): machine}
    made.links = SimpleNamespace(ask=ask, is_up=lambda _address: True)
    return LogStarts(made)


def connect(leader: LogStarts, address: Address) -> None:
    """A link of its core is up again."""
    made = object.__new__(CoreReplication)
    made.log_starts, made._driver = leader, SimpleNamespace(connected=lambda _address: None)
    made._is_connected(address)


def tell(leader: LogStarts) -> None:
    trio.run(leader.tell, [KEY])


def state(log_start_offset: int, high_watermark: int = 100) -> SimpleNamespace:
    return SimpleNamespace(
        log_start_offset=log_start_offset, high_watermark=high_watermark, is_lost=False, is_closed=False,
        answer={"starts": {group_of(KEY): 40}},
    )  # fmt: skip


def test_one_that_was_removed_since_its_round_began_is_passed_over():
    """With thousands of partitions a round takes seconds, and replicas go meanwhile: that ended the core."""
    sent, bounds = [], state(40)
    leader = log_starts_of(bounds, 1, sent)
    gone = TopicPartition(KEY.topic_id, PartitionIndex(KEY.partition + 1))
    trio.run(leader.tell, [gone, KEY])
    assert sent == [(FOLLOWER, LOG_STARTS, {group_of(KEY): [TERM, 40]})]


def test_a_leader_tells_until_it_was_heard_and_again_after_a_new_connection():
    sent, bounds = [], state(0)
    leader = log_starts_of(bounds, 1, sent)
    tell(leader)
    assert sent == [], "every log starts at 0"
    bounds.log_start_offset, bounds.is_lost = 40, True
    tell(leader)
    bounds.is_lost = False
    tell(leader)
    tell(leader)
    connect(leader, FOLLOWER)
    tell(leader)
    assert sent == [(FOLLOWER, LOG_STARTS, {group_of(KEY): [TERM, 40]})] * 3


def test_a_leader_tells_again_until_the_follower_says_that_its_log_starts_there():
    sent, bounds = [], state(40)
    leader = log_starts_of(bounds, 1, sent)
    for count, starts in ((1, {}), (2, {group_of(KEY): 30}), (3, {group_of(KEY): 40}), (3, {})):
        bounds.answer = {"starts": starts}
        tell(leader)
        assert len(sent) == count, starts
    bounds.log_start_offset, bounds.answer = 50, {"starts": {group_of(KEY): 60}}
    tell(leader)
    tell(leader)
    assert len(sent) == 4


def test_a_follower_of_an_earlier_release_does_not_answer_and_is_told_once():
    sent, bounds = [], state(40)
    leader = log_starts_of(bounds, 1, sent)
    bounds.answer = {}
    tell(leader)
    tell(leader)
    assert len(sent) == 1


def test_another_life_on_the_same_core_is_told_although_its_connection_stayed():
    """A replica was damaged and begins anew: its empty log starts at 0, whatever the one before had deleted."""
    sent, bounds, others = [], state(40), [Voter(NodeId(2), 1)]
    leader = log_starts_of(bounds, 1, sent)
    machine = leader._replicas.machine_of(KEY)
    machine.others = lambda: others

    def told_again(life: int, starts: int) -> bool:
        bounds.answer = {"starts": {group_of(KEY): starts}, "lives": {group_of(KEY): life}}
        sent.clear()
        tell(leader)
        return bool(sent)

    assert told_again(1, 40)
    assert not told_again(1, 40)
    others[:] = [Voter(NodeId(2), 2)]
    assert told_again(1, 40), "and the one before is there still, and answers"
    assert told_again(2, 0)
    assert told_again(2, 40)
    assert not told_again(2, 40)
    machine.address_of = lambda _voter: Address(NodeId(2), 1)
    assert told_again(2, 40), "on another core of its node"
    assert not told_again(2, 40)
    connect(leader, FOLLOWER)
    assert not told_again(2, 40)
    connect(leader, Address(NodeId(2), 1))
    assert told_again(2, 40)


def test_of_a_partition_that_goes_nothing_is_kept():
    sent, bounds = [], state(40)
    leader = log_starts_of(bounds, 1, sent)
    tell(leader)
    leader.removed(group_of(KEY))
    tell(leader)
    assert len(sent) == 2, "one that comes back is told"
    leader.removed(group_of(KEY))
    ask = leader._replicas.links.ask

    async def removed_meanwhile(*arguments):
        leader._replicas.keys.clear()
        return await ask(*arguments)

    leader._replicas.links.ask = removed_meanwhile
    tell(leader)
    assert not leader._told


def test_a_follower_deletes_what_is_committed_for_its_leader_alone_and_says_how_far():
    sent, bounds = [], state(10)
    follower = log_starts_of(bounds, 1, sent)

    def serve(node: int, term: int, starts: int) -> int:
        told = {group_of(KEY): [term, starts], "another": [1, 1]}
        answer, _blobs = trio.run(follower.serve, SimpleNamespace(node=node), told, [])
        assert list(answer["starts"]) == [group_of(KEY)], "not of one that is not here"
        assert answer["lives"] == {group_of(KEY): 1}
        return answer["starts"][group_of(KEY)]

    for node, term, starts, expected, answer in (
        (3, TERM, 40, [], 10),  # it is not the leader
        (1, TERM - 1, 40, [], 10),  # nor in that term
        (1, TERM, 10, [], 10),
        (1, TERM, 40, [(HANDLE, 40)], 40),
        (1, TERM, 400, [(HANDLE, 40), (HANDLE, 100)], 100),
    ):
        assert serve(node, term, starts) == answer
        assert sent == expected, (node, term, starts)
    bounds.high_watermark, bounds.is_closed = 500, True
    assert serve(1, TERM, 400) == 100
    bounds.is_closed = False
    assert serve(1, TERM, 400) == 400


def test_a_follower_that_does_not_know_yet_what_is_committed_deletes_it_later():
    """DeleteRecords behind a produce at once: else what it has deleted would be there again when another one leads."""
    followers = state(0, high_watermark=30)
    leader, follower = log_starts_of(state(40), 1, []), log_starts_of(followers, 1, [])

    async def ask(_address, _method, payload):
        return (await follower.serve(SimpleNamespace(node=1), payload, []))[0]

    leader._replicas.links.ask = ask
    tell(leader)
    assert followers.log_start_offset == 30
    followers.high_watermark = 100
    tell(leader)
    assert followers.log_start_offset == 40
