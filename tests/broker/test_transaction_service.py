"""Transactions on cores in memory: their coordinators, from FindCoordinator to the last marker."""

from __future__ import annotations

import pytest
import trio

from tests.support.compacted_records import clean_coordinators
from tests.support.memory_clients import create_topic, delete_topic
from tests.support.memory_node import running_node
from tests.support.transaction_clients import (
    SETTINGS,
    Producer,
    coordinator_core,
    find_coordinator,
    markers_in,
    move,
    node_with_transactions,
    owner,
)
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import MailboxError
from tpc_broker.feature_levels import FIRST_OF_CLUSTERS, FIRST_WITH_TRANSACTIONS, Levels
from tpc_broker.kafka import messages
from tpc_broker.model import TRANSACTION_STATE_TOPIC, coordinator_partition

NONE = ErrorCode.NONE


async def test_every_core_names_the_coordinator_and_only_that_one_answers(autojump_clock):
    async with node_with_transactions() as node:
        producer, right = Producer(node), coordinator_core(node, "t")
        for core in range(2):
            assert await find_coordinator(node, core, "t") == (NONE, right)
        asked = messages.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
        assert (await node.ask(1 - right, asked, 5)).error_code == ErrorCode.NOT_COORDINATOR
        assert await producer.init() is NONE
        topic = node[0].view.topic(TRANSACTION_STATE_TOPIC)
        assert (topic.partitions_count, topic.is_internal, topic.configs["cleanup.policy"]) == (4, True, "compact")


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [0, 2])
async def test_a_transaction_over_both_cores(autojump_clock, commit, version):
    async with node_with_transactions() as node:
        producer = Producer(node, version=version)
        assert await producer.init() is NONE
        assert {owner(node, "data", index) for index in range(4)} == {0, 1}
        for turn in range(2):
            first = producer.producer_id, producer.epoch
            await producer.until(lambda: producer.add("data", 0, 1))
            await producer.until(lambda: producer.add("data", 2, 3))
            assert await producer.state() == "Ongoing"
            assert await producer.end(commit=commit) is NONE
            assert await producer.until_complete() == ("CompleteCommit" if commit else "CompleteAbort")
            assert producer.epoch == first[1] + (version == 2)
            for index in range(4):
                assert markers_in(node, "data", index)[turn:] == [(first[0], producer.epoch, commit)]


async def test_offsets_are_added_by_the_groups_partition(autojump_clock):
    async with node_with_transactions() as node:
        producer = Producer(node, version=0)
        await producer.init()
        kind = messages.FindCoordinatorRequest
        await node.ask(0, kind(key_type=0, coordinator_keys=["g"]), 4)
        assert await producer.add_offsets("g") is NONE
        (topic,) = (await producer.describe()).topics
        assert (topic.topic, len(topic.partitions)) == ("__consumer_offsets", 1)
        assert await producer.end() is NONE
        await producer.until_complete()
        assert markers_in(node, "__consumer_offsets", topic.partitions[0]) == [(producer.producer_id, 0, True)]


async def test_partitions_are_added_all_or_none(autojump_clock):
    async with node_with_transactions() as node:
        for version in (0, 2):
            producer = Producer(node, f"t{version}", version=version)
            await producer.init()
            assert await producer.add("data", 0, 9) == {
                0: ErrorCode.OPERATION_NOT_ATTEMPTED, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            }  # fmt: skip
            internal = await producer.add(TRANSACTION_STATE_TOPIC, 0)
            assert internal is (ErrorCode.TOPIC_AUTHORIZATION_FAILED if version == 0 else NONE)
            assert await producer.state() == ("Empty" if version == 0 else "Ongoing")


async def test_an_end_waits_for_no_producer_ids(autojump_clock, monkeypatch):
    """A core that has given out none yet, while the leader of the metadata is away: it needs one in 32,767 ends."""
    async with node_with_transactions() as node:
        producer = Producer(node)
        await producer.init()
        await producer.add("data", 0)
        core = node.lives[coordinator_core(node, "t")].core
        monkeypatch.setattr(core.producer_ids, "_end", core.producer_ids._next)
        call = core.mailboxes.call

        async def calling(number, method, *arguments, **options):
            if method == "producer_ids.reserve":
                await trio.sleep_forever()
            return await call(number, method, *arguments, **options)

        monkeypatch.setattr(core.mailboxes, "call", calling)
        with trio.fail_after(5):
            assert await producer.end() is NONE
            assert await producer.until_complete() == "CompleteCommit"


async def test_producers_that_wait_for_an_id_wait_together(autojump_clock, monkeypatch):
    async with node_with_transactions() as node:
        core = node.lives[coordinator_core(node, "t")].core
        call = core.mailboxes.call

        async def calling(number, method, *arguments, **options):
            if method != "producer_ids.reserve":
                return await call(number, method, *arguments, **options)
            await trio.sleep(10)
            raise MailboxError("the leader of the metadata is away")

        monkeypatch.setattr(core.mailboxes, "call", calling)
        began_s, errors = trio.current_time(), []

        async def init(number):
            errors.append(await Producer(node, connection=60 + number).init())

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(init, number)
        assert errors == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 5
        assert trio.current_time() - began_s < 11


async def test_what_is_verified_is_not_added(autojump_clock):
    async with node_with_transactions() as node:
        producer = Producer(node)
        await producer.init()
        assert await producer.add("data", 0, verify_only=True) is ErrorCode.TRANSACTION_ABORTABLE
        assert await producer.add("data", 0) is NONE
        assert await producer.add("data", 0, 1, verify_only=True) == {0: NONE, 1: ErrorCode.TRANSACTION_ABORTABLE}
        producer.epoch -= 1
        assert await producer.add("data", 0, verify_only=True) is ErrorCode.PRODUCER_FENCED


async def test_a_new_instance_fences_the_old_one_and_aborts_what_it_had_open(autojump_clock):
    async with node_with_transactions() as node:
        old, new = Producer(node), Producer(node, connection=51)
        await old.init()
        await old.add("data", 0, 1)
        assert await new.init() is ErrorCode.CONCURRENT_TRANSACTIONS
        await new.until(new.init)
        assert new.epoch == old.epoch + 2
        assert await old.end() is ErrorCode.PRODUCER_FENCED
        assert await old.add("data", 2) is ErrorCode.PRODUCER_FENCED
        for index in range(2):
            assert markers_in(node, "data", index) == [(old.producer_id, old.epoch + 1, False)]


async def test_a_transaction_whose_time_is_over_is_aborted(autojump_clock):
    async with node_with_transactions() as node:
        producer = Producer(node, timeout_ms=5_000)
        await producer.init()
        await producer.add("data", 0)
        await trio.sleep(4.5)
        assert await producer.state() == "Ongoing"
        await trio.sleep(1)
        assert await producer.state() == "CompleteAbort"
        assert markers_in(node, "data", 0) == [(producer.producer_id, producer.epoch + 1, False)]
        assert await producer.end() is ErrorCode.PRODUCER_FENCED


async def test_a_transaction_is_aborted_in_time_although_its_coordinator_was_restarted(autojump_clock):
    async with node_with_transactions() as node:
        producer = Producer(node, timeout_ms=60_000)
        await producer.init()
        await producer.add("data", 0, 1, 2, 3)
        await trio.sleep(50)
        await node.restart(coordinator_core(node, "t"))
        await trio.sleep(5)
        assert await producer.state() == "Ongoing"
        await trio.sleep(15)
        assert await producer.state() == "CompleteAbort"
        assert [len(markers_in(node, "data", index)) for index in range(4)] == [1] * 4


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_crashes_while_a_transaction_ends_it_ends_in_all_partitions(autojump_clock, seed):
    async with node_with_transactions(seed=seed) as node:
        node.write_s_max, node.delay_s_max = 0.2, 0.1
        producer = Producer(node)
        await producer.until(producer.init)
        await producer.until(lambda: producer.add("data", 0, 1, 2, 3))
        epoch = producer.epoch
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash_now_and_then, node)
            nursery.start_soon(end_at_last, producer, nursery.cancel_scope)
        node.write_s_max = node.delay_s_max = 0.0
        assert await producer.until_complete() == "CompleteCommit"
        for index in range(4):
            markers = markers_in(node, "data", index)
            assert markers
            assert set(markers) == {(producer.producer_id, epoch + 1, True)}


async def crash_now_and_then(node):
    while True:
        await trio.sleep(node.chance.uniform(0, 1))
        clean_coordinators(node, node.chance)
        await node.restart(node.chance.randrange(2))


async def end_at_last(producer, scope):
    """As a client does whose answers may get lost: with the epoch that it had."""
    epoch = producer.epoch
    while True:
        with trio.move_on_after(1):
            producer.epoch = epoch
            try:
                error = await producer.end()
            except (KeyError, AttributeError):  # its core is away, or closed the connection
                error = ErrorCode.NETWORK_EXCEPTION
            if error is NONE:
                break
            await trio.sleep(0.05)
    scope.cancel()


async def test_drained_cores_answer_everybody(autojump_clock):
    async with node_with_transactions() as node:
        producer, core = Producer(node), coordinator_core(node, "t")
        await producer.init()
        node.lives[core].plane.holds = True
        answers = []

        async def add():
            answers.append(await producer.add("data", 0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(add)
            await trio.sleep(0.1)
            assert not answers
            await node[core].coordinators.prepare_drain()
        assert answers == [ErrorCode.NOT_COORDINATOR]


async def test_transactions_are_listed_and_described(autojump_clock):
    async with node_with_transactions() as node:
        names = [f"app-{number}" for number in range(6)]
        producers = [Producer(node, name) for name in names]
        for producer in producers:
            await producer.init()
        await producers[0].add("data", 3, 1)
        found = await producers[0].describe()
        assert [(one.topic, one.partitions) for one in found.topics] == [("data", [3, 1])]
        assert (found.transaction_state, found.transaction_timeout_ms) == ("Ongoing", 60_000)
        assert (found.producer_id, found.producer_epoch) == (producers[0].producer_id, 0)
        assert (await Producer(node, "app-9").describe()).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

        async def listed(**filters):
            answers = [await node.ask(core, messages.ListTransactionsRequest(**filters), 2) for core in range(2)]
            assert {answer.error_code for answer in answers} == {0}
            return sorted(one.transactional_id for answer in answers for one in answer.transaction_states)

        assert await listed() == names
        assert await listed(state_filters=["Ongoing", "strange"]) == names[:1]
        assert await listed(producer_id_filters=[producers[2].producer_id]) == names[2:3]
        assert await listed(transactional_id_pattern="app-[3-9]") == names[3:]
        assert await listed(transactional_id_pattern="app") == []
        assert await listed(duration_filter=60_000) == names[1:]
        answer = await node.ask(0, messages.ListTransactionsRequest(state_filters=["strange"]), 2)
        assert answer.unknown_state_filters == ["strange"]
        answer = await node.ask(0, messages.ListTransactionsRequest(transactional_id_pattern="(a"), 2)
        assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_a_core_whose_coordinators_are_not_all_loaded_lists_nothing(autojump_clock, monkeypatch):
    async with node_with_transactions() as node:
        monkeypatch.setattr(type(node[1].transactions), "is_loading", True)
        answer = await node.ask(1, messages.ListTransactionsRequest(), 2)
        assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_no_more_ids_are_taken_than_allowed(autojump_clock):
    async with node_with_transactions(settings=("transactional.ids.max=1", "transaction.max.timeout.ms=1000")) as node:
        producer = Producer(node, timeout_ms=1001)
        assert await producer.init() is ErrorCode.INVALID_TRANSACTION_TIMEOUT
        producer.timeout_ms = 1000
        assert await producer.init() is NONE
        others = [Producer(node, f"t{number}", timeout_ms=1000) for number in range(20)]
        errors = [await other.init() for other in others]
        assert errors.count(NONE) <= 3
        assert set(errors) == {NONE, ErrorCode.POLICY_VIOLATION}
        assert await producer.init() is NONE


async def test_an_id_that_nobody_uses_is_forgotten(autojump_clock):
    settings = (
        "transactional.id.expiration.ms=10000", "transaction.remove.expired.transaction.cleanup.interval.ms=1000",
    )  # fmt: skip
    async with node_with_transactions(settings=settings) as node:
        producer = Producer(node)
        await producer.init()
        await trio.sleep(9)
        assert (await producer.describe()).error_code == 0
        await trio.sleep(3)
        assert (await producer.describe()).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_what_is_answered_from_memory_waits_for_the_word_of_a_quorum(autojump_clock, monkeypatch):
    async with node_with_transactions() as node:
        producer = Producer(node)
        await producer.init()
        service = node[coordinator_core(node, "t")].transactions
        words = [False]

        async def confirm(_name):
            await trio.lowlevel.checkpoint()
            return words[0]

        monkeypatch.setattr(service, "confirm", confirm)
        assert await producer.add("data", 0) is NONE, "what was written needs no other word"
        for ask in (
            lambda: producer.add("data", 0), lambda: producer.add("data", 0, verify_only=True), producer.state,
        ):  # fmt: skip
            words[0], answers = False, []

            async def asked(ask=ask, answers=answers):
                answers.append(await ask())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(asked)
                await trio.sleep(5)
                assert not answers
                words[0] = True
            assert answers in ([NONE], ["Ongoing"])
        words[0] = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose, node, producer)
            assert await producer.add("data", 0, verify_only=True) is ErrorCode.NOT_COORDINATOR


async def lose(node, producer):
    """Its coordinator ends while it is not certain."""
    await trio.sleep(1)
    service = node[coordinator_core(node, producer.name)].transactions
    service.end(service._key_of(producer.name))


async def test_below_the_level_there_is_nothing(autojump_clock, monkeypatch):
    before = Levels(FIRST_OF_CLUSTERS, FIRST_WITH_TRANSACTIONS - 1)
    monkeypatch.setattr("tpc_broker.metadata.image.SPOKEN", before)
    async with running_node(settings=SETTINGS) as node:
        await create_topic(node, 0, TRANSACTION_STATE_TOPIC, 4)
        asked = messages.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
        assert (await node.ask(0, asked, 5)).error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await find_coordinator(node, 0, "t") == (ErrorCode.UNSUPPORTED_VERSION, -1)
        assert await node.ask(0, messages.EndTxnRequest(transactional_id="t"), 5) is None, "it is not offered"
        assert not any(life.core.transactions.loaded() for life in node.lives.values())


async def test_a_topic_that_was_deleted_needs_no_marker(autojump_clock):
    async with node_with_transactions() as node:
        await create_topic(node, 0, "other", 2)
        producer = Producer(node)
        await producer.init()
        await producer.add("other", 0, 1)
        await producer.add("data", 0)
        assert await delete_topic(node, 0, "other") is NONE
        assert await producer.end() is NONE
        assert await producer.until_complete() == "CompleteCommit"
        assert len(markers_in(node, "data", 0)) == 1


@pytest.mark.parametrize("writes", range(10))
async def test_a_node_that_crashes_after_any_write_ends_the_transaction_as_its_producer_said(autojump_clock, writes):
    """Each core's writes become durable one turn after the other, so many of them; then the node is gone."""
    async with node_with_transactions() as node:
        producer = Producer(node)
        await producer.init()
        for life in node.lives.values():
            life.plane.holds = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin_and_end, producer)
            for number in range(writes):
                await trio.sleep(0.1)
                node.lives[number % 2].plane.make_durable()
            await trio.sleep(0.1)
            for core in range(2):
                await node.restart(core)
        assert await producer.until_complete() == "CompleteCommit"
        found = [set(markers_in(node, "data", index)) for index in range(4)]
        assert found == [{(producer.producer_id, 1, True)}] * 4


async def begin_and_end(producer):
    """Adds its partitions again until that is certain, and then ends, with the epoch that it has."""
    for ask in (lambda: producer.add("data", 0, 1, 2, 3), producer.end):
        error = None
        while error is not NONE:
            with trio.move_on_after(2):
                try:
                    error = await ask()
                except (KeyError, AttributeError):  # its core is away, or closed the connection
                    error = None
                await trio.sleep(0.05)


async def test_a_transaction_goes_on_with_the_core_that_its_coordinator_moved_to(autojump_clock):
    async with node_with_transactions() as node:
        producer, was = Producer(node), coordinator_core(node, "t")
        partition = coordinator_partition("t", 4)
        await producer.init()
        await producer.add("data", 0, 1)
        await move(node, TRANSACTION_STATE_TOPIC, partition, 1 - was)
        assert coordinator_core(node, "t") == 1 - was
        assert isinstance(node[was].transactions.coordinator_of("t"), ErrorCode)
        await producer.until(lambda: producer.add("data", 2))
        assert await producer.end() is NONE
        assert await producer.until_complete() == "CompleteCommit"
        assert [len(markers_in(node, "data", index)) for index in range(4)] == [1, 1, 1, 0]


async def test_a_coordinator_that_moves_while_markers_are_owed_leaves_them_to_the_next_one(autojump_clock):
    async with node_with_transactions() as node:
        producer, was = Producer(node), coordinator_core(node, "t")
        await producer.init()
        await producer.add("data", 0, 1)
        node[was].transactions.markers._sort = lambda _owed: None
        assert await producer.end(commit=False) is NONE
        await move(node, TRANSACTION_STATE_TOPIC, coordinator_partition("t", 4), 1 - was)
        while not (await producer.state()).startswith("Complete"):
            await trio.sleep(0.1)
        assert await producer.state() == "CompleteAbort"
        assert [len(markers_in(node, "data", index)) for index in range(2)] == [1, 1]


async def test_a_marker_finds_the_partition_that_moved_before_it_came(autojump_clock):
    async with node_with_transactions() as node:
        producer, here = Producer(node), coordinator_core(node, "t")
        await producer.init()
        index = next(number for number in range(4) if owner(node, "data", number) != here)
        await producer.add("data", index)
        node[here].mailboxes.lost.add("transactions.write_markers")
        assert await producer.end() is NONE
        await trio.sleep(1)
        await move(node, "data", index, here)
        assert await producer.until_complete() == "CompleteCommit"
        assert len(markers_in(node, "data", index)) == 1
