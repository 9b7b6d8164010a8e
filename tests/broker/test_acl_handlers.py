"""DescribeAcls, CreateAcls and DeleteAcls on whole cores in memory, and what the rules then decide at once."""

from __future__ import annotations

import logging

import pytest
import trio

from tests.support.memory_node import running_node
from tpc_broker import limits
from tpc_broker.auth.acls import EVERY_BIT, RefusesAll
from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.auth.principals import Principal, Subject
from tpc_broker.broker.dispatch import NOBODY
from tpc_broker.broker.metadata_service import MetadataService
from tpc_broker.kafka import messages
from tpc_broker.metadata import acl_control
from tpc_broker.testing.connections import MemoryRequest

AUTHORIZER = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ADMIN = (AUTHORIZER, "super.users=User:ANONYMOUS")
EVERY = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
INVALID, NOT_ALLOWED = 42, 31
ALICE = Subject(Principal("User", "alice"), "10.0.0.1")
ALICES = 7
"""A connection."""


def creation(name="t", **more):
    values = {"resource_type": 2, "resource_pattern_type": 3, "principal": "User:alice", "host": "*", "operation": 3,
              "permission_type": 3, **more}  # fmt: skip
    return messages.CreateAclsRequest.AclCreation(resource_name=name, **values)


def filter_of(kind=messages.DeleteAclsRequest.DeleteAclsFilter, name=None, **more):
    return kind(resource_name_filter=name, principal_filter=more.pop("principal", None), host_filter=None,
                **{**EVERY, **more})  # fmt: skip


async def create(node, *creations, core=1, **how):
    made = await node.ask(core, messages.CreateAclsRequest(creations=list(creations)), 3, **how)
    return [(one.error_code, one.error_message) for one in made.results]


async def described(node, core=1, **how):
    """(kind, pattern, name, principal, host, operation, permission) of each."""
    found = await node.ask(core, filter_of(messages.DescribeAclsRequest, **how), 3)
    assert (found.error_code, found.error_message) == (0, "")
    return [
        (each.resource_type, each.pattern_type, each.resource_name, rule.principal, rule.host, rule.operation,
         rule.permission_type)
        for each in found.resources for rule in each.acls
    ]  # fmt: skip


async def become(node, core, subject, connection=ALICES):
    """A connection of somebody, as if it had logged in."""
    await node.ask(core, messages.ApiVersionsRequest(), 0, connection=connection)
    node[core].dispatcher._connections[connection].subject = subject


def may(node, core, operation=Operation.READ, name="t"):
    return node[core].access.authorizer.allows(ALICE, operation, Resource.TOPIC, name)


async def test_rules_are_made_shown_and_deleted_and_decide_on_every_core(autojump_clock):
    async with running_node(settings=ADMIN) as node:
        assert [may(node, core) for core in (0, 1)] == [False, False]
        generation = node[1].access.generation
        assert await create(node, creation(), creation(), creation("u", host="")) == [(0, "")] * 3
        t, u = (2, 3, "t", "User:alice", "*", 3, 3), (2, 3, "u", "User:alice", "", 3, 3)
        assert [may(node, core) for core in (0, 1)] == [True, True]
        assert node[1].access.generation == generation + 1
        for core in (0, 1):
            assert await described(node, core) == [t, u]
        assert await described(node, name="t") == [t]
        assert await described(node, principal="User:bob") == []
        assert await described(node, resource_type_filter=99) == []
        assert await create(node, creation()) == [(0, "")]
        assert node[1].access.generation == generation + 1, "nothing has changed"
        asked = messages.DeleteAclsRequest(filters=[filter_of(name="t"), filter_of(name="v"), filter_of(operation=99)])
        gone = await node.ask(1, asked, 3)
        told = [(one.error_code, [each.resource_name for each in one.matching_acls]) for one in gone.filter_results]
        assert told == [(0, ["t"]), (0, []), (INVALID, [])]
        assert [may(node, core) for core in (0, 1)] == [False, False]
        assert await described(node) == [u]


async def test_what_cannot_be_a_rule_is_refused_and_the_others_are_made(autojump_clock):
    async with running_node(settings=ADMIN) as node:
        odd = [creation(""), creation(principal="alice"), creation("x", resource_type=4), creation(resource_type=99),
               creation(operation=99), creation(permission_type=99), creation(resource_pattern_type=99)]  # fmt: skip
        told = await create(node, creation("first"), *odd, creation("kafka-cluster", resource_type=4))
        assert [code for code, _text in told] == [0, *(INVALID,) * len(odd), 0]
        assert all(text for code, text in told if code)
        assert [row[2] for row in await described(node)] == ["first", "kafka-cluster"]


@pytest.mark.parametrize(
    "any_of", [{"resource_type": 1}, {"resource_pattern_type": 1}, {"resource_pattern_type": 2}, {"operation": 1},
               {"permission_type": 1}],
)  # fmt: skip
async def test_what_only_a_filter_may_say_is_refused_with_all_that_goes_along(any_of, autojump_clock):
    async with running_node(settings=ADMIN) as node:
        assert [code for code, _text in await create(node, creation(), creation(**any_of))] == [-1, -1]
        assert await described(node) == []


async def test_kinds_that_nobody_knows_close_the_connection(autojump_clock):
    async with running_node(settings=ADMIN) as node:
        for key in ("resource_type", "resource_pattern_type", "operation", "permission_type"):
            asked = messages.CreateAclsRequest(creations=[creation(), creation(**{key: 0})])
            assert await node.ask(1, asked, 3, connection=100) is None
        assert await described(node) == []


async def test_the_bounds_are_told(autojump_clock, monkeypatch):
    monkeypatch.setattr(acl_control, "ACLS_MAX", 2)
    monkeypatch.setattr(acl_control, "CHANGES_MAX", 2)
    async with running_node(settings=ADMIN) as node:
        told = await create(node, creation("a"), creation("b"), creation("c"))
        assert [code for code, _text in told] == [INVALID] * 3
        assert await create(node, creation("a"), creation("b")) == [(0, "")] * 2
        ((code, text),) = await create(node, creation("c"))
        assert code == INVALID
        assert "at most 2" in text
        asked = messages.DeleteAclsRequest(filters=[filter_of(), filter_of()])
        assert [one.error_code for one in (await node.ask(1, asked, 3)).filter_results] == [INVALID] * 2
        assert len(await described(node)) == 2


async def test_who_may_neither_see_nor_change_the_rules(autojump_clock):  # attempt 109
    async with running_node(settings=ADMIN) as node:
        for core in (0, 1):
            await become(node, core, ALICE)
            shown = await node.ask(core, filter_of(messages.DescribeAclsRequest), 3, connection=ALICES)
            assert (shown.error_code, shown.resources) == (NOT_ALLOWED, [])
            told = await create(node, creation("*", operation=2), creation(), core=core, connection=ALICES)
            assert [code for code, _text in told] == [NOT_ALLOWED] * 2
            gone = await node.ask(core, messages.DeleteAclsRequest(filters=[filter_of()]), 3, connection=ALICES)
            assert [(one.error_code, one.matching_acls) for one in gone.filter_results] == [(NOT_ALLOWED, [])]
        assert await described(node) == []
        cluster = {"resource_type": 4, "name": "kafka-cluster"}
        assert await create(node, creation(**cluster, operation=8), creation("t")) == [(0, "")] * 2
        shown = await node.ask(1, filter_of(messages.DescribeAclsRequest), 3, connection=ALICES)
        assert (shown.error_code, len(shown.resources)) == (0, 2)
        assert [code for code, _text in await create(node, creation("x"), connection=ALICES)] == [NOT_ALLOWED]
        assert await create(node, creation(**cluster, operation=7)) == [(0, "")]
        assert [code for code, _text in await create(node, creation("x"), connection=ALICES)] == [0]


@pytest.mark.parametrize("settings", [ADMIN, (*ADMIN, "allow.everyone.if.no.acl.found=true")])
async def test_a_closed_connections_request_is_nobodys(settings, autojump_clock):
    async with running_node(settings=settings) as node:
        await create(node, creation("*", principal="User:*"))
        access, closed = node[0].access, MemoryRequest(99, 3, 0, 1, memoryview(b""), 0)
        assert access.subject_of(closed) == NOBODY
        assert not access.authorizer.allows(NOBODY, *a_read()), "User:* is of users"
        for name in ("t", "*"):
            assert not access.allows_topic(closed, Operation.READ, name)
        assert not access.allows_group(closed, Operation.READ, "no rule is on it")
        assert not access.allows_some(closed, Operation.READ, Resource.TOPIC)
        assert not access.allows_some(closed, Operation.READ, Resource.GROUP)
        assert access.bits(closed, Resource.GROUP, "g", EVERY_BIT) == 0


async def test_rules_outlive_a_restart_and_nothing_is_allowed_until_they_are_read(autojump_clock):  # attempt 70
    async with running_node(settings=ADMIN) as node:
        await create(node, creation())
        for core in (0, 1):
            await node.restart(core)
            assert [may(node, each) for each in (0, 1)] == [True, True]
        fresh = type(node[0].access)(node[0])
        assert isinstance(fresh.authorizer, RefusesAll)
        assert not fresh.authorizer.allows(Subject(Principal("User", "ANONYMOUS"), ""), *a_read())


@pytest.mark.parametrize(("read_after_s", "code"), [(0, 0), (5, 0), (20, None)])
async def test_a_core_that_starts_decides_when_it_has_read_the_rules(read_after_s, code, autojump_clock, monkeypatch):
    load = MetadataService.load

    async def load_late(service, partition):
        await trio.sleep(read_after_s)
        await load(service, partition)

    async with running_node(settings=ADMIN) as node:
        await create(node, creation())
        await become(node, 1, ALICE)
        await node.crash(0)
        monkeypatch.setattr(MetadataService, "load", load_late)
        node._nursery.start_soon(node.start, 0)
        await trio.sleep(0.1)
        asked = messages.CreateAclsRequest(creations=[creation("u")])
        answer = await node.ask(1, asked, 3)
        assert (None if answer is None else answer.results[0].error_code) == code
        if code is not None:
            assert (await node.ask(1, asked, 3, connection=ALICES)).results[0].error_code == NOT_ALLOWED


def a_read():
    return Operation.READ, Resource.TOPIC, "t"


async def test_rules_decide_before_the_image_is_seen(autojump_clock):
    async with running_node(settings=ADMIN) as node:
        seen = []
        core = node[1]
        core.access.on_rules_changed.append(lambda: seen.append((may(node, 1), len(core.view.image.acls))))
        await create(node, creation())
        assert seen == [(True, 0)]


async def test_without_an_authorizer_rules_are_told_of_nowhere(autojump_clock):
    async with running_node() as node:
        access = node[1].access
        assert access.authorizer is None
        assert [code for code, _text in await create(node, creation())] == [54]
        assert access.generation == 1


async def test_refusals_are_counted_and_logged_once_for_each(autojump_clock, caplog):
    async with running_node(settings=ADMIN) as node:
        evil = Subject(Principal("User", "ev\nil\x1b[31m"), "10.0.0.1")
        await become(node, 1, evil)
        with caplog.at_level(logging.WARNING):
            for _ in range(5):
                await node.ask(1, filter_of(messages.DescribeAclsRequest), 3, connection=ALICES)
        lines = [record.getMessage() for record in caplog.records if "DESCRIBE on CLUSTER" in record.getMessage()]
        assert lines == [
            r"'User:ev\nil\x1b[31m' at 10.0.0.1 lacks DESCRIBE on CLUSTER 'kafka-cluster': DescribeAcls is refused"
        ]
        assert node[1].statistics().refused == 5
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            await trio.sleep(limits.LOG_LINE_PERIOD_S + 1)
            node[1].log_limiter.tell()
        assert "(4 times since this was last logged)" in caplog.text


async def test_what_is_only_left_out_of_an_answer_is_not_told(autojump_clock, caplog):
    async with running_node(settings=ADMIN) as node:
        await become(node, 1, ALICE)
        request = node.send(1, messages.ApiVersionsRequest(), 0, connection=ALICES)
        await request.done.wait()
        access = node[1].access
        with caplog.at_level(logging.WARNING):
            assert not access.allows(request, *a_read(), is_told=False)
            assert not access.allows_on_cluster(request, Operation.DESCRIBE, is_told=False)
            assert not access.allows_some(request, Operation.WRITE, Resource.TOPIC, is_told=False)
        assert (access.refusals, caplog.text) == (0, "")
        assert not access.allows_some(request, Operation.WRITE, Resource.TOPIC)
        assert access.refusals == 1


async def test_a_flood_of_refusals_of_names_is_a_bounded_number_of_lines(autojump_clock, caplog):
    async with running_node(settings=ADMIN) as node:
        await become(node, 1, ALICE)
        request = node.send(1, messages.ApiVersionsRequest(), 0, connection=ALICES)
        await request.done.wait()
        with caplog.at_level(logging.WARNING):
            for number in range(1000):
                assert not node[1].access.allows(request, Operation.READ, Resource.TOPIC, f"{number}" * 300)
        lines = [record.getMessage() for record in caplog.records if "lacks READ" in record.getMessage()]
        assert 0 < len(lines) <= limits.LOG_LINES_OF_CAUSE_MAX + 1
        assert all(len(line) < limits.LOG_LINE_LENGTH_MAX for line in lines)
        assert node[1].statistics().refused == 1000
