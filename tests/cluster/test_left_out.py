"""What a replica that its group goes on without is told: by whom, and when nothing."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest
import trio

from tpc_broker.metadata.image import ClusterImage, Life
from tpc_broker.metadata.records import ASKED, TopicCreated
from tpc_broker.metadata.replica_moves import moving
from tpc_broker.model import (
    CoreId,
    FirstVoter,
    MetadataVersion,
    NodeId,
    PartitionIndex,
    Replica,
    TopicId,
    TopicPartition,
)
from tpc_broker.node.replicas.left_out import LeftOutReplicas

KEY = TopicPartition(TopicId(uuid.UUID(int=5)), PartitionIndex(0))
PLACES = tuple(Replica(NodeId(number), CoreId(0)) for number in range(4))
GONE, LIFE, TERM = NodeId(3), 1, 7


class Leader:
    """`LeftOutReplicas` of a core that leads in `TERM`, and what it asked for."""

    def __init__(self) -> None:
        voters = (tuple(FirstVoter(NodeId(number), 1) for number in range(3)),)
        created = TopicCreated(
            "t", KEY.topic_id, (CoreId(0),), 1,
            replicas=(PLACES[:3],), voters=voters, lives=((0, GONE, *Life(LIFE, 5)),),
        )  # fmt: skip
        self.image = ClusterImage().apply([created], MetadataVersion(1))
        self.term: int | None = TERM
        self.is_confirmed = True
        self.while_confirming = lambda: None
        self.asked: list[tuple[object, ...]] = []
        self.parts = LeftOutReplicas(self, self, self)
        self.parts.leave_out = self._leave_out

    def key_of(self, group):
        return KEY if group == "g" else None

    def settled_term(self, key):
        assert key == KEY
        return self.term

    def begin_next_term(self, key):
        self.asked.append(("next term", key))

    async def confirm(self, _key):
        await trio.lowlevel.checkpoint()
        self.while_confirming()
        return self.is_confirmed

    async def _leave_out(self, *ended):
        self.asked.append(ended)

    def move(self, *wanted):
        topic = self.image.topic_by_id(KEY.topic_id)
        record = moving(topic, 0, tuple(PLACES[node] for node in wanted), ASKED, 9, 9)
        self.image = self.image.apply([record], MetadataVersion(2))

    def answers(self, *, node=GONE, life=LIFE, term=TERM, group="g"):
        payload = {"group": group, "life": life, "term": term}
        answer, _blobs = trio.run(self.parts.serve, SimpleNamespace(node=node), payload, [])
        return answer


@pytest.mark.parametrize("term", [TERM, TERM - 1])
def test_a_confirmed_leader_of_that_term_or_of_a_later_one_has_the_metadata_say_so(term):
    leader = Leader()
    assert leader.answers(term=term) == {"left_out": True}
    assert leader.asked == [(KEY, GONE, LIFE, TERM)]


def test_a_leader_of_an_earlier_term_begins_its_next_one_first():
    leader = Leader()
    assert leader.answers(term=TERM + 1) == {}
    assert leader.asked == [("next term", KEY)]


@pytest.mark.parametrize("node", [0, 2])
def test_a_replica_that_counts_is_left_out_by_nobody(node):
    leader = Leader()
    assert leader.answers(node=NodeId(node), life=0) == {}
    assert leader.answers(node=NodeId(node), life=0, term=TERM + 1) == {}
    assert leader.asked == []


def test_nothing_is_said_of_another_life_or_another_group():
    leader = Leader()
    assert leader.answers(life=LIFE + 1) == {}
    assert leader.answers(life=LIFE - 1) == {}
    assert leader.answers(group="another") == {}
    assert leader.asked == []


def test_nothing_is_said_while_the_replicas_move_or_the_voters_change():
    leader = Leader()
    leader.move(0, 1, 3)
    assert leader.answers() == {}
    leader = Leader()
    leader.term = None
    assert leader.answers(term=TERM + 1) == {}
    assert leader.asked == []


def lost(leader):
    leader.is_confirmed = False


def led_anew(leader):
    leader.term = TERM + 2


def wanted_back(leader):
    leader.move(0, 1, 3)


@pytest.mark.parametrize("meanwhile", [lost, led_anew, wanted_back])
def test_what_was_not_confirmed_or_is_otherwise_by_then_is_not_said(meanwhile):
    leader = Leader()
    leader.while_confirming = lambda: meanwhile(leader)
    assert leader.answers() == {}
    assert leader.asked == []
