"""Dialogues of a member's machine with its coordinator, word by word: both protocols, without I/O."""

from __future__ import annotations

import pytest

from tpc_broker.client.conversation import VERSION_MAX
from tpc_broker.client.errors import RefusedError
from tpc_broker.client.membership.classic import ClassicMember
from tpc_broker.client.membership.consumer import ConsumerMember
from tpc_broker.client.membership.encoding import read_assignment, read_subscription, written_assignment
from tpc_broker.client.membership.settings import GroupSettings, checked_subscription
from tpc_broker.client.membership.steps import Ask, Assign, Divide, Lose, Resolve, Revoke
from tpc_broker.client.requests import TopicPartition
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import ApiKey, api, messages, protocol

T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))
IDS = {"t": b"T" * 16, "u": b"U" * 16}


# The classic protocol


class Classic:
    """A member whose coordinator a test plays."""

    def __init__(self, **details):
        self.machine = ClassicMember(GroupSettings("g", protocol="classic", **details), ["t"])

    def asked(self, key):
        """The request of the step that is wanted now."""
        self.step = self.machine.step()
        assert isinstance(self.step, Ask), self.step
        assert self.step.key == key
        return self.step.make(9 if key == ApiKey.JOIN_GROUP else 5)

    def answer(self, message):
        self.step.take(message)
        self.machine.done(self.step)

    def joins(self, generation, *, leader="other", code=0, member_id="me", members=(), protocol="cooperative-sticky"):
        request = self.asked(ApiKey.JOIN_GROUP)
        answer = messages.JoinGroupResponse(
            error_code=code, generation_id=generation, leader=leader, member_id=member_id, members=list(members)
        )
        answer.protocol_name = protocol
        self.answer(answer)
        return request

    def syncs(self, *partitions, code=0):
        request = self.asked(ApiKey.SYNC_GROUP)
        self.answer(messages.SyncGroupResponse(error_code=code, assignment=written_assignment(partitions)))
        return request

    def carries_out(self, kind, *partitions):
        step = self.machine.step()
        assert isinstance(step, kind), step
        assert step.partitions == set(partitions)
        self.machine.done(step)

    def beats(self, code):
        beat = self.machine.beat()
        self.machine.beaten(beat, messages.HeartbeatResponse(error_code=code))

    def is_stable_with(self, *partitions):
        assert self.machine.step() is None
        assert self.machine.owned == set(partitions)
        assert self.machine.is_settled


def classic_with(*partitions, **details):
    member = Classic(**details)
    member.joins(1, protocol=(details.get("assignors") or ("cooperative-sticky",))[0])
    member.syncs(*partitions)
    if partitions:
        member.carries_out(Assign, *partitions)
    member.is_stable_with(*partitions)
    return member


def said_in(join):
    return read_subscription(bytes(join.protocols[0].metadata))


def test_a_new_member_is_told_its_id_and_joins_with_it():
    member = Classic()
    assert member.joins(-1, code=ErrorCode.MEMBER_ID_REQUIRED).member_id == ""
    join = member.joins(1)
    assert (join.member_id, join.session_timeout_ms, join.rebalance_timeout_ms) == ("me", 45_000, 300_000)
    assert said_in(join).generation == -1
    sync = member.syncs(T0)
    assert (sync.member_id, sync.generation_id, sync.protocol_name) == ("me", 1, "cooperative-sticky")
    member.carries_out(Assign, T0)
    member.is_stable_with(T0)


def test_a_cooperative_member_keeps_what_it_has_and_joins_again_after_giving_back():
    member = classic_with(T0, T1)
    member.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    assert said_in(member.joins(2)).owned == {T0, T1}
    member.syncs(T0)
    member.carries_out(Revoke, T1)
    join = member.joins(3)
    assert said_in(join).owned == {T0}
    assert said_in(join).generation == 2
    assert join.reason
    member.syncs(T0, T2)
    member.carries_out(Assign, T2)
    member.is_stable_with(T0, T2)


def test_an_eager_member_gives_back_everything_before_it_joins():
    member = classic_with(T0, T1, assignors=("range",))
    member.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    member.beats(ErrorCode.REBALANCE_IN_PROGRESS)  # while it gives back
    member.carries_out(Revoke, T0, T1)
    assert said_in(member.joins(2, protocol="range")).owned == set()
    member.syncs(T0)
    member.carries_out(Assign, T0)
    member.is_stable_with(T0)


def test_a_member_that_offers_both_kinds_is_eager():
    assert not classic_with(assignors=("cooperative-sticky", "range")).machine.is_cooperative


def test_the_leader_divides():
    member = Classic()
    other = read_row("other", ClassicMember(GroupSettings("g", protocol="classic"), ["t", "u"]))
    me = read_row("me", member.machine)
    member.joins(1, leader="me", members=[me, other])
    step = member.machine.step()
    assert step == Divide(frozenset({"t", "u"}))
    member.machine.divided({"t": 2, "u": 1})
    member.machine.done(step)
    sync = member.asked(ApiKey.SYNC_GROUP)
    given = {row.member_id: read_assignment(bytes(row.assignment)) for row in sync.assignments}
    assert given.keys() == {"me", "other"}
    assert given["me"] | given["other"] == {T0, T1, TopicPartition("u", 0)}
    member.machine.abandoned(member.step)
    member.machine.topics_grew()
    member.syncs(T0)
    member.carries_out(Assign, T0)
    member.joins(2)  # another number of partitions, and it is the leader who looks


def read_row(member_id, machine):
    join = machine.step().make(9)
    row = messages.JoinGroupResponse.JoinGroupResponseMember
    return row(member_id=member_id, metadata=join.protocols[0].metadata)


def test_a_leader_that_is_told_to_skip_divides_nothing():
    member = Classic(instance_id="i")
    assert member.asked(ApiKey.JOIN_GROUP).group_instance_id == "i"
    member.answer(
        messages.JoinGroupResponse(
            generation_id=4, leader="me", member_id="me", skip_assignment=True, protocol_name="cooperative-sticky"
        )
    )
    assert not member.syncs(T1).assignments


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION])
def test_what_a_member_that_was_forgotten_had_is_lost(code):
    member = classic_with(T0)
    life = member.machine.life
    member.beats(code)
    assert member.machine.life != life
    assert member.machine.beat() is None
    member.carries_out(Lose, T0)
    join = member.asked(ApiKey.JOIN_GROUP)
    assert join.member_id == ("" if code == ErrorCode.UNKNOWN_MEMBER_ID else "me")
    assert said_in(join).owned == set()
    assert said_in(join).generation == -1


def test_an_assignment_that_is_cut_short_is_lost_too():
    member = Classic()
    member.joins(1)
    member.syncs(T0)
    step = member.machine.step()
    member.beats(ErrorCode.UNKNOWN_MEMBER_ID)
    member.machine.abandoned(step)
    member.carries_out(Lose, T0)


def test_a_late_answer_of_an_earlier_generation_says_nothing():
    member = classic_with(T0)
    beat = member.machine.beat()
    member.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    member.joins(2)
    member.syncs(T0)
    member.machine.beaten(beat, messages.HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION))
    member.is_stable_with(T0)


def test_a_round_that_ends_early_is_begun_again():
    member = Classic()
    member.joins(1)
    member.syncs(code=ErrorCode.REBALANCE_IN_PROGRESS)
    member.joins(2)
    member.syncs(code=ErrorCode.UNKNOWN_MEMBER_ID)
    assert member.asked(ApiKey.JOIN_GROUP).member_id == ""


def test_no_heartbeats_while_a_round_is_asked_for():
    member = classic_with()
    member.beats(ErrorCode.REBALANCE_IN_PROGRESS)
    member.asked(ApiKey.JOIN_GROUP)
    assert member.machine.beat() is None


def test_a_member_that_was_not_told_otherwise_takes_what_an_older_group_has():
    member = Classic()
    member.joins(-1, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    join = member.asked(ApiKey.JOIN_GROUP)
    assert [row.name for row in join.protocols] == ["range", "roundrobin"]
    assert not member.machine.is_cooperative
    told = Classic(assignors=("range",))
    with pytest.raises(RefusedError):
        told.joins(-1, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def test_other_topics_begin_a_round():
    member = classic_with(T0)
    member.machine.subscribe(["t"])
    member.is_stable_with(T0)
    member.machine.subscribe(["u", "t"])
    assert said_in(member.joins(2)).topics == ("t", "u")


def test_who_stays_away_does_not_beat_and_joins_when_it_is_back():
    member = classic_with(T0)
    member.machine.stop()
    assert member.machine.beat() is None
    member.carries_out(Lose, T0)
    assert member.machine.step() is None
    member.machine.resume()
    assert member.asked(ApiKey.JOIN_GROUP).member_id == ""


def test_leaving():
    key, make = classic_with(T0).machine.leave_request()
    assert key == ApiKey.LEAVE_GROUP
    assert make(2).member_id == "me"
    assert [(row.member_id, row.reason) for row in make(5).members] == [("me", "the member is closing")]
    assert classic_with(T0, instance_id="i").machine.leave_request() is None
    assert Classic().machine.leave_request() is None


# KIP-848


class Consumer:
    def __init__(self, names=("t",), pattern=None, **details):
        self.machine = ConsumerMember(GroupSettings("g", **details), "me", names, pattern)

    def beats(self, epoch, assigned=None, *, code=0, version=1):
        """The request that was answered so; `assigned` by topic name."""
        beat = self.machine.beat()
        request = beat.make(version)
        self.answer(beat, epoch, assigned, code)
        return request

    def answer(self, beat, epoch, assigned=None, code=0):
        kind = messages.ConsumerGroupHeartbeatResponse
        assignment = None
        if assigned is not None:
            rows = [kind.TopicPartitions(topic_id=IDS[name], partitions=found) for name, found in assigned.items()]
            assignment = kind.Assignment(topic_partitions=rows)
        answer = kind(
            error_code=code, member_id="me", member_epoch=epoch, heartbeat_interval_ms=5_000, assignment=assignment
        )
        self.machine.beaten(beat, answer)

    def resolves(self, *names):
        step = self.machine.step()
        assert step == Resolve(frozenset(IDS[name] for name in names))
        self.machine.resolved(step, {IDS[name]: name for name in names})
        self.machine.done(step)

    carries_out = Classic.carries_out


def consumer_with(*partitions, **details):
    member = Consumer(**details)
    member.beats(1, {"t": [where.partition for where in partitions]} if partitions else {})
    if partitions:
        member.resolves("t")
        member.carries_out(Assign, *partitions)
    member.beats(1)
    assert member.machine.step() is None
    assert not member.machine.is_hurried
    return member


def owned_in(request):
    if request.topic_partitions is None:
        return None
    return {(bytes(row.topic_id), partition) for row in request.topic_partitions for partition in row.partitions}


def test_a_new_member_says_everything_and_then_only_what_changed():
    member = Consumer(rack="r", server_assignor="range", instance_id="i")
    assert member.machine.is_hurried
    join = member.beats(3, {"t": [0, 1]})
    assert (join.member_id, join.member_epoch, join.instance_id, join.rack_id) == ("me", 0, "i", "r")
    assert (join.rebalance_timeout_ms, join.server_assignor) == (300_000, "range")
    assert (join.subscribed_topic_names, join.subscribed_topic_regex, join.topic_partitions) == (["t"], None, [])
    assert member.machine.interval_seconds == 5
    member.resolves("t")
    member.carries_out(Assign, T0, T1)
    assert member.machine.is_hurried
    beat = member.beats(3)
    assert owned_in(beat) == {(IDS["t"], 0), (IDS["t"], 1)}
    assert (beat.member_epoch, beat.rebalance_timeout_ms, beat.subscribed_topic_names) == (3, -1, None)
    assert owned_in(member.beats(3)) is None


def test_giving_back_is_said_before_anything_is_taken():
    member = consumer_with(T0, T1)
    member.beats(1, {"t": [0]})
    member.carries_out(Revoke, T1)
    assert member.machine.is_hurried
    assert owned_in(member.beats(2, {"t": [0, 2]})) == {(IDS["t"], 0)}
    member.carries_out(Assign, T2)
    assert owned_in(member.beats(2)) == {(IDS["t"], 0), (IDS["t"], 2)}


def test_what_is_being_taken_is_said_to_be_owned():
    member = Consumer()
    member.beats(1, {"t": [0]})
    member.resolves("t")
    step = member.machine.step()
    assert isinstance(step, Assign)
    assert owned_in(member.beats(1)) == {(IDS["t"], 0)}
    member.machine.done(step)
    assert owned_in(member.beats(1)) is None


def test_nothing_is_taken_while_a_heartbeat_that_leaves_it_out_is_under_way_or_lost():
    member = Consumer()
    member.beats(1, {"t": [0]})
    member.resolves("t")
    beat = member.machine.beat()
    assert member.machine.step() is None
    member.answer(beat, 1)
    assert isinstance(member.machine.step(), Assign)

    member = Consumer()
    member.beats(1, {"t": [0]})
    member.resolves("t")
    member.machine.beat()
    member.machine.beat_lost()
    assert member.machine.step() is None
    assert owned_in(member.beats(2, {"t": [1]})) == set()
    member.carries_out(Assign, T1)


def test_after_a_lost_answer_everything_is_said_again():
    member = consumer_with(T0)
    member.machine.beat()
    member.machine.beat_lost()
    again = member.beats(1, {"t": [0]})
    assert (again.member_epoch, again.subscribed_topic_names, again.rebalance_timeout_ms) == (1, ["t"], 300_000)
    assert owned_in(again) == {(IDS["t"], 0)}
    assert member.machine.step() is None


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND]
)
def test_a_fenced_member_loses_what_it_has_and_joins_with_the_same_id(code):
    member = consumer_with(T0)
    member.beats(0, code=code)
    assert member.machine.beat() is None, "not before what it had is forgotten"
    member.carries_out(Lose, T0)
    join = member.beats(7, {"t": [1]})
    assert (join.member_id, join.member_epoch, join.topic_partitions) == ("me", 0, [])
    member.carries_out(Assign, T1)


def test_a_new_member_of_a_group_that_is_classic_is_told_so():
    with pytest.raises(RefusedError):
        Consumer().beats(0, code=ErrorCode.GROUP_ID_NOT_FOUND)


def test_a_topic_of_the_same_name_is_another_one():
    member = consumer_with(T0)
    member.beats(2, {"u": [0]})
    member.carries_out(Revoke, T0)
    member.beats(2)
    step = member.machine.step()
    assert step == Resolve(frozenset({IDS["u"]}))
    member.machine.resolved(step, {IDS["u"]: "t"})
    member.carries_out(Assign, T0)
    assert owned_in(member.beats(2)) == {(IDS["u"], 0)}


def test_topics_that_are_not_known_yet_are_asked_for_again_and_the_others_taken():
    member = Consumer(("t", "u"))
    member.beats(1, {"t": [0], "u": [0]})
    step = member.machine.step()
    member.machine.resolved(step, {IDS["t"]: "t"})
    member.carries_out(Assign, T0)
    member.resolves("u")
    member.carries_out(Assign, TopicPartition("u", 0))


def test_expressions_are_the_coordinators_where_it_knows_them():
    member = Consumer((), "t.*")
    beat = member.machine.beat()
    assert beat.make(1).subscribed_topic_regex == "t.*"
    assert beat.make(0).subscribed_topic_regex is None


def test_other_names_are_said():
    member = consumer_with(T0)
    member.machine.subscribe(["t", "u"])
    assert member.machine.is_hurried
    assert member.beats(2).subscribed_topic_names == ["t", "u"]
    assert member.beats(2).subscribed_topic_names is None


@pytest.mark.parametrize(("instance", "epoch"), [(None, -1), ("i", -2)])
def test_leaving_by_epoch(instance, epoch):
    key, make = consumer_with(T0, instance_id=instance).machine.leave_request()
    assert key == ApiKey.CONSUMER_GROUP_HEARTBEAT
    assert (make(1).member_epoch, make(1).member_id, make(1).instance_id) == (epoch, "me", instance)


def test_who_stays_away_says_nothing():
    member = consumer_with(T0)
    member.machine.stop()
    member.carries_out(Lose, T0)
    assert member.machine.beat() is None
    assert not member.machine.is_hurried
    member.machine.resume()
    assert member.beats(4).member_epoch == 0


@pytest.mark.parametrize("key", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP])
def test_every_version_can_be_spoken(key):
    machine = classic_with(T0).machine
    makers = {ApiKey.HEARTBEAT: machine.beat().make, ApiKey.LEAVE_GROUP: machine.leave_request()[1]}
    machine.topics_grew()
    machine.is_leader = True
    machine.topics_grew()
    makers[ApiKey.JOIN_GROUP] = machine.step().make
    makers[ApiKey.SYNC_GROUP] = machine._sync_request
    for version in range(api(key).first_version, VERSION_MAX[key] + 1):
        frame = protocol.encode_request_frame(key, version, 1, "c", makers[key](version))
        assert b"g" in b"".join(map(bytes, frame))


# Settings


@pytest.mark.parametrize(
    ("details", "told"),
    [
        ({"group": ""}, "name"),
        ({"instance_id": ""}, "instance_id"),
        ({"protocol": "new"}, "protocol"),
        ({"assignors": ("best",)}, "assignors"),
        ({"assignors": ()}, "assignors"),
        ({"assignors": ("range",), "protocol": "consumer"}, "server_assignor"),
        ({"session_seconds": 0}, "session_seconds"),
        ({"grace_seconds": -1}, "grace_seconds"),
        ({"heartbeat_seconds": 60}, "session_seconds"),
    ],
)
def test_settings_that_cannot_be_are_named(details, told):
    with pytest.raises(ValueError, match=told):
        GroupSettings(**{"group": "g", **details})


@pytest.mark.parametrize(("names", "pattern"), [((), None), (("t",), "t"), ((), "(")])
def test_a_subscription_is_names_or_an_expression(names, pattern):
    with pytest.raises(ValueError):
        checked_subscription(names, pattern)
