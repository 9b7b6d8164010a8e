"""Simulated nodes of which a leader is paused: what waits for it meanwhile it reads before it hears of the next one."""

from __future__ import annotations

from unittest import mock

import pytest
import trio

from tests.simulator.nodes_bank import TransactionClient
from tests.simulator.nodes_clients import LATEST, Client
from tests.simulator.nodes_cluster import simulate
from tests.simulator.nodes_load import TOPIC, Load
from tpc_broker.broker.transaction_service import TransactionService
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.model import broker_id_of
from tpc_broker.node.replicas.leaderships import ReplicaLeaderships

ELECTED_S = 10.0
CLIENTS_S = 15.0
ASKED_S = 30.0
LATE_S = 0.5
HELD_MS = 100


def fetch(offset):
    kind = messages.FetchRequest
    part = kind.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=-1, last_fetched_epoch=-1
    )
    topics = [kind.FetchTopic(topic=TOPIC, partitions=[part])]
    return kind(max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, topics=topics)


def fetched(answer):
    (part,) = answer.responses[0].partitions
    return ErrorCode(part.error_code)


def list_latest(_offset):
    kind = messages.ListOffsetsRequest
    part = kind.ListOffsetsPartition(partition_index=0, timestamp=LATEST, current_leader_epoch=-1)
    return kind(replica_id=-1, isolation_level=0, topics=[kind.ListOffsetsTopic(name=TOPIC, partitions=[part])])


def end_of_a_later_epoch(_offset):
    kind = messages.OffsetForLeaderEpochRequest
    part = kind.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=1 << 20)
    return kind(replica_id=-1, topics=[kind.OffsetForLeaderTopic(topic=TOPIC, partitions=[part])])


def of_partition(answer):
    (part,) = answer.topics[0].partitions
    return ErrorCode(part.error_code)


@pytest.mark.parametrize(
    ("asked", "version", "error_of"),
    [(fetch, 12, fetched), (list_latest, 5, of_partition), (end_of_a_later_epoch, 4, of_partition)],
    ids=["an offset that others have committed", "where the log ends", "what came behind an epoch"],
)
def test_a_leader_that_was_paused_does_not_say_that_what_others_have_committed_is_nowhere(asked, version, error_of):
    """It reads the request before its replicas' turn has come, which find that all others have fallen silent."""

    ask_who_was_paused(asked, version, error_of)


def test_one_that_believes_itself_is_found():
    async def by_its_own_word(leaderships, key):
        await trio.lowlevel.checkpoint()
        machine = leaderships._replicas.machine_of(key)
        return machine is not None and machine.is_leader

    with mock.patch.object(ReplicaLeaderships, "confirm", by_its_own_word), pytest.raises(ExceptionGroup) as failed:
        ask_who_was_paused(fetch, 12, fetched)
    assert failed.group_contains(AssertionError, match="NOT_LEADER_OR_FOLLOWER")


async def resume_with_replicas_late(paused):
    """What waits for it is read before its replicas' turn has come, which find that all others have fallen silent."""
    driver = paused.first.replication._driver
    driver._carry_again_ms = None
    driver._turn, driver.core.next_deadline_ms = lambda: None, lambda: driver._now_ms() + HELD_MS
    paused.resume()
    await trio.sleep(LATE_S)
    del driver._turn, driver.core.next_deadline_ms


def ask_who_was_paused(asked, version, error_of):
    async def story(cluster):
        load = Load(cluster, 1)
        await load.begin()
        load.read()
        paused = next(node for node in cluster.nodes.values() if load.led_by(node))
        paused.pause()
        end_offset = cluster.promises.end_of((TOPIC, 0))
        await load.until(
            ELECTED_S + CLIENTS_S, lambda: cluster.promises.end_of((TOPIC, 0)) > end_offset + 3, "nobody else leads it"
        )
        answers, client = [], Client(cluster, "late")

        async def ask():
            broker = cluster.broker(broker_id_of(paused.number, 0))
            offset = cluster.promises.end_of((TOPIC, 0))
            answers.append(await client.ask(broker, asked(offset), version, answer_s=ASKED_S))

        cluster.nursery.start_soon(ask)
        await trio.sleep(LATE_S)
        await resume_with_replicas_late(paused)
        await load.until(ASKED_S, lambda: answers, "it does not answer")
        assert error_of(answers[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await load.end()

    simulate(21, story, nodes_count=3)


def test_a_coordinator_that_was_paused_calls_nobody_fenced_whom_the_next_one_has_let_in():
    ask_a_coordinator_that_was_paused()


def test_a_coordinator_that_believes_itself_is_found():
    async def by_its_own_word(_service, _transactional_id):
        await trio.lowlevel.checkpoint()

    with (
        mock.patch.object(TransactionService, "until_confirmed", by_its_own_word),
        pytest.raises(ExceptionGroup) as failed,
    ):
        ask_a_coordinator_that_was_paused()
    assert failed.group_contains(AssertionError, match="NOT_COORDINATOR")


def ask_a_coordinator_that_was_paused():
    """Whether an end is valid is for the next one to say, which has given the id another epoch."""

    async def let_in(client):
        asked = messages.InitProducerIdRequest(
            transactional_id=client.transactional_id, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
        )
        while (answer := await client.ask_coordinator(asked, 4)) is None or answer.error_code:
            await client.lost()
        return answer

    async def story(cluster):
        load = Load(cluster, 1)
        await load.begin()
        first, second = (TransactionClient(cluster, name, "payments") for name in ("first", "second"))
        await let_in(first)
        coordinator = first._coordinator
        paused = coordinator.node
        paused.pause()
        granted = await let_in(second)
        assert second._coordinator.node is not paused
        answers, late = [], Client(cluster, "late")

        async def ask():
            asked = messages.EndTxnRequest(
                transactional_id="payments", producer_id=granted.producer_id, producer_epoch=granted.producer_epoch,
                committed=True,
            )  # fmt: skip
            answers.append(await late.ask(coordinator, asked, 3, answer_s=ASKED_S))

        cluster.nursery.start_soon(ask)
        await trio.sleep(LATE_S)
        await resume_with_replicas_late(paused)
        await load.until(ASKED_S, lambda: answers, "it does not answer")
        assert ErrorCode(answers[0].error_code) is ErrorCode.NOT_COORDINATOR
        await load.end()

    simulate(21, story, nodes_count=3)
