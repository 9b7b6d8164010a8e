"""Three planes with real journals and one machine each: what is acknowledged with acks=all survives its leader."""

import contextlib
import socket
from collections import defaultdict

import pytest

from tests.support.plane_bench import read_produce_answer, records_of
from tests.support.replica_node import TOPIC, ReplicaNode
from tests.support.waiting import let_pass, patiently
from tpc_broker.error_codes import ErrorCode as E
from tpc_broker.raft.output import Role


class Trio:
    """Nodes, frames between them, and clients. The machines' time goes on by a millisecond a turn."""

    def __init__(self, folder):
        self.nodes = [ReplicaNode(folder, number, 3) for number in range(3)]
        self.now_ms = 0
        self.away = set()
        self.mail = defaultdict(list)
        self.acknowledged, self.failed = [], []

    def step(self):
        """A turn of every node."""
        self.now_ms += 1
        for number, node in enumerate(self.nodes):
            received, self.mail[number] = self.mail[number], []
            node.turn(self.now_ms, received)
            for frame in node.frames:
                if not self.away & {number, frame.target.node}:
                    self.mail[frame.target.node].append(frame)
        let_pass(0.0005)  # for the disk, which is a real one

    def until(self, condition):
        for _ in patiently(lambda: [(node.role, node.term, node.log()) for node in self.nodes]):
            if condition():
                break
            self.step()

    def leader(self):
        """Of those that are not away, once clients may be told of it."""
        leaders = [
            node
            for number, node in enumerate(self.nodes)
            if number not in self.away and node.role is Role.LEADER and node.plane.state(node.handle).role == 1
        ]
        return max(leaders, key=lambda node: node.term, default=None)

    def send(self, node, values, acks=-1, sequence=None):
        """A Produce of one batch for each value; its socket. `sequence`: of the first one, by a producer."""
        client = socket.create_connection(node.bench.address)
        client.setblocking(False)
        for place, value in enumerate(values):
            producer = (-1, -1, -1) if sequence is None else (7, 0, sequence + place)
            node.bench.send(client, [(TOPIC, 0, records_of(1, value=value, producer=producer))], acks=acks)
        return client

    def answers(self, client, count):
        """(error, base offset) of so many answers."""
        data, found = bytearray(), []

        def is_complete():
            with contextlib.suppress(BlockingIOError):
                data.extend(client.recv(1 << 16))
            while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4])):
                found.append(read_produce_answer(bytes(data[4:end]))[1][0][2:4])
                del data[:end]
            return len(found) >= count

        self.until(is_complete)
        client.close()
        return found

    def shut(self):
        for node in self.nodes:
            node.bench.shut()


@pytest.fixture
def trio(tmp_path):
    made = Trio(tmp_path)
    yield made
    made.shut()


def values(name, count):
    return [b"%s-%d:" % (name, number) for number in range(count)]


def stored(found):
    """As `records_of` writes them."""
    return [value + b"0" for value in found]


def test_acks_all_is_answered_when_a_majority_has_it_and_readers_see_it_then(trio):
    trio.until(trio.leader)
    leader = trio.leader()
    asked = values(b"a", 20)
    assert trio.answers(trio.send(leader, asked), 20) == [(E.NONE, offset) for offset in range(20)]
    assert leader.visible() == stored(asked)
    trio.until(lambda: all(node.visible() == stored(asked) for node in trio.nodes))
    assert len({tuple(node.log()) for node in trio.nodes}) == 1
    epochs = {epoch for _base, epoch, _value in leader.log()}
    assert epochs == {leader.term}


def test_without_a_majority_acks_one_is_answered_and_acks_all_is_not(trio):
    trio.until(trio.leader)
    leader = trio.leader()
    trio.away = {number for number, node in enumerate(trio.nodes) if node is not leader}
    assert trio.answers(trio.send(leader, values(b"one", 1), acks=1), 1) == [(E.NONE, 0)]
    client = trio.send(leader, values(b"all", 1))
    trio.until(lambda: leader.plane.state(leader.handle).durable_offset == 2)
    for _ in range(20):
        trio.step()
    assert leader.visible() == []
    assert leader.plane.statistics()["produces_pending"] == 1
    trio.away = set()
    assert trio.answers(client, 1) == [(E.NONE, 1)]
    trio.until(lambda: all(node.visible() == [b"one-0:0", b"all-0:0"] for node in trio.nodes))


def test_nothing_acknowledged_is_lost_with_the_leader_and_it_gives_up_what_others_have_not(trio):
    trio.until(trio.leader)
    first = trio.leader()
    kept = values(b"kept", 12)
    assert [error for error, _base in trio.answers(trio.send(first, kept), 12)] == [E.NONE] * 12
    trio.away = {trio.nodes.index(first)}
    lost = trio.send(first, values(b"lost", 5))
    trio.until(lambda: first.plane.state(first.handle).durable_offset == 17)
    trio.until(lambda: trio.leader() not in (None, first))
    second = trio.leader()
    assert second.term > first.log()[-1][1]
    behind = values(b"behind", 6)
    assert trio.answers(trio.send(second, behind), 6) == [(E.NONE, offset) for offset in range(12, 18)]
    assert second.visible() == stored(kept + behind)
    assert {error for error, _base in trio.answers(lost, 5)} == {E.NOT_LEADER_OR_FOLLOWER}, "check-quorum"
    trio.away = set()
    trio.until(lambda: all(node.visible() == stored(kept + behind) for node in trio.nodes))
    assert len({tuple(node.log()) for node in trio.nodes}) == 1
    assert first.cuts == 1
    later = values(b"later", 3)
    assert [error for error, _base in trio.answers(trio.send(trio.leader(), later), 3)] == [E.NONE] * 3
    trio.until(lambda: all(node.visible() == stored(kept + behind + later) for node in trio.nodes))


def test_one_leader_after_the_other_and_every_record_once(trio):
    told = []
    for number in range(6):
        trio.until(lambda: trio.leader() is not None)
        leader = trio.leader()
        asked = values(b"round%d" % number, 4)
        answers = trio.answers(trio.send(leader, asked), 4)
        told += [(base, value) for value, (error, base) in zip(asked, answers, strict=True) if not error]
        trio.away = {trio.nodes.index(leader)}
    trio.away = set()
    trio.until(trio.leader)
    trio.until(lambda: len({tuple(node.log()) for node in trio.nodes}) == 1)
    trio.until(lambda: len({tuple(node.visible()) for node in trio.nodes}) == 1)
    seen = trio.leader().visible()
    assert [value for value in seen if value in stored(value for _base, value in told)] == stored(
        value for _base, value in told
    )
    assert [seen[base] for base, _value in told] == stored(value for _base, value in told)
    assert len(told) >= 20


def test_who_repeats_is_told_the_place_that_all_logs_have_whoever_leads(trio):
    told = {}
    for number in range(5):
        wanted = range(max(0, 3 * number - 2), 3 * number + 3)
        while not told.keys() >= set(wanted):
            trio.until(trio.leader)
            leader = trio.leader()
            client = trio.send(leader, [b"%d:" % sequence for sequence in wanted], sequence=wanted[0])
            for sequence, (error, base) in zip(wanted, trio.answers(client, len(wanted)), strict=True):
                assert error or told.setdefault(sequence, base) == base
        trio.away = {trio.nodes.index(leader)}
    trio.away = set()
    trio.until(lambda: len({tuple(node.visible()) for node in trio.nodes}) == 1)
    assert {base: b"%d:0" % sequence for sequence, base in told.items()} == dict(enumerate(trio.nodes[0].visible()))
