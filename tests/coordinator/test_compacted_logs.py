"""Of a coordinator's log its state is in whatever a cleaner leaves: random histories of the machines, cleaned at random
points, are replayed to the same state as the whole log.
"""

import random
from collections import Counter

import pytest

from tests.coordinator import test_properties
from tests.coordinator.consumer import test_histories as consumer_histories
from tests.coordinator.consumer import test_migration_properties
from tests.coordinator.consumer.members_alone import loaded
from tests.coordinator.scenario import Scenario, replay
from tests.coordinator.transactions import test_histories as transaction_histories
from tests.coordinator.transactions.scenario import replayed
from tests.support.compacted_records import AnyCleaner
from tests.support.stored_records import stored_records
from tpc_broker.coordinator import Producer, TransactionEnd
from tpc_broker.coordinator.records import OffsetKey, read_key

CLEANS = 0.2
"""How often a step is followed by a cleaner's pass."""


def state_of(machine):
    """Of groups and offsets."""
    pending = machine.pending
    described = sorted((group.group_id, group.protocol_type, group.group_state) for group in machine.list_groups())
    fetched = {group_id: sorted(map(str, machine.offset_fetch(group_id, require_stable=True).offsets))
               for group_id in "gh"}  # fmt: skip
    transactions = {
        producer_id: (transaction.producer_epoch, {
            group_id: (of_group.counting, of_group.outdone) for group_id, of_group in transaction.groups.items()
        }) for producer_id, transaction in pending._open.items()
    }  # fmt: skip
    return sorted(map(repr, stored_records(machine))), described, fetched, transactions, holders_of(pending)


def holders_of(pending):
    """Ids of producers that have something pending, by group and partition, in their order."""
    pending.bring_in()
    return {
        group_id: {each: [one.producer_id for one in pending._holders_of(group_id, each)] for each in held}
        for group_id, held in pending._holders.items()
    }


class Cleaned:
    """The log of a scenario, of which a cleaner has left as much as it likes."""

    def __init__(self, scenario, seed):
        self._scenario = scenario
        self._chance = random.Random(f"cleaner {seed}")
        self.cleaner = AnyCleaner(self._chance)

    def check(self, *, may_clean=True):
        self.cleaner.take(self._scenario.log)
        if may_clean and self._chance.random() < CLEANS:
            self.cleaner.clean()
            assert self.state(self.cleaner.entries()) == self.state(self._scenario.log)

    def state(self, entries):
        machine = self._scenario.new_machine()
        for entry in entries:
            replay(machine, entry)
        machine.finish_loading(self._scenario.now)
        return state_of(machine)


def members_that_join_and_sync(seed):
    history = test_properties.History(seed)
    cleaned = Cleaned(history.s, seed)
    for _ in range(test_properties.STEPS):
        history.step()
        cleaned.check()
    return cleaned.cleaner


def groups_that_change_their_kind(seed):
    protocol = [test_migration_properties.EAGER, test_migration_properties.COOPERATIVE][seed % 2]
    history = test_migration_properties.History(f"cleaned {seed}", protocol)
    cleaned = Cleaned(history.s, seed)
    for _ in range(test_migration_properties.STEPS):
        history.step()
        cleaned.check()
    return cleaned.cleaner


def consumer_groups(seed):
    """Alone, without the coordinator around them; their log is of batches."""
    history, chance = consumer_histories.History(seed), random.Random(f"cleaner {seed}")
    cleaner, check = AnyCleaner(chance), history.check
    parts = (*consumer_histories.KEPT_PARTS, *consumer_histories.COUNTED_PARTS)

    def state(records):
        groups, held = loaded(records)
        return held.size_bytes, {
            group_id: {part: getattr(group, part) for part in parts} for group_id, group in groups.items()
        }

    def check_both():
        check()
        log = [record for batch in history.s.log for record in batch]
        cleaner.take(log)
        if chance.random() < CLEANS:
            cleaner.clean()
            assert state(cleaner.entries()) == state(log)

    history.check = check_both
    history.run([(chance.randrange(1 << 20), chance.randrange(1 << 20)) for _ in range(200)])
    return cleaner


def transactional_ids(seed):
    history = transaction_histories.History(seed)
    chance = random.Random(f"cleaner {seed}")
    cleaner, check = AnyCleaner(chance), history.check

    def state(records):
        machine, effects = replayed(records)
        markers = Counter(one._replace(number=0) for one in effects.markers)
        return sorted(stored_records(machine)), machine.statistics(), markers, machine.next_deadline_ms()

    def check_both():
        check()
        cleaner.take(history.s.log)
        if chance.random() < CLEANS:
            cleaner.clean()
            assert state(cleaner.entries()) == state(history.s.log)

    history.check = check_both
    history.run(transaction_histories.steps(seed))
    return cleaner


class Offsets:
    """Of groups without members: plain commits, transactions of some producers, deletions, expiry; and records that say
    again what is stored, as coordinators of earlier releases have written them to shorten their logs.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.s = Scenario(offsets_retention_ms=60_000, offsets_retention_check_interval_ms=5_000)
        self.cleaned = Cleaned(self.s, seed)

    def step(self):
        operations = {
            self.commit: 5, self.txn_commit: 8, self.end: 5, self.delete_offsets: 2, self.delete: 0.5, self.wait: 3,
            self.say_again: 1,
        }  # fmt: skip
        self.group = self.random.choice("ggh")
        self.where = {"topic": self.random.choice("tu"), "partition": self.random.randrange(2), "group": self.group}
        self.random.choices(list(operations), list(operations.values()))[0]()
        self.cleaned.check()

    def commit(self):
        self.s.commit(self.random.randrange(100), **self.where)

    def txn_commit(self):
        producer = Producer(self.random.randrange(3), self.random.randrange(2))
        self.s.txn_commit(producer, offset=self.random.randrange(100), **self.where)

    def end(self):
        end = TransactionEnd(Producer(self.random.randrange(3), 1), self.random.random() < 0.6, 0)
        self.s.run(self.s.machine.marker(end, self.s.token("marker")))

    def delete_offsets(self):
        self.s.delete_offsets((self.where["topic"], self.where["partition"]), group=self.group)

    def delete(self):
        self.s.delete(self.group)

    def wait(self):
        self.s.wait(self.random.choice([1, 5_000, 70_000]))

    def say_again(self):
        holders = holders_of(self.s.machine.pending)
        pending = {OffsetKey(group_id, *partition) for group_id, of_group in holders.items() for partition in of_group}
        self.s.log += [record for record in self.s.stored_records() if read_key(record.key) not in pending]


def offsets_of_transactions_and_plain_ones(seed):
    history = Offsets(seed)
    for _ in range(200):
        history.step()
    return history.cleaned.cleaner


HISTORIES = [
    members_that_join_and_sync, groups_that_change_their_kind, consumer_groups, transactional_ids,
    offsets_of_transactions_and_plain_ones,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("history", HISTORIES)
def test_what_a_cleaner_leaves_is_replayed_to_the_same_state(history, seed):
    history(seed)


@pytest.mark.parametrize("history", HISTORIES)
def test_cleaners_find_something_to_remove(history):
    assert sum(history(seed).removed for seed in range(100, 104)) > 20
