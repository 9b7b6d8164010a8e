"""What is stored of consumer groups is all that a coordinator needs, in whatever order it comes."""

import random

import pytest

from tests.coordinator.consumer.scenario import SESSION_MS, Client, ConsumerScenario
from tests.coordinator.scenario import subscription
from tests.support.stored_records import stored_records
from tpc_broker.coordinator import Fate, GroupCoordinator, Record, RecordDamagedError
from tpc_broker.coordinator.consumer import ahead, heartbeats
from tpc_broker.coordinator.consumer.records import (
    CURRENT_KEY,
    GROUP_EPOCH_KEY,
    MEMBER_KEY,
    PARTITION_METADATA_KEY,
    REGEX_KEY,
    TARGET_EPOCH_KEY,
    TARGET_KEY,
    ConsumerKey,
    CurrentAssignment,
    GroupEpoch,
    ResolvedRegex,
    consumer_record,
    read_consumer_key,
)
from tpc_broker.coordinator.records import GroupMetadata, MemberMetadata, group_record
from tpc_broker.error_codes import ErrorCode

STEPS = 60


def loaded(log, s):
    """Another scenario that begins with these records, and knows the topics of this one."""
    other = ConsumerScenario()
    other.topics, other.settings, other.fates, other.now = s.topics, s.settings, s.fates, s.now
    other.log = list(log)
    other.start()
    return other


def stored(s):
    return sorted(map(repr, stored_records(s.machine)))


def seen(s):
    """All that can be asked of it."""
    groups = sorted(s.machine.list_groups(), key=lambda group: group.group_id)
    described = [s.described(group.group_id) for group in groups]
    members = [{one.member_id: one for one in group.members} for group in described]
    offsets = [sorted(map(str, s.machine.offset_fetch(group.group_id).offsets)) for group in groups]
    return groups, [(one.state, one.group_epoch, one.assignment_epoch) for one in described], members, offsets


class History:
    """Clients of two groups do what they are told, and sometimes something else. It is its seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.s = ConsumerScenario(topics={"t": 3, "u": 2, "ta": 1})
        self.clients = [
            Client(self.s, "a", "t", group="g"),
            Client(self.s, "b", "t", "u", group="g"),
            Client(self.s, "c", "u", group="g", instance_id="one"),
            Client(self.s, "d", topic_regex="t.*", group="h"),
            Client(self.s, "e", "u", group="h", instance_id="two"),
        ]

    def step(self):
        steps = {
            self.beat: 20, self.leave: 2, self.leave_for_a_while: 2, self.wait: 4, self.wait_long: 0.3, self.commit: 3,
            self.change_topics: 1, self.delete: 1, self.resolve: 3,
        }  # fmt: skip
        self.client = self.random.choice(self.clients)
        self.random.choices(list(steps), list(steps.values()))[0]()

    def beat(self):
        self.client.beat()

    def leave(self):
        self.client.leave()
        self.client.epoch, self.client.owned = 0, {}

    def leave_for_a_while(self):
        if "instance_id" in self.client.asked:
            self.client.leave(-2)
            self.client.epoch, self.client.owned = 0, {}
            self.client.member_id += "'"

    def wait(self):
        self.s.wait(self.random.choice([1, 500, 1_100, 9_000]))

    def wait_long(self):
        self.s.wait(50_000)

    def commit(self):
        name = self.random.choice(list(self.s.topics.by_name))
        self.s.commit(
            self.random.randrange(100), name, group=self.client.group, topic_id=self.s.topics.named(name).topic_id,
            member_id=self.client.member_id, generation_id=self.client.epoch,
        )  # fmt: skip

    def change_topics(self):
        name = self.random.choice(["t", "u"])
        if self.random.random() < 0.5:
            self.s.fates[self.s.topics.named(name).topic_id] = Fate.GONE
            self.s.topics.delete(name)
            self.s.topics.make(name, self.random.randrange(1, 4))
        else:
            self.s.topics.grow(name, self.s.topics.named(name).partitions_count + 1)

    def delete(self):
        self.s.delete(self.client.group)

    def resolve(self):
        for group, patterns in self.s.machine.expressions_wanted():
            for pattern in patterns:
                self.s.resolve(pattern, *sorted(name for name in self.s.topics.names() if name[0] == "t"), group=group)

    def settle(self):
        """Whatever has happened, those who go on come to what they ask for."""
        for group in "gh":
            clients = [client for client in self.clients if client.group == group]
            for _ in range(80):  # members of which nobody is left are out after their sessions
                for client in clients:
                    client.beat()
                self.s.wait(1_100)
                self.resolve()
                if all(client.is_settled for client in clients) and self.s.described(group).state == "Stable":
                    break
            owned = [part for client in clients for part in parts(client.owned)]
            wanted = {name for client in clients for name in client.asked.get("topic_names", ())}
            wanted |= {"t", "ta"} if group == "h" else set()
            topics = [self.s.topics.named(name) for name in wanted]
            there = [(topic.topic_id, index) for topic in topics for index in range(topic.partitions_count)]
            assert sorted(owned) == sorted(there)
            assert self.s.described(group).state == "Stable"


def parts(partitions):
    return [(topic_id, partition) for topic_id, indexes in partitions.items() for partition in indexes]


@pytest.mark.parametrize("seed", range(12))
def test_at_any_moment_a_replay_knows_the_same_in_any_order_of_keys(seed):
    history = History(seed)
    for _ in range(STEPS):
        history.step()
        s = history.s
        for log in (s.log, shuffled(s.stored_records(), history.random)):
            other = loaded(log, s)
            assert stored(other) == stored(s)
            assert seen(other) == seen(s)
            assert other.machine.size_bytes == s.machine.size_bytes


def shuffled(records, chance):
    return chance.sample(records, len(records))


@pytest.mark.parametrize("seed", range(6))
def test_from_every_prefix_of_a_log_clients_go_on(seed):
    """They know more than the coordinator then, or something else, and are told so. It can be loaded in the middle of a
    write, too: one that is too large is written in parts.
    """
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    log, ends = history.s.log, list(history.s.ends)
    for length in range(len(log) + 1):
        loaded(log[:length], history.s)
    for length in history.random.sample(ends, 5):
        history.s.log = log[:length]
        history.s.start()
        history.settle()


@pytest.mark.parametrize("batch_bytes", [100, 300, 600])
def test_from_every_batch_of_a_decision_all_partitions_come_to_be_owned(batch_bytes, monkeypatch):
    """Members are taken out in several batches, of which some are durable: no partition is left with nobody."""
    monkeypatch.setattr(ahead, "OWN_BATCH_BYTES_MAX", batch_bytes)
    s = ConsumerScenario(topics={"t": 6})
    clients = s.stable_consumers("a", "b", "c", "d")
    begin = len(s.ends)
    s.leave(("b",), ("c",), ("d",))
    assert len(s.ends) > begin + 1
    for end in s.ends[begin - 1 :]:
        other = loaded(s.log[:end], s)
        client = Client(other, "a", "t")
        client.epoch, client.owned = clients["a"].epoch, clients["a"].owned
        for _ in range(12):
            client.beat()
            other.wait(SESSION_MS // 5)
        assert (other.described().state, other.owned_by()) == ("Stable", {"a": {"t": [0, 1, 2, 3, 4, 5]}}), end


@pytest.mark.parametrize("comes_again", [True, False])
@pytest.mark.parametrize("batch_bytes", [100, 200, 300, 400])
def test_from_every_batch_of_a_replacement_all_partitions_come_to_be_owned(batch_bytes, comes_again, monkeypatch):
    """A static member's new id takes over in several batches, of which some are durable. It asks again, or never."""
    s = ConsumerScenario(topics={"t": 6})
    clients = s.stable_consumers("b")
    static = Client(s, "a", "t", instance_id="i")
    s.until_stable(clients["b"], static)
    static.leave(-2)
    for module in (ahead, heartbeats):
        monkeypatch.setattr(module, "OWN_BATCH_BYTES_MAX", batch_bytes)
    begin = len(s.ends)
    assert Client(s, "new", "t", instance_id="i").beat().error_code is ErrorCode.NONE
    assert len(s.ends) > begin + 1
    for end in s.ends[begin - 1 :]:
        other = loaded(s.log[:end], s)
        client = Client(other, "b", "t")
        client.epoch, client.owned = clients["b"].epoch, clients["b"].owned
        again = Client(other, "new", "t", instance_id="i")
        for _ in range(12):
            client.beat()
            if comes_again:
                again.beat()
            other.wait(SESSION_MS // 5)
        owned = other.owned_by()
        assert other.described().state == "Stable", end
        assert owned.keys() == ({"b", "new"} if comes_again else {"b"}), end
        assert sorted(index for each in owned.values() for index in each["t"]) == [0, 1, 2, 3, 4, 5], end


@pytest.mark.parametrize("seed", range(6))
def test_a_machine_that_is_lost_with_what_it_decided_was_believed_by_nobody(seed):
    """What waits for the disk when the coordinator goes was told to no client: each finds what it was told, or is told
    of what others did since.
    """
    history = History(seed)
    for _ in range(STEPS):
        history.step()
        if history.random.random() < 0.2:
            s = history.s
            s.hold = True
            tokens = [s.beat(f"new-{number}", 0, "g", rebalance_timeout_ms=10_000, topic_names=("t",), owned={})
                      for number in range(3)]  # fmt: skip
            before = len(s.log)
            assert not s.replies.keys() & set(tokens)
            s.fail_with, s.hold = ErrorCode.KAFKA_STORAGE_ERROR, False
            s.settle()
            s.fail_with = None
            assert {s.replies[token].error_code for token in tokens} == {ErrorCode.NOT_COORDINATOR}
            assert len(s.log) == before
            assert stored(loaded(s.log, s)) == stored(s)
    history.settle()


# Logs that nobody but a damaged disk or another release has written


def test_a_classic_record_and_those_of_consumers_are_of_one_group_the_classic_one():
    """As in Kafka, whose replay puts the classic group in the place of any other. The rest is removed, or the other
    group would come back when the classic one goes.
    """
    s = ConsumerScenario()
    s.stable_consumers("a")
    member = MemberMetadata("m", None, "c", "/h", 10_000, 10_000, subscription("t"), b"")
    classic = group_record("g", GroupMetadata("consumer", 3, "range", "m", s.now, (member,)))
    for log in ([*s.log, classic], [classic, *s.log]):
        other = loaded(log, s)
        assert (other.state(), other.described().error_code) == ("Stable", ErrorCode.GROUP_ID_NOT_FOUND)
        assert other.stored_records() == [classic]
        again = loaded(other.log, s)
        assert again.stored_records() == [classic]
        again.leave(("m",))
        assert again.delete("g") == {"g": ErrorCode.NONE}
        assert loaded(again.log, s).machine.list_groups() == []


def test_what_is_of_no_member_is_forgotten():
    s = ConsumerScenario()
    s.stable_consumers("a")
    t = s.topics.named("t").topic_id
    left = CurrentAssignment(2, 0, 0, {t: {7: 2}}, {})
    s.log += [
        consumer_record(ConsumerKey(TARGET_KEY, "g", "b"), {t: frozenset({7})}),
        consumer_record(ConsumerKey(CURRENT_KEY, "g", "b"), left),
        consumer_record(ConsumerKey(CURRENT_KEY, "h", "b"), left),
    ]
    other = loaded(s.log, s)
    assert [group.group_id for group in other.machine.list_groups()] == ["g"]
    assert stored(other) == stored(s)
    assert other.machine.size_bytes == s.machine.size_bytes


@pytest.mark.parametrize("is_pending", [False, True])
def test_a_partition_of_two_members_is_told_as_damage(is_pending):
    s = ConsumerScenario()
    s.stable_consumers("a", "b")
    t = s.topics.named("t").topic_id
    assigned, pending = ({}, {t: {0: 3}}) if is_pending else ({t: {0: 3}}, {})
    damaged = consumer_record(ConsumerKey(CURRENT_KEY, "g", "b"), CurrentAssignment(3, 2, 0, assigned, pending))
    with pytest.raises(RecordDamagedError, match=f"^group 'g': partition 0 of topic {t} is of member 'a' and of"):
        loaded([*s.log, damaged], s)


def test_the_legacy_key_is_read_and_dropped():
    s = ConsumerScenario()
    s.stable_consumers("a")
    tombstone = consumer_record(ConsumerKey(PARTITION_METADATA_KEY, "g"), None)
    s.log = [Record(tombstone.key, b"\x00\x00anything"), *s.log, Record(tombstone.key, b"\x00\x09")]
    other = loaded(s.log, s)
    assert stored(other) == stored(s)
    other.log.append(tombstone)
    assert stored(loaded(other.log, s)) == stored(s)


LATER = b"\x00\x01of a later release"


@pytest.mark.parametrize("kind", [GROUP_EPOCH_KEY, MEMBER_KEY, TARGET_EPOCH_KEY, TARGET_KEY, CURRENT_KEY, REGEX_KEY])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_group_of_a_later_release_is_kept_whole_and_refused(kind, is_first):
    s = ConsumerScenario()
    s.stable_consumers("a")
    s.stable_consumers("b", group="h")
    s.log.append(consumer_record(ConsumerKey(REGEX_KEY, "g", "x.*"), ResolvedRegex((), 1, 1)))
    name = "a" if kind in {MEMBER_KEY, TARGET_KEY, CURRENT_KEY} else "x.*" if kind == REGEX_KEY else ""
    later = Record(consumer_record(ConsumerKey(kind, "g", name), None).key, LATER)
    log = [record for record in s.log if record.key != later.key]
    other = loaded([later, *log] if is_first else [*log, later], s)
    assert [group.group_id for group in other.machine.list_groups()] == ["h"]
    of_h = [record for record in log if group_of(record.key) == "h"]
    assert other.machine.size_bytes == loaded(of_h, s).machine.size_bytes
    assert other.join_consumers("c").error_code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert other.told("a", 2).error_code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert other.replies[other.join("c")].error_code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert other.delete("g") == {"g": ErrorCode.UNKNOWN_SERVER_ERROR}
    other.wait(700_000)
    live = {record.key: record.value for record in [*log, later] if group_of(record.key) == "g"}
    kept = {record.key: record.value for record in other.stored_records()}
    assert {key: value for key, value in kept.items() if group_of(key) == "g"} == live
    # What that release removed, or wrote anew in a form that is known here, is of no later release any more.
    other.log.append(Record(later.key, None))
    assert "g" in [group.group_id for group in loaded(other.log, s).machine.list_groups()]


def group_of(key):
    return read_consumer_key(key).group_id


@pytest.mark.parametrize("kind", [GROUP_EPOCH_KEY, MEMBER_KEY, TARGET_EPOCH_KEY, TARGET_KEY, CURRENT_KEY, REGEX_KEY])
def test_what_cannot_be_read_is_an_error_of_its_family(kind):
    key = consumer_record(ConsumerKey(kind, "g", "a"), None).key
    for value in (b"", b"\x00", b"\xff\xff", b"\x00\x00"):
        with pytest.raises(RecordDamagedError):
            GroupCoordinator().replay(key, value)
    with pytest.raises(RecordDamagedError):
        GroupCoordinator().replay(key[:-1], None)


def test_a_group_that_a_decision_makes_of_records_is_like_one_that_was_loaded():
    """As when a classic group becomes one of consumers with its members."""
    s, other = ConsumerScenario(), ConsumerScenario()
    client = s.stable_consumers("a")["a"]
    other.log.extend(s.log)
    for record in s.log:
        other.machine.replay(*record)
    client.s = other
    other.until_stable(client, Client(other, "b", "t"))
    assert other.owned_by() == {"a": {"t": [0, 2]}, "b": {"t": [1, 3]}}
    assert stored(loaded(other.log, other)) == stored(other)


def test_a_group_is_there_from_its_first_record_to_its_last():
    machine = GroupCoordinator()
    first = consumer_record(ConsumerKey(GROUP_EPOCH_KEY, "g"), GroupEpoch(3))
    machine.replay(*first)
    machine.replay(first.key, None)
    machine.finish_loading(0)
    assert (machine.list_groups(), stored_records(machine), machine.size_bytes) == ([], [], 0)
