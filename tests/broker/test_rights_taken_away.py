"""A change of rules, users, quotas, levels, nodes, replicas or leaders whose client loses its right while the change
waits for another.
"""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from tests.support.memory_node import running_node
from tests.support.rights import ALTER, ALTER_CONFIGS, OF_CLUSTER, REQUESTS, codes
from tpc_broker.auth.acls import NO_RULES
from tpc_broker.auth.operations import CLUSTER_NAME, Resource
from tpc_broker.auth.principals import Principal, Subject
from tpc_broker.broker.handlers.refusals import _NoLongerAllowedError, only_allowed, while_allowed
from tpc_broker.broker.handlers.table import ROWS
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey as K
from tpc_broker.model import CoreId, NodeId, Replica, TopicId
from tpc_broker.testing.node import answer_of

ADMIN = ("authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users=User:ANONYMOUS")
MALLORY = Subject(Principal("User", "mallory"), "127.0.0.1")
CHANGES = (
    K.CREATE_ACLS, K.DELETE_ACLS, K.ALTER_USER_SCRAM_CREDENTIALS, K.ALTER_CLIENT_QUOTAS, K.UPDATE_FEATURES,
    K.UNREGISTER_BROKER, K.ALTER_PARTITION_REASSIGNMENTS,
)  # fmt: skip


@asynccontextmanager
async def mallorys():
    """A node where mallory, at connection 7, may change everything of the cluster."""
    async with running_node(cores=1, settings=ADMIN) as node:
        creation = messages.CreateAclsRequest.AclCreation
        rules = [
            creation(resource_type=int(Resource.CLUSTER), resource_pattern_type=3, resource_name=CLUSTER_NAME,
                     principal="User:mallory", host="*", operation=int(operation), permission_type=3)
            for operation in (ALTER, ALTER_CONFIGS)
        ]  # fmt: skip
        made = await node.ask(0, messages.CreateAclsRequest(creations=rules), 3)
        assert not any(codes(made))
        await node.ask(0, messages.ApiVersionsRequest(), 0, connection=7)
        node[0].dispatcher._connections[7].subject = MALLORY
        yield node


def take_away():
    """A request."""
    return messages.DeleteAclsRequest(filters=[messages.DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter="User:mallory",
        host_filter=None, operation=1, permission_type=1,
    )])  # fmt: skip


@pytest.mark.parametrize("one", [each for each in REQUESTS if each.key in CHANGES], ids=lambda one: one.key.name)
async def test_a_change_is_refused_whose_right_the_one_before_it_takes_away(one, autojump_clock):
    async with mallorys() as node:
        metadata, may_go_on = node[0].metadata, trio.Event()
        commit = metadata._commit

        async def slowly(records):
            await may_go_on.wait()
            await commit(records)

        metadata._commit = slowly
        before = node.send(0, take_away(), 3)
        await trio.testing.wait_all_tasks_blocked()
        request = node.send(0, one.made(bytes(16)), one.version, connection=7)
        await trio.testing.wait_all_tasks_blocked()
        version = node[0].view.image.version
        may_go_on.set()
        await before.done.wait()
        await request.done.wait()
        assert set(codes(answer_of(request))) == {OF_CLUSTER}
        assert node[0].view.image.version == version + 1


def test_each_of_them_is_gone_through():
    assert {one.key for one in REQUESTS} >= set(CHANGES)


class Leaders:
    """A cluster's view in which the one partition of `t` is led by another than the preferred replica, and who asks
    those that lead to hand over.
    """

    node, present = NodeId(0), Replica(NodeId(1), CoreId(0))

    def __init__(self, image):
        self.image, self.asked_at = image, []
        self.in_sync = lambda _topic, _index: {self.preferred}
        self.is_present = lambda _node: True
        self.leader_epoch = lambda _key: 1
        self.place_of = lambda _topic, _index: self.present
        self.preferred = Replica(NodeId(2), CoreId(0))

    def topic(self, name):
        return SimpleNamespace(name=name, topic_id=TopicId(uuid.UUID(int=1)), partitions_count=1,
                               leader_place=lambda _index, _node: self.preferred)  # fmt: skip

    def ask(self, leaders):
        assert list(leaders.values()) == [self.present]
        self.asked_at.append(trio.current_time())


async def test_leaders_are_not_asked_to_hand_over_by_whom_the_right_was_taken_away(autojump_clock):
    """They are asked again and again while the client waits."""
    kind = messages.ElectLeadersRequest
    message = kind(topic_partitions=[kind.TopicPartitions(topic="t", partitions=[0])], timeout_ms=10_000)
    async with mallorys() as node:
        leaders, began_s = Leaders(node[0].view.image), trio.current_time()
        core = SimpleNamespace(view=leaders, leadership_on_demand=leaders, access=node[0].access)
        request = SimpleNamespace(subject=MALLORY, api_key=int(K.ELECT_LEADERS), api_version=2)

        async def later():
            await trio.sleep(0.75)
            answer = await node.ask(0, take_away(), 3)
            assert not any(codes(answer))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(later)
            answer = await only_allowed(ROWS[K.ELECT_LEADERS])(core, request, message)
        assert set(codes(answer)) == {OF_CLUSTER}
        assert [each - began_s for each in leaders.asked_at] == pytest.approx([0, 0.5], abs=0.05)


async def test_rules_that_are_committed_count_before_this_core_has_them(autojump_clock):
    """In a cluster: the image that a change is decided by runs ahead of the core's."""
    async with mallorys() as node:
        core, decided = node[0], []

        def decide(image):
            decided.append(image)
            return [], None

        request = node.send(0, messages.ApiVersionsRequest(), 0, connection=7)
        await request.done.wait()
        change, now = while_allowed(core, request, ALTER, decide), core.view.image
        assert change(now) == ([], None)
        refusals = core.access.refusals
        with pytest.raises(_NoLongerAllowedError):
            change(replace(now, acls=NO_RULES))
        assert (decided, core.access.refusals) == ([now], refusals + 1)
