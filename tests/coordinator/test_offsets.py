"""Offsets: committing, fetching, deleting, growing old."""

import uuid

import pytest

from tests.coordinator.scenario import Scenario
from tpc_broker.coordinator import Effects, Fate, Record
from tpc_broker.coordinator.effects import Writes
from tpc_broker.coordinator.messages import OffsetCommitRequest, OffsetToCommit
from tpc_broker.coordinator.records import OffsetKey, offset_record, read_key
from tpc_broker.error_codes import ErrorCode
from tpc_broker.model import NO_TOPIC_ID, TopicId

DAY = 24 * 60 * 60 * 1000
WEEK = 7 * DAY
OF_T = OffsetKey("g", "t", 0)
OLD, NEW = TopicId(uuid.UUID(int=1)), TopicId(uuid.UUID(int=2))


def test_a_commit_comes_back_whole_and_survives_a_restart():
    s = Scenario()
    offsets = (OffsetToCommit(topic="t", partition=3, offset=7, leader_epoch=2, metadata="wörd"),)
    s.run(s.machine.offset_commit(OffsetCommitRequest(group_id="g", offsets=offsets), "c", 0))
    for _ in range(2):
        (fetched,) = s.machine.offset_fetch("g", [("t", 3)]).offsets
        assert (fetched.offset, fetched.leader_epoch, fetched.metadata, fetched.error_code) == (7, 2, "wörd", 0)
        s.start()


def test_what_is_not_committed_is_minus_one_and_no_error_also_in_an_unknown_group():
    s = Scenario()
    response = s.machine.offset_fetch("none", [("t", 0)])
    assert (response.error_code, response.offsets[0].offset, response.offsets[0].leader_epoch) == (0, -1, -1)
    assert s.machine.offset_fetch("none").offsets == ()


def test_a_fetch_without_partitions_gives_everything():
    s = Scenario()
    s.commit(topic="t", partition=0)
    s.commit(topic="u", partition=4, offset=9)
    assert {(o.topic, o.partition, o.offset) for o in s.machine.offset_fetch("g").offsets} == {("t", 0, 5), ("u", 4, 9)}


def test_a_commit_is_answered_and_seen_only_when_it_is_durable():
    s = Scenario()
    s.hold = True
    token = s.commit(offset=5)
    assert token not in s.replies
    assert s.offset() == -1
    s.settle()
    assert s.replies[token].partitions[0].error_code == 0
    assert s.offset() == 5


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_commit_that_cannot_be_written_did_not_happen(error, told):
    s = Scenario()
    s.fail_with = error
    assert s.commit_code() == told
    assert s.offset() == -1
    assert s.machine.list_groups() == []


def test_metadata_has_a_longest_length_and_other_partitions_are_committed_all_the_same():
    s = Scenario()
    offsets = (
        OffsetToCommit(topic="t", partition=0, offset=1, metadata="x" * 4097),
        OffsetToCommit(topic="t", partition=1, offset=2, metadata="x" * 4096),
    )
    s.run(s.machine.offset_commit(OffsetCommitRequest(group_id="g", offsets=offsets), "c", 0))
    assert [p.error_code for p in s.replies["c"].partitions] == [ErrorCode.OFFSET_METADATA_TOO_LARGE, 0]
    assert (s.offset(partition=0), s.offset(partition=1)) == (-1, 2)


def test_without_generation_and_member_a_commit_is_taken_only_in_a_group_without_members():
    s = Scenario()
    assert s.commit_code() == 0
    s.stable("a")
    assert s.commit_code() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_commits_in_its_generation():
    s = Scenario()
    ids, generation = s.stable("a")
    member = ids["a"]
    assert s.commit_code(generation_id=generation, member_id=member) == 0
    assert s.commit_code(generation_id=generation + 1, member_id=member) == ErrorCode.ILLEGAL_GENERATION
    assert s.commit_code(generation_id=generation, member_id="stranger") == ErrorCode.UNKNOWN_MEMBER_ID
    assert s.commit_code(generation_id=3, member_id=member, group="none") == ErrorCode.GROUP_ID_NOT_FOUND
    old = s.commit_code(generation_id=3, member_id=member, group="none", knows_member_epochs=False)
    assert old == ErrorCode.ILLEGAL_GENERATION


def test_a_commit_is_taken_while_members_join_but_not_while_the_assignment_is_awaited():
    s = Scenario()
    ids, generation = s.stable("a", "b")
    s.member("c")
    assert s.commit_code(generation_id=generation, member_id=ids["a"]) == 0
    s.join("a", ids["a"])
    s.join("b", ids["b"])
    assert s.state() == "CompletingRebalance"
    code = s.commit_code(generation_id=generation + 1, member_id=ids["a"])
    assert code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_commit_is_a_sign_of_life():
    s = Scenario()
    ids, generation = s.stable("a")
    for _ in range(4):
        s.wait(9_000)
        assert s.commit_code(generation_id=generation, member_id=ids["a"]) == 0
    assert s.state() == "Stable"


def test_an_empty_group_is_deleted_with_its_offsets_and_others_are_not():
    s = Scenario()
    s.stable("a", group="busy")
    s.commit(group="idle")
    codes = s.delete("busy", "idle", "none", "")
    assert codes == {
        "busy": ErrorCode.NON_EMPTY_GROUP,
        "idle": 0,
        "none": ErrorCode.GROUP_ID_NOT_FOUND,
        "": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert s.offset(group="idle") == -1
    s.start()
    assert [g.group_id for g in s.machine.list_groups()] == ["busy"]


def test_a_deletion_that_cannot_be_written_leaves_the_group():
    s = Scenario()
    s.commit()
    s.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
    assert s.delete("g") == {"g": ErrorCode.NOT_COORDINATOR}
    assert s.offset() == 5
    assert s.state() == "Empty"


def test_a_group_deleted_while_its_last_change_is_being_written_does_not_come_back():
    s = Scenario()
    ids, _ = s.stable("a")
    s.hold = True
    s.leave((ids["a"],))
    s.run(s.machine.delete_groups(["g"], "d", s.now))
    s.settle()
    assert s.replies["d"].results == (("g", 0),)
    s.start()
    assert s.machine.list_groups() == []


def test_a_group_deleted_before_anything_of_it_was_stored_does_not_come_back_either():
    s = Scenario()
    token = s.member("a")
    s.wait(3_000)
    s.hold = True
    s.leave((s.replies[token].member_id,))
    assert s.state() == "Empty"
    s.run(s.machine.delete_groups(["g"], "d", s.now))
    s.settle()
    assert s.machine.list_groups() == []
    s.start()
    assert s.machine.list_groups() == []


def test_offsets_are_deleted_unless_their_topic_is_subscribed():
    s = Scenario()
    s.commit(topic="t")
    s.commit(topic="u")
    s.stable("a")
    response = s.delete_offsets(("t", 0), ("u", 0), ("v", 0))
    assert [p.error_code for p in response.partitions] == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0, 0]
    assert (s.offset("t"), s.offset("u")) == (5, -1)


def test_offsets_of_unknown_and_of_foreign_groups_cannot_be_deleted():
    s = Scenario()
    assert s.delete_offsets(("t", 0)).error_code is ErrorCode.GROUP_ID_NOT_FOUND
    assert s.delete_offsets(("t", 0), group="").error_code is ErrorCode.INVALID_GROUP_ID
    s.stable("a", protocol_type="connect")
    assert s.delete_offsets(("t", 0)).error_code is ErrorCode.NON_EMPTY_GROUP


def test_an_offset_of_a_group_without_members_expires_by_its_commit():
    s = Scenario()
    s.commit(topic="old")
    s.wait(DAY)
    s.commit(topic="young")
    s.wait(WEEK - DAY)
    assert (s.offset("old"), s.offset("young")) == (-1, 5)
    s.wait(DAY)
    assert s.machine.list_groups() == []
    s.start()
    assert s.machine.list_groups() == []


def test_offsets_of_a_group_that_had_members_expire_by_when_it_became_empty():
    s = Scenario(offsets_retention_ms=DAY)
    ids, generation = s.stable("a", session_timeout_ms=1_800_000)
    s.commit(generation_id=generation, member_id=ids["a"])
    for _ in range(150):
        s.wait(1_000_000)
        assert s.heartbeat(ids["a"], generation) == 0
    assert s.offset() == 5
    s.leave((ids["a"],))
    s.wait(DAY - 1_000_000)
    assert s.offset() == 5
    s.wait(2_000_000)
    assert s.offset() == -1
    assert s.machine.list_groups() == []


def test_a_stable_group_loses_old_offsets_only_of_topics_it_does_not_read():
    s = Scenario(offsets_retention_ms=DAY)
    s.commit(topic="t")
    s.commit(topic="gone")
    ids, generation = s.stable("a", session_timeout_ms=1_800_000)
    for _ in range(100):
        s.wait(1_000_000)
        s.heartbeat(ids["a"], generation)
    assert (s.offset("t"), s.offset("gone")) == (5, -1)


def test_a_commit_may_carry_its_own_time_to_live():
    s = Scenario()
    s.commit(topic="short", retention_time_ms=DAY)
    s.commit(topic="usual")
    s.wait(DAY + 600_000)
    assert (s.offset("short"), s.offset("usual")) == (-1, 5)


@pytest.mark.parametrize("topic_id", [NO_TOPIC_ID, OLD])
def test_offsets_of_deleted_topics_go(topic_id):
    s = Scenario()
    s.commit(topic="t", topic_id=topic_id)
    s.commit(topic="u", group="other")
    s.fates[OLD] = Fate.GONE
    s.run(s.machine.topics_changed(s.now, {"t"}))
    assert s.offset("t") == -1
    assert s.offset("u", group="other") == 5
    assert {g.group_id for g in s.machine.list_groups()} == {"g", "other"}
    s.wait(600_000)
    assert {g.group_id for g in s.machine.list_groups()} == {"other"}
    s.fates.clear()
    s.start()
    assert s.offset("t") == -1, "also in the log"


def test_what_a_topic_had_that_is_gone_is_not_its_successors():
    """Nobody told the coordinator: it was away, or the commit came when the topic went."""
    s = Scenario()
    s.commit(7, topic="t", topic_id=OLD)
    s.commit(8, topic="t", partition=1, topic_id=NEW)
    s.fates[OLD] = Fate.GONE
    for _ in range(2):
        assert (s.offset("t"), s.offset("t", 1)) == (-1, 8)
        assert [(one.partition, one.offset) for one in s.machine.offset_fetch("g").offsets] == [(1, 8)]
        s.start()
    s.run(s.machine.topics_changed(s.now))
    assert [read_key(record.key) for record in s.log[2:]] == [OffsetKey("g", "t", 0)]


def has_unknown_topics(machine):
    return any(machine.look_for_unknown_topics())


def test_what_may_be_of_a_topic_that_is_gone_is_asked_for_again():
    """Nothing is told, and nothing forgotten, before it is known whether the topic is gone or new."""
    s = Scenario()
    s.commit(7, topic="t", topic_id=OLD)
    s.fates[OLD] = Fate.UNKNOWN
    s.run(s.machine.topics_changed(s.now))
    for asked in ([("t", 0)], None):
        (fetched,) = s.machine.offset_fetch("g", asked).offsets
        assert (fetched.error_code, fetched.offset) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    assert has_unknown_topics(s.machine)
    s.fates[OLD] = Fate.THERE
    assert (s.offset("t"), has_unknown_topics(s.machine)) == (7, False)


def test_a_topic_that_went_takes_nothing_of_its_successor_along():
    """A commit for the new one is under way when the old one's offsets are forgotten."""
    s = Scenario()
    s.commit(7, topic="t", topic_id=OLD)
    s.hold = True
    s.commit(1, topic="t", topic_id=NEW)
    s.fates[OLD] = Fate.GONE
    s.run(s.machine.topics_changed(s.now, {"t"}))
    s.settle()
    assert s.offset("t") == 1
    s.start()
    assert s.offset("t") == 1


def test_a_commit_that_is_under_way_is_not_forgotten_with_what_it_replaces():
    """Its tombstone would come after it in the log."""
    s = Scenario()
    s.commit(7)
    s.wait(WEEK - 1)
    s.hold = True
    s.commit(8)
    s.wait(600_000)
    s.settle()
    assert s.offset() == 8
    s.start()
    assert s.offset() == 8


def test_offsets_that_could_not_be_forgotten_are_when_offsets_are_next_looked_through():
    s = Scenario()
    s.commit(7, topic="t", topic_id=OLD)
    s.commit(7, topic="u")
    s.fates[OLD] = Fate.GONE
    s.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
    s.run(s.machine.topics_changed(s.now, {"t"}))
    s.fail_with = None
    assert len(s.log) == 2
    s.wait(600_000)
    assert s.log[2:] == [offset_record(OffsetKey("g", "t", 0), None)]


def test_the_last_record_of_each_key_is_the_whole_state():
    s = Scenario()
    s.stable("a", "b")
    for offset in range(50):
        s.commit(group="h", offset=offset)
    before = (s.machine.describe_group("g"), s.offset(group="h"), s.machine.list_groups())
    assert len(s.log) > 50
    s.log = s.stored_records()
    assert len(s.log) == 2
    s.start()
    assert (s.machine.describe_group("g"), s.offset(group="h"), s.machine.list_groups()) == before


def test_what_later_releases_wrote_is_kept_as_it_is():
    """Share groups and those of streams have keys of other types, in the same log."""
    s = Scenario()
    s.commit(group="h", offset=7)
    kept, replaced, removed = b"\x00\x0alater", b"\x00\x11later", b"\x00\x0bgone"
    for key, value in ((kept, b"\x00\x63 as it is"), (replaced, b"old"), (removed, b"x"), (replaced, b"new"),
                       (removed, None)):  # fmt: skip
        s.log.append(Record(key, value))
    for _ in range(2):
        s.start()
        s.log = s.stored_records()
        assert [(one.key, one.value) for one in s.log[1:]] == [(kept, b"\x00\x63 as it is"), (replaced, b"new")]
        assert s.offset(group="h") == 7


def test_nothing_of_what_is_under_way_is_stored():
    """What is under way comes behind it in the log, or not at all."""
    s = Scenario()
    s.commit(offset=1)
    before = s.stored_records()
    s.hold = True
    s.commit(offset=2)
    s.commit(offset=3, group="h")
    assert s.stored_records() == before


def test_statistics_count():
    s = Scenario()
    s.stable("a", "b")
    s.commit(group="h")
    statistics = s.machine.statistics()
    assert statistics.groups_by_state == (("Empty", 1), ("Stable", 1))
    assert (statistics.members_count, statistics.offsets_count, statistics.writes_pending) == (2, 1, 0)
    assert statistics.next_deadline_ms == s.machine.next_deadline_ms()


def of_later_release(record):
    return Record(record.key, (5).to_bytes(2, "big") + b"whatever comes")


def with_offset_of_later_release():
    """Of topic t; that of u is of this one. The scenario and the record."""
    s = Scenario()
    s.commit(topic="t")
    s.commit(topic="u")
    later = of_later_release(s.log[0])
    s.log.append(later)
    s.start()
    return s, later


def test_an_offset_of_a_later_release_is_kept_and_refused_until_it_is_committed_anew():
    s, later = with_offset_of_later_release()
    assert {o.topic: (o.offset, o.error_code) for o in s.machine.offset_fetch("g", None).offsets} == {
        "u": (5, ErrorCode.NONE), "t": (-1, ErrorCode.UNKNOWN_SERVER_ERROR),
    }  # fmt: skip
    s.log = s.stored_records()
    assert later in s.log
    s.start()
    s.commit(topic="t")
    assert s.offset("t") == 5
    assert later not in s.stored_records()


def test_an_offset_of_a_later_release_is_not_deleted_and_said_to_be():
    s, later = with_offset_of_later_release()
    response = s.delete_offsets(("t", 0), ("u", 0), ("v", 0))
    assert [(p.topic, p.error_code) for p in response.partitions] == [
        ("t", ErrorCode.UNKNOWN_SERVER_ERROR), ("u", ErrorCode.NONE), ("v", ErrorCode.NONE),
    ]  # fmt: skip
    assert s.offset("u") == -1
    assert s.stored_records() == [later]


@pytest.mark.parametrize("others", [(), ("u",)], ids=["nothing else", "beside one that expires"])
def test_an_offset_of_a_later_release_stays_when_what_can_be_read_of_its_group_has_expired(others):
    s = Scenario(offsets_retention_ms=DAY)
    ids, _generation = s.stable("a")
    s.leave((ids["a"], None))
    for topic in ("t", *others):
        s.commit(topic=topic)
    later = of_later_release(next(record for record in s.log if record.key == offset_record(OF_T, None).key))
    s.log.append(later)
    s.start()
    s.wait(WEEK)
    assert [s.offset(topic) for topic in others] == [-1] * len(others)
    for _ in range(2):
        assert s.state() == "Empty"
        assert s.machine.offset_fetch("g", [("t", 0)]).offsets[0].error_code is ErrorCode.UNKNOWN_SERVER_ERROR
        s.log = s.stored_records()
        assert later in s.log
        s.start()
    s.commit(topic="t")
    s.wait(WEEK)
    assert s.machine.list_groups() == [], "what was committed anew grows old like any other"
    s.start()
    assert s.stored_records() == []


def test_a_group_of_a_later_release_is_kept_until_it_is_written_anew():
    s = Scenario()
    s.stable("a")
    later = of_later_release(next(record for record in s.log if record.key[:2] == b"\0\2"))
    s.log.append(later)
    s.start()
    s.log = s.stored_records()
    assert later in s.log
    s.start()
    s.stable("b")
    assert later not in s.stored_records()


@pytest.mark.parametrize("offsets", [True, False], ids=["with offsets", "that nothing else is known of"])
def test_a_group_of_a_later_release_is_not_deleted_and_said_to_be(offsets):
    s = Scenario()
    ids, _generation = s.stable("a")
    s.leave((ids["a"], None))
    if offsets:
        s.commit()
    later = of_later_release(next(record for record in s.log if record.key[:2] == b"\0\2"))
    s.log.append(later)
    s.start()
    assert s.delete("g", "another") == {
        "g": ErrorCode.UNKNOWN_SERVER_ERROR, "another": ErrorCode.GROUP_ID_NOT_FOUND,
    }  # fmt: skip
    assert s.offset() == (5 if offsets else -1)
    s.log = s.stored_records()
    assert later in s.log
    s.start()
    ids, _generation = s.stable("b")
    assert s.delete("g") == {"g": ErrorCode.NON_EMPTY_GROUP}
    s.leave((ids["b"], None))
    assert s.delete("g") == {"g": ErrorCode.NONE}, "it was written anew"
    assert s.stored_records() == []


def test_a_group_of_a_later_release_is_kept_when_it_expires_while_others_are_written():
    """The group in front of it expires in the same moment, and its records are not written yet."""
    s = Scenario(offsets_retention_ms=DAY)
    s.commit(group="first")
    ids, _generation = s.stable("a")
    s.leave((ids["a"], None))
    s.commit()
    later = of_later_release(next(record for record in s.log if record.key[:2] == b"\0\2"))
    s.log.append(later)
    s.start()
    assert [group.group_id for group in s.machine.list_groups()] == ["first", "g"]
    s.wait(WEEK)
    for _ in range(2):
        assert s.machine.list_groups() == []
        assert (s.offset(), s.stored_records()) == (-1, [later])
        s.start()
    ids, _generation = s.stable("b")
    s.leave((ids["b"], None))
    s.wait(WEEK)
    s.start()
    assert s.stored_records() == [], "what was written anew grows old like any other"


def test_a_group_whose_last_offsets_were_deleted_stays_until_offsets_are_looked_through():
    """As in Kafka: it can be described, listed, committed to and deleted like any Empty one."""
    s = Scenario()
    for group in ("g", "h"):
        s.commit(7, group=group)
        assert s.delete_offsets(("t", 0), group=group).error_code is ErrorCode.NONE
        described = s.machine.describe_group(group)
        assert (described.group_state, described.error_code) == ("Empty", ErrorCode.NONE)
    assert s.delete_offsets(("t", 0)).error_code is ErrorCode.NONE, "once more"
    assert {g.group_id for g in s.machine.list_groups()} == {"g", "h"}
    assert s.delete("h") == {"h": ErrorCode.NONE}
    s.wait(600_000)
    assert s.machine.list_groups() == []
    assert s.machine.describe_group("g").error_code is ErrorCode.GROUP_ID_NOT_FOUND


def test_the_last_write_of_a_key_is_known_whichever_of_them_ends():
    def begin(key, **how):
        return writes.begin(Effects(), [Record(key, b""), Record(b"x", None)], None, None, **how)

    writes = Writes()
    first, _ahead, second, third = begin(b"a"), begin(b"a", runs_ahead=True), begin(b"a"), begin(b"b")
    assert [writes.last_of(key) for key in (b"a", b"b", b"c", b"x")] == [second, third, None, third]
    writes.fail(second)
    assert (writes.last_of(b"a"), writes.keys()) == (first, {b"a", b"b", b"x"})
    writes.end(first)
    assert (writes.last_of(b"a"), writes.keys()) == (None, {b"b", b"x"})
