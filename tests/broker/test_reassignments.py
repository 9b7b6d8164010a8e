"""AlterPartitionReassignments and ListPartitionReassignments over the port behind them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tpc_broker.broker.handlers.reassignments import (
    IDS_ARE_CORES_TAG,
    handle_alter_partition_reassignments,
    handle_list_partition_reassignments,
)
from tpc_broker.broker.reassignments import Ongoing, Outcome
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.kafka.protocol import encode_request
from tpc_broker.kafka.source import uvarint

PER_CORE, SHARED = 0, 1


class Asked:
    """A `Reassignments` that refuses partition 1, and says what it was asked."""

    def __init__(self):
        self.wanted = []

    async def alter(self, wanted, *, allow_factor_change, check):
        del check
        self.wanted += [(*one, allow_factor_change) for one in wanted]
        return [Outcome(ErrorCode.POLICY_VIOLATION, "no") if one.partition == 1 else Outcome() for one in wanted]

    def ongoing(self):
        return [Ongoing(topic, index, (1, 0), (1,), (0,)) for topic, index in (("b", 0), ("a", 2), ("b", 1))]


def core_with(reassignments):
    view = SimpleNamespace(
        is_shared=lambda listener: listener == SHARED,
        endpoints=lambda _listener: [SimpleNamespace(broker_id=7)],
        topic=lambda name: None if name == "missing" else object(),
    )
    return SimpleNamespace(view=view, reassignments=reassignments, cluster=None)


def alter_request(*topics, allow=True):
    kind = messages.AlterPartitionReassignmentsRequest
    return kind(
        allow_replication_factor_change=allow,
        topics=[
            kind.ReassignableTopic(
                name=name,
                partitions=[kind.ReassignablePartition(partition_index=index, replicas=each) for index, each in parts],
            )
            for name, parts in topics
        ],
    )


async def test_each_partition_gets_its_own_outcome():
    asked = Asked()
    request = alter_request(("a", [(0, [1]), (1, None)]), ("b", [(1, [0, 1])]), allow=False)
    answer = await handle_alter_partition_reassignments(core_with(asked), SimpleNamespace(listener=PER_CORE), request)
    assert asked.wanted == [("a", 0, (1,), False), ("a", 1, None, False), ("b", 1, (0, 1), False)]
    found = [(t.name, p.partition_index, p.error_code, p.error_message) for t in answer.responses for p in t.partitions]
    refused = (int(ErrorCode.POLICY_VIOLATION), "no")
    assert found == [("a", 0, 0, None), ("a", 1, *refused), ("b", 1, *refused)]


def raw(message, listener, tags=b""):
    """The request as it came, with tagged fields at its end."""
    key, version = ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1
    body = bytes(encode_request(key, version, message))[:-1] + (tags or b"\0")
    return SimpleNamespace(api_key=int(key), api_version=version, body=memoryview(body), listener=listener)


@pytest.mark.parametrize(("tags", "moved"), [(b"", []), (b"\1" + uvarint(IDS_ARE_CORES_TAG) + b"\0", [("a", 0, (7,))])])
async def test_where_one_broker_stands_for_all_cores_the_other_ids_name_cores(tags, moved):
    """The first core's id is the node's too: it means the core where the client says that its ids are cores'."""
    asked = Asked()
    message = alter_request(("a", [(0, [7]), (2, [8]), (1, [7, 8]), (3, None)]), ("missing", [(0, [7])]))
    answer = await handle_alter_partition_reassignments(core_with(asked), raw(message, SHARED, tags), message)
    named = [("a", 2, (8,)), ("a", 1, (7, 8)), ("a", 3, None), ("missing", 0, (7,))]
    assert [one[:3] for one in asked.wanted] == [*moved, *named]
    (a, missing) = answer.responses
    assert [p.partition_index for p in a.partitions] == [0, 2, 1, 3]
    assert [p.error_code for p in a.partitions] == [0, 0, ErrorCode.POLICY_VIOLATION, 0]
    assert [p.partition_index for p in missing.partitions] == [0]


@pytest.mark.parametrize(
    ("asked", "listener", "expected"),
    [
        (None, PER_CORE, [("b", [0, 1]), ("a", [2])]),
        ([("b", [1, 5]), ("c", [0])], PER_CORE, [("b", [1])]),
        ([], PER_CORE, []),
        (None, SHARED, [("b", [0, 1]), ("a", [2])]),
    ],
)
async def test_what_is_under_way_is_listed(asked, listener, expected):
    kind = messages.ListPartitionReassignmentsRequest
    topic = kind.ListPartitionReassignmentsTopics
    topics = None if asked is None else [topic(name=name, partition_indexes=some) for name, some in asked]
    request = kind(topics=topics)
    answer = await handle_list_partition_reassignments(core_with(Asked()), SimpleNamespace(listener=listener), request)
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in answer.topics] == expected
    for topic in answer.topics:
        for one in topic.partitions:
            assert (one.replicas, one.adding_replicas, one.removing_replicas) == ([1, 0], [1], [0])
