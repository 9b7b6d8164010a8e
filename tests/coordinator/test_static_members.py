"""Static membership (KIP-345): an instance id keeps a member's place over restarts."""

from tests.coordinator.scenario import PROTOCOLS, Scenario, subscription
from tpc_broker.error_codes import ErrorCode

OTHER = (("range", subscription("u")), ("sticky", b""))


def two_static(s):
    """A stable group of two static members, the first one leading: ids and generation."""
    tokens = {name: s.join(name, group_instance_id=f"i-{name}") for name in "ab"}
    s.wait(6_000)
    ids = {name: s.replies[token].member_id for name, token in tokens.items()}
    s.sync("b", ids["b"], 1)
    s.sync("a", ids["a"], 1, [(member_id, name.encode()) for name, member_id in ids.items()])
    assert s.state() == "Stable"
    return ids


def test_a_static_member_needs_no_second_join_for_its_id_which_begins_with_the_instance():
    s = Scenario()
    token = s.join("a", group_instance_id="i-a")
    s.wait(3_000)
    assert s.replies[token].member_id == "i-a-u1"


def test_a_static_follower_that_restarts_gets_its_generation_without_a_rebalance():
    s = Scenario()
    ids = two_static(s)
    back = s.replies[s.join("b", group_instance_id="i-b")]
    assert (back.error_code, back.generation_id, back.leader, back.skip_assignment) == (0, 1, ids["a"], False)
    assert back.member_id != ids["b"]
    assert s.state() == "Stable"
    assert s.replies[s.sync("b", back.member_id, 1, group_instance_id="i-b")].assignment == b"b"


def test_the_old_id_of_a_restarted_static_member_is_fenced_everywhere():
    s = Scenario()
    ids = two_static(s)
    s.join("b", group_instance_id="i-b")
    old = ids["b"]
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert s.heartbeat(old, 1, instance="i-b") == fenced
    assert s.replies[s.sync("b", old, 1, group_instance_id="i-b")].error_code is fenced
    assert s.replies[s.join("b", old, group_instance_id="i-b")].error_code is fenced
    assert s.commit_code(generation_id=1, member_id=old, group_instance_id="i-b") == fenced
    assert s.replies[s.leave((old, "i-b"))].members[0].error_code is fenced
    assert s.heartbeat(old, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_leader_that_restarts_is_told_to_skip_the_assignment_from_version_9():
    s = Scenario()
    two_static(s)
    back = s.replies[s.join("a", group_instance_id="i-a")]
    assert (back.skip_assignment, back.leader, len(back.members)) == (True, back.member_id, 2)


def test_an_older_static_leader_sees_its_old_id_as_leader_and_so_divides_nothing():
    s = Scenario()
    ids = two_static(s)
    back = s.replies[s.join("a", group_instance_id="i-a", supports_skipping_assignment=False)]
    assert (back.skip_assignment, back.leader, back.members) == (False, ids["a"], ())


def test_the_new_id_is_durable_before_it_is_told_and_known_after_a_restart():
    s = Scenario()
    two_static(s)
    s.hold = True
    token = s.join("b", group_instance_id="i-b")
    assert token not in s.replies
    s.settle()
    new_id = s.replies[token].member_id
    s.hold = False
    s.start()
    assert s.heartbeat(new_id, 1, instance="i-b") == 0


def test_a_restart_that_cannot_be_stored_leaves_the_old_id_in_place():
    s = Scenario()
    ids = two_static(s)
    s.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
    assert s.replies[s.join("b", group_instance_id="i-b")].error_code is ErrorCode.NOT_COORDINATOR
    s.fail_with = None
    assert s.heartbeat(ids["b"], 1, instance="i-b") == 0


def test_a_restart_that_changes_the_groups_protocol_rebalances():
    s = Scenario()
    tokens = {
        "a": s.join("a", group_instance_id="i-a", protocols=(("sticky", b""), *PROTOCOLS)),
        "b": s.join("b", group_instance_id="i-b", protocols=(("sticky", b""), *PROTOCOLS)),
    }
    s.wait(6_000)
    ids = {name: s.replies[token].member_id for name, token in tokens.items()}
    s.sync("a", ids["a"], 1)
    s.join("b", group_instance_id="i-b", protocols=PROTOCOLS)
    assert s.state() == "PreparingRebalance"


def test_a_static_member_that_is_away_stays_until_its_session_ends():
    s = Scenario()
    ids = two_static(s)
    s.join("a", ids["a"], group_instance_id="i-a")
    s.wait(9_999)
    assert len(s.machine.describe_group("g").members) == 2
    s.wait(5_000)
    assert [m.group_instance_id for m in s.machine.describe_group("g").members] == ["i-a"]


def test_a_waiting_join_or_sync_of_the_old_id_is_ended_by_the_new_one():
    s = Scenario()
    ids = two_static(s)
    s.join("a", ids["a"], group_instance_id="i-a")
    waiting = s.join("b", ids["b"], group_instance_id="i-b")
    again = s.replies[waiting]
    assert again.generation_id == 2
    syncing = s.sync("b", ids["b"], 2, group_instance_id="i-b")
    s.join("b", group_instance_id="i-b")
    assert s.replies[syncing].error_code is ErrorCode.FENCED_INSTANCE_ID
    assert s.state() == "PreparingRebalance"


def test_a_static_member_can_be_removed_by_its_instance_id_alone():
    s = Scenario()
    two_static(s)
    result = s.replies[s.leave(("", "i-b"))].members[0]
    assert (result.error_code, result.group_instance_id) == (0, "i-b")
    assert s.state() == "PreparingRebalance"
