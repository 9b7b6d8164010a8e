"""A change of rules, users, quotas, levels or nodes whose client loses its right while the change waits for another."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing

from tests.support.memory_node import answer_of, running_node
from tests.support.rights import ALTER, ALTER_CONFIGS, OF_CLUSTER, REQUESTS, codes
from tpc_broker.auth.acls import NO_RULES
from tpc_broker.auth.operations import CLUSTER_NAME, Resource
from tpc_broker.auth.principals import Principal, Subject
from tpc_broker.broker.handlers.refusals import _NoLongerAllowedError, while_allowed
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey as K

ADMIN = ("authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users=User:ANONYMOUS")
MALLORY = Subject(Principal("User", "mallory"), "127.0.0.1")
CHANGES = (
    K.CREATE_ACLS, K.DELETE_ACLS, K.ALTER_USER_SCRAM_CREDENTIALS, K.ALTER_CLIENT_QUOTAS, K.UPDATE_FEATURES,
    K.UNREGISTER_BROKER,
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
