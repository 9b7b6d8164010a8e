"""Corners of consumer groups that a random history seldom reaches."""

from tests.coordinator.consumer.members_alone import MembersAlone, even
from tpc_broker.coordinator.consumer import assigning
from tpc_broker.coordinator.consumer.group import MemberState, partitions_of
from tpc_broker.error_codes import ErrorCode


def parts(topic_id, *numbers):
    return {topic_id: frozenset(numbers)} if numbers else {}


def test_a_member_that_has_partitions_to_give_back_is_told_nothing_of_a_topic_that_it_has_dropped():
    s = MembersAlone()
    a, b = s.topics.put("a", 2), s.topics.put("b", 2)
    s.join("m1", "a", "b")
    s.join("m2", "a", "b")
    told = s.beat("m1", 2)
    assert told.assignment == {**parts(a, 0), **parts(b, 0)}, "it is to give back one of each"
    both = {**parts(a, 0, 1), **parts(b, 0, 1)}
    told = s.beat("m1", 2, topic_names=("a",), rebalance_timeout_ms=5_000, owned=both)
    assert told.assignment == parts(a, 0), "a client takes a topic that it did not ask for as an error"
    current = s.groups["g"].currents["m1"]
    assert current.state == MemberState.UNREVOKED_PARTITIONS
    assert partitions_of(current.pending_revocation) == {**parts(a, 1), **parts(b, 0, 1)}
    assert s.beat("m1", 2, owned={**parts(a, 0), **parts(b, 0)}).member_epoch == 2, "b is not given back yet"
    assert s.beat("m1", 2, owned=parts(a, 0)).member_epoch == s.groups["g"].epoch


SAID = {"topic_names": ("a",), "rebalance_timeout_ms": 5_000}


def slow(assignor, pieces=4):
    def assign(spec):
        for _ in range(pieces):
            yield
        return (yield from assignor(spec))

    return assign


def beat_all(s, members, rounds=6):
    """Members do what they are told until nothing changes; what each has. `members`: their epochs, by their ids."""
    has = {}
    for _ in range(rounds):
        for member_id, epoch in members.items():
            answer = s.beat(member_id, epoch, owned=has.get(member_id, {}), **SAID)
            assert answer.error_code == ErrorCode.NONE, answer
            members[member_id], has[member_id] = answer.member_epoch, answer.assignment
            s.work()
    return has


def test_what_is_being_made_for_a_static_member_is_for_whoever_takes_its_place_meanwhile():
    s = MembersAlone()
    a = s.topics.put("a", 6)
    s.join("s1", "a", instance_id="i")
    s.beat("s1", -2, instance_id="i")
    s.assignor = slow(even)
    joined = s.join("m2", "a")
    assert s.members.assigning.has_work, "s1 is to lose three partitions to m2"
    back = s.join("s3", "a", instance_id="i")
    s.work()
    has = beat_all(s, {"s3": back.member_epoch, "m2": joined.member_epoch})
    assert {member_id: sorted(each[a]) for member_id, each in has.items()} == {"s3": [1, 3, 5], "m2": [0, 2, 4]}


def test_a_static_member_that_comes_back_with_the_id_of_another_member_leaves_nothing_of_that_one():
    s = MembersAlone()
    a = s.topics.put("a", 4)
    s.join("m1", "a")
    s.join("s2", "a", instance_id="i")
    beat_all(s, {"m1": 2, "s2": 3})
    s.beat("s2", -2, instance_id="i")
    back = s.join("m1", "a", instance_id="i")
    assert back.error_code == ErrorCode.NONE
    assert s.groups["g"].members.keys() == {"m1"}
    assert beat_all(s, {"m1": back.member_epoch}) == {"m1": parts(a, 0, 1, 2, 3)}


def test_a_static_member_that_is_away_has_nothing_to_give_back_for_the_next_coordinator_either():
    s = MembersAlone()
    s.topics.put("a", 2)
    s.join("s1", "a", instance_id="i")
    s.join("m2", "a")
    s.beat("s1", 2)
    assert s.groups["g"].currents["s1"].state == MemberState.UNREVOKED_PARTITIONS
    s.beat("s1", -2, instance_id="i")
    s.start()
    s.pass_time(6_000)
    assert "s1" in s.groups["g"].members, "its session lasts, and it cannot be late"
    s.pass_time(40_000)
    assert not s.groups["g"].members


def test_topics_that_are_gone_are_not_remembered():
    s = MembersAlone()
    s.join("m1", "a")
    for _ in range(3_000):
        s.topics.put("a", 1)
        s.send("m1", 0, topic_names=("a",), rebalance_timeout_ms=5_000, owned={})
        s.topics.delete("a")
    assert len(s.members.subscribed._hashes) < 2_000


def test_what_a_member_says_of_its_rack_is_counted():
    s = MembersAlone()
    s.join("m1", rack_id="r")
    before = s.held.size_bytes
    s.join("m1", rack_id="r" * 5_000)
    assert s.held.size_bytes == before + 4_999


def test_a_lost_answer_is_given_again_to_a_member_that_has_no_more_than_the_epoch_before_gave_it():
    s = MembersAlone()
    a = s.topics.put("a", 2)
    s.join("m1", "a")
    s.join("m2", "a")
    s.beat("m1", 2, owned=parts(a, 0, 1))
    s.beat("m1", 2, owned=parts(a, 0))
    assert s.groups["g"].currents["m1"].epoch == 3
    assert s.beat("m1", 2, owned=parts(a, 0, 1)).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert s.beat("m1", 2).error_code == ErrorCode.FENCED_MEMBER_EPOCH, "who knows what it has"
    assert s.beat("m1", 1, owned=parts(a, 0)).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert s.beat("m1", 4, owned=parts(a, 0)).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    again = s.beat("m1", 2, owned=parts(a, 0), **SAID)
    assert (again.error_code, again.member_epoch, again.assignment) == (ErrorCode.NONE, 3, parts(a, 0))


def test_a_member_that_gives_nothing_back_is_out_when_its_time_is_over():
    s = MembersAlone()
    a = s.topics.put("a", 2)
    s.join("m1", "a")
    s.join("m2", "a")
    s.beat("m1", 2, owned=parts(a, 0, 1))
    s.pass_time(4_999)
    s.beat("m1", 2)
    assert s.beat("m2", 3).assignment is None
    s.pass_time(1)
    assert s.groups["g"].members.keys() == {"m2"}
    assert s.beat("m1", 2).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert s.beat("m2", 3).assignment == parts(a, 0, 1)


def test_a_member_that_has_given_back_has_no_deadline_for_it():
    s = MembersAlone(session_timeout_ms=60_000)
    a = s.topics.put("a", 2)
    s.join("m1", "a")
    s.join("m2", "a")
    s.beat("m1", 2, owned=parts(a, 0, 1))
    assert s.timers.next_deadline_ms() == s.now + 5_000
    s.beat("m1", 2, owned=parts(a, 0))
    assert s.timers.next_deadline_ms() == s.now + 60_000


def test_a_target_is_of_the_epoch_in_which_it_began():
    s = MembersAlone(slow(even))
    a = s.topics.put("a", 2)
    s.join("m1", "a")
    s.join("m2", "a")
    s.work()
    assert (s.groups["g"].epoch, s.groups["g"].target_epoch) == (3, 2)
    has = beat_all(s, {"m1": 1, "m2": 1})
    assert has == {"m1": parts(a, 0), "m2": parts(a, 1)}


def test_a_static_member_that_is_back_has_what_was_kept_for_it_since_epoch_0():
    s = MembersAlone()
    a = s.topics.put("a", 2)
    s.join("s1", "a", instance_id="i")
    s.beat("s1", -2, instance_id="i")
    assert s.join("s2", "a", instance_id="i").assignment == parts(a, 0, 1)
    assert s.groups["g"].currents["s2"].assigned == {a: {0: 0, 1: 0}}, "as Kafka stores it"
    assert s.groups["g"].epoch == 2


def test_nothing_is_made_for_a_group_that_is_empty_or_gone():
    s = MembersAlone(slow(even))
    s.topics.put("a", 2)
    s.join("m1", "a")
    s.beat("m1", -1)
    assert s.members.assigning.has_work
    s.work()
    assert s.groups["g"].target_epoch == 1
    s.join("m1", "a")
    s.beat("m1", -1)
    s.delete_group()
    assert not s.members.assigning.has_work


def mixed(monkeypatch):
    """A target of epoch 4 that is there in part. m1 has all partitions, in epoch 2, and has not heard of epoch 3."""
    s = MembersAlone()
    a = s.topics.put("a", 6)
    s.join("m1", "a")
    s.join("m2", "a")
    assert s.groups["g"].target_epoch == 3
    monkeypatch.setattr(assigning, "PIECES_AT_ONCE", 0)
    monkeypatch.setattr(assigning, "TARGETS_AT_ONCE", 1)
    s.join("m3", "a")
    before = dict(s.groups["g"].targets)
    while s.groups["g"].targets == before:
        s.work(1)
    assert (s.groups["g"].target_epoch, s.groups["g"].epoch) == (3, 4)
    return s, a


def test_nobody_comes_to_a_target_that_is_there_in_part(monkeypatch):
    """Else it would be in the same epoch with what it gave back, and commits of that would be taken."""
    s, a = mixed(monkeypatch)
    all_of_a = parts(a, *range(6))
    told = s.beat("m1", 2, owned=all_of_a)
    assert (told.member_epoch, told.assignment) == (3, None)
    assert s.beat("m1", 3, owned=parts(a, 0)).member_epoch == 3
    assert partitions_of(s.groups["g"].currents["m1"].assigned) == all_of_a
    assert s.beat("m3", s.groups["g"].currents["m3"].epoch, owned={}).assignment is None
    s.work()
    has = beat_all(s, {"m1": 3, "m2": 3, "m3": 3})
    assert sorted(len(each[a]) for each in has.values()) == [2, 2, 2]


def test_a_group_that_is_loaded_with_a_part_of_a_target_has_all_of_it_made_first(monkeypatch):
    s, a = mixed(monkeypatch)
    s.members.assigning.forget("g")
    s.members.begin_sessions(s.groups["g"], s.now)
    told = s.beat("m1", 2, owned=parts(a, *range(6)))
    assert (told.member_epoch, told.assignment) == (3, None)
    assert s.members.assigning.is_target_mixed("g")
    s.work()
    assert not s.members.assigning.is_target_mixed("g")
    has = beat_all(s, {"m1": 3, "m2": 3, "m3": 3})
    assert sorted(len(each[a]) for each in has.values()) == [2, 2, 2]
