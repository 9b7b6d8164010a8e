"""A Produce that C leaves again and again: what the handler does until it is taken, or given up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from tests.support.memory_clients import create_topic, produce_request
from tests.support.memory_node import running_node
from tpc_broker.broker.confirmed import CONFIRM_S
from tpc_broker.broker.handlers.produce import REFUSAL_WAIT_MS_MAX
from tpc_broker.broker.ports import ProduceFallback, Verdict
from tpc_broker.error_codes import ErrorCode
from tpc_broker.testing.node import answer_of

TIMEOUT_MS = 5_000
CALLS_MAX = 100_000
REFUSALS = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS)


class Leaving:
    """A plane's `produce_with` that leaves every request, or takes refusals, and counts how often it is asked."""

    def __init__(self, plane, left: ProduceFallback, *, takes_refusals: bool) -> None:
        self.left = left
        self.takes_refusals = takes_refusals
        self.calls = 0
        self._take = plane.produce_with

    def __call__(self, request, verdicts, endpoints):
        self.calls += 1
        assert self.calls < CALLS_MAX, "it spins"
        refused = all(verdict.error_code in REFUSALS for verdict in verdicts)
        return self._take(request, verdicts, endpoints) if refused and self.takes_refusals else self.left


async def produce(node, left, *, takes_refusals):
    """The request, how long it took in ms, how often it was tried."""
    await create_topic(node, 0, "t", 1)
    plane = node.lives[0].plane
    plane.produce_with = leaving = Leaving(plane, left, takes_refusals=takes_refusals)
    message = produce_request("t", 0, [b"x"])
    message.timeout_ms = TIMEOUT_MS
    begun_s = trio.current_time()
    request = node.send(0, message, 9)
    await request.done.wait()
    return request, (trio.current_time() - begun_s) * 1000, leaving.calls


NO_ROOM = (ProduceFallback.NO_MEMORY, ProduceFallback.NOT_ADMITTED, ProduceFallback.JOURNAL_FULL)
REFUSED = dict.fromkeys(NO_ROOM, ErrorCode.KAFKA_STORAGE_ERROR)
REFUSED[ProduceFallback.UNCOMMITTED] = ErrorCode.NOT_ENOUGH_REPLICAS


async def wait_in_vain():
    await trio.sleep(0.1)


@pytest.mark.parametrize("left", REFUSED)
async def test_what_finds_no_room_in_time_is_refused(left, autojump_clock, monkeypatch):
    async with running_node(cores=1) as node:
        monkeypatch.setattr(node.lives[0].storage, "wait_journal_room", wait_in_vain)
        request, took_ms, _calls = await produce(node, left, takes_refusals=True)
        assert TIMEOUT_MS <= took_ms < TIMEOUT_MS + 200
        (part,) = answer_of(request).responses[0].partition_responses
        assert (part.error_code, part.base_offset) == (REFUSED[left], -1)
        assert not node.lives[0].connections.closed


async def test_without_memory_even_for_a_refusal_the_connection_is_given_up_and_the_loop_never_held(autojump_clock):
    async with running_node(cores=1) as node:
        request, took_ms, calls = await produce(node, ProduceFallback.NO_MEMORY, takes_refusals=False)
        assert calls < TIMEOUT_MS + REFUSAL_WAIT_MS_MAX
        assert took_ms >= TIMEOUT_MS + REFUSAL_WAIT_MS_MAX
        assert request.answer is None
        assert node.lives[0].connections.closed == {1: "refused"}


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (ProduceFallback.MALFORMED, "request refused, connection closed: ProduceRequest v9"),
        (ProduceFallback.TOO_MANY, "it names more partitions than"),
        (ProduceFallback.NO_MEMORY, "there is no memory to read a Produce"),
    ],
)
async def test_what_the_plane_cannot_read_closes_the_connection_and_says_why(reason, told, autojump_clock, caplog):
    async with running_node(cores=1) as node:
        plane = node.lives[0].plane
        plane.asked = lambda _request: reason
        plane.produce_with = None
        message = produce_request("t", 0, [b"x"])
        request = node.send(0, message, 9)
        await request.done.wait()
        assert request.answer is None
        assert node.lives[0].connections.closed == {1: "refused"}
        assert told in caplog.text


class Judging:
    """A plane's `produce_with` that leaves a gap until it is told what to refuse it with."""

    def __init__(self, plane) -> None:
        self.gaps: list[list[ErrorCode]] = []
        self._take = plane.produce_with

    def __call__(self, request, verdicts, endpoints):
        self.gaps.append([verdict.gap for verdict in verdicts])
        if not all(verdict.gap for verdict in verdicts):
            return ProduceFallback.GAP
        return self._take(request, [Verdict(verdict.gap) for verdict in verdicts], endpoints)


@pytest.mark.parametrize(
    ("answers", "code", "took_s"),
    [
        (True, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0.1),
        (False, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0.1),
        (None, ErrorCode.NOT_LEADER_OR_FOLLOWER, CONFIRM_S),
    ],
    ids=["a quorum follows it", "another one leads", "nobody answers"],
)
async def test_what_a_gap_is_refused_with_a_quorum_says(answers, code, took_s, autojump_clock):
    """Once: what a producer lacks does not come while it waits for the answer."""

    async def confirm(_key):
        await trio.sleep(0.1 if answers is not None else 60)
        return answers

    async with running_node(cores=1) as node:
        await create_topic(node, 0, "t", 1)
        life = node.lives[0]
        life.plane.produce_with = judging = Judging(life.plane)
        life.core.replicated = SimpleNamespace(
            replication=SimpleNamespace(leaderships=SimpleNamespace(confirm=confirm)),
            is_between_leaders=lambda _partition, **_how: False,
        )
        begun_s = trio.current_time()
        request = node.send(0, produce_request("t", 0, [b"x"]), 9)
        await request.done.wait()
        assert trio.current_time() - begun_s == pytest.approx(took_s, abs=0.05)
        life.core.replicated = None
        (part,) = answer_of(request).responses[0].partition_responses
        assert (part.error_code, judging.gaps) == (code, [[ErrorCode.NONE], [code]])


@pytest.mark.parametrize("leads", [False, True])
async def test_who_was_elected_takes_records_before_clients_are_told_so(leads, autojump_clock):
    """As the data plane does by itself: what was held until then is no other case."""
    async with running_node(cores=1) as node:
        await create_topic(node, 0, "t", 1)
        life = node.lives[0]
        partition = next(p for p in life.core.partitions.opened() if p.label == "t-0")
        partition.is_replicated, life.plane.leads = True, lambda _handle: leads
        life.core.partitions._replicated = lambda *_which: partition
        life.core.replicated = SimpleNamespace(is_between_leaders=lambda _partition, **_how: False)
        request = node.send(0, produce_request("t", 0, [b"x"]), 12)
        await request.done.wait()
        (part,) = answer_of(request).responses[0].partition_responses
        assert part.error_code == (ErrorCode.NONE if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        life.core.replicated, partition.is_replicated = None, False
