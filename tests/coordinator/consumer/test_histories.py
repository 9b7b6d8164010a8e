"""Random histories of consumer groups: honest clients, some slow, some silent, some of whose answers are lost; topics
that change, a slow log, crashes. By what clients were told no partition ever has two owners.

A history is a list of small numbers, so that a failing one becomes short.
"""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.coordinator.consumer.members_alone import MembersAlone, any_assignor, loaded
from tpc_broker.coordinator.consumer import ahead
from tpc_broker.coordinator.consumer.group import ConsumerGroup, ConsumerState, MemberState, partitions_of
from tpc_broker.coordinator.consumer.records import read_consumer_key, read_consumer_value
from tpc_broker.coordinator.group import Held
from tpc_broker.error_codes import ErrorCode

SESSION_MS = 10_000
TIMEOUTS_MS = [2_000, 4_000, 30_000]
TOPICS = ["a", "b", "ab"]
NAMES = [(), ("a",), ("a",), ("b",), ("a", "b"), ("a", "ab", "b"), ("a", "none")]
PATTERNS = ["", "", "", "a.*", "a.*", ".*b", "none.*"]
RACKS = [None, "r1", "r2"]
STEPS = 120
KEPT_PARTS = ("stored_epoch", "stored_target_epoch", "members", "targets", "currents", "regexes", "static_members")
COUNTED_PARTS = ("names", "patterns", "size_bytes", "_owners", "_epochs")


class Client:
    """An honest consumer. `has`: what it uses; `told`: what it was told to have, None before the first answer."""

    def __init__(self, member_id, instance_id, group, history):
        self.member_id, self.instance_id, self.group = member_id, instance_id, group
        self.names, self.pattern, self.rack = history.pick(NAMES), history.pick(PATTERNS), None
        self.timeout_ms = history.pick(TIMEOUTS_MS)
        self.epoch = 0
        self.has, self.told = set(), set()
        self.says_all = True
        self.token = None
        self.heard_ms = self.revoking_ms = None

    def said(self):
        """What its next heartbeat says beside its epoch."""
        owned = {}
        for topic_id, partition in self.has:
            owned[topic_id] = owned.get(topic_id, frozenset()) | {partition}
        said = {"instance_id": self.instance_id}
        if self.epoch == 0 or self.says_all:
            said |= {
                "topic_names": self.names,
                "topic_regex": self.pattern or ("" if self.says_all else None),
                "rebalance_timeout_ms": self.timeout_ms,
                "rack_id": self.rack,
                "owned": owned,
            }
        elif self.has != self.said_has:
            said["owned"] = owned
        self.said_has = set(self.has)
        return said

    def give_back(self):
        self.has &= self.told

    def begin_again(self):
        """It gives up all that it has, and is to join."""
        self.has, self.told, self.epoch, self.says_all = set(), set(), 0, True


class History:
    def __init__(self, seed, interval_ms=0, pieces=1):
        self.numbers = random.Random(seed)
        self.s = MembersAlone(
            any_assignor(seed, pieces),
            assignment_interval_ms=interval_ms,
            session_timeout_ms=SESSION_MS,
            regex_refresh_interval_ms=60_000,
        )
        self.s.on_durable, self.s.on_reply = self.is_durable, self.is_answered
        self.durable, self.durable_held = {}, Held()
        self.clients = []
        self.sent = {}
        self.found = []
        self.count = 0
        self.seen = Counter()
        for name in TOPICS[:2]:
            self.s.topics.put(name, 3)
        weights = {
            self.join: 6, self.heartbeat: 30, self.give_back: 8, self.lose: 8, self.change: 3, self.leave: 2,
            self.leave_for_a_while: 5, self.grow: 3, self.delete_topic: 1, self.settle: 8, self.settle_one: 1,
            self.work: 8, self.look_up: 4, self.resolve: 4, self.wait: 6, self.set_clock: 1, self.crash: 1,
            self.crowd: 1, self.delete_group: 1, self.forget_epoch: 1,
            self.deaf: 3, self.far_behind: 1,
        }  # fmt: skip
        self.operations = [each for each, weight in weights.items() for _ in range(weight)]

    def pick(self, choices):
        return choices[self.numbers.randrange(len(choices))]

    def run(self, steps):
        for operation, seed in steps:
            self.numbers = random.Random(seed)
            self.operations[operation % len(self.operations)]()
            self.harvest()
            self.check()
        return self

    # What happens

    def join(self):
        if len(self.clients) >= 6:
            return
        self.count += 1
        taken = {client.instance_id for client in self.clients}
        instance = self.pick([None, None, "i", "j"])
        if instance in taken and self.numbers.random() < 0.8:
            instance = None
        self.clients.append(Client(f"m{self.count}", instance, "g", self))

    def any_client(self):
        return self.pick(self.clients) if self.clients else None

    def heartbeat(self):
        client = self.any_client()
        if client is not None and client.token is None:
            self.send(client)

    def send(self, client):
        """It is decided at once, and answered when that is durable."""
        if client.epoch == 0:
            client.has, client.told = set(), set()
        said = client.said()
        client.says_all = False
        client.token = self.s.send(client.member_id, client.epoch, client.group, **said)
        group = self.s.groups.get(client.group)
        if group is not None and client.member_id in group.members:
            client.revoking_ms = client.revoking_ms or self.s.now
            if group.current_of(client.member_id).state != MemberState.UNREVOKED_PARTITIONS:
                client.revoking_ms = self.s.now
            may_have = group.subscribed_names(group.members[client.member_id])
        else:
            may_have = frozenset()
        self.sent[client.token] = (client, client.epoch, may_have, client, self.s.now)

    def crowd(self):
        for client in list(self.clients):
            if client.token is None:
                self.send(client)

    def give_back(self):
        client = self.any_client()
        if client is not None:
            client.give_back()

    def lose(self):
        """It hears no answer to what it has sent, and says all again."""
        client = self.any_client()
        if client is not None and client.token is not None:
            self.sent[client.token] = (None, *self.sent[client.token][1:])
            client.token, client.says_all = None, True
            self.seen["lost"] += 1

    def deaf(self):
        """It hears nothing for some time, and says all again and again, while others go on."""
        client = self.any_client()
        if client is None:
            return
        for _ in range(3):
            if client.token is not None:
                self.sent[client.token] = (None, *self.sent[client.token][1:])
            client.says_all = True
            self.send(client)
            self.s.work()
            self.s.settle()
            self.sent[client.token] = (None, *self.sent[client.token][1:])
            client.token, client.says_all = None, True
            self.harvest()
            self.check()
            other = self.any_client()
            other.give_back()
            if other is not client and other.token is None:
                self.send(other)
        self.seen["lost"] += 1

    def far_behind(self):
        """The disk is, or the memory of the groups is full; or no more."""
        self.s.has_room = not self.s.has_room or self.numbers.random() < 0.3
        self.s.bytes_left = self.numbers.choice([0, 1 << 30])

    def change(self):
        client = self.any_client()
        if client is not None:
            client.names, client.pattern, client.rack = self.pick(NAMES), self.pick(PATTERNS), self.pick(RACKS)
            client.says_all = True

    def forget_epoch(self):
        """It begins anew with its member id."""
        client = self.any_client()
        if client is not None and client.token is None:
            client.begin_again()

    def leave(self):
        client = self.any_client()
        if client is not None:
            self.clients.remove(client)
            self.s.send(client.member_id, -1, client.group, instance_id=client.instance_id)

    def leave_for_a_while(self):
        client = self.any_client()
        if client is not None and client.instance_id is not None:
            self.clients.remove(client)
            self.s.send(client.member_id, -2, client.group, instance_id=client.instance_id)
            if self.numbers.random() < 0.8:
                self.count += 1
                other = Client(f"m{self.count}", client.instance_id, client.group, self)
                if self.numbers.random() < 0.6:
                    other.names, other.pattern = client.names, client.pattern
                if self.numbers.random() < 0.2:
                    other.member_id = client.member_id
                self.clients.append(other)

    def grow(self):
        name = self.pick(TOPICS)
        topic = self.s.topics.named(name)
        self.s.topics.put(name, min(8, self.numbers.randrange(1, 4) + (0 if topic is None else topic.partitions_count)))

    def delete_topic(self):
        self.s.topics.delete(self.pick(TOPICS))

    def settle(self):
        self.s.settle()

    def settle_one(self):
        self.s.settle(1)

    def work(self):
        self.s.work(self.numbers.randrange(1, 4))

    def look_up(self):
        self.found += self.s.looked_up()

    def resolve(self):
        """What was looked up some time ago becomes known, in any order."""
        if self.found:
            self.s.resolve([self.found.pop(self.numbers.randrange(len(self.found)))])

    def wait(self):
        self.wait_for(self.pick([1, 300, 1_000, 2_500, 9_000, 12_000]))

    def wait_for(self, ms):
        gone = {member_id: member.rebalance_timeout_ms for member_id, member in self.members().items()}
        self.s.pass_time(ms)
        for member_id in self.members():
            gone.pop(member_id, None)
        for client in self.clients:
            if client.member_id in gone and client.revoking_ms is not None:
                was_silent = client.heard_ms is None or self.s.now - client.heard_ms >= SESSION_MS
                was_slow = self.s.now - client.revoking_ms >= gone[client.member_id]
                assert was_silent or was_slow, (client.member_id, self.s.now, client.heard_ms)
                self.seen["out"] += 1
                client.begin_again()  # its own clock says so, too
                client.token = None

    def set_clock(self):
        by_ms = self.pick([-3_600_000, 3_600_000])
        self.s.now += by_ms
        self.s.timers.shift(by_ms)
        self.sent = {token: (*sent[:4], sent[4] + by_ms) for token, sent in self.sent.items()}
        for client in self.clients:
            client.heard_ms = client.heard_ms and client.heard_ms + by_ms
            client.revoking_ms = client.revoking_ms and client.revoking_ms + by_ms

    def crash(self):
        """What is not durable is lost, and who waits hears nothing."""
        self.s.settle(self.numbers.randrange(3))
        self.harvest()
        self.s.start()
        self.sent.clear()
        self.found.clear()
        for client in self.clients:
            if client.heard_ms is not None:
                client.heard_ms = client.revoking_ms = self.s.now
            if client.token is not None:
                client.token, client.says_all = None, True
        self.seen["crashes"] += 1

    def delete_group(self):
        if "g" in self.s.groups and not self.s.groups["g"].members:
            self.s.delete_group("g")
            self.seen["deleted"] += 1

    # What must be true

    def members(self):
        return self.s.groups["g"].members if "g" in self.s.groups else {}

    def is_durable(self, records):
        for record in records:
            key = read_consumer_key(record.key)
            group = self.durable.setdefault(key.group_id, ConsumerGroup(key.group_id, self.durable_held))
            before = group.stored_epoch, group.stored_target_epoch
            value = None if record.value is None else read_consumer_value(key.key_type, record.value)
            group.apply(key, value)
            for old, new in zip(before, (group.stored_epoch, group.stored_target_epoch), strict=True):
                assert old is None or new is None or old.epoch <= new.epoch

    def harvest(self):
        """Clients read their answers, each as it came."""
        for token in sorted(self.s.replies):
            response = self.s.replies.pop(token)
            nobody = (None, 0, frozenset(), None, 0)
            client, sent_epoch, may_have, sender, sent_ms = self.sent.pop(token, nobody)
            self.seen[response.error_code.name] += 1
            if sender is not None and response.error_code == ErrorCode.NONE:
                sender.heard_ms = max(sender.heard_ms or 0, sent_ms)
            if client is None or client.token != token:
                continue
            client.token = None
            if response.error_code == ErrorCode.NONE:
                self.hear(client, response, sent_epoch, may_have)
            elif response.error_code in {
                ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND
            }:  # fmt: skip
                client.begin_again()
            elif response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
                client.says_all = True
            else:
                assert response.error_code == ErrorCode.UNRELEASED_INSTANCE_ID, response
                self.clients = [each for each in self.clients if each is not client]  # it gives up

    def hear(self, client, response, sent_epoch, may_have):
        assert sent_epoch <= response.member_epoch
        assert response.member_id == client.member_id
        client.epoch = response.member_epoch
        if response.assignment is None:
            return
        client.told = {(topic_id, each) for topic_id, parts in response.assignment.items() for each in parts}
        names = {self.s.topics.ever[topic_id] for topic_id in response.assignment}
        assert names <= may_have, "of what it does not subscribe to"
        client.has |= client.told

    def check(self):
        uses = Counter(part for client in self.clients for part in client.has)
        assert all(count == 1 for count in uses.values()), "a partition has two owners"
        for group in self.s.groups.values():
            self.seen[group.state.value] += 1
            self.seen.update({current.state for current in group.currents.values()})
            assert group.target_epoch <= group.epoch
            assert all(current.epoch <= group.target_epoch for current in group.currents.values())
            assert group.targets.keys() | group.currents.keys() <= group.members.keys()
            assert group.regexes.keys() <= group.patterns.keys()
            self.check_kept(group)
        assert self.s.held.size_bytes == sum(group.size_bytes for group in self.s.groups.values())

    def check_kept(self, group):
        """What is kept of what a group subscribes to, and of its state, is what there is."""
        subscribed, topics = self.s.members.subscribed, self.s.topics
        kept, group.hashed = subscribed.hash_of(group), None
        assert kept == subscribed.hash_of(group)
        for member_id, member in group.members.items():
            known = map(topics.named, group.subscribed_names(member))
            assert subscribed.ids_of(group, member_id) == {topic.topic_id for topic in known if topic is not None}
        is_stable = bool(group.members) and group.epoch == group.target_epoch
        assert (group.state.value == "Stable") == (is_stable and all(map(group.is_settled, group.members)))

    def is_answered(self, _token, response):
        """What is told is what is durable at that moment."""
        if response.error_code != ErrorCode.NONE:
            return
        group = self.durable["g"]
        if response.member_epoch == -1:
            assert response.member_id not in group.members
            return
        current = group.current_of(response.member_id)
        assert response.member_id in group.members
        assert current.epoch == response.member_epoch
        assert response.assignment is None or response.assignment == partitions_of(current.assigned)

    def check_replay(self):
        """Another coordinator that reads the log has the same, also from the last record of each key, in any order."""
        records = [record for group in self.s.groups.values() for record in group.records()]
        self.numbers.shuffle(records)
        for source in [[record for batch in self.s.log for record in batch], records]:
            groups, held = loaded(source)
            mine = {group_id: group for group_id, group in self.s.groups.items() if group.is_stored}
            assert groups.keys() == mine.keys()
            assert held.size_bytes == sum(group.size_bytes for group in mine.values())
            for group_id, group in mine.items():
                for part in (*KEPT_PARTS, *COUNTED_PARTS):
                    assert getattr(groups[group_id], part) == getattr(group, part), part

    def check_prefixes(self):
        """A coordinator that finds only so much of the log can begin with it."""
        for end in range(len(self.s.log)):
            groups, _held = loaded([record for batch in self.s.log[:end] for record in batch])
            for group in groups.values():
                assert group.targets.keys() | group.currents.keys() <= group.members.keys()

    # The end

    def finish(self):
        self.s.settle()
        self.harvest()
        self.check()
        self.check_replay()
        self.calm()
        self.check_replay()
        self.check_prefixes()
        self.all_leave()
        return self.seen

    def calm(self):
        """Everybody does what it is told, and nothing else happens: it comes to rest, whoever is away is out. Then
        topics change, and that alone.
        """
        self.s.has_room, self.s.bytes_left = True, 1 << 30
        self.come_to_rest(24)
        self.stay_at_rest()
        for name in TOPICS:
            self.s.topics.put(name, 9)
        self.come_to_rest(12)

    def come_to_rest(self, rounds):
        for _round in range(rounds):
            for client in list(self.clients):
                client.token = None
                client.give_back()
                self.send(client)
                self.s.work()
                self.s.resolve()
                self.s.settle()
                self.harvest()
                self.check()
            self.wait_for(1_000)
            self.s.settle()
        if not self.clients:
            return
        group = self.s.groups["g"]
        assert group.state == ConsumerState.STABLE, group.currents
        assert group.members.keys() == {client.member_id for client in self.clients}
        wanted = set()
        for client in self.clients:
            names = set(client.names) | set(self.s.match(client.pattern).topics if client.pattern else ())
            topics = [topic for topic in map(self.s.topics.named, names) if topic is not None]
            may_have = {(topic.topic_id, each) for topic in topics for each in range(topic.partitions_count)}
            assert client.has <= may_have
            wanted |= may_have
            held = partitions_of(group.currents[client.member_id].assigned)
            assert client.has == {(topic_id, each) for topic_id, parts in held.items() for each in parts}
        assert set().union(*(client.has for client in self.clients)) == wanted

    def stay_at_rest(self):
        """Another coordinator begins, metadata change that are of no concern: no epoch rises, nothing is written."""
        self.s.start()
        self.s.topics.put("other", len(self.s.log) + 1)
        epochs = {group_id: (group.epoch, group.target_epoch) for group_id, group in self.s.groups.items()}
        writes = len(self.s.log)
        for client in self.clients:
            self.send(client)
        self.s.settle()
        self.harvest()
        assert epochs == {group_id: (group.epoch, group.target_epoch) for group_id, group in self.s.groups.items()}
        assert len(self.s.log) == writes

    def all_leave(self):
        for client in self.clients:
            self.s.send(client.member_id, -1, instance_id=client.instance_id)
        self.clients.clear()
        self.s.settle()
        self.wait_for(3 * SESSION_MS)
        self.s.work()
        self.s.settle()
        assert self.s.timers.next_deadline_ms() is None
        assert not self.s.members.assigning.has_work
        assert self.s.held.size_bytes == 0
        for group in self.s.groups.values():
            assert group.state == ConsumerState.EMPTY
            assert not any((group.members, group.targets, group.currents, group.regexes, group._owners))
            assert not any((group.names, group.patterns, group.static_members, group.metadata_hash))
            assert group.size_bytes == 0
        for group_id in list(self.s.groups):
            self.s.delete_group(group_id)
        self.s.settle()
        assert loaded([record for batch in self.s.log for record in batch])[0] == {}


steps = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 1 << 16)), min_size=20, max_size=STEPS)


@settings(max_examples=200)
@given(steps, st.integers(0, 20), st.sampled_from([0, 0, 1_000]), st.sampled_from([1, 2, 3, 6]))
def test_a_history_keeps_every_promise(steps, seed, interval_ms, pieces):
    History(seed, interval_ms, pieces).run(steps).finish()


def long_history(seed):
    chance = random.Random(seed)
    steps = [(chance.randrange(1 << 20), chance.randrange(1 << 20)) for _ in range(350)]
    return History(seed, chance.choice([0, 1_000]), chance.choice([1, 1, 3, 6])).run(steps).finish()


@pytest.mark.parametrize("seed", range(24))
def test_a_long_history_keeps_every_promise(seed):
    long_history(seed)


@pytest.mark.parametrize("seed", range(100, 108))
def test_a_decision_may_be_cut_off_between_its_batches(seed, monkeypatch):
    monkeypatch.setattr(ahead, "OWN_BATCH_BYTES_MAX", 300)
    long_history(seed)


def test_the_histories_go_everywhere():
    seen = sum((long_history(seed) for seed in range(200, 208)), Counter())
    often = ["Empty", "Assigning", "Reconciling", "Stable", *MemberState, "lost", "out", "crashes"]
    often.remove(MemberState.UNKNOWN)
    assert all(seen[each] > 10 for each in often), seen
    seldom = ["FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "UNRELEASED_INSTANCE_ID", "deleted"]
    assert all(seen[each] > 1 for each in seldom), seen
