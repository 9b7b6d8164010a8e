"""Both kinds of groups beside each other: which is which, questions about them, and their end."""

import pytest

from tests.coordinator.consumer.scenario import SESSION_MS, ConsumerScenario
from tpc_broker.coordinator.consumer.messages import ConsumerSettings
from tpc_broker.coordinator.messages import ListedGroup
from tpc_broker.coordinator.records import group_record
from tpc_broker.error_codes import ErrorCode

NONE, NOT_FOUND = ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND


def kinds(s):
    return {group.group_id: group.group_type for group in s.machine.list_groups()}


def keys(records):
    """Types of keys, below 0 where a record removes."""
    types = [int.from_bytes(record.key[:2], "big") for record in records]
    return [kind if record.value is not None else -kind for kind, record in zip(types, records, strict=True)]


def test_members_come_to_a_stable_group_and_a_replay_knows_it():
    s = ConsumerScenario()
    s.stable_consumers("a", "b")
    assert s.owned_by() == {"a": {"t": [0, 2]}, "b": {"t": [1, 3]}}
    before = s.described()
    s.start()
    assert s.described() == before


# Questions


def with_both_kinds():
    """`g` has a consumer, `h` a classic member; `i` is of a consumer that has left, `j` of offsets alone."""
    s = ConsumerScenario()
    s.stable_consumers("a")
    s.stable("c", group="h")
    s.stable_consumers("b", group="i")["b"].leave()
    s.commit(group="j")
    return s


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ([], [], "ghij"),
        ([], ["Consumer"], "gi"),
        ([], ["classic"], "hj"),
        ([], ["share"], ""),
        ([], [" CLASSIC", "consumer "], "ghij"),
        (["stable"], [], "gh"),
        ([" EMPTY "], [], "ij"),
        (["Empty"], ["consumer"], "i"),
        (["Assigning", "Reconciling"], [], ""),
        (["nonsense"], [], ""),
    ],
)
def test_groups_of_both_kinds_are_listed(states, types, found):
    s = with_both_kinds()
    assert sorted(group.group_id for group in s.machine.list_groups(states, types)) == list(found)


def test_a_listed_group_says_of_which_kind_it_is():
    s = with_both_kinds()
    assert {
        ListedGroup("g", "consumer", "Stable", "consumer"),
        ListedGroup("h", "consumer", "Stable", "classic"),
        ListedGroup("i", "consumer", "Empty", "consumer"),
        ListedGroup("j", "", "Empty", "classic"),
    } == set(s.machine.list_groups())


def test_each_kind_is_described_by_its_own_api():
    s = with_both_kinds()
    group = s.described("g")
    assert (group.error_code, group.state, group.group_epoch, group.assignment_epoch, group.assignor) == (
        NONE, "Stable", 2, 2, "uniform",
    )  # fmt: skip
    [member] = group.members
    assert (member.member_id, member.member_epoch, member.client_id, member.topic_names, member.is_classic) == (
        "a", 2, "client", ("t",), False,
    )  # fmt: skip
    assert s.names(member.assignment) == s.names(member.target) == {"t": [0, 1, 2, 3]}
    for group_id, message in (("h", "Group h is not a consumer group."), ("none", "Group none not found.")):
        refused = s.described(group_id)
        assert (refused.group_id, refused.error_code, refused.error_message) == (group_id, NOT_FOUND, message)
    for group_id, message in (("g", "Group g is not a classic group."), ("none", "Group none not found.")):
        refused = s.machine.describe_group(group_id)
        assert (refused.error_code, refused.error_message, refused.group_state) == (NOT_FOUND, message, "Dead")


def test_a_group_on_its_way_is_described_as_it_is():
    s = ConsumerScenario()
    client = s.stable_consumers("a")["a"]
    s.settings = ConsumerSettings(assignment_interval_ms=10_000)
    s.join_consumers("b")
    assert (s.described().state, s.described().group_epoch, s.described().assignment_epoch) == ("Assigning", 3, 2)
    s.wait(10_000)
    client.beat()
    assert s.described().state == "Reconciling"
    current, target = ({one.member_id: getattr(one, what) for one in s.described().members}
                       for what in ("assignment", "target"))  # fmt: skip
    has = {"t": [0, 1, 2, 3]}
    assert (s.names(current["a"]), s.names(current["b"])) == (has, {}), "it has yet to give two of them back"
    assert (s.names(target["a"]), s.names(target["b"])) == ({"t": [0, 2]}, {"t": [1, 3]})
    client.beat()
    assert s.described().members[0].assignment == target["a"], "now it has"


def test_what_is_told_of_a_group_is_durable():
    s = ConsumerScenario()
    s.hold = True
    s.beat("a", 0, rebalance_timeout_ms=10_000, topic_names=("t",), owned={})
    s.run(s.machine.describe_consumer_group("g", "described", s.now))
    s.run(s.machine.describe_consumer_group("other", "of another", s.now))
    s.run(s.machine.when_written(None, "listed", s.now))
    s.run(s.machine.delete_groups(["g"], "deleted", s.now))
    s.run(s.machine.delete_groups(["other"], "deleted another", s.now))
    s.join("c")
    s.run(s.machine.offset_delete("g", [("t", 0)], "offset deleted", s.now))
    assert s.replies.keys() == {"of another", "deleted another"}
    s.settle()
    assert s.replies.keys() >= {"described", "listed", "deleted", "join c#2", "offset deleted"}
    assert dict(s.replies["deleted"].results) == {"g": ErrorCode.NON_EMPTY_GROUP}


def test_groups_and_members_of_both_kinds_are_counted():
    s = with_both_kinds()
    statistics = s.machine.statistics()
    assert statistics.groups_by_state == (("Empty", 1), ("Stable", 1))
    assert statistics.consumer_groups_by_state == (("Empty", 1), ("Stable", 1))
    assert (statistics.members_count, statistics.offsets_count) == (2, 1)
    by_id = s.machine._consumers.by_id
    classic = sum(group.size_bytes for group in s.machine._groups.values())
    assert s.machine.size_bytes == classic + sum(group.size_bytes for group in by_id.values())
    assert by_id["g"].size_bytes > 0 == by_id["i"].size_bytes


# One kind or the other


def test_an_empty_classic_group_becomes_one_of_consumers_in_one_write_and_keeps_its_offsets():
    s = ConsumerScenario()
    ids, _generation = s.stable("c")
    s.leave((ids["c"],))
    assert s.commit_code(offset=7) is NONE
    assert (s.state(), kinds(s)) == ("Empty", {"g": "classic"})
    s.hold = True
    token = s.beat("a", 0, rebalance_timeout_ms=10_000, topic_names=("t",), owned={})
    [write] = s.held
    assert keys(write.records) == [-2, 5, 3, 7, 6, 8]
    s.settle()
    assert (s.replies[token].error_code, s.replies[token].member_epoch) == (NONE, 2)
    for _ in range(2):
        assert (kinds(s), s.offset()) == ({"g": "consumer"}, 7)
        assert group_record("g", None).key not in {record.key for record in s.stored_records()}
        assert s.machine.statistics().groups_by_state == ()
        s.start()


def test_a_group_of_offsets_alone_becomes_one_of_consumers():
    s = ConsumerScenario()
    s.commit(offset=7)
    before = len(s.log)
    s.stable_consumers("a")
    assert keys(s.log[before:]) == [-2, 5, 3, 7, 6, 8]
    assert (kinds(s), s.offset()) == ({"g": "consumer"}, 7)


def test_a_member_id_that_was_given_out_is_forgotten_with_the_classic_group():
    s = ConsumerScenario()
    s.commit()
    s.join("c")
    s.stable_consumers("a")
    held = s.machine.size_bytes
    s.wait(SESSION_MS - 1_000)
    assert s.machine.size_bytes == held


def test_a_refused_heartbeat_leaves_the_classic_group_as_it_is():
    s = ConsumerScenario()
    s.commit()
    before = list(s.log)
    s.settings = ConsumerSettings(size_max=0)
    assert s.join_consumers("a").error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
    s.room = False
    s.settings = ConsumerSettings()
    assert s.join_consumers("a").error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (kinds(s), s.log) == ({"g": "classic"}, before)
    s.room = True
    s.commit(group="h")
    s.join_consumers("a", group="h")
    assert keys(s.log)[len(before) + 1 :] == [-2, 5, 3, 7, 6, 8]
    assert s.delete("g") == {"g": NONE}
    before = len(s.log)
    s.join_consumers("a")
    assert keys(s.log[before:]) == [5, 3, 7, 6, 8], "nothing of the refused ones is left"


def test_heartbeats_wait_for_what_is_being_written_of_the_classic_group():
    """The record is not applied yet: behind one that has run ahead it would bring the classic group back."""
    s = ConsumerScenario()
    ids, _generation = s.stable("c")
    s.hold = True
    s.leave((ids["c"],))  # the empty round is to be written
    token = s.beat("a", 0, rebalance_timeout_ms=10_000, topic_names=("t",), owned={})
    assert (kinds(s), token in s.replies) == ({"g": "classic"}, False)
    s.settle()
    assert (kinds(s), s.replies[token].error_code) == ({"g": "consumer"}, NONE)
    s.start()
    assert kinds(s) == {"g": "consumer"}
    assert group_record("g", None).key not in {record.key for record in s.stored_records()}


def test_heartbeats_that_wait_are_refused_when_that_fails():
    s = ConsumerScenario()
    ids, _generation = s.stable("c")
    s.hold = True
    s.leave((ids["c"],))
    token = s.beat("a", 0, rebalance_timeout_ms=10_000, topic_names=("t",), owned={})
    s.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
    s.settle()
    assert (kinds(s), s.replies[token].error_code) == ({"g": "classic"}, ErrorCode.NOT_COORDINATOR)


def test_a_classic_group_that_is_being_deleted_is_deleted_first():
    s = ConsumerScenario()
    ids, _generation = s.stable("c")
    s.leave((ids["c"],))
    s.commit()
    s.hold = True
    s.run(s.machine.delete_groups(["g"], "deleted", s.now))
    token = s.beat("a", 0, rebalance_timeout_ms=10_000, topic_names=("t",), owned={})
    assert token not in s.replies
    s.settle()
    assert (dict(s.replies["deleted"].results), s.replies[token].error_code) == ({"g": NONE}, NONE)
    for _ in range(2):
        assert (kinds(s), s.offset()) == ({"g": "consumer"}, -1)
        s.start()


@pytest.mark.parametrize("epoch", [-1, 3])
def test_only_who_joins_makes_a_group(epoch):
    s = ConsumerScenario()
    s.commit()
    refused = s.told("a", epoch)
    assert (refused.error_code, refused.error_message) == (NOT_FOUND, "Group g is not a consumer group.")
    assert s.told("a", epoch, "none").error_code is NOT_FOUND
    assert kinds(s) == {"g": "classic"}


def test_classic_requests_find_no_classic_group():
    s = ConsumerScenario()
    s.stable_consumers("a")
    assert s.replies[s.join("c", protocol_type="connect")].error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert s.replies[s.sync("a", "a", 2)].error_code is ErrorCode.UNKNOWN_MEMBER_ID
    assert s.heartbeat("a", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert kinds(s) == {"g": "consumer"}


def test_leave_group_takes_out_members_and_the_group_has_one_new_epoch():
    s = ConsumerScenario()
    s.stable_consumers("a", "b")
    s.join_consumers("s", instance_id="i")
    epoch, before = s.described().group_epoch, len(s.log)
    s.hold = True
    token = s.leave(("a",), ("", "i"), ("none",), ("b", "i"), ("a",), ("x", "j"))
    assert token not in s.replies
    s.settle()
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert [one.error_code for one in s.replies[token].members] == [
        NONE, NONE, unknown, ErrorCode.FENCED_INSTANCE_ID, unknown, unknown,
    ]  # fmt: skip
    assert keys(s.log[before:]) == [-8, -7, -5, -8, -7, -5, 3]
    assert ({one.member_id for one in s.described().members}, s.described().group_epoch) == ({"b"}, epoch + 1)
    s.room = False
    assert s.replies[s.leave(("b",))].error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE


# Their end


def test_a_group_with_members_is_not_deleted_and_an_empty_one_goes_with_all_that_is_stored():
    s = ConsumerScenario()
    client = s.stable_consumers("a")["a"]
    assert s.commit_code(member_id="a", generation_id=client.epoch, topic_id=client.topic_id()) is NONE
    s.commit(group="h")
    assert s.delete("g", "h", "none") == {"g": ErrorCode.NON_EMPTY_GROUP, "h": NONE, "none": NOT_FOUND}
    client.leave()
    before = len(s.log)
    assert s.delete("g") == {"g": NONE}
    assert keys(s.log[before:]) == [-1, -6, -4, -3]
    for _ in range(2):
        assert (s.machine.list_groups(), s.offset(), s.stored_records(), s.machine.size_bytes) == ([], -1, [], 0)
        s.start()
    s.stable_consumers("a")
    assert s.described().group_epoch == 2, "another one of its name begins anew"


def test_a_deletion_is_told_when_all_of_it_is_durable():
    s = ConsumerScenario()
    client = s.stable_consumers("a")["a"]
    assert s.commit_code(member_id="a", generation_id=client.epoch, topic_id=client.topic_id()) is NONE
    client.leave()
    s.hold = True
    s.run(s.machine.delete_groups(["g"], "deleted", s.now))
    assert len(s.held) == 2
    write = s.held.pop(0)
    s.log.extend(write.records)
    s.run(s.machine.written(write.write_id, s.now))
    assert "deleted" not in s.replies
    s.settle()
    assert dict(s.replies["deleted"].results) == {"g": NONE}


def test_a_deletion_that_cannot_be_written_did_not_happen():
    s = ConsumerScenario()
    client = s.stable_consumers("a")["a"]
    assert s.commit_code(member_id="a", generation_id=client.epoch, topic_id=client.topic_id()) is NONE
    client.leave()
    s.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
    assert s.delete("g") == {"g": ErrorCode.NOT_COORDINATOR}
    s.fail_with = None
    assert (s.described().state, s.offset()) == ("Empty", 5)


def test_without_room_no_group_of_consumers_is_deleted():
    s = ConsumerScenario()
    s.stable_consumers("a")["a"].leave()
    s.commit(group="h")
    s.room = False
    assert s.delete("g", "h") == {"g": ErrorCode.COORDINATOR_NOT_AVAILABLE, "h": NONE}
    s.room = True
    assert s.delete("g") == {"g": NONE}


def test_whoever_comes_while_a_group_is_being_deleted_has_another_group():
    s = ConsumerScenario()
    s.stable_consumers("a")["a"].leave()
    s.hold = True
    s.run(s.machine.delete_groups(["g"], "deleted", s.now))
    token = s.beat("b", 0, rebalance_timeout_ms=10_000, topic_names=("t",), owned={})
    s.settle()
    assert (dict(s.replies["deleted"].results), s.replies[token].member_epoch) == ({"g": NONE}, 2)
    for _ in range(2):
        assert [one.member_id for one in s.described().members] == ["b"]
        s.start()


def test_what_has_run_ahead_of_the_disk_is_not_waited_for():
    s = ConsumerScenario()
    s.commit()
    s.hold = True
    s.beat("a", 0, rebalance_timeout_ms=10_000, topic_names=("t",), owned={})
    s.beat("a", -1)
    s.run(s.machine.delete_groups(["g"], "deleted", s.now))
    assert kinds(s) == {}
    s.beat("b", 0, rebalance_timeout_ms=10_000, topic_names=("t",), owned={})
    assert kinds(s) == {"g": "consumer"}
    s.settle()
    s.start()
    assert [one.member_id for one in s.described().members] == ["b"]


def test_one_request_deletes_as_many_groups_as_surely_find_room():
    s = ConsumerScenario()
    groups = [f"g{number}" for number in range(100)]
    for group in groups:
        s.join_consumers("a", group=group)
        s.told("a", -1, group)
    told = list(s.delete(*groups).values())
    assert told[:30] == [NONE] * 30
    assert told[60:] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 40
    for _ in range(3):
        s.delete(*kinds(s))
    assert kinds(s) == {}


def test_deadlines_of_a_deleted_group_are_forgotten():
    s = ConsumerScenario()
    client = s.stable_consumers("a")["a"]
    client.leave()
    s.delete("g")
    s.stable_consumers("a")
    before = len(s.log)
    s.wait(SESSION_MS - 1)
    assert len(s.log) == before
    s.wait(1_000)
    assert s.described().members == ()
