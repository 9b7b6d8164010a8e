"""A classic group that becomes a consumer group with the first member of KIP-848."""

import sys
import uuid
from dataclasses import replace

import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st

from tests.coordinator.consumer.classic_client import COOPERATIVE, EAGER, ClassicClient, MixedScenario, given, said
from tests.coordinator.consumer.scenario import Client
from tpc_broker.coordinator import migration
from tpc_broker.coordinator.consumer import step
from tpc_broker.coordinator.consumer.client_protocol import ClientSubscription
from tpc_broker.coordinator.consumer.group import ConsumerGroup
from tpc_broker.coordinator.consumer.records import (
    CURRENT_KEY,
    MEMBER_KEY,
    TARGET_KEY,
    ConsumerKey,
    CurrentAssignment,
    consumer_record,
)
from tpc_broker.coordinator.effects import size_of
from tpc_broker.coordinator.group import Member
from tpc_broker.coordinator.machine import WRITES_AT_ONCE
from tpc_broker.coordinator.records import group_record
from tpc_broker.error_codes import ErrorCode
from tpc_broker.limits import GROUPS_BYTES_MAX
from tpc_broker.model import TopicId

TOMBSTONE = group_record("g", None)


def seen(s):
    """All that can be seen of a coordinator, and what it would store."""
    machine = s.machine
    return s.stored_records(), machine.statistics(), machine.describe_group("g"), machine.size_bytes, dict(s.replies)


def joined(s, **details):
    """A member of a group that waits for its leader, which it is."""
    token = s.member("a", **details)
    s.wait(0)
    return s.replies[token]


def assert_refused(s, code=ErrorCode.GROUP_ID_NOT_FOUND, **details):
    before = seen(s), len(s.batches)
    answer = s.join_consumers("n", **details)
    s.replies.popitem()
    assert answer.error_code is code
    assert answer.error_message
    assert (seen(s), len(s.batches)) == before
    return answer.error_message


def instructions_of(call):
    """How many of Python's instructions it runs."""
    count, traced = 0, sys.gettrace()

    def trace(frame, event, _arg):
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(traced)
    return count


def test_members_stay_with_what_they_have_and_so_do_offsets():
    s = MixedScenario()
    clients = s.classic_group("a", "b")
    assert s.commit_code(offset=7, member_id=clients["a"].member_id, generation_id=clients["a"].generation) == 0
    owned = {client.member_id: {"t": sorted(client.owned["t"])} for client in clients.values()}
    writes = len(s.batches)
    assert s.join_consumers("n").error_code is ErrorCode.NONE
    assert s.kind() == "consumer"
    assert s.owned_by() == {**owned, "n": {}}
    assert s.offset() == 7
    assert s.machine.describe_group("g").error_code is ErrorCode.GROUP_ID_NOT_FOUND
    assert len(s.batches) == writes + 1
    assert s.batches[-1][0] == TOMBSTONE


def test_what_a_restart_finds_is_what_there_was():
    s = MixedScenario()
    s.commit(offset=7)
    s.classic_group("a", "b")
    s.join_consumers("n")
    before = s.described()
    s.start()
    assert s.described() == before
    assert (s.kind(), s.offset()) == ("consumer", 7)


def test_all_of_them_come_to_a_stable_group():
    s = MixedScenario()
    clients = s.classic_group("a", "b")
    new = Client(s, "n", "t")
    for _ in range(40):
        new.beat()
        for client in clients.values():
            client.go_on()
        s.wait(250)
    assert s.described().state == "Stable"
    shares = [each["t"] for each in s.owned_by().values()]
    assert sorted(partition for share in shares for partition in share) == [0, 1, 2, 3]
    assert s.owned_by() == {
        "n": s.names(new.owned),
        **{each.member_id: {"t": sorted(each.owned["t"])} for each in clients.values()},
    }


@pytest.mark.parametrize("crash", range(1, 12))
def test_a_crash_between_any_two_writes_leaves_one_group_of_one_kind(crash):
    s = MixedScenario()
    clients = s.classic_group("a", "b")
    s.commit(offset=7, member_id=clients["a"].member_id, generation_id=clients["a"].generation)
    new = Client(s, "n", "t")
    while len(s.batches) < 12:
        new.beat()
        for client in clients.values():
            client.go_on()
        s.wait(250)
        new.asked["topic_names"] = ("t", f"other {len(s.batches)}")
        new.epoch = 0
    s.log = [record for batch in s.batches[:crash] for record in batch]
    s.start()
    is_up = any(TOMBSTONE in batch for batch in s.batches[:crash])
    assert s.kind() == ("consumer" if is_up else "classic")
    assert s.offset() == (7 if crash > 1 else -1)
    everybody = {clients["a"].member_id, clients["b"].member_id}
    members = s.described().members if is_up else s.machine.describe_group("g").members
    assert {member.member_id for member in members} >= everybody
    # And it works on.
    again = Client(s, "n", "t")
    for _ in range(60):
        again.beat()
        for client in clients.values():
            client.go_on()
        s.wait(250)
    assert s.described().state == "Stable"


# Who waits

def test_who_waits_in_join_group_is_told_to_join_again():
    s = MixedScenario()
    clients = s.classic_group("a", "b")
    late = ClassicClient(s, "c", "t")
    late.go_on()
    late.go_on()
    late.go_on()
    waiting = late.token
    assert waiting not in s.replies
    s.join_consumers("n")
    assert s.replies[waiting].error_code is ErrorCode.REBALANCE_IN_PROGRESS
    assert s.replies[waiting].member_id == late.member_id
    assert late.member_id in s.owned_by()
    s.until_in(late, *clients.values())
    assert len(s.owned_by()) == 4


def test_who_waits_in_sync_group_is_told_to_join_again():
    s = MixedScenario()
    a, b = s.classic_group("a", "b").values()
    for client in (a, b):
        client.beat()
        client.join()
    s.wait(0)
    other = b if s.replies[a.token].members else a
    other.go_on()
    assert other.state == "syncing"
    assert other.token not in s.replies
    s.join_consumers("n")
    assert s.replies[other.token].error_code is ErrorCode.REBALANCE_IN_PROGRESS
    s.until_in(a, b)
    assert set(s.owned_by()) == {"n", a.member_id, b.member_id}


def test_a_group_whose_first_round_has_not_ended_is_one_too():
    s = MixedScenario(initial_rebalance_delay_ms=3_000)
    client = ClassicClient(s, "a", "t")
    client.go_on()
    client.go_on()
    client.go_on()
    assert s.state() == "PreparingRebalance"
    assert s.join_consumers("n").error_code is ErrorCode.NONE
    assert s.replies[client.token].error_code is ErrorCode.REBALANCE_IN_PROGRESS
    s.until_in(client)
    assert set(s.owned_by()) == {"n", client.member_id}


def test_what_a_member_may_still_have_is_its_own_until_it_joins_again():
    s = MixedScenario()
    a = s.classic_group("a", protocol=COOPERATIVE)["a"]
    assert sorted(a.owned["t"]) == [0, 1, 2, 3]
    b = ClassicClient(s, "b", "t", protocol=COOPERATIVE)
    b.join()
    b.member_id = s.replies[b.token].member_id
    b.join()
    a.beat()
    a.go_on()
    while a.state != "syncing":
        a.go_on()
        b.go_on()
    assert s.replies[a.token].assignment == given({"t": {0, 2}}), "it has not read that yet"
    s.join_consumers("n")
    assert s.owned_by() == {a.member_id: {"t": [0, 1, 2, 3]}, b.member_id: {}, "n": {}}
    s.until_in(a, b)
    assert s.owned_by()[a.member_id] == {"t": sorted(a.owned["t"])}


def test_what_was_given_to_another_one_is_not_what_a_member_has():
    s = MixedScenario()
    a = s.classic_group("a", protocol=COOPERATIVE)["a"]
    b = ClassicClient(s, "b", "t", protocol=COOPERATIVE)
    joined_b = s.replies[s.join("b", protocols=b.protocols())]
    s.join("b", joined_b.member_id, protocols=b.protocols())
    a.beat()
    a.join()
    s.wait(0)
    generation = s.replies[a.token].generation_id
    shares = [(a.member_id, given({"t": {0, 1}})), (joined_b.member_id, given({"t": {2}}))]
    s.sync("a", a.member_id, generation, shares)
    s.join_consumers("n")
    assert s.owned_by() == {a.member_id: {"t": [0, 1, 3]}, joined_b.member_id: {"t": [2]}, "n": {}}


# What is refused changes nothing

def test_the_policy_may_forbid_it():
    s = MixedScenario()
    s.classic_group("a")
    s.settings = replace(s.settings, may_upgrade=False)
    assert "disabled" in assert_refused(s)


def test_a_group_of_something_else_stays_what_it_is():
    s = MixedScenario()
    s.stable("a", protocol_type="connect")
    assert "consumer embedded protocol" in assert_refused(s)


@pytest.mark.parametrize(
    "metadata",
    [b"", b"\0", said("t")[:-3], b"\xff\xff" + said("t")[2:], said(*map(str, range(10_001)))],
    ids=["empty", "short", "cut", "of no version", "too many topics"],
)
def test_what_members_say_has_to_be_read(metadata):
    s = MixedScenario()
    asked = joined(s, protocols=(("range", metadata),))
    s.sync("a", asked.member_id, asked.generation_id, [(asked.member_id, given({"t": {0}}))])
    assert s.state() == "Stable"
    assert "malformed" in assert_refused(s)


@pytest.mark.parametrize(
    ("assignment", "why"),
    [
        (b"a", "malformed"),
        (given({"t": {0}})[:-3], "malformed"),
        (given({"t": {0}}, user_data=b"x"), "custom assignor"),
    ],
)
def test_what_members_have_has_to_be_read(assignment, why):
    s = MixedScenario()
    asked = joined(s)
    s.sync("a", asked.member_id, asked.generation_id, [(asked.member_id, assignment)])
    assert why in assert_refused(s)


def test_two_members_with_one_partition_cannot_be_in_a_consumer_group():
    s = MixedScenario()
    clients = s.classic_group("a", "b")
    leader = s.machine.describe_group("g")
    assert leader.group_state == "Stable"
    a, b = clients.values()
    a.join()
    b.beat()
    b.join()
    s.wait(0)
    led = next(each for each in (a, b) if s.replies[each.token].members)
    both = [(each.member_id, given({"t": {0, 1}})) for each in (a, b)]
    s.sync(led.name, led.member_id, s.replies[led.token].generation_id, both)
    assert s.state() == "Stable"
    assert "custom assignor" in assert_refused(s)


def test_a_group_that_is_too_large_stays_classic():
    s = MixedScenario()
    s.classic_group("a", "b")
    s.settings = replace(s.settings, size_max=1)
    assert "maximum size" in assert_refused(s)


def test_one_that_does_not_fit_into_one_write_stays_classic(monkeypatch):
    s = MixedScenario()
    s.classic_group("a", "b")
    monkeypatch.setattr(migration, "OWN_BATCH_BYTES_MAX", 500)
    assert "too large" in assert_refused(s)


def test_whatever_a_batch_holds_it_fits_or_stays_classic(monkeypatch):
    """Of a group's id there is much in the records that are not of a member, too."""
    answers = []
    for bytes_max in range(5_000, 12_000, 100):
        s = MixedScenario()
        s.classic_group("a", group="g" * 1_000)
        monkeypatch.setattr(migration, "OWN_BATCH_BYTES_MAX", bytes_max)
        answers.append(s.join_consumers("n", group="g" * 1_000).error_code)
    assert answers == sorted(answers, reverse=True), "the smaller batches refuse it"
    assert set(answers) == {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NONE}


def test_one_that_is_too_large_to_remember_stays_classic(monkeypatch):
    s = MixedScenario()
    s.classic_group("a", "b")
    monkeypatch.setattr(migration, "GROUP_BYTES_MAX", 1_000)
    assert "too large" in assert_refused(s)


def test_without_memory_left_it_is_tried_again():
    s = MixedScenario()
    s.classic_group("a", "b")
    left = [GROUPS_BYTES_MAX, -10_000]
    s.machine._migration._bytes_left = left.pop
    assert_refused(s, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def malformed(s, _monkeypatch):
    s.join("d", [*s.machine._groups["g"].members][-1], protocols=((EAGER, b""),))


def without_memory(s, _monkeypatch):
    s.machine._migration._bytes_left = lambda: -100_000


def of_many_bytes(_s, monkeypatch):
    monkeypatch.setattr(migration, "OWN_BATCH_BYTES_MAX", 1_000)


def of_too_much_memory(_s, monkeypatch):
    monkeypatch.setattr(migration, "GROUP_BYTES_MAX", 5_000)


@pytest.mark.parametrize("refused", [malformed, without_memory, of_many_bytes, of_too_much_memory])
def test_what_is_refused_has_not_been_converted(refused, monkeypatch):
    """Clients that are refused come again and again."""
    s = MixedScenario()
    s.classic_group("a", "b", "c", "d")
    refused(s, monkeypatch)
    applied = []
    monkeypatch.setattr(ConsumerGroup, "apply", lambda *of: applied.append(of))
    assert s.join_consumers("n").error_code in {
        ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }  # fmt: skip
    assert applied == []


def test_for_a_joiner_that_is_refused_no_record_is_made(monkeypatch):
    s = MixedScenario()
    s.classic_group("a", "b")
    made = []
    for module in (migration, step):
        monkeypatch.setattr(module, "consumer_record", lambda *of: made.append(of) or consumer_record(*of))
    s.settings = replace(s.settings, size_max=2)
    assert_refused(s, ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert made == []
    s.settings = replace(s.settings, size_max=3)
    assert s.join_consumers("n").error_code is ErrorCode.NONE
    assert made


@given_any(
    texts=st.lists(st.text(max_size=30), min_size=4, max_size=4),
    names=st.sets(st.text(min_size=1, max_size=20), max_size=5),
    partitions=st.dictionaries(st.integers(0, 5), st.frozensets(st.integers(0, 2**31 - 1), max_size=4), max_size=4),
    metadata=st.binary(max_size=200),
)
def test_the_bound_of_what_is_stored_is_one(texts, names, partitions, metadata):
    group_id, member_id, instance_id, client = texts
    member = Member(member_id, instance_id, client, client, 10_000, 10_000, ((client, metadata), ("other", b"")))
    subscription = migration._subscription(member, ClientSubscription(tuple(sorted(names)), {}, client))
    target = {TopicId(uuid.UUID(int=number)): indexes for number, indexes in partitions.items()}
    current = CurrentAssignment(2**31 - 1, 2**31 - 1, 0, migration._all_since(2**31 - 1, target), {})
    values = {MEMBER_KEY: subscription, TARGET_KEY: target, CURRENT_KEY: current}
    stored = sum(size_of(consumer_record(ConsumerKey(key, group_id, member_id), each)) for key, each in values.items())
    bound = migration._stored_bytes(group_id, member, subscription) + 2 * migration._stored_bytes_of(target)
    assert stored <= bound


def test_what_members_have_takes_time_by_what_they_say():
    """Counted in instructions of Python: ten times as many members with ten times as much take a hundred times as
    long, and not more.
    """
    topic = TopicId(uuid.UUID(int=1))

    def cost(members, partitions):
        targets = {f"m{number}": {topic: frozenset([number])} for number in range(members)}
        owned = {member_id: {topic: frozenset(range(partitions))} for member_id in targets}
        [held, *others] = migration._held(targets, owned).values()
        assert held == {topic: frozenset(range(members, partitions)) | {0}}
        assert all(len(each[topic]) == 1 for each in others)
        return instructions_of(lambda: migration._held(targets, owned))

    assert cost(200, 400) < 12 * cost(20, 400)
    assert cost(20, 4_000) < 2 * cost(20, 400), "of partitions C takes care"


def test_a_joiner_that_is_refused_leaves_it_classic():
    s = MixedScenario()
    s.classic_group("a", "b")
    s.settings = replace(s.settings, size_max=2)
    assert "maximum capacity" in assert_refused(s, ErrorCode.GROUP_MAX_SIZE_REACHED)


@pytest.mark.parametrize("epoch", [3, -1, -2])
def test_only_a_member_that_joins_makes_it_one(epoch):
    s = MixedScenario()
    s.classic_group("a")
    before = seen(s)
    answer = s.told("n", epoch, owned={})
    s.replies.popitem()
    assert answer.error_code is ErrorCode.GROUP_ID_NOT_FOUND
    assert seen(s) == before


def test_without_room_for_it_nothing_changes():
    s = MixedScenario()
    s.classic_group("a")
    s.room = False
    assert_refused(s, ErrorCode.COORDINATOR_NOT_AVAILABLE)


# Writes under way

def test_a_round_that_is_being_written_ends_first():
    s = MixedScenario()
    asked = joined(s)
    s.hold = True
    token = s.sync("a", asked.member_id, asked.generation_id, [(asked.member_id, given({"t": {0, 1}}))])
    beat = s.beat("n", 0, rebalance_timeout_ms=10_000, topic_names=("t",), owned={})
    assert s.kind() == "classic"
    s.hold = False
    s.settle()
    assert s.replies[token].assignment == given({"t": {0, 1}})
    assert s.replies[beat].error_code is ErrorCode.NONE
    assert s.owned_by()[asked.member_id] == {"t": [0, 1]}
    keys = [(record.key, record.value is None) for record in s.log if record.key == TOMBSTONE.key]
    assert keys == [(TOMBSTONE.key, False), (TOMBSTONE.key, True)]
    s.start()
    assert s.kind() == "consumer"


def test_a_round_that_was_not_written_has_not_been():
    s = MixedScenario()
    asked = joined(s)
    s.hold = True
    token = s.sync("a", asked.member_id, asked.generation_id, [(asked.member_id, given({"t": {0, 1}}))])
    beat = s.beat("n", 0, rebalance_timeout_ms=10_000, topic_names=("t",), owned={})
    s.hold, s.fail_with = False, ErrorCode.REQUEST_TIMED_OUT
    s.settle()
    assert s.replies[token].error_code is not ErrorCode.NONE
    assert s.replies[beat].error_code is not ErrorCode.NONE
    assert s.kind() == "classic"


@pytest.mark.parametrize("error", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.KAFKA_STORAGE_ERROR])
def test_who_waited_for_a_round_that_cannot_be_written_may_come_again(error):
    """The fault was of another's write."""
    s = MixedScenario()
    asked = joined(s)
    s.hold = True
    s.sync("a", asked.member_id, asked.generation_id, [(asked.member_id, given({"t": {0, 1}}))])
    beat = s.beat("n", 0, rebalance_timeout_ms=10_000, topic_names=("t",), owned={})
    s.hold, s.fail_with = False, error
    s.settle()
    assert s.replies[beat].error_code in {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}


def test_of_many_who_waited_for_a_round_no_more_begin_than_a_step_has_room_for():
    s = MixedScenario()
    asked = joined(s)
    s.hold = True
    s.sync("a", asked.member_id, asked.generation_id, [(asked.member_id, given({"t": {0, 1}}))])
    beats = [
        s.beat(f"n{number}", 0, rebalance_timeout_ms=10_000, topic_names=("t",), owned={})
        for number in range(2 * WRITES_AT_ONCE)
    ]
    del s.batches[:]
    s.hold = False
    s.settle()
    assert len(s.batches) <= WRITES_AT_ONCE
    answers = [s.replies[beat].error_code for beat in beats]
    begun = answers.count(ErrorCode.NONE)
    assert begun >= WRITES_AT_ONCE // 2
    assert answers == [ErrorCode.NONE] * begun + [ErrorCode.COORDINATOR_NOT_AVAILABLE] * (len(beats) - begun)


# Deadlines

def test_members_are_out_after_their_own_sessions():
    s = MixedScenario()
    clients = s.classic_group("a", "b")
    s.join_consumers("n")
    s.wait(9_000)
    assert len(s.owned_by()) == 3
    assert s.heartbeat(clients["a"].member_id, clients["a"].generation) is ErrorCode.REBALANCE_IN_PROGRESS
    s.wait(1_000)
    assert set(s.owned_by()) == {"n", clients["a"].member_id}


def test_deadlines_of_the_classic_group_are_gone():
    s = MixedScenario()
    clients = s.classic_group("a", "b")
    late = ClassicClient(s, "c", "t")
    for _ in range(3):
        late.go_on()
    new = Client(s, "n", "t")
    new.beat()
    for _ in range(60):
        for client in (late, *clients.values()):
            client.go_on()
        new.beat()
        s.wait(1_000)
    assert len(s.owned_by()) == 4
    assert s.described().state == "Stable"


def test_what_is_held_is_what_there_is():
    """Bytes are neither forgotten nor counted twice."""
    s = MixedScenario()
    clients = s.classic_group("a", "b")
    s.join_consumers("n")
    before = s.machine.size_bytes
    s.start()
    assert s.machine.size_bytes == before
    s.leave(*((client.member_id,) for client in clients.values()), ("n",))
    assert s.machine.size_bytes == 0
