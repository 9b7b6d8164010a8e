"""Rebalances: joining, assignment, leaving, sessions. One test per claim; `transcript` is what clients saw and when."""

from pathlib import Path

import pytest

from tests.coordinator.scenario import PROTOCOLS, Scenario, subscription
from tpc_broker.coordinator.group import TRANSITIONS, GroupState, state_diagram
from tpc_broker.error_codes import ErrorCode


def test_three_members_gather_in_the_initial_delay_and_get_their_parts():
    s = Scenario()
    a, b, c = (s.member(name) for name in "abc")
    assert s.transcript[-1].endswith("MEMBER_ID_REQUIRED")
    s.wait(10_000)
    ids = {name: s.replies[token].member_id for name, token in zip("abc", (a, b, c), strict=True)}
    parts = [(member_id, name.encode()) for name, member_id in ids.items()]
    s.sync("c", ids["c"], 1)
    s.sync("a", ids["a"], 1, parts)
    s.sync("b", ids["b"], 1)
    assert s.transcript == [
        "     0 join a#1 ← MEMBER_ID_REQUIRED",
        "     0 join b#3 ← MEMBER_ID_REQUIRED",
        "     0 join c#5 ← MEMBER_ID_REQUIRED",
        "  6000 join a#2 ← generation 1, leader a-u1, divides for 3",
        "  6000 join b#4 ← generation 1, leader a-u1",
        "  6000 join c#6 ← generation 1, leader a-u1",
        " 10000 sync a#8 ← assigned a",
        " 10000 sync c#7 ← assigned c",
        " 10000 sync b#9 ← assigned b",
    ]


def test_a_fourth_member_makes_the_others_join_again_and_a_lost_one_too():
    s = Scenario()
    ids, generation = s.stable("a", "b")
    late = s.member("late")
    assert s.heartbeat(ids["a"], generation) == ErrorCode.REBALANCE_IN_PROGRESS
    s.join("a", ids["a"])
    assert late not in s.replies
    s.join("b", ids["b"])
    assert {
        r.generation_id
        for t, r in s.replies.items()
        if t.startswith(("join a#", "join b#", "join late#")) and not r.error_code
    } == {1, 2}
    assert s.replies[late].generation_id == generation + 1


def test_who_does_not_join_again_in_time_is_out():
    s = Scenario()
    ids, _ = s.stable("a", "b")
    s.join("a", ids["a"], protocols=PROTOCOLS)
    assert s.state() == "PreparingRebalance"
    s.wait(10_000)
    assert s.state() == "CompletingRebalance"
    assert s.heartbeat(ids["b"], 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_initial_delay_is_drawn_out_while_members_come_but_not_beyond_the_rebalance_time_out():
    s = Scenario()
    first = s.member("first", rebalance_timeout_ms=7_000)
    for n in range(5):
        s.wait(2_000)
        assert first not in s.replies or s.now >= 7_000, n
        if s.now < 7_000:
            s.member(f"m{n}", rebalance_timeout_ms=7_000)
    assert [line for line in s.transcript if "join first" in line][-1].split()[0] == "7000"


def test_a_quiet_start_waits_only_the_delay():
    s = Scenario(initial_rebalance_delay_ms=500)
    token = s.member("a")
    s.wait(499)
    assert token not in s.replies
    s.wait(1)
    assert s.replies[token].generation_id == 1


@pytest.mark.parametrize(
    ("details", "code"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_a_join_that_cannot_be_is_refused_and_leaves_no_group(details, code):
    s = Scenario()
    assert s.replies[s.join("a", **details)].error_code is code
    assert s.machine.list_groups() == []


def test_a_member_that_shares_no_protocol_is_refused():
    s = Scenario()
    s.stable("a")
    assert s.replies[s.join("b", protocols=(("other", b""),))].error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert s.replies[s.join("c", protocol_type="connect")].error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert s.state() == "Stable"


def test_the_protocol_is_the_one_most_like_best_among_those_that_all_have():
    s = Scenario()
    a = s.member("a", protocols=(("x", b"ax"), ("y", b"ay"), ("z", b"az")))
    s.member("b", protocols=(("y", b"by"), ("x", b"bx")))
    s.member("c", protocols=(("z", b""), ("y", b"cy"), ("x", b"cx")))
    s.wait(10_000)
    assert s.replies[a].protocol_name == "y"
    assert [member.metadata for member in s.replies[a].members] == [b"ay", b"by", b"cy"]


def test_old_clients_join_without_asking_for_an_id_first():
    s = Scenario()
    token = s.join("a", requires_member_id=False)
    s.wait(3_000)
    assert (s.replies[token].error_code, s.replies[token].member_id) == (0, "a-u1")


def test_a_group_has_a_largest_size():
    s = Scenario(group_size_max=2)
    s.stable("a", "b")
    assert s.replies[s.join("c", requires_member_id=False)].error_code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_an_id_that_is_not_used_is_forgotten_and_the_group_with_it():
    s = Scenario()
    asked = s.replies[s.join("a")]
    assert s.state() == "Empty"
    s.wait(10_000)
    assert s.machine.list_groups() == []
    assert s.replies[s.join("a", asked.member_id)].error_code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_follower_that_repeats_its_join_gets_the_same_answer_and_disturbs_nobody():
    s = Scenario()
    ids, generation = s.stable("a", "b")
    again = s.replies[s.join("b", ids["b"])]
    assert (again.generation_id, again.members, s.state()) == (generation, (), "Stable")


def test_a_leader_that_joins_again_begins_a_new_round():
    s = Scenario()
    ids, _ = s.stable("a", "b")
    s.join("a", ids["a"])
    assert s.state() == "PreparingRebalance"


def test_a_member_that_changes_its_subscription_begins_a_new_round():
    s = Scenario()
    ids, _ = s.stable("a", "b")
    s.join("b", ids["b"], protocols=(("range", subscription("t", "u")),))
    assert s.state() == "PreparingRebalance"


def test_a_second_join_of_a_member_ends_the_first_one():
    s = Scenario()
    ids, _ = s.stable("a", "b")
    first = s.join("a", ids["a"])
    s.join("a", ids["a"])
    assert s.replies[first].error_code is ErrorCode.REBALANCE_IN_PROGRESS


def test_the_assignment_is_durable_before_anybody_gets_it():
    s = Scenario()
    token = s.member("a")
    s.wait(3_000)
    s.hold = True
    synced = s.sync("a", s.replies[token].member_id, 1, [(s.replies[token].member_id, b"part")])
    assert synced not in s.replies
    assert s.state() == "CompletingRebalance"
    s.settle()
    assert s.replies[synced].assignment == b"part"
    assert s.state() == "Stable"


def test_of_two_assignments_of_a_leader_the_first_one_counts_as_it_is_told():
    """It has asked again while that was being written; who loads the log later knows what members were told."""
    s = Scenario()
    joined = s.member("a")
    s.wait(3_000)
    member_id = s.replies[joined].member_id
    s.hold = True
    s.sync("a", member_id, 1, [(member_id, b"x")])
    again = s.sync("a", member_id, 1, [(member_id, b"y")])
    s.settle()
    assert s.replies[again].assignment == b"x"
    before = s.machine.describe_group("g")
    s.start()
    assert s.machine.describe_group("g") == before


def test_an_assignment_that_cannot_be_written_fails_the_round_and_the_next_one_works():
    s = Scenario()
    ids = {name: s.member(name) for name in "ab"}
    s.wait(6_000)
    ids = {name: s.replies[token].member_id for name, token in ids.items()}
    follower = s.sync("b", ids["b"], 1)
    s.fail_with = ErrorCode.NOT_ENOUGH_REPLICAS
    leader = s.sync("a", ids["a"], 1, [(ids["a"], b"x")])
    assert {s.replies[t].error_code for t in (leader, follower)} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert s.state() == "PreparingRebalance"
    s.fail_with = None
    tokens = [s.join(name, ids[name]) for name in "ab"]
    assert [s.replies[t].generation_id for t in tokens] == [2, 2]


@pytest.mark.parametrize(
    ("details", "code"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group": "none"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 7}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "roundrobin"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"instance": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_sync_that_does_not_fit_is_refused(details, code):
    s = Scenario()
    ids, generation = s.stable("a")
    arguments = {"member_id": ids["a"], "generation": generation, **details}
    instance = arguments.pop("instance", None)
    assert s.replies[s.sync("a", group_instance_id=instance, **arguments)].error_code is code


def test_a_sync_in_a_stable_group_is_answered_at_once():
    s = Scenario()
    ids, generation = s.stable("a", "b")
    assert s.replies[s.sync("b", ids["b"], generation)].assignment == b"b"


def test_members_that_never_sync_are_out():
    s = Scenario()
    tokens = {name: s.member(name, session_timeout_ms=60_000) for name in "ab"}
    s.wait(6_000)
    ids = {name: s.replies[token].member_id for name, token in tokens.items()}
    s.sync("a", ids["a"], 1, [(ids["a"], b"x")])
    assert s.state() == "Stable"
    s.wait(10_000)
    assert s.state() == "PreparingRebalance"
    assert s.heartbeat(ids["b"], 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_waiting_sync_is_told_when_somebody_new_joins():
    s = Scenario()
    tokens = {name: s.member(name) for name in "ab"}
    s.wait(6_000)
    waiting = s.sync("b", s.replies[tokens["b"]].member_id, 1)
    s.member("c")
    assert s.replies[waiting].error_code is ErrorCode.REBALANCE_IN_PROGRESS


def test_heartbeats_keep_a_session_and_silence_ends_it():
    s = Scenario()
    ids, generation = s.stable("a", "b")
    for _ in range(4):
        s.wait(8_000)
        assert s.heartbeat(ids["a"], generation) == 0 or s.now > 12_000
    assert s.heartbeat(ids["b"], generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert s.heartbeat("stranger", generation) == ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeats_of_another_generation_or_group_are_refused():
    s = Scenario()
    ids, generation = s.stable("a")
    assert s.heartbeat(ids["a"], generation) == 0
    assert s.heartbeat(ids["a"], generation + 1) == ErrorCode.ILLEGAL_GENERATION
    assert s.heartbeat(ids["a"], generation, group="none") == ErrorCode.UNKNOWN_MEMBER_ID
    assert s.heartbeat(ids["a"], generation, instance="i") == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_waits_in_a_join_is_alive_however_long_it_takes():
    s = Scenario()
    ids, _ = s.stable("a", "b", rebalance_timeout_ms=60_000)
    waiting = s.join("a", ids["a"], rebalance_timeout_ms=60_000)
    for _ in range(5):
        s.wait(9_000)
        s.heartbeat(ids["b"], 1)
    assert waiting not in s.replies
    s.join("b", ids["b"], rebalance_timeout_ms=60_000)
    assert s.replies[waiting].generation_id == 2


def test_the_last_member_that_leaves_empties_the_group_and_that_is_stored():
    s = Scenario()
    ids, _ = s.stable("a")
    assert s.replies[s.leave((ids["a"],))].members[0].error_code == 0
    assert s.state() == "Empty"
    s.start()
    assert s.state() == "Empty"


def test_leaving_is_answered_member_by_member():
    s = Scenario()
    ids, _ = s.stable("a", "b")
    pending = s.replies[s.join("c")].member_id
    response = s.replies[s.leave((ids["a"],), ("stranger",), (pending,), ("", "no-instance"))]
    codes = [member.error_code for member in response.members]
    assert codes == [0, ErrorCode.UNKNOWN_MEMBER_ID, 0, ErrorCode.UNKNOWN_MEMBER_ID]
    unknown = s.replies[s.leave(("x",), group="none")]
    assert (unknown.error_code, unknown.members[0].error_code) == (0, ErrorCode.UNKNOWN_MEMBER_ID)
    assert s.replies[s.leave(("x",), group="")].error_code is ErrorCode.INVALID_GROUP_ID


def test_after_a_restart_a_stable_group_goes_on_and_its_absent_members_time_out():
    s = Scenario()
    ids, generation = s.stable("a", "b")
    s.start()
    assert s.state() == "Stable"
    assert s.heartbeat(ids["a"], generation) == 0
    assert s.replies[s.sync("a", ids["a"], generation)].assignment == b"a"
    s.wait(9_000)
    s.heartbeat(ids["a"], generation)
    s.wait(2_000)
    assert s.heartbeat(ids["a"], generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert s.heartbeat(ids["b"], generation) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_describe_shows_members_and_the_chosen_protocol_when_stable():
    s = Scenario()
    ids, _ = s.stable("a", "b")
    group = s.machine.describe_group("g")
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    assert {(m.member_id, m.client_id, m.assignment) for m in group.members} == {(ids[n], n, n.encode()) for n in "ab"}
    s.join("a", ids["a"])
    group = s.machine.describe_group("g")
    old_ones_until_the_next = {b"a", b"b"}
    assert (group.protocol_data, {m.assignment for m in group.members}) == ("", old_ones_until_the_next)
    none = s.machine.describe_group("none")
    assert (none.group_state, none.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)


def test_groups_are_listed_by_state_and_type():
    s = Scenario()
    s.stable("a", group="one")
    s.commit(group="two")
    assert {(g.group_id, g.group_state, g.protocol_type) for g in s.machine.list_groups()} == {
        ("one", "Stable", "consumer"),
        ("two", "Empty", ""),
    }
    assert [g.group_id for g in s.machine.list_groups(states=["stable"])] == ["one"]
    assert len(s.machine.list_groups(types=["Classic"])) == 2
    assert s.machine.list_groups(types=["consumer"]) == []


def test_when_the_partition_goes_to_another_core_everything_that_waits_is_answered():
    s = Scenario()
    ids, _ = s.stable("a", "b")
    waiting = s.join("a", ids["a"])
    s.hold = True
    commit = s.commit(generation_id=1, member_id=ids["b"])
    s.run(s.machine.unload())
    assert s.replies[waiting].error_code is ErrorCode.NOT_COORDINATOR
    assert s.replies[commit].partitions[0].error_code is ErrorCode.NOT_COORDINATOR


def test_every_state_but_dead_leads_somewhere_and_the_diagram_shows_it():
    assert set(TRANSITIONS) == set(GroupState)
    assert "    PreparingRebalance --> CompletingRebalance: all members joined, or time is over" in state_diagram()


def test_the_diagram_in_the_documentation_is_made_from_the_table():
    page = Path(__file__).parents[2] / "docs" / "group-states.md"
    assert f"```mermaid\n{state_diagram()}\n```\n" in page.read_text()


@pytest.mark.parametrize("set_by_ms", [0, -3_600_000, 3_600_000])
def test_sessions_begin_when_the_last_group_has_come_to_life(set_by_ms):
    """Until then heartbeats are answered, and reach no machine."""
    s = Scenario()
    ids, generation = s.stable("a", "b")
    s.machine = s.new_machine()
    for record in s.log:
        s.machine.replay(record.key, record.value)
    for _group in s.machine.groups_finished(s.now):
        s.now += 8_000
    if set_by_ms:
        s.machine.clock_was_set(set_by_ms)
        s.now += set_by_ms
    s.run(s.machine.finish_loading(s.now))
    s.wait(9_999)
    assert s.heartbeat(ids["a"], generation) is ErrorCode.NONE
    s.wait(1)
    assert s.heartbeat(ids["a"], generation) is ErrorCode.REBALANCE_IN_PROGRESS
