"""Decisions of the authorizer as they reach the data plane: each when it is made, and none beyond a change of rules."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.log.log_batches import batch
from tests.support.memory_clients import create_topic, fetch_request, produce, produce_request, produce_request_of
from tests.support.memory_node import running_node
from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.broker.grants import DATAGRAMS
from tpc_broker.error_codes import ErrorCode as E
from tpc_broker.testing.node import answer_of

WRITES = (Operation.WRITE, Resource.TOPIC, "t")
READS = (Operation.READ, Resource.TOPIC, "t")
TRANSACTS = (Operation.WRITE, Resource.TRANSACTIONAL_ID, "id")
REFUSED = (E.TOPIC_AUTHORIZATION_FAILED, -1)


class Rules:
    """An authorizer by what it allows, to anybody; `asked` has what it was asked."""

    def __init__(self, *allowed):
        self.allowed, self.asked = set(allowed), []

    def allows(self, subject, operation, resource, name):
        self.asked.append((subject, operation, resource, name))
        return (operation, resource, name) in self.allowed

    def allows_some(self, subject, operation, resource):
        return any(one[:2] == (operation, resource) for one in self.allowed)


async def asking(node, *allowed):
    """Two topics, and rules that come behind them."""
    await create_topic(node, 0, "t", 1)
    await create_topic(node, 0, "u", 1)
    core = node.lives[0].core
    core.access.authorizer = rules = Rules(*allowed)
    return core, node.lives[0].plane, rules


def id_of(core):
    return core.view.topic("t").topic_id


async def test_a_decision_is_in_the_plane_when_a_produce_goes_back_to_it():
    async with running_node(cores=1) as node:
        core, plane, rules = await asking(node, WRITES)
        assert await produce(node, 0, "t", 0, [b"x"]) == (E.NONE, 0)
        (subject,) = plane.named.values()
        assert plane.grants == {(subject, id_of(core), True): True}
        assert subject == core.access.number_of(rules.asked[0][0])


async def test_a_refusal_is_there_too_and_the_plane_says_it():
    async with running_node(cores=1) as node:
        core, plane, _rules = await asking(node, READS)
        assert await produce(node, 0, "t", 0, [b"x"]) == REFUSED
        assert list(plane.grants.values()) == [False]
        assert not plane.logs[core.partitions.find("t", 0).handle].batches


async def test_rules_that_change_while_python_has_a_request_count_for_it(autojump_clock):
    """Attempt 69: between what is found out in Python and the plane's taking it."""
    async with running_node(cores=1) as node:
        core, plane, rules = await asking(node, WRITES)
        assert await produce(node, 0, "t", 0, [b"x"]) == (E.NONE, 0)
        make_room = core.partitions.make_room

        async def change_meanwhile(*arguments):
            await make_room(*arguments)
            rules.allowed.clear()
            core.access.rules_changed()
            core.partitions.make_room = make_room

        core.partitions.make_room = change_meanwhile
        assert await produce(node, 0, "t", 0, [b"x"]) == REFUSED
        assert plane.generation == core.access.generation
        assert len(plane.logs[core.partitions.find("t", 0).handle].batches) == 1


async def test_a_plane_that_never_knows_is_given_up_and_does_not_hold_the_loop(autojump_clock):
    async with running_node(cores=1) as node:
        _core, plane, _rules = await asking(node, WRITES)
        plane.grant = lambda *_decision, **_how: None
        begun_s = trio.current_time()
        assert await produce(node, 0, "t", 0, [b"x"]) == (E.KAFKA_STORAGE_ERROR, -1)
        assert 1 <= trio.current_time() - begun_s < 2


async def test_only_what_the_plane_asks_about_is_installed():
    async with running_node(cores=1) as node:
        core, plane, _rules = await asking(node, WRITES, READS)
        request = node.send(0, fetch_request("t", 0, 0, wait_ms=0), 12)
        await request.done.wait()
        core.grants.name(request)
        plane.grants.clear()
        for operation, resource, name in (
            (Operation.DESCRIBE, Resource.TOPIC, "t"), (Operation.WRITE, Resource.TOPIC, "t"),
            (Operation.READ, Resource.GROUP, "t"), (Operation.READ, Resource.TOPIC, "nowhere"),
        ):  # fmt: skip
            core.access.allows(request, operation, resource, name)
        assert plane.grants == {}
        assert core.access.allows(request, *READS)
        assert plane.grants == {(plane.named[request.connection], id_of(core), False): True}


async def test_the_transactional_id_is_decided_with_the_topics():
    async with running_node(cores=1) as node:
        core, plane, rules = await asking(node, WRITES)
        plane.takes_transactions = True
        batches = {0: batch(0, [b"x"], producer=(7, 0, 0), transactional=True)}
        answer = await node.ask(0, produce_request_of("t", batches, transactional_id="id"), 12)
        (part,) = answer.responses[0].partition_responses
        assert part.error_code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        subject = core.access.number_of(rules.asked[0][0])
        assert plane.grants == {(subject, id_of(core), True): True, (subject, "id", True): False}


async def test_rules_that_changed_unheard_are_heard_of_before_anything_is_installed():
    async with running_node(cores=1) as node:
        core, plane, _rules = await asking(node, WRITES)
        core.access.generation += 5
        assert await produce(node, 0, "t", 0, [b"x"]) == (E.NONE, 0)
        assert plane.generation == core.access.generation


async def test_the_plane_asks_about_nobody_without_an_authorizer_or_when_it_has_gone():
    async with running_node(cores=1) as node:
        core, plane, _rules = await asking(node)
        assert plane.generation == core.access.generation
        core.access.authorizer = None
        assert (plane.grants, plane.generation) == (None, None)
        assert await produce(node, 0, "t", 0, [b"x"]) == (E.NONE, 0)
        core.access.rules_changed()
        core.access.authorizer = Rules()
        assert await produce(node, 0, "t", 0, [b"x"]) == REFUSED


async def test_a_fetch_that_waits_in_python_looks_again_when_the_rules_change(autojump_clock):
    async with running_node(cores=1) as node:
        core, _plane, _rules = await asking(node, READS)
        handle, woken = core.partitions.find("t", 0).handle, []

        async def wait():
            woken.append(await core.purgatory.wait_advanced([handle], 1000, lambda: False))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            core.access.rules_changed()
        assert woken == [True]
        assert trio.current_time() < 1000


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_datagrams_are_decided_as_those_of_the_anonymous_from_nowhere(is_allowed):
    """Attempt 102: the address that one comes from is easily forged, so no rule about a host counts."""
    async with running_node(cores=1) as node:
        core, plane, rules = await asking(node, *([WRITES] if is_allowed else []))
        assert plane.datagrams_subject == core.access.number_of(DATAGRAMS)
        assert (str(DATAGRAMS.principal), DATAGRAMS.host) == ("User:ANONYMOUS", "")
        plane.want_grant(id_of(core), plane.datagrams_subject)
        assert plane.grants == {(plane.datagrams_subject, id_of(core), True): is_allowed}
        assert rules.asked[-1] == (DATAGRAMS, *WRITES)
        core.access.authorizer = None
        plane.want_grant(id_of(core), plane.datagrams_subject)


async def test_produces_of_one_connection_keep_their_answers_order():
    async with running_node(cores=1) as node:
        await asking(node, WRITES)
        sent = [node.send(0, produce_request(topic, 0, [b"x"]), 12) for topic in "tutu"]
        for request in sent:
            await request.done.wait()
        told = [answer_of(request).responses[0].partition_responses[0].error_code for request in sent]
        assert told == [E.NONE, E.TOPIC_AUTHORIZATION_FAILED] * 2


@pytest.mark.parametrize("acks", [0, 1])
async def test_a_produce_whose_client_goes_right_behind_it_is_carried_out(acks):
    """Both come in one turn: the connection is closed before the handler begins."""
    async with running_node(cores=1) as node:
        core, plane, _rules = await asking(node, WRITES)
        request = node.send(0, produce_request("t", 0, [b"x"], acks=acks), 12, connection=7)
        node.lives[0].connections.close(7, "peer closed")
        await request.done.wait()
        assert len(plane.logs[core.partitions.find("t", 0).handle].batches) == 1


async def test_a_fetch_whose_client_goes_right_behind_it_fails_nothing(caplog):
    async with running_node(cores=1) as node:
        core, _plane, _rules = await asking(node, READS)
        request = node.send(0, fetch_request("t", 0, 0, wait_ms=0), 12, connection=7)
        node.lives[0].connections.close(7, "peer closed")
        await request.done.wait()
        assert (core.dispatcher.statistics().failed, caplog.records) == (0, [])
