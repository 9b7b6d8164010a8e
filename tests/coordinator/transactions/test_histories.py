"""Random histories: honest clients of both versions, of which new ones fence old ones, lost and late requests, a log
that is slow and fails, markers that are lost, late and told twice, time, crashes between any two records.

Beside it a small model: what clients were told, what is durable, which markers were written. By it

- an epoch is told to one client alone, and epochs of an id only rise;
- a transaction ends at most once, with one result, in all its partitions, and as its client was told;
- a late EndTxn of a client of version 2 never ends a later transaction;
- whatever is durable when the coordinator dies is all that the next one knows.

A history is a list of small numbers, so that a failing one becomes short.
"""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.coordinator.transactions.scenario import Producer, TransactionScenario, replayed, stored
from tests.support.stored_records import stored_records
from tpc_broker.coordinator.transactions.records import (
    name_of,
    read_transaction,
    read_transaction_key,
    transaction_record,
)
from tpc_broker.coordinator.transactions.states import AT_REST, PREPARED, TRANSITIONS, State
from tpc_broker.coordinator.transactions.transaction import TopicPartition, Transaction
from tpc_broker.error_codes import ErrorCode as E

NAMES = ["t", "u"]
PARTITIONS = [TopicPartition("data", index) for index in range(4)]
SHARING = [set(PARTITIONS), set(PARTITIONS[:3])]
"""Those that stand in the coordinator's journal."""
STEPS = 250
COMES_AGAIN = {
    E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_NOT_AVAILABLE, E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS,
}  # fmt: skip


class Client:
    """An instance of an application: one thing at a time. `began`: where the log was when its transaction began."""

    def __init__(self, name, version):
        self.name, self.version = name, version
        self.producer = None
        self.begins = True
        """It has to ask for an epoch; with the one that it has, if any."""
        self.is_dead = False
        self.token = self.asked = None
        self.forget()

    def forget(self):
        self.added, self.began, self.wants = set(), None, None


class Watched(TransactionScenario):
    """Tells its history what happens."""

    def __init__(self, history, server_version, **more):
        self.history = history
        super().__init__(server_version, **more)

    def on_reply(self, token, response):
        self.history.answers.append((token, response, len(self.log)))

    def on_marker(self, marker):
        self.history.is_marked(marker)


class History:
    def __init__(self, seed):
        self.numbers = random.Random(seed)
        self.told = {}
        self.ends = []
        """EndTxn requests that were sent: they may come late."""
        self.answers = []
        self.clients = []
        self.by_token = {}
        self.marked = []
        self.seen = Counter()
        self.checked = self.applied = 0
        self.durable = {}
        self.prepared = {}
        self.s = Watched(
            self, self.pick([1, 2, 2]), markers_max=self.pick([2, 99]),
            expiration_ms=40_000, expiration_interval_ms=5_000,
            shares_journal=self.pick([set(), *SHARING]).__contains__,
        )  # fmt: skip
        self.s.hold = self.s.hold_markers = True
        if self.numbers.random() < 0.4:
            self.s.next_id = 1
            self.put("t", Transaction(1, 32_763, State.EMPTY, 10_000, self.s.now))
        weights = {
            self.come: 5, self.act: 60, self.settle: 30, self.settle_one: 6, self.fail: 3, self.mark: 20,
            self.mark_one: 6, self.mark_again: 8, self.lose: 8, self.late_end: 6, self.wait: 5, self.wait_long: 1,
            self.crash: 2, self.die: 1, self.without_ids: 1, self.set_clock: 1,
        }  # fmt: skip
        self.operations = [each for each, weight in weights.items() for _ in range(weight)]

    def put(self, name, transaction):
        self.s.log.append(transaction_record(name, transaction))
        self.checked = len(self.s.log)
        self.prepared[name] = transaction
        self.s.start()

    def pick(self, choices):
        return choices[self.numbers.randrange(len(choices))]

    def run(self, steps):
        for operation, seed in steps:
            self.numbers = random.Random(seed)
            self.operations[operation % len(self.operations)]()
            self.check()
        self.finish()
        return self

    # What happens

    def come(self):
        """A new instance: whoever had the id is fenced, and may not know of it."""
        self.clients = [one for one in self.clients if not one.is_dead]
        if len(self.clients) < 5:
            versions = [0, 2] if self.s.server_version < 2 else [0, 2, 2]
            self.clients.append(Client(self.pick(NAMES), self.pick(versions)))

    def act(self):
        free = [one for one in self.clients if one.token is None and not one.is_dead]
        if not free:
            return
        client = self.pick(free)
        s, p = self.s, client.producer
        if client.began is None and self.numbers.random() < 0.15:
            client.begins = True
        if client.begins:
            named = p if p is not None and self.numbers.random() < 0.8 else None
            client.asked = ("init", named)
            token = s.ask_init(client.name, named, timeout_ms=self.pick([10_000, 20_000]))
        elif client.wants is None and self.numbers.random() < 0.6:
            chosen = tuple(self.numbers.sample(PARTITIONS, self.pick([1, 2])))
            if client.began is None:
                client.began = len(s.log)
            verifies = self.numbers.random() < 0.2
            client.asked = ("verify" if verifies else "add", chosen)
            token = s.ask_add(p, *chosen, name=client.name, client_version=client.version, verify_only=verifies)
        else:
            if client.wants is None:
                client.wants = self.numbers.random() < 0.6
            if client.began is None:
                client.began = len(s.log)
            client.asked = ("end", client.wants)
            self.ends.append((client, p, client.wants, client.began))
            token = s.ask_end(p, commit=client.wants, name=client.name, client_version=client.version)
        client.token = token
        self.by_token[token] = client

    def settle(self):
        self.s.settle()

    def settle_one(self):
        self.s.settle(1)

    def fail(self):
        self.s.fail_with = self.pick([E.KAFKA_STORAGE_ERROR, E.NOT_ENOUGH_REPLICAS])
        self.s.marked_of_failed = self.pick([0, 1, 2])
        self.s.settle(self.pick([1, None]))
        self.s.fail_with, self.s.marked_of_failed = None, 0

    def mark(self):
        self.s.has_ids = True
        self.s.write_markers()

    def mark_one(self):
        self.numbers.shuffle(self.s.due)
        self.s.write_markers(1)

    def mark_again(self):
        """What the coordinator was told of a marker is told once more."""
        if self.s.markers:
            self.s.run(self.s.machine.markers_written([self.pick(self.s.markers[-8:])], self.s.now))

    def lose(self):
        """A client hears nothing of what it asked, and asks again."""
        waiting = [one for one in self.clients if one.token is not None]
        if waiting:
            self.by_token.pop(self.pick(waiting).token, None)
            for one in self.clients:
                if one.token is not None and one.token not in self.by_token:
                    one.token = None

    def late_end(self):
        """An EndTxn that was sent before comes now. Before version 2, whose epoch stays, nothing is to be done about it
        but in a later epoch.
        """
        if not self.ends:
            return
        client, p, commit, began = self.pick(self.ends)
        is_over = client.began != began or client.producer != p
        if is_over and client.version < 2 and client.producer == p:
            return
        count = len(self.s.held)
        self.s.ask_end(p, commit=commit, name=client.name, client_version=client.version)
        if is_over:
            assert len(self.s.held) == count, "it ends what it knows nothing of"
            self.seen["late end"] += 1

    def wait(self):
        self.s.elapse(self.pick([100, 3_000, 12_000]))

    def wait_long(self):
        self.s.elapse(60_000)

    def set_clock(self):
        by_ms = self.pick([-5_000, 50_000])
        self.s.now += by_ms
        self.s.machine.clock_was_set(by_ms)

    def without_ids(self):
        """For a while."""
        self.s.has_ids = False

    def crash(self):
        """Of what is under way some is durable, of which nobody heard."""
        self.seen["in one step"] += any(write.markers for write in self.s.held)
        durable = self.numbers.randrange(len(self.s.held) + 1)
        for write in self.s.held[:durable]:
            if write.markers and self.s.has_failed:
                break  # it goes with the one before it, which failed
            self.s.has_failed = False
            self.s.mark(write.markers)
            self.s.log.extend(write.records)
        else:
            if durable < len(self.s.held) and not self.s.has_failed:
                markers = self.s.held[durable].markers
                self.s.mark(markers[: self.numbers.randrange(len(markers) + 1)])
        self.s.has_failed = False
        waiting = [one for one in self.clients if one.token is not None]
        for one in waiting:
            self.by_token.pop(one.token, None)
            one.token = None
        self.answers.clear()
        self.s.start()
        self.seen["crash"] += 1

    def die(self):
        """An instance goes for good, in the midst of anything."""
        alive = [one for one in self.clients if not one.is_dead]
        if len(alive) > 1:
            one = self.pick(alive)
            one.is_dead = True
            self.by_token.pop(one.token, None)
            one.token = None

    # What clients make of answers

    def harvest(self):
        while self.answers:
            token, response, log_end = self.answers.pop(0)
            client = self.by_token.pop(token, None)
            if client is None:
                continue
            assert client.token == token
            client.token = None
            kind, detail = client.asked
            self.seen[kind, response.error_code.name] += 1
            getattr(self, f"heard_{kind}")(client, response, detail, log_end)

    def heard_init(self, client, response, _named, _log_end):
        if response.error_code is E.NONE:
            self.gets(client, response)
            client.begins = False
            client.forget()
        elif response.error_code not in COMES_AGAIN:
            assert response.error_code is E.PRODUCER_FENCED, response
            client.is_dead = True

    def gets(self, client, response):
        client.producer = Producer(response.producer_id, response.producer_epoch)
        assert 0 <= client.producer.epoch <= 32_766, "that of markers is nobody's"
        owner = self.told.setdefault((client.name, client.producer), client)
        assert owner is client, "two have one epoch"

    def heard_verify(self, client, response, chosen, log_end):
        if response.error_code is E.NONE and not response.missing:
            assert set(chosen) <= client.added | self.open_partitions(client, log_end)
        self.may_be_fenced(client, response.error_code)

    def heard_add(self, client, response, chosen, log_end):
        if response.error_code is E.NONE:
            client.added |= set(chosen)
            assert set(chosen) <= self.open_partitions(client, log_end), "it is not durable"
        self.may_be_fenced(client, response.error_code)

    def open_partitions(self, client, log_end):
        found = stored(self.s.log[:log_end])[client.name]
        assert (found.state, found.producer_id, found.producer_epoch) == (State.ONGOING, *client.producer)
        return set(found.partitions)

    def heard_end(self, client, response, commit, log_end):
        if response.error_code is E.NONE:
            self.must_have_ended(client, commit, log_end)
            if client.version == 2:
                self.gets(client, response)
            client.forget()
            self.seen["ended", client.version, commit] += 1
        elif response.error_code is E.INVALID_TXN_STATE:
            # Of nothing, or of what was ended otherwise: it gives this one up, and asks for an epoch.
            client.begins = True
            client.forget()
        self.may_be_fenced(client, response.error_code)

    def must_have_ended(self, client, commit, log_end):
        """The first end behind the beginning of its transaction is its own, with this result."""
        for position in range(client.began, log_end):
            key, value = self.s.log[position]
            if read_transaction_key(key) == client.name and value is not None:
                found = read_transaction(value)
                if found.state in PREPARED:
                    assert found.state is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)
                    assert client.added <= set(found.partitions)
                    assert found.producer_id == client.producer.producer_id
                    return
        # Before version 2 an abort is told for the one before, when there was nothing to end.
        assert client.version == 0 or self.s.server_version == 0, "nothing has ended"
        assert not client.added, "nothing has ended"

    def may_be_fenced(self, client, error):
        if error in (E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING):
            client.is_dead = error is E.PRODUCER_FENCED and self.numbers.random() < 0.5
            client.begins = True
            client.forget()
        else:
            assert error in COMES_AGAIN | {E.NONE, E.INVALID_TXN_STATE}, error

    # What is checked

    def is_marked(self, marker):
        self.marked.append((len(self.s.log), marker))

    def check(self):
        self.harvest()
        log = self.s.log
        for position in range(self.checked, len(log)):
            key, value = log[position]
            self.check_record(position, read_transaction_key(key), None if value is None else read_transaction(value))
        self.checked = len(log)
        for key, value in log[self.applied :]:
            self.durable.pop(key, None)
            if value is not None:
                self.durable[key] = value
        self.applied = len(log)
        assert dict(self.s.stored_records()) == self.durable, "it knows other things than what is durable"
        for key, value in self.durable.items():
            assert in_any_order(self.s.machine._stored.find(name_of(key))) == in_any_order(read_transaction(value))

    def check_record(self, position, name, new):
        was = self.prepared.get(name)
        self.prepared[name] = new
        if new is None:
            assert was.state in AT_REST
            self.prepared.pop(name)
            return
        if was is None:
            assert (new.state, new.producer_epoch) == (State.EMPTY, 0)
            return
        follows = set(TRANSITIONS[was.state]) | ({State.PREPARE_ABORT} if was.state is State.ONGOING else set())
        assert new.state in follows, (was.state, new.state)
        if new.producer_id == was.producer_id:
            assert was.producer_epoch <= new.producer_epoch <= was.producer_epoch + 1
        else:
            assert new.producer_id > was.producer_id, "it may be somebody else's"
            assert new.producer_epoch == 0
            assert was.producer_epoch >= 32_766
        if new.state in PREPARED:
            new = replace(new, start_ms=position)
            self.prepared[name] = new
            assert set(was.partitions) == set(new.partitions)
        elif was.state in PREPARED:
            for partition in was.partitions:
                assert self.has_marker(was, partition), f"{partition} has none"
        elif new.state is State.ONGOING and was.state is State.ONGOING:
            assert set(was.partitions) < set(new.partitions)

    def has_marker(self, ending, partition):
        wanted = partition, ending.producer_id, ending.producer_epoch, ending.state is State.PREPARE_COMMIT
        return any(
            at > ending.start_ms and wanted == (one.partition, one.producer_id, one.producer_epoch, one.commit)
            for at, one in self.marked
        )

    def finish(self):
        """When everything works again, all that has begun to end ends."""
        self.s.has_ids, self.s.hold, self.s.hold_markers = True, False, False
        self.s.settle()
        self.s.write_markers()
        self.s.elapse(30_000)
        self.check()
        assert self.s.machine.statistics().writes_pending == 0
        assert self.s.machine.statistics().markers_sent == 0
        assert {each.state for each in stored(self.s.log).values()} <= AT_REST
        assert self.s.machine._pending == {}
        results = {}
        for _at, one in self.marked:
            if one.transaction_version == 2:
                key = one.transactional_id, one.producer_id, one.producer_epoch
                assert results.setdefault(key, one.commit) == one.commit, "two results of one transaction"
        self.check_prefixes()

    def check_prefixes(self):
        """A machine that loads any prefix goes on from there as the log says."""
        for end in range(0, len(self.s.log) + 1, 7):
            prefix = self.s.log[:end]
            machine, effects = replayed(prefix)
            found = stored(prefix)
            assert set(stored_records(machine)) == {transaction_record(*each) for each in found.items()}
            owed = {(name, each) for name, one in found.items() if one.state in PREPARED for each in one.partitions}
            assert {(one.transactional_id, one.partition) for one in effects.markers} == owed


def in_any_order(transaction):
    return replace(transaction, partitions=frozenset(transaction.partitions))


def steps(seed, count=STEPS):
    numbers = random.Random(seed)
    return [(numbers.randrange(1 << 16), numbers.randrange(1 << 16)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(40))
def test_histories(seed):
    History(seed).run(steps(seed))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 1 << 16), st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 1 << 16)), max_size=60)
)  # fmt: skip
def test_short_histories(seed, of_numbers):
    History(seed).run(of_numbers)


def test_the_histories_reach_what_they_are_about():
    seen = Counter()
    for seed in range(100, 120):
        seen += History(seed).run(steps(seed)).seen
    for version in (0, 2):
        for commit in (True, False):
            assert seen["ended", version, commit] > 5
    assert seen["crash"] > 15
    assert seen["in one step"] > 3
    assert seen["late end"] > 15
    assert seen["init", "PRODUCER_FENCED"] > 5
    assert seen["end", "PRODUCER_FENCED"] > 5
    assert seen["add", "CONCURRENT_TRANSACTIONS"] > 5
