"""`ConsumerMembership` by itself: groups, a log, topics and a clock, and nothing else of a coordinator."""

import random
import re
import uuid

from tpc_broker.coordinator.consumer.ahead import Ahead
from tpc_broker.coordinator.consumer.group import ConsumerGroup
from tpc_broker.coordinator.consumer.heartbeats import ConsumerMembership
from tpc_broker.coordinator.consumer.messages import ConsumerHeartbeat, ConsumerSettings, KnownTopic
from tpc_broker.coordinator.consumer.records import ResolvedRegex, read_consumer_key, read_consumer_value
from tpc_broker.coordinator.effects import Effects, Timers, Writes
from tpc_broker.coordinator.group import Held
from tpc_broker.model import TopicId


class SomeTopics:
    def __init__(self):
        self.version = 1
        self.by_name = {}
        self.ever = {}
        """Every id that there was, and its name."""

    def put(self, name, partitions_count, racks=()):
        """Makes a topic, or gives it more partitions."""
        old = self.by_name.get(name)
        topic_id = TopicId(uuid.UUID(int=len(self.ever) + 1)) if old is None else old.topic_id
        self.by_name[name] = KnownTopic(topic_id, name, partitions_count, racks)
        self.ever[topic_id] = name
        self.version += 1
        return topic_id

    def delete(self, name):
        if self.by_name.pop(name, None) is not None:
            self.version += 1

    def named(self, name):
        return self.by_name.get(name)

    def of_id(self, topic_id):
        topic = self.by_name.get(self.ever.get(topic_id, ""))
        return topic if topic is not None and topic.topic_id == topic_id else None

    def names(self):
        return list(self.by_name)


def any_assignor(seed, pieces):
    """Gives each partition to one of its subscribers, mostly to the one that has it: all that every assignor keeps. It
    takes so many pieces.
    """

    def assign(spec):
        chance = random.Random(f"{seed} {sorted(spec.members)} {sorted(spec.topics)}")
        for _ in range(pieces):
            yield
        made = {member_id: {} for member_id in spec.members}
        for topic_id, topic in spec.topics.items():
            subscribers = sorted(each for each, member in spec.members.items() if topic_id in member.topics)
            for partition in range(topic.partitions_count):
                had = [each for each in subscribers if partition in spec.members[each].assigned.get(topic_id, ())]
                if subscribers:
                    taker = chance.choice(had if had and chance.random() < 0.6 else subscribers)
                    made[taker].setdefault(topic_id, set()).add(partition)
        return {
            member_id: {topic_id: frozenset(each) for topic_id, each in target.items()}
            for member_id, target in made.items()
        }

    return assign


def even(spec):
    """Gives partitions to subscribers in turn, whoever had them."""
    yield
    made = {member_id: {} for member_id in spec.members}
    for topic_id, topic in spec.topics.items():
        takers = sorted(each for each, member in spec.members.items() if topic_id in member.topics)
        for number, taker in enumerate(takers):
            mine = frozenset(range(number, topic.partitions_count, len(takers)))
            if mine:
                made[taker][topic_id] = mine
    return made


def apply_all(groups, records, held):
    """Replays records."""
    for record in records:
        key = read_consumer_key(record.key)
        group = groups.get(key.group_id)
        if group is None:
            group = groups[key.group_id] = ConsumerGroup(key.group_id, held)
        group.apply(key, None if record.value is None else read_consumer_value(key.key_type, record.value))


def loaded(records):
    """Groups that a coordinator has that takes over this log."""
    groups, held = {}, Held()
    apply_all(groups, records, held)
    for group in groups.values():
        group.finish_loading()
    return {group_id: group for group_id, group in groups.items() if group.is_stored}, held


class OneKind:
    """There are no classic groups beside them."""

    def upgraded(self, _group_id):
        return None

    def downgrade(self, *_of):
        return False


class MembersAlone:
    def __init__(self, assignor=even, **settings):
        self.settings = ConsumerSettings(**{"assignment_interval_ms": 0, **settings})
        self.topics = SomeTopics()
        self.assignor = assignor
        self.now = 1_790_000_000_000
        self.log = []
        """Of batches that are durable."""
        self.has_room = True
        self.bytes_left = 1 << 30
        self.on_durable = lambda _records: None
        self.on_reply = lambda _token, _response: None
        self.count = 0
        self.start()

    def start(self):
        """The coordinator starts: what was not durable is lost."""
        self.replies = {}
        self.writes, self.timers = Writes(), Timers()
        self.groups, self.held = loaded([record for batch in self.log for record in batch])
        self.members = ConsumerMembership(
            self.groups,
            self.timers,
            Ahead(self.writes, lambda _key, _value: None, lambda: self.has_room),
            lambda _group_id: self.settings,
            self.topics,
            dict.fromkeys(self.settings.assignors, self.assign),
            self.held,
            lambda: self.bytes_left,
        )
        self.members.kinds = OneKind()
        for group in self.groups.values():
            self.members.begin_sessions(group, self.now)

    def assign(self, spec):
        return self.assignor(spec)

    def send(self, member_id, epoch, group="g", **said):
        """Returns what the answer comes by."""
        self.count += 1
        token = self.count
        effects = Effects()
        request = ConsumerHeartbeat(group_id=group, member_id=member_id, member_epoch=epoch, **said)
        self.members.heartbeat(request, token, self.now, f"made-{token}", effects)
        self.take(effects)
        return token

    def take(self, effects):
        for reply in effects.replies:
            assert reply.token not in self.replies
            self.replies[reply.token] = reply.response
            self.on_reply(reply.token, reply.response)

    def settle(self, count=1 << 30):
        """So many writes become durable."""
        while len(self.writes) and count:
            write = self.writes.end(self.writes.oldest)
            self.log.append(write.records)
            self.on_durable(write.records)
            effects = Effects()
            write.written(effects, self.now)
            self.take(effects)
            count -= 1

    def beat(self, member_id, epoch, group="g", **said):
        """Sends a heartbeat; returns the answer."""
        token = self.send(member_id, epoch, group, **said)
        self.settle()
        return self.replies.pop(token)

    def join(self, member_id, *names, **said):
        return self.beat(member_id, 0, **{"topic_names": names, "rebalance_timeout_ms": 5_000, "owned": {}, **said})

    def pass_time(self, ms):
        """Time goes by; what is due is done."""
        self.now += ms
        while (key := self.timers.pop_due(self.now)) is not None:
            kind, group_id, member_id = key
            effects = Effects()
            self.members.on_deadline(kind, self.groups[group_id], member_id, self.now, effects)
            self.take(effects)

    def work(self, pieces=1 << 30):
        """Pieces of target assignments that are under way."""
        while self.members.assigning.has_work and pieces and self.has_room:
            effects = Effects()
            self.members.assigning.work(self.now, effects)
            self.take(effects)
            pieces -= 1

    def looked_up(self):
        """What expressions match now, as `resolved` takes it."""
        return [
            (group_id, {pattern: self.match(pattern) for pattern in patterns})
            for group_id, patterns in self.members.subscribed.wanted()
        ]

    def match(self, pattern):
        names = tuple(sorted(name for name in self.topics.names() if re.fullmatch(pattern, name)))
        return ResolvedRegex(names, self.topics.version, self.now)

    def resolve(self, found=None):
        """Tells what expressions match."""
        for group_id, matches in self.looked_up() if found is None else found:
            effects = Effects()
            self.members.subscribed.resolved(group_id, matches, self.now, effects, has_more=False)
            self.take(effects)

    def delete_group(self, group_id="g"):
        """As DeleteGroups does with one that has no members."""
        group = self.groups.pop(group_id)
        assert not group.members
        self.members.dissolve(group)
        records = [record._replace(value=None) for record in group.records()]
        for record in records:
            key = read_consumer_key(record.key)
            group.apply(key, None)
        effects = Effects()
        self.members._ahead.write(group_id, records, effects)
        self.take(effects)
