"""A consumer group that is a classic one again, and groups without members, which are of the kind of who comes."""

from dataclasses import replace

import pytest

from tests.coordinator.consumer.classic_client import COOPERATIVE, EAGER, SESSION_MS, ClassicClient, MixedScenario, said
from tests.coordinator.consumer.scenario import Client
from tests.coordinator.consumer.test_classic_members import joined, mixed, settle, synced
from tpc_broker.coordinator import migration
from tpc_broker.coordinator.consumer.client_protocol import read_assignment
from tpc_broker.coordinator.records import group_record, leading_number, read_group
from tpc_broker.error_codes import ErrorCode

KEY = group_record("g", None).key
NEW_SESSION_MS = 45_000


def goes(s, new, how):
    """The last member of the new protocol goes, in one of the ways there are."""
    if how == "heartbeat":
        assert s.told("n", -1, owned={}).error_code is ErrorCode.NONE
    elif how == "leave":
        assert s.replies[s.leave(("n",))].members[0].error_code is ErrorCode.NONE
    else:
        assert new.epoch > 0
        while "n" in s.owned_by():
            for member in s.described().members:
                if member.is_classic:
                    s.heartbeat(member.member_id, member.member_epoch)
            s.wait(5_000)
            if s.kind() == "classic":
                return


@pytest.mark.parametrize("how", ["heartbeat", "leave", "session"])
def test_the_last_of_the_new_protocol_goes_and_the_rest_is_a_classic_group(how):
    s = MixedScenario()
    new, a, b = mixed(s, "a", "b")
    s.commit(offset=7, member_id=a.member_id, generation_id=a.generation)
    epoch = s.described().group_epoch
    had = {each.member_id: each.owned for each in (a, b)}
    goes(s, new, how)
    assert s.kind() == "classic"
    assert s.state() == "PreparingRebalance"
    stored = next(read_group(record.value) for record in reversed(s.log) if record.key == KEY)
    assert (stored.generation_id, stored.protocol_type, stored.protocol) == (epoch, "consumer", EAGER)
    assert {each.member_id: read_assignment(each.assignment).partitions for each in stored.members} == had
    assert stored.leader in had
    assert a.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    s.until_in(a, b)
    assert s.state() == "Stable"
    assert a.generation == b.generation == epoch + 1
    assert sorted(a.owned["t"] | b.owned["t"]) == [0, 1, 2, 3]
    assert s.offset() == 7


def test_all_of_it_is_one_write():
    s = MixedScenario()
    mixed(s, "a", "b")
    before = len(s.batches)
    s.told("n", -1, owned={})
    assert len(s.batches) == before + 1
    types = [leading_number(record.key) for record in s.batches[-1]]
    assert types == [8, 8, 8, 7, 7, 7, 6, 5, 5, 5, 4, 3, 2]
    assert [record.value is None for record in s.batches[-1]] == [True] * 12 + [False]


def test_a_member_that_does_not_give_back_in_time_goes_too():
    s = MixedScenario()
    new, a = mixed(s, "a")
    s.wait(1_000)
    b = ClassicClient(s, "0", "t")
    joined(b)
    assert s.names(s.told("n", new.epoch).assignment) != s.names(new.owned)
    for _ in range(3):
        for client in (a, b):
            client.go_on()
        s.wait(4_000)
    assert s.kind() == "classic"


def test_a_restart_finds_the_round_that_was_handed_on():
    s = MixedScenario()
    new, a, b = mixed(s, "a", "b")
    goes(s, new, "heartbeat")
    s.start()
    assert s.kind() == "classic"
    assert s.state() == "Stable"
    assert s.heartbeat(a.member_id, a.generation) is ErrorCode.NONE
    assert s.replies[s.sync("b", b.member_id, b.generation)].assignment[:2] == b"\0\3"


@pytest.mark.parametrize("crash", range(14, 26))
def test_a_crash_between_any_two_writes_leaves_one_group_of_one_kind(crash):
    s = MixedScenario()
    new, a, b = mixed(s, "a", "b")
    assert len(s.batches) < 22
    while len(s.batches) < 22:
        s.wait(1_000)
        a.topics = ("t", f"u{len(s.batches)}")
        joined(a)
        settle(s, new, a, b)
    goes(s, new, "heartbeat")
    while len(s.batches) < 26:
        a.leave()
        s.until_in(a, b)
    is_classic, is_up = None, False
    for batch in s.batches[:crash]:
        for record in batch:
            if leading_number(record.key) == 2:
                is_classic = record.value is not None
            elif leading_number(record.key) == 3:
                is_up = record.value is not None
    s.log = [record for batch in s.batches[:crash] for record in batch]
    s.start()
    assert (is_classic, is_up) in {(True, False), (None, True), (False, True)}
    assert s.kind() == ("classic" if is_classic else "consumer")
    s.until_in(a, b, rounds=400)


def test_the_policy_may_forbid_it():
    s = MixedScenario()
    new, a, b = mixed(s, "a", "b")
    s.settings = replace(s.settings, may_downgrade=False)
    goes(s, new, "heartbeat")
    assert s.kind() == "consumer"
    s.until_in(a, b)
    assert sorted(a.owned["t"] | b.owned["t"]) == [0, 1, 2, 3]
    assert set(s.owned_by()) == {a.member_id, b.member_id}


def test_one_that_is_too_large_for_a_classic_group_stays():
    s = MixedScenario(group_size_max=1)
    new, *_clients = mixed(s, "a", "b")
    goes(s, new, "heartbeat")
    assert s.kind() == "consumer"


def test_one_that_does_not_fit_into_one_write_stays(monkeypatch):
    s = MixedScenario()
    new, *_clients = mixed(s, "a", "b")
    monkeypatch.setattr(migration, "OWN_BATCH_BYTES_MAX", 500)
    before = s.machine.size_bytes
    goes(s, new, "heartbeat")
    assert s.kind() == "consumer"
    assert s.machine.size_bytes < before


def test_one_of_which_a_protocol_cannot_be_read_stays():
    s = MixedScenario()
    s.join_consumers("n")
    good, bad = said("t"), b"\xff\xff"
    assert joined_with(s, "a", ((EAGER, good), ("other", bad))).error_code is ErrorCode.NONE
    assert joined_with(s, "b", (("other", good), (EAGER, bad))).error_code is ErrorCode.NONE
    before = s.machine.size_bytes
    s.told("n", -1, owned={})
    assert s.kind() == "consumer"
    assert s.machine.size_bytes < before


def joined_with(s, name, protocols):
    return s.replies[s.join(name, requires_member_id=False, protocols=protocols)]


def test_others_of_the_new_protocol_keep_it():
    s = MixedScenario()
    new, a = mixed(s, "a")
    other = Client(s, "m", "t")
    s.wait(1_000)
    other.beat()
    goes(s, new, "heartbeat")
    assert s.kind() == "consumer"
    settle(s, other, a)
    assert set(s.owned_by()) == {"m", a.member_id}


def test_a_static_one_that_left_for_a_while_keeps_it():
    s = MixedScenario()
    s.join_consumers("m", instance_id="i")
    s.wait(1_000)
    assert joined(ClassicClient(s, "a", "t")).error_code is ErrorCode.NONE
    assert s.told("m", -2, instance_id="i").error_code is ErrorCode.NONE
    assert s.kind() == "consumer"


def test_a_group_whose_last_member_goes_is_empty_and_not_classic():
    s = MixedScenario()
    new = Client(s, "n", "t")
    new.beat()
    goes(s, new, "heartbeat")
    assert s.kind() == "consumer"
    assert s.described().state == "Empty"


def test_several_that_leave_together_are_one_change():
    s = MixedScenario()
    _new, a, b = mixed(s, "a", "b")
    s.leave(("n",), (a.member_id,))
    assert s.kind() == "classic"
    assert {each.member_id for each in s.machine.describe_group("g").members} == {b.member_id}


# A static member is replaced


def instance_of_new(s, *topics):
    """A group whose only member of the new protocol is an instance that has left for a while."""
    new = Client(s, "n", *topics, instance_id="i")
    new.beat()
    s.wait(1_000)
    client = ClassicClient(s, "a", "t")
    settle(s, new, client)
    assert new.leave(-2).error_code is ErrorCode.NONE
    return new, client


def test_an_instance_that_comes_back_as_classic_makes_it_classic_without_a_rebalance():
    s = MixedScenario()
    new, a = instance_of_new(s, "t")
    again = ClassicClient(s, "b", "t", instance="i", also=("x",))
    answer = joined(again)
    assert s.kind() == "classic"
    assert s.state() == "Stable"
    assert a.beat() is ErrorCode.NONE
    again.member_id = answer.member_id
    told = synced(s, again, answer.generation_id, protocol_name=answer.protocol_name, group_instance_id="i")
    assert read_assignment(told.assignment).partitions == {"t": new.owned[new.topic_id()]}
    s.start()
    assert s.state() == "Stable"


def test_with_another_subscription_it_is_divided_anew():
    s = MixedScenario(topics={"t": 4, "u": 2})
    _new, a = instance_of_new(s, "t")
    again = ClassicClient(s, "b", "t", "u", instance="i")
    again.join()
    assert s.kind() == "classic"
    assert s.state() == "PreparingRebalance"
    s.until_in(a, again)
    assert sorted(a.owned["t"] | again.owned["t"]) == [0, 1, 2, 3]
    assert sorted(again.owned["u"]) == [0, 1]


def test_with_partitions_to_give_back_it_is_divided_anew():
    s = MixedScenario()
    new = Client(s, "n", "t", instance_id="i")
    new.beat()
    a = ClassicClient(s, "z", "t", protocol=COOPERATIVE)
    settle(s, new, a)
    s.wait(1_000)
    late = ClassicClient(s, "b", "t", protocol=COOPERATIVE)
    joined(late)
    s.told("n", -2, instance_id="i")
    joined(a)
    had = s.owned_by()[a.member_id]
    assert had != s.names(s.described().members[-1].target), "it has not come to its part of the target"
    again = ClassicClient(s, "m", "t", instance="i", protocol=COOPERATIVE)
    joined(again)
    assert s.kind() == "classic"
    assert s.state() == "PreparingRebalance"
    members = s.machine.describe_group("g").members
    told = {each.member_id: read_assignment(each.assignment).partitions for each in members}
    assert told[a.member_id] == {}, "it was to give back all that it has"
    given = [partition for each in told.values() for partition in each.get("t", ())]
    assert len(given) == len(set(given)), "nobody has what another one has yet to give back"


def test_the_protocol_that_it_is_told_is_that_of_the_classic_group():
    s = MixedScenario()
    new = Client(s, "n", "t", instance_id="i")
    new.beat()
    s.wait(1_000)
    clients = [ClassicClient(s, name, "t", protocol="x", also=("y",)) for name in ("a", "b")]
    settle(s, new, *clients)
    new.leave(-2)
    again = ClassicClient(s, "c", "t", protocol="y", also=("x",), instance="i")
    answer = joined(again)
    assert answer.protocol_name == "x"
    again.member_id = answer.member_id
    assert synced(s, again, answer.generation_id, protocol_name="x").error_code is ErrorCode.NONE


def test_the_policy_may_keep_it_with_members_of_the_classic_protocol_only():
    s = MixedScenario()
    _new, a = instance_of_new(s, "t")
    s.settings = replace(s.settings, may_downgrade=False)
    again = ClassicClient(s, "b", "t", instance="i")
    s.until_in(a, again)
    assert s.kind() == "consumer"


def test_one_that_does_not_fit_stays_when_an_instance_is_replaced(monkeypatch):
    s = MixedScenario()
    _new, a = instance_of_new(s, "t")
    monkeypatch.setattr(migration, "OWN_BATCH_BYTES_MAX", 500)
    again = ClassicClient(s, "b", "t", instance="i")
    s.until_in(a, again)
    assert s.kind() == "consumer"
    assert len(s.owned_by()) == 2


# What waits, what is under way


def test_a_sync_that_waits_meanwhile_is_told_of_the_rebalance():
    s = MixedScenario()
    _new, a = mixed(s, "a")
    s.wait(1_000)
    s.hold = True
    a.topics = ("t", "u")
    a.join()
    token = s.sync("a", a.member_id, s.described_now().members[1].member_epoch)
    s.leave(("n",))
    s.hold = False
    s.settle()
    assert s.replies[a.token].error_code is ErrorCode.NONE
    assert s.replies[token].error_code is ErrorCode.REBALANCE_IN_PROGRESS
    s.until_in(a)


def test_an_assignment_that_is_being_made_is_forgotten():
    def slowly(spec):
        for _ in range(50):
            yield
        return {member_id: {} for member_id in spec.members}

    s = MixedScenario()
    _new, a = mixed(s, "a")
    s.wait(1_000)
    s.assignors["uniform"] = slowly
    joined(ClassicClient(s, "b", "t"))
    s.run(s.machine.on_deadline(s.now))
    s.leave(("n",))
    assert s.kind() == "classic"
    writes = len(s.batches)
    s.wait(0)
    assert a.beat() is ErrorCode.ILLEGAL_GENERATION
    assert len(s.batches) == writes


def test_without_deadlines_of_the_consumer_group_members_live_on():
    s = MixedScenario()
    new, a, b = mixed(s, "a", "b")
    goes(s, new, "heartbeat")
    s.until_in(a, b)
    for _ in range(20):
        s.wait(SESSION_MS // 2)
        assert (a.beat(), b.beat()) == (ErrorCode.NONE, ErrorCode.NONE)
    s.wait(SESSION_MS * 3)
    assert s.state() == "Empty"


def test_a_deadline_of_before_is_not_one_of_the_next_consumer_group():
    s = MixedScenario()
    _new, a, b = mixed(s, "a", "b")
    s.join_consumers("m")
    assert a.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    told_ms = s.now
    s.leave(("n",), ("m",))
    s.until_in(a, b)
    while s.now < told_ms + SESSION_MS - 1_000:
        s.wait(500)
        assert (a.beat(), b.beat()) == (ErrorCode.NONE, ErrorCode.NONE)
    s.join_consumers("n")
    assert s.heartbeat(a.member_id, a.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    s.wait(2_000)
    assert a.member_id in s.owned_by()


def test_a_write_that_fails_leaves_the_group_as_it_was():
    s = MixedScenario()
    _new, a, b = mixed(s, "a", "b")
    s.hold = True
    left = s.beat("n", -1, owned={})
    assert s.kind() == "classic"
    s.hold, s.fail_with = False, ErrorCode.NOT_LEADER_OR_FOLLOWER
    s.settle()
    assert s.replies[left].error_code is ErrorCode.NOT_COORDINATOR
    s.fail_with = None
    assert s.kind() == "consumer"
    assert set(s.owned_by()) == {"n", a.member_id, b.member_id}


def test_there_and_back_again_nothing_is_held_twice():
    s = MixedScenario()
    s.commit(offset=7)
    clients = s.classic_group("a", "b")
    before = s.machine.size_bytes
    for _ in range(3):
        new = Client(s, "n", "t")
        settle(s, new, *clients.values())
        goes(s, new, "heartbeat")
        s.until_in(*clients.values())
        assert s.kind() == "classic"
        assert s.machine.size_bytes == before
    assert s.offset() == 7
    s.leave(*((client.member_id,) for client in clients.values()))
    assert s.machine.size_bytes == 0


# Without members


def emptied(s):
    new = Client(s, "n", "t")
    new.beat()
    new.leave()
    s.commit(offset=7)
    assert (s.kind(), s.described().state) == ("consumer", "Empty")


def test_who_comes_to_an_empty_one_by_join_group_makes_it_classic():
    s = MixedScenario()
    emptied(s)
    answer = s.replies[s.join("c")]
    assert answer.error_code is ErrorCode.MEMBER_ID_REQUIRED
    assert s.kind() == "classic"
    assert [leading_number(record.key) for record in s.batches[-1]] == [6, 4, 3, 2]
    client = ClassicClient(s, "c", "t")
    s.until_in(client)
    assert client.generation == 1
    assert s.offset() == 7


def test_it_may_be_of_any_protocol():
    s = MixedScenario()
    emptied(s)
    s.member("c", protocol_type="connect")
    s.wait(0)
    assert s.machine.describe_group("g").protocol_type == "connect"


@pytest.mark.parametrize(
    ("details", "code"),
    [
        ({"member_id": "c"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
    ],
)
def test_who_is_refused_leaves_it_as_it_is(details, code):
    s = MixedScenario()
    emptied(s)
    before = s.stored_records(), len(s.batches)
    assert s.replies[s.join("c", **details)].error_code is code
    assert (s.stored_records(), len(s.batches), s.kind()) == (*before, "consumer")


def test_without_room_it_stays_what_it_is():
    s = MixedScenario()
    emptied(s)
    s.room = False
    assert s.replies[s.join("c")].error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert s.kind() == "consumer"


def test_an_empty_one_has_no_members_to_hear_of():
    s = MixedScenario()
    emptied(s)
    assert s.heartbeat("n", 3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert s.replies[s.sync("n", "n", 3)].error_code is ErrorCode.UNKNOWN_MEMBER_ID
    assert s.replies[s.leave(("n",))].members[0].error_code is ErrorCode.UNKNOWN_MEMBER_ID
