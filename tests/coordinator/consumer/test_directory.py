"""Both kinds of groups beside each other: which is which, questions about them, and their end."""

from tests.coordinator.consumer.scenario import ConsumerScenario


def test_members_come_to_a_stable_group_and_a_replay_knows_it():
    s = ConsumerScenario()
    s.stable_consumers("a", "b")
    assert s.owned_by() == {"a": {"t": [0, 2]}, "b": {"t": [1, 3]}}
    before = s.described()
    s.start()
    assert s.described() == before
