"""The table of states: what may follow what, and that each of it happens."""

from pathlib import Path

from tests.coordinator.transactions.places import in_state
from tests.coordinator.transactions.scenario import A, TransactionScenario
from tpc_broker.coordinator import Machine
from tpc_broker.coordinator.transactions import TransactionCoordinator
from tpc_broker.coordinator.transactions.records import read_transaction
from tpc_broker.coordinator.transactions.states import AT_REST, PREPARED, TRANSITIONS, State, state_diagram


class Watched(TransactionScenario):
    """Notes where each id goes, as its records and what is pending say."""

    def __init__(self, **limits):
        self.seen = set()
        self.last = None
        super().__init__(**limits)

    def run(self, effects):
        for write in effects.writes:
            for _key, value in write.records:
                way = self.machine._pending["t"]
                new = State.DEAD if value is None else read_transaction(value).state
                if way is State.PREPARE_EPOCH_FENCE:
                    self.seen.add((self.last, way))
                    self.last = way
                if self.last is not None:
                    self.seen.add((self.last, new))
                self.last = new
        super().run(effects)


def test_it_is_driven_like_any_machine() -> None:
    """Which is for mypy to say."""
    machine: Machine = TransactionCoordinator(1, lambda: None)
    assert machine.unload().writes == []


def test_each_transition_of_the_table_happens_and_no_other():
    s = Watched(expiration_ms=1_000_000, expiration_interval_ms=1_000)
    p = s.init()
    p = s.init()
    for commit in (True, False):
        for then in ("add", "abort", "init", "expire"):
            s.add(p, A)
            s.add(p, A, A._replace(partition=9))
            p = s.end(p, commit=commit)
            if then == "abort":
                p = s.end(p, commit=False)
            elif then == "init":
                p = s.init()
            elif then == "expire":
                s.elapse(1_001_000)
                s.last = None
                p = s.init()
    p = s.end(p, commit=False)
    p = s.init()
    s.add(p, A)
    s.init()
    s.init()
    s.elapse(1_001_000)
    assert s.seen == {(state, then) for state, follows in TRANSITIONS.items() for then in follows}


def test_every_state_can_be_brought_about():
    for state in State:
        s, _p = in_state(state)
        if state in AT_REST | PREPARED | {State.ONGOING}:
            assert s.state() == state.value
        else:
            assert s.machine._pending["t"] is state


def test_the_page_is_what_the_table_says():
    page = Path(__file__).parents[3] / "docs" / "transaction-states.md"
    assert f"```mermaid\n{state_diagram()}\n```\n" in page.read_text()


def test_the_diagram_has_all_of_them():
    lines = state_diagram().splitlines()
    assert len(lines) == 3 + sum(map(len, TRANSITIONS.values()))
    assert set(TRANSITIONS) == set(State)
