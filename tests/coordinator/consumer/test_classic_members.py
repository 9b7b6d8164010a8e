"""Members of the classic protocol that work in a consumer group."""

from dataclasses import replace

import pytest

from tests.coordinator.consumer.classic_client import (
    COOPERATIVE,
    EAGER,
    IN,
    OUT,
    SESSION_MS,
    ClassicClient,
    MixedScenario,
    given,
    said,
)
from tests.coordinator.consumer.scenario import Client
from tpc_broker.coordinator.consumer import heartbeats
from tpc_broker.coordinator.consumer.records import MEMBER_KEY, REGEX_KEY, read_consumer_key, read_consumer_value
from tpc_broker.error_codes import ErrorCode

NONE, AGAIN = ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS


def mixed(s, *names, **details):
    """A stable group of one new member, "n", and of these classic ones."""
    new = Client(s, "n", "t")
    new.beat()
    clients = [ClassicClient(s, name, "t", **details) for name in names]
    settle(s, new, *clients)
    return new, *clients


def settle(s, new, *clients):
    for _ in range(60):
        new.beat()
        for client in clients:
            client.go_on()
        if s.described().state == "Stable" and new.is_settled and all(each.is_settled for each in clients):
            return
        s.wait(250)
    raise AssertionError(s.transcript[-10:])


def joined(client):
    """A client sends JoinGroup, twice where it is told its id first; the answer."""
    client.join()
    client.state = OUT
    if client.s.replies[client.token].error_code is ErrorCode.MEMBER_ID_REQUIRED:
        client.member_id = client.s.replies[client.token].member_id
        client.join()
    return client.s.replies[client.token]


def synced(s, client, generation, **details):
    return s.replies[s.sync(client.name, client.member_id, generation, **details)]


# Joining


def test_a_new_one_is_told_its_id_and_nothing_is_written():
    s = MixedScenario()
    mixed(s)
    before = len(s.batches), s.described()
    answer = s.replies[s.join("c")]
    assert answer.error_code is ErrorCode.MEMBER_ID_REQUIRED
    assert answer.member_id
    assert (len(s.batches), s.described()) == before


def test_its_generation_is_its_epoch_and_nobody_leads():
    s = MixedScenario()
    mixed(s)
    s.wait(1_000)
    answer = joined(ClassicClient(s, "c", "t"))
    assert (answer.error_code, answer.generation_id, answer.leader, answer.members) == (NONE, 3, "", ())
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", EAGER)
    assert s.described().group_epoch == 3


def test_a_version_that_asks_for_no_id_is_in_at_once():
    s = MixedScenario()
    mixed(s)
    answer = s.replies[s.join("c", requires_member_id=False, protocols=((EAGER, said("t")),))]
    assert answer.error_code is NONE
    assert answer.member_id in s.owned_by()


@pytest.mark.parametrize(
    "details",
    [
        {"protocol_type": "connect"},
        {"protocols": (("other", said("t")),)},
        {"protocols": ()},
        {"protocols": ((EAGER, b""),)},
        {"protocols": ((EAGER, said("t")[:-3]),)},
    ],
)
def test_who_does_not_fit_in_is_refused(details):
    s = MixedScenario()
    mixed(s, "a")
    before = len(s.batches), s.described(), s.machine.size_bytes
    details = {"requires_member_id": False, "protocols": ((EAGER, said("t")),), **details}
    for member_id in ("", "stranger"):
        answer = s.replies[s.join("c", **{**details, "member_id": member_id})]
        assert (answer.error_code, answer.member_id) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
    assert (len(s.batches), s.described(), s.machine.size_bytes) == before


def test_one_protocol_in_common_with_all_classic_ones_is_enough():
    s = MixedScenario()
    new, a = mixed(s, "a", also=("x",))
    b = ClassicClient(s, "b", "t", protocol="x")
    settle(s, new, a, b)
    c = ClassicClient(s, "c", "t", protocol=EAGER)
    assert joined(c).error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    b.leave()
    assert joined(c).error_code is NONE


@pytest.mark.parametrize(
    ("details", "code"),
    [
        ({"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
    ],
)
def test_the_form_is_looked_at_first(details, code):
    s = MixedScenario()
    mixed(s)
    assert s.replies[s.join("c", **details)].error_code is code


def test_a_full_group_takes_no_more_but_who_is_in_it():
    s = MixedScenario()
    new, a = mixed(s, "a")
    b = ClassicClient(s, "b", "t", instance="i")
    settle(s, new, a, b)
    s.settings = replace(s.settings, size_max=3)
    assert s.replies[s.join("c")].error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert joined(a).error_code is NONE
    assert joined(ClassicClient(s, "b", "t", instance="i")).error_code is NONE


def test_what_it_says_has_to_have_room(monkeypatch):
    s = MixedScenario()
    mixed(s, "a")
    monkeypatch.setattr(heartbeats, "GROUP_BYTES_MAX", 4_000)
    client = ClassicClient(s, "b", *(f"topic {number}" for number in range(100)))
    assert joined(client).error_code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_without_room_on_the_disk_it_is_tried_again():
    s = MixedScenario()
    _new, a = mixed(s, "a")
    s.room = False
    assert joined(a).error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_its_answers_wait_for_the_disk():
    s = MixedScenario()
    _new, a = mixed(s, "a")
    s.wait(1_000)
    s.hold = True
    a.topics = ("t", "u")
    a.join()
    assert a.token not in s.replies
    synced_token = s.sync("a", a.member_id, s.described_now().members[1].member_epoch)
    assert synced_token not in s.replies
    s.hold = False
    s.settle()
    assert s.replies[a.token].error_code is NONE
    assert s.replies[synced_token].error_code is NONE


def test_what_could_not_be_written_is_refused():
    s = MixedScenario()
    _new, a = mixed(s, "a")
    s.wait(1_000)
    s.hold = True
    a.topics = ("t", "u")
    a.join()
    s.hold, s.fail_with = False, ErrorCode.NOT_LEADER_OR_FOLLOWER
    s.settle()
    assert s.replies[a.token].error_code is ErrorCode.NOT_COORDINATOR


# Heartbeats, and what they are told


def test_it_joins_again_whenever_there_is_a_new_target():
    """Not sooner: it would only be told the same as before."""
    s = MixedScenario()
    new, a = mixed(s, "a")
    assert a.beat() is NONE
    s.settings = replace(s.settings, assignment_interval_ms=5_000)
    s.join_consumers("m")
    assert s.described().state == "Assigning"
    assert s.heartbeat(a.member_id, a.generation) is NONE
    assert synced(s, a, a.generation).assignment == given(a.owned)
    s.wait(5_000)
    new.beat()
    assert s.described().state == "Reconciling"
    assert s.heartbeat(a.member_id, a.generation) is AGAIN
    assert synced(s, a, a.generation).error_code is AGAIN


def test_classic_members_alone_have_the_next_target_made_themselves():
    """Nobody else's heartbeat would."""
    s = MixedScenario()
    s.settings = replace(s.settings, may_downgrade=False)
    new, a, b = mixed(s, "a", "b")
    s.told(new.member_id, -1)
    assert (s.kind(), s.described().state) == ("consumer", "Assigning")
    assert s.heartbeat(a.member_id, a.generation) is AGAIN
    s.wait(1_000)
    s.until_in(a, b)
    assert s.described().state == "Stable"
    assert sorted(a.owned["t"] | b.owned["t"]) == [0, 1, 2, 3]


def test_an_eager_one_gives_back_all_and_is_told_what_it_keeps():
    s = MixedScenario()
    new, a = mixed(s, "a")
    assert a.owned == {"t": frozenset({0, 2})}
    s.wait(1_000)
    settle(s, new, a, ClassicClient(s, "b", "t"))
    assert a.owned["t"] < {0, 1, 2, 3}
    assert sum(len(each["t"]) for each in s.owned_by().values()) == 4


def test_a_cooperative_one_gives_back_in_two_steps():
    s = MixedScenario()
    new = Client(s, "z", "t")
    new.beat()
    a = ClassicClient(s, "a", "t", protocol=COOPERATIVE)
    settle(s, new, a)
    assert a.owned == {"t": frozenset({0, 2})}
    s.wait(1_000)
    s.join_consumers("0")  # in turn it is first: 0 and 3 are its own, 1 is that of "a"
    assert s.heartbeat(a.member_id, a.generation) is AGAIN
    answer = joined(a)
    assert answer.generation_id == a.generation, "it keeps its epoch until it has given back"
    kept = synced(s, a, answer.generation_id)
    assert kept.assignment == given({})
    assert s.heartbeat(a.member_id, a.generation) is AGAIN
    a.owned = {}
    answer = joined(a)
    assert answer.generation_id == s.described().group_epoch
    assert synced(s, a, answer.generation_id).error_code is NONE


def test_it_hears_when_there_is_what_it_waited_for():
    s = MixedScenario()
    new, a = mixed(s, "a")
    a.leave()
    settle(s, new)
    assert s.names(new.owned) == {"t": [0, 1, 2, 3]}
    s.wait(1_000)
    b = ClassicClient(s, "b", "t")
    answer = joined(b)
    assert synced(s, b, answer.generation_id).assignment == given({})
    assert s.heartbeat(b.member_id, answer.generation_id) is NONE, "all of it is the other one's still"
    new.beat()
    new.beat()
    assert s.heartbeat(b.member_id, answer.generation_id) is AGAIN
    answer = joined(b)
    assert synced(s, b, answer.generation_id).assignment == given({"t": {0, 2}})
    assert s.heartbeat(b.member_id, answer.generation_id) is NONE


@pytest.mark.parametrize(
    ("member", "generation", "instance", "code"),
    [
        ("a", 1, None, ErrorCode.ILLEGAL_GENERATION),
        ("n", 3, None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("nobody", 3, None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", 3, "none", ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", 3, "i", ErrorCode.FENCED_INSTANCE_ID),
    ],
)
def test_others_are_refused(member, generation, instance, code):
    s = MixedScenario()
    new, a = mixed(s, "a")
    settle(s, new, a, ClassicClient(s, "b", "t", instance="i"))
    member_id = a.member_id if member == "a" else member
    generation = a.generation if generation == 3 else generation
    assert s.heartbeat(member_id, generation, instance=instance) is code
    answer = s.replies[s.sync("a", member_id, generation, group_instance_id=instance)]
    assert answer.error_code is code


@pytest.mark.parametrize("details", [{"protocol_type": "connect"}, {"protocol_name": "other"}])
def test_sync_group_of_another_protocol_is_refused(details):
    s = MixedScenario()
    _new, a = mixed(s, "a")
    assert synced(s, a, a.generation, **details).error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(("said_in", "told_in"), [(0, 0), (1, 1), (2, 2), (3, 3), (7, 3)])
def test_each_is_told_in_its_own_version(said_in, told_in):
    s = MixedScenario()
    mixed(s)
    metadata = said_in.to_bytes(2, "big") + said("t", version=min(said_in, 3))[2:]
    answer = s.replies[s.join("c", requires_member_id=False, protocols=((EAGER, metadata),))]
    s.wait(1_000)
    answer = s.replies[s.join("c", answer.member_id, protocols=((EAGER, metadata),))]
    told = s.replies[s.sync("c", answer.member_id, answer.generation_id, protocol_name=EAGER)]
    assert told.assignment[:2] == told_in.to_bytes(2, "big")
    assert told.protocol_name == EAGER


def test_a_topic_that_is_gone_is_not_told():
    s = MixedScenario(topics={"t": 2, "u": 2})
    s.join_consumers("n", "t", "u")
    a = ClassicClient(s, "a", "t", "u")
    s.wait(1_000)
    joined(a)
    s.wait(0)
    s.told("n", 2, owned={})
    answer = joined(a)
    assert synced(s, a, answer.generation_id).assignment == given({"t": {0}, "u": {0}})
    s.topics.delete("t")
    assert synced(s, a, answer.generation_id).assignment == given({"u": {0}})


# Deadlines


def test_its_session_is_its_own():
    s = MixedScenario()
    new, a = mixed(s, "a")
    for _ in range(3):
        s.wait(SESSION_MS - 1_000)
        assert a.beat() is NONE
        new.beat()
    s.wait(SESSION_MS)
    assert set(s.owned_by()) == {"n"}


def test_its_session_is_its_own_after_a_restart():
    s = MixedScenario()
    mixed(s, "a")
    s.start()
    s.wait(SESSION_MS - 1_000)
    assert len(s.owned_by()) == 2
    s.wait(1_000)
    assert set(s.owned_by()) == {"n"}


def test_who_does_not_join_again_in_its_time_is_out():
    s = MixedScenario()
    _new, a = mixed(s, "a")
    s.join_consumers("m")
    for _ in range(4):
        assert s.heartbeat(a.member_id, a.generation) is AGAIN
        s.wait(SESSION_MS // 4)
    assert a.member_id not in s.owned_by()


def test_who_does_not_sync_in_its_time_is_out():
    s = MixedScenario()
    mixed(s)
    s.wait(1_000)
    a = ClassicClient(s, "a", "t")
    answer = joined(a)
    for _ in range(4):
        assert s.heartbeat(a.member_id, answer.generation_id) is NONE
        s.wait(SESSION_MS // 4)
    assert a.member_id not in s.owned_by()


def test_one_that_does_what_it_is_told_has_no_deadline_but_its_session():
    s = MixedScenario()
    new, a = mixed(s, "a")
    for _ in range(2):
        s.wait(1_000)
        s.join_consumers("m")
        settle_for(s, new, a)
        s.told("m", -1)
        settle(s, new, a)
    for _ in range(4):
        s.wait(SESSION_MS - 1_000)
        assert a.beat() is NONE
        new.beat()


def settle_for(s, new, a):
    """Both have come to the group's epoch; a third one beats with them."""
    m = Client(s, "m", "t")
    settle(s, new, a) if s.described().state == "Stable" else None
    for _ in range(30):
        m.beat()
        new.beat()
        a.go_on()
        s.wait(250)
    assert s.described().state == "Stable"


# Static members


def test_an_instance_that_comes_back_takes_its_place_and_fences_the_old_one():
    s = MixedScenario()
    new, a = mixed(s, "a", instance="i")
    had = s.owned_by()[a.member_id]
    epoch = s.described().group_epoch
    again = ClassicClient(s, "b", "t", instance="i")
    answer = joined(again)
    assert answer.error_code is NONE
    again.member_id = answer.member_id
    assert synced(s, again, answer.generation_id, group_instance_id="i").assignment == given({"t": set(had["t"])})
    assert s.described().group_epoch == epoch
    assert s.heartbeat(a.member_id, a.generation, instance="i") is ErrorCode.FENCED_INSTANCE_ID
    assert joined(a).error_code is ErrorCode.FENCED_INSTANCE_ID
    assert set(s.owned_by()) == {new.member_id, again.member_id}


def test_an_id_of_an_instance_that_is_not_there_is_unknown():
    s = MixedScenario()
    mixed(s)
    answer = s.replies[s.join("c", "some", group_instance_id="i", protocols=((EAGER, said("t")),))]
    assert answer.error_code is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_instance_of_the_new_protocol_need_not_have_left():
    s = MixedScenario()
    s.join_consumers("n")
    s.join_consumers("m", instance_id="i")
    answer = joined(ClassicClient(s, "a", "t", instance="i"))
    assert answer.error_code is NONE
    assert set(s.owned_by()) == {"n", answer.member_id}
    assert s.told("m", 3, instance_id="i", owned={}).error_code is ErrorCode.FENCED_INSTANCE_ID


def test_a_classic_instance_may_come_back_by_the_new_protocol():
    s = MixedScenario()
    _new, a = mixed(s, "a", instance="i")
    had = s.owned_by()[a.member_id]
    answer = s.join_consumers("m", instance_id="i")
    assert answer.error_code is NONE
    assert s.names(answer.assignment) == had
    assert [each.is_classic for each in s.described().members] == [False, False]
    assert s.heartbeat(a.member_id, a.generation, instance="i") is ErrorCode.FENCED_INSTANCE_ID


def test_one_that_goes_on_by_the_new_protocol_has_its_deadlines_only():
    s = MixedScenario()
    _new, a = mixed(s, "a")
    s.join_consumers("m")
    assert s.heartbeat(a.member_id, a.generation) is AGAIN
    same = Client(s, a.member_id, "t")
    assert same.beat().error_code is NONE
    assert not any(each.is_classic for each in s.described().members)
    s.wait(SESSION_MS + 1_000)
    assert a.member_id in s.owned_by()
    assert s.heartbeat(a.member_id, a.generation) is ErrorCode.UNKNOWN_MEMBER_ID


# Expressions


def test_a_member_with_an_expression_is_beside_it():
    s = MixedScenario(topics={"t": 2, "pay": 2})
    a = ClassicClient(s, "a", "t")
    regex = Client(s, "r", topic_regex="p.*")
    regex.asked["topic_names"] = None
    regex.beat()
    s.resolve("p.*", "pay")
    s.wait(1_000)
    settle(s, regex, a)
    assert s.owned_by() == {"r": {"pay": [0, 1]}, a.member_id: {"t": [0, 1]}}


def test_who_replaces_a_member_with_an_expression_drops_it():
    s = MixedScenario(topics={"t": 2, "pay": 2})
    s.join_consumers("n")
    s.join_consumers("r", topic_names=None, topic_regex="p.*", instance_id="i")
    s.resolve("p.*", "pay")
    for _ in range(2):
        s.wait(1_000)
        s.join_consumers("r", topic_names=None, topic_regex="p.*", instance_id="i")
    assert s.owned_by()["r"] == {"pay": [0, 1]}
    a = ClassicClient(s, "a", "t", instance="i")
    answer = joined(a)
    assert answer.error_code is NONE
    written = [(read_consumer_key(record.key), record.value) for record in s.batches[-1]]
    assert [(key.name, value) for key, value in written if key.key_type == REGEX_KEY] == [("p.*", None)]
    stored = [value for key, value in written if key.key_type == MEMBER_KEY]
    assert read_consumer_value(MEMBER_KEY, stored[-1]).topic_regex == ""
    assert "pay" not in s.owned_by()[answer.member_id]
    s.start()
    assert "pay" not in s.owned_by()[answer.member_id]


# Leaving


def test_the_last_classic_one_leaves_while_its_sync_waits():
    s = MixedScenario()
    new, a = mixed(s, "a")
    s.wait(1_000)
    s.hold = True
    a.topics = ("t", "u")
    a.join()
    token = s.sync("a", a.member_id, s.described_now().members[1].member_epoch)
    left = s.leave((a.member_id,))
    s.hold = False
    s.settle()
    assert s.replies[left].members[0].error_code is NONE
    assert s.replies[token].error_code is ErrorCode.UNKNOWN_MEMBER_ID
    assert s.kind() == "consumer"
    settle(s, new)
    assert s.names(new.owned) == {"t": [0, 1, 2, 3]}


def test_a_client_that_lost_its_place_begins_anew():
    s = MixedScenario()
    new, a = mixed(s, "a")
    s.leave((a.member_id,))
    assert a.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    settle(s, new, a)
    assert a.state == IN
