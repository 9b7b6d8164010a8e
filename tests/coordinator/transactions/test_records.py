"""Records of `__transaction_state`: what later releases wrote, what is damaged, what is told again."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.coordinator.transactions.places import in_state
from tests.coordinator.transactions.scenario import A, B, C, TransactionScenario, replayed
from tests.support.stored_records import stored_records
from tpc_broker.coordinator import RecordDamagedError
from tpc_broker.coordinator.transactions.messages import ListFilter
from tpc_broker.coordinator.transactions.records import (
    read_transaction,
    read_transaction_key,
    state_of,
    times_at_rest,
    transaction_key,
    transaction_record,
    transaction_value,
    value_by_schema,
)
from tpc_broker.coordinator.transactions.states import AT_REST, PREPARED, State
from tpc_broker.coordinator.transactions.transaction import TopicPartition, Transaction
from tpc_broker.error_codes import ErrorCode as E

STORED = [each for each in State if each in AT_REST | PREPARED | {State.ONGOING}]
FULL = Transaction(
    7, 3, State.ONGOING, 60_000, 1_234, 1_000, (A, B, TopicPartition("other", 5)), 6, 8, 2
)  # fmt: skip
OLD = replace(FULL, previous_producer_id=-1, next_producer_id=-1, client_version=0)


@pytest.mark.parametrize("state", STORED)
@pytest.mark.parametrize("version", [0, 1])
def test_a_transaction_is_read_as_it_was_written(version, state):
    wanted = replace(FULL if version else OLD, state=state, partitions=() if state in AT_REST else FULL.partitions)
    value = transaction_value(wanted, version)
    assert read_transaction(value) == wanted
    assert state_of(value) is state
    if state in AT_REST:
        assert times_at_rest(value) == (1_234, 1_000)


NUMBERS = st.integers(-1, (1 << 63) - 1)


@settings(deadline=None)
@given(
    st.builds(
        Transaction, NUMBERS, st.integers(0, 32_767), st.sampled_from(STORED), st.integers(0, (1 << 31) - 1),
        NUMBERS, NUMBERS,
        st.lists(st.builds(TopicPartition, st.sampled_from(["a", "ü" * 90]), st.integers(0, 1 << 20))).map(tuple),
        NUMBERS, NUMBERS, st.integers(0, 2),
    )
)  # fmt: skip
def test_what_is_made_by_hand_is_what_the_schema_says(transaction):
    assert transaction_value(transaction) == value_by_schema(transaction, 1)


def test_many_partitions_are_made_by_hand_too():
    wide = replace(FULL, partitions=tuple(A._replace(partition=index) for index in range(10_000)))
    assert transaction_value(wide) == value_by_schema(wide, 1)


def test_times_are_found_behind_partitions_as_well():
    for version in (0, 1):
        for partitions in ((A,), tuple(A._replace(partition=index) for index in range(300))):
            value = transaction_value(replace(FULL, state=State.COMPLETE_ABORT, partitions=partitions), version)
            assert times_at_rest(value) == (1_234, 1_000)


def test_keys():
    for name in ("t", "ü" * 1_000, "a b"):
        assert read_transaction_key(transaction_key(name)) == name
    assert read_transaction_key(b"\x00\x01anything") is None


def test_what_cannot_be_read_is_damage():
    value = transaction_value(FULL)
    for cut in range(len(value)):
        with pytest.raises(RecordDamagedError):
            replayed([(transaction_key("t"), value[:cut])])
    for key in (b"", b"\0", b"\0\0", transaction_key("t")[:-1]):
        with pytest.raises(RecordDamagedError):
            replayed([(key, value)])
    with pytest.raises(RecordDamagedError):
        read_transaction(b"\0\2" + value[2:])


LATER = [b"\0\2of a later release", *(
    value[:16] + bytes([status]) + value[17:] for status in (6, 7, 99) for value in [transaction_value(FULL)]
)]  # fmt: skip


@pytest.mark.parametrize("value", LATER)
def test_values_of_later_releases_are_kept_and_their_ids_refused(value):
    s, p = in_state(State.ONGOING)
    s.log.append((transaction_key("t"), value))
    s.log = [each if hasattr(each, "key") else type(s.log[0])(*each) for each in s.log]
    s.start()
    assert s.stored_records() == [(transaction_key("t"), value)]
    for told in (s.init(), s.init(producer=p), s.end(p, commit=True), s.add(p, C), *s.verify(p, A)):
        assert told is E.UNKNOWN_SERVER_ERROR
    assert s.machine.describe("t").error_code is E.UNKNOWN_SERVER_ERROR
    assert s.listed() == []
    assert s.init(name="u") is not E.UNKNOWN_SERVER_ERROR
    s.log.append(transaction_record("t", replace(FULL, state=State.EMPTY, partitions=())))
    s.start()
    assert s.state() == "Empty", "written anew by a release that is known"


def test_keys_of_later_releases_are_kept_until_they_are_removed():
    other = b"\0\5a key of a later release"
    machine, _ = replayed([(other, b"anything")])
    assert stored_records(machine) == [(other, b"anything")]
    machine, _ = replayed([(other, b"anything"), (other, None)])
    assert stored_records(machine) == []
    assert not any(machine.list_transactions(ListFilter(), 0))


def test_a_level_of_0_writes_what_older_releases_read():
    s = TransactionScenario(0)
    p = s.init()
    s.add(p, A)
    s.end(p, commit=True)
    assert {value[:2] for _key, value in s.log} == {b"\0\0"}
    assert s.stored().producer_epoch == p.epoch, "and no client has its epoch raised there"


@pytest.mark.parametrize("server_version", [0, 1, 2])
def test_what_was_just_written_is_known_as_it_would_be_read(server_version):
    """Version 0 does not say whom an abort for somebody else has fenced."""
    s = TransactionScenario(server_version)
    p = s.init()
    s.add(p, A, B)
    s.hold_markers = True
    s.ask_init()
    found = s.machine._stored.find("t")
    assert (found.state, found) == (State.PREPARE_ABORT, read_transaction(s.log[-1].value))
    s.write_markers()
    found = s.machine._stored.find("t")
    assert (found.state, found) == (State.COMPLETE_ABORT, read_transaction(s.log[-1].value))
