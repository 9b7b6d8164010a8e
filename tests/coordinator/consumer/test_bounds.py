"""What members of consumer groups say is bounded, and what is decided at once finds room in the driver's queue."""

import pytest

from tests.coordinator.consumer.scenario import SESSION_MS, ConsumerScenario
from tests.coordinator.scenario import subscription
from tpc_broker.coordinator import GroupCoordinator, machine
from tpc_broker.coordinator.consumer import heartbeats
from tpc_broker.coordinator.consumer.messages import ConsumerHeartbeat, ConsumerSettings
from tpc_broker.coordinator.consumer.validation import ID_CHARACTERS_MAX, fault_of_heartbeat
from tpc_broker.error_codes import ErrorCode
from tpc_broker.limits import GROUP_MEMBER_BYTES

NONE, NO_ROOM = ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE
LONG = tuple(f"topic-{number}" for number in range(100))


class Bounded(ConsumerScenario):
    """`left`: bytes for members of any group."""

    left = 10 * GROUP_MEMBER_BYTES

    def new_machine(self):
        made = GroupCoordinator(
            self.limits, self.fate_of, lambda: self.left - made.size_bytes,
            settings_of=lambda _group_id: self.settings, topics=self.topics, assignors=self.assignors,
            has_room=lambda: self.room,
        )  # fmt: skip
        return made


def test_both_kinds_of_groups_share_what_memory_there_is():
    s = Bounded()
    s.stable("c", "d", group="h")
    told = [s.join_consumers(f"m{number}", group=f"g{number}").error_code for number in range(10)]
    assert set(told) == {NONE, NO_ROOM}
    assert s.machine.size_bytes < s.left + GROUP_MEMBER_BYTES, "but for what the last one was assigned"
    token = s.join("e", group="new")
    assert s.replies[token].error_code is NO_ROOM
    before = s.machine.size_bytes
    s.told("m0", -1, "g0")
    assert s.machine.size_bytes < before
    assert s.join_consumers("m9", group="g9").error_code is NONE


def test_who_is_in_stays_in_and_may_not_say_more():
    s = Bounded()
    client = s.stable_consumers("a")["a"]
    s.left = s.machine.size_bytes
    assert client.beat().error_code is NONE
    refused = s.told("a", client.epoch, topic_names=LONG)
    assert refused.error_code is NO_ROOM
    assert s.described().members[0].topic_names == ("t",)
    assert s.told("a", client.epoch, topic_names=()).error_code is NONE


def test_the_members_of_a_group_have_so_many_bytes(monkeypatch):
    monkeypatch.setattr(heartbeats, "GROUP_BYTES_MAX", 3 * GROUP_MEMBER_BYTES)
    s = ConsumerScenario()
    assert s.join_consumers("a").error_code is NONE
    assert s.join_consumers("b", *LONG).error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert s.join_consumers("b", *LONG, group="h").error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [group.group_id for group in s.machine.list_groups()] == ["g"], "nothing is left of the other"
    assert s.join_consumers("b").error_code is NONE


def test_ids_and_hosts_of_members_are_counted_in_either_protocol():
    s = ConsumerScenario()
    s.join_consumers("a")
    s.join("c", requires_member_id=False, protocols=(("range", subscription("t")),))
    s.join("d", group="h", group_instance_id="d")
    before = s.machine.size_bytes
    s.join_consumers("b" * 1_000, client_host="h" * 50)
    assert s.machine.size_bytes > before + GROUP_MEMBER_BYTES + 1_050
    before = s.machine.size_bytes
    s.join("e", requires_member_id=False, protocols=(("range", subscription("t")),), client_host="h" * 5_000)
    assert s.machine.size_bytes > before + GROUP_MEMBER_BYTES + 5_000
    before = s.machine.size_bytes
    s.join("d", group="h", group_instance_id="d" * 5_000, client_host="h" * 5_000)
    assert s.machine.size_bytes > before + GROUP_MEMBER_BYTES + 15_000


def test_long_ids_of_a_classic_group_are_bounded_by_its_memory():
    s = Bounded()
    assert s.replies[s.join("c", group_instance_id="i" * 20_000, group="h")].error_code is NO_ROOM


@pytest.mark.parametrize("long", ["member_id", "group_instance_id"])
def test_ids_that_are_too_long_come_in_by_neither_protocol(long):
    s = ConsumerScenario()
    s.join_consumers("a")
    protocols = (("range", subscription("t")),)
    for length, code in ((ID_CHARACTERS_MAX, NONE), (ID_CHARACTERS_MAX + 1, ErrorCode.INVALID_REQUEST)):
        details = {long: length * "i", "protocols": protocols, "requires_member_id": False}
        before = s.machine.size_bytes
        token = s.join("c", **details)
        assert s.replies[token].error_code is code
        assert code is NONE or s.machine.size_bytes == before
        request = ConsumerHeartbeat(group_id="g", member_id="m", member_epoch=1, instance_id="i" * length)
        assert (fault_of_heartbeat(request, ()) is None) == (code is NONE)


@pytest.mark.parametrize("character", ["n", "\N{GRINNING FACE}"])
def test_what_a_member_says_fits_into_a_record(character, monkeypatch):
    """Of either protocol, and also one that says less than before in characters."""
    bound = 8_000
    monkeypatch.setattr(heartbeats, "MEMBER_RECORD_BYTES_MAX", bound)
    s = ConsumerScenario()
    client = s.stable_consumers("a")["a"]
    fits = (bound - 500) // len(character.encode()) * character
    assert s.told("a", client.epoch, topic_names=(fits,)).error_code is NONE
    refused = s.told("a", client.epoch, topic_names=(fits, 1_000 * "n"))
    assert refused.error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert f"{bound} bytes" in refused.error_message
    token = s.join("c", "c", protocols=(("range", subscription(*("t" * 100 for _ in range(100)))),))
    assert s.replies[token].error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert len(s.described().members) == 1


def test_a_heartbeat_without_room_is_to_come_again_and_has_changed_nothing():
    s = ConsumerScenario()
    s.stable_consumers("a")
    before = s.described(), list(s.log)
    s.room = False
    assert s.join_consumers("b").error_code is NO_ROOM
    assert (s.described(), s.log) == before
    s.room = True
    assert s.join_consumers("b").error_code is NONE


def test_sessions_that_end_without_room_end_a_second_later():
    s = ConsumerScenario()
    s.stable_consumers("a")
    s.room = False
    s.wait(SESSION_MS + 5_000)
    assert [one.member_id for one in s.described().members] == ["a"]
    s.room = True
    s.wait(1_000)
    assert s.described().members == ()


def test_sessions_that_end_together_are_written_a_few_at_a_time():
    """The driver was asked for room before the first of them, and the rest is due at once."""
    s = ConsumerScenario()
    for number in range(100):
        s.join_consumers(f"m{number}", group=f"g{number}")
    s.hold = True
    s.now += SESSION_MS
    steps = 0
    while (deadline := s.machine.next_deadline_ms()) is not None and deadline <= s.now:
        before = len(s.held)
        s.run(s.machine.on_deadline(s.now))
        assert len(s.held) - before <= 50
        steps += 1
    assert steps > 1
    s.hold = False
    s.settle()
    assert {group.group_state for group in s.machine.list_groups()} == {"Empty"}


def test_sessions_that_end_together_are_written_so_many_bytes_at_a_time(monkeypatch):
    """Room for one large decision is all that the driver was asked for."""
    bound = 500
    monkeypatch.setattr(machine, "OWN_BATCH_BYTES_MAX", bound)
    s = ConsumerScenario()
    for number in range(20):
        s.join_consumers(f"m{number}", group=f"g{number}")
    s.hold = True
    s.now += SESSION_MS
    sizes = []
    while (deadline := s.machine.next_deadline_ms()) is not None and deadline <= s.now:
        before = len(s.held)
        s.run(s.machine.on_deadline(s.now))
        sizes.append([write.size_bytes for write in s.held[before:]])
    assert sum(map(len, sizes)) == 20
    assert max(sum(step[:-1]) for step in sizes) <= bound
    s.hold = False
    s.settle()
    assert {group.group_state for group in s.machine.list_groups()} == {"Empty"}


def in_pieces(spec):
    for _ in range(20):
        yield
    topic_ids = list(spec.topics)
    return {
        member_id: {topic_ids[0]: frozenset({number})} if number < 4 else {}
        for number, member_id in enumerate(sorted(spec.members))
    }


def test_a_long_assignment_is_made_piece_by_piece_whenever_the_driver_comes():
    s = ConsumerScenario(assignors={"uniform": in_pieces, "range": in_pieces})
    told = s.join_consumers("a")
    assert (told.member_epoch, told.assignment) == (1, {})
    pieces = 0
    while s.described().assignment_epoch == 1:
        assert s.machine.next_deadline_ms() <= s.now
        s.run(s.machine.on_deadline(s.now))
        pieces += 1
    assert 10 < pieces < 25
    assert s.machine.next_deadline_ms() > s.now
    assert s.names(s.told("a", 1).assignment) == {"t": [0]}


def test_without_room_a_long_assignment_goes_on_a_second_later():
    s = ConsumerScenario(assignors={"uniform": in_pieces, "range": in_pieces})
    s.join_consumers("a")
    s.room = False
    s.run(s.machine.on_deadline(s.now))
    assert s.machine.next_deadline_ms() == s.now + 1_000
    s.wait(5_000)
    assert s.described().assignment_epoch == 1
    s.room = True
    s.wait(1_000)
    assert s.described().assignment_epoch == 2


def test_a_group_that_goes_takes_its_long_assignment_along():
    s = ConsumerScenario(assignors={"uniform": in_pieces, "range": in_pieces})
    s.join_consumers("a")
    s.told("a", -1)
    assert s.delete("g") == {"g": NONE}
    s.wait(1_000)
    assert s.machine.list_groups() == s.stored_records() == []


def test_deadlines_go_with_the_clock():
    s = ConsumerScenario()
    s.settings = ConsumerSettings(session_timeout_ms=10_000)
    s.join_consumers("a")
    s.now += 3_600_000
    s.machine.clock_was_set(3_600_000)
    s.wait(9_000)
    assert len(s.described().members) == 1
    s.wait(1_000)
    assert s.described().members == ()
