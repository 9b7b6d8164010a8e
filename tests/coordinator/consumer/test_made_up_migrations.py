"""What a leader of the classic protocol makes up goes through a whole upgrade and downgrade: partitions and topics that
are not there are nobody's, and those that there are have one owner, whatever clients say.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.coordinator.consumer.classic_client import COOPERATIVE, EAGER, ClassicClient, MixedScenario
from tests.coordinator.consumer.classic_client import given as assignment
from tests.coordinator.consumer.scenario import Client
from tpc_broker.error_codes import ErrorCode

TOPICS = {"t": 4, "u": 2}
THERE = {(name, partition) for name, count in TOPICS.items() for partition in range(count)}
NUMBERS = st.integers(-2, 5) | st.sampled_from([-(2**31), 2**31 - 1])
MADE_UP = st.lists(
    st.dictionaries(st.sampled_from(["t", "u", "gone", ""]), st.frozensets(NUMBERS, max_size=4), max_size=4),
    min_size=3, max_size=3,
)  # fmt: skip
"""By topic name, for each of three members."""


class Inventive(ClassicClient):
    """One that as the leader gives out what is in `made_up`, as long as there is anything."""

    made_up = ()

    def _shares(self, members):
        if not self.made_up:
            return super()._shares(members)
        return [(each.member_id, assignment(given)) for each, given in zip(members, self.made_up, strict=False)]


def pairs_of(partitions):
    return [(name, number) for name, numbers in partitions.items() for number in numbers]


def assert_divided(s):
    """All that there is, each once, and nothing else; a coordinator that takes over has the same."""
    owned = [pair for partitions in s.owned_by().values() for pair in pairs_of(partitions)]
    assert sorted(owned) == sorted(THERE)
    before = s.owned_by(), s.machine.size_bytes
    s.start()
    assert (s.owned_by(), s.machine.size_bytes) == before


def settle(s, new, *classic):
    for _ in range(40):
        seen = [client.seen for client in classic]
        for client in classic:
            client.go_on()
        new.beat()
        is_settled = new.is_settled and all(client.is_settled for client in classic)
        if is_settled and seen == [client.seen for client in classic] and s.described().state == "Stable":
            return
        s.wait(1_000)
    raise AssertionError(s.described())


@settings(max_examples=60, deadline=None)
@given(MADE_UP, st.sampled_from([EAGER, COOPERATIVE]), st.integers(0, 3))
def test_what_a_leader_makes_up_goes_there_and_back_again(made_up, protocol, size):
    s = MixedScenario(TOPICS)
    clients = [Inventive(s, name, "t", "u", protocol=protocol) for name in "abc"]
    for client in clients:
        client.made_up = made_up[:size]
    s.until_in(*clients)
    new = Client(s, "n", "t", "u")
    shares = [pair for given_to in made_up[:size] for pair in pairs_of(given_to) if pair in THERE]
    told = new.beat()
    for client in clients:
        client.made_up = ()
    if len(set(shares)) < len(shares):
        assert (told.error_code, s.kind()) == (ErrorCode.GROUP_ID_NOT_FOUND, "classic")
        clients[0].leave()
        s.until_in(*clients)
        told = new.beat()
    assert (told.error_code, s.kind()) == (ErrorCode.NONE, "consumer")
    settle(s, new, *clients)
    assert_divided(s)

    new.leave()
    assert s.kind() == "classic"
    for client in clients:
        client.made_up = made_up[:size]
    for client in clients:
        client.go_on()
    s.start()
    for client in clients:
        client.made_up = ()
        client.state = "out"
    s.until_in(*clients)
    worked_on = [pair for client in clients for pair in pairs_of(client.owned)]
    assert sorted(worked_on) == sorted(THERE)
    new = Client(s, "m", "t", "u")
    assert new.beat().error_code is ErrorCode.NONE
    settle(s, new, *clients)
    assert_divided(s)
