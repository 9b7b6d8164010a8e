"""A static member that comes back under another id while the target assignment is being made."""

from tests.coordinator.consumer.scenario import INTERVAL_MS, Client, ConsumerScenario, in_turn


def by_pieces(spec):
    """The same assignment, in more pieces than a heartbeat takes."""
    for _ in range(5):
        yield
    return (yield from in_turn(spec))


def begun(s):
    """A static member that had all, and another one, for which an assignment has begun that is not done."""
    first = Client(s, "a", "t", instance_id="i")
    first.beat()
    s.wait(INTERVAL_MS)
    assert first.beat().assignment is None
    assert s.names(first.owned) == {"t": [0, 1, 2, 3]}
    second = Client(s, "b", "t")
    s.assignors["uniform"] = by_pieces
    second.beat()
    group = s.described()
    assert group.group_epoch > group.assignment_epoch
    return first, second


def test_it_has_the_part_that_was_made_for_it():
    s = ConsumerScenario()
    first, second = begun(s)
    first.leave(-2)
    again = Client(s, "c", "t", instance_id="i")
    again.beat()
    assert s.described().group_epoch > s.described().assignment_epoch
    s.wait(0)
    s.until_stable(again, second)
    assert s.owned_by() == {"c": {"t": [0, 2]}, "b": {"t": [1, 3]}}


def test_however_often_it_changes_its_id():
    s = ConsumerScenario()
    first, second = begun(s)
    first.leave(-2)
    for member_id in ("c", "d", "c"):
        again = Client(s, member_id, "t", instance_id="i")
        again.beat()
        again.leave(-2)
    assert s.described().group_epoch > s.described().assignment_epoch
    again = Client(s, "c", "t", instance_id="i")
    again.beat()
    s.wait(0)
    s.until_stable(again, second)
    assert s.owned_by() == {"c": {"t": [0, 2]}, "b": {"t": [1, 3]}}
