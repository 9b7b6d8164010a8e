"""Cores of a node in memory under random orders of requests, crashes and lost calls, from seeds.

While it goes on, everything may be refused. When all cores are up again and left alone, they agree: on the topics
(those whose making was acknowledged and whose deletion was not), and on who leads what, one core each. And every record
that was acknowledged is there, once, where it was said to be.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
import trio

from tests.support.memory_clients import (
    create_topic,
    delete_topic,
    fetch_request,
    leaders,
    metadata,
    owner_of,
    produce_request,
)
from tests.support.memory_node import running_node
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.kafka.records import read_records
from tpc_broker.model import PartitionIndex, TopicPartition
from tpc_broker.testing.node import answer_of

NONE = ErrorCode.NONE
CORES = 3
STEPS = 80
NAMES = ("a", "b", "c")
SETTLE_S = 60


class Story:
    """What was asked and what was promised."""

    def __init__(self, node, seed):
        self.node, self.chooser = node, random.Random(seed)
        self.values = iter(range(1 << 30))
        self.sent, self.acknowledged = defaultdict(list), defaultdict(dict)
        """By topic and partition: values, and values by the offset that was told."""
        self.is_there = dict.fromkeys(NAMES, False)
        """Topics by name; one whose making or deletion was not answered is in `unknown` from then on."""
        self.unknown = set()
        self.changing = {name: trio.Lock() for name in NAMES}

    def a_core(self):
        return self.chooser.choice(sorted(self.node.lives))

    async def create(self):
        name = self.chooser.choice(NAMES)
        async with self.changing[name]:
            answer = await self.asked(create_topic(self.node, self.a_core(), name, self.chooser.randrange(1, 5)))
            self.learn(name, answer, ErrorCode.TOPIC_ALREADY_EXISTS, is_there=True)

    async def delete(self):
        name = self.chooser.choice(NAMES)
        async with self.changing[name]:
            answer = await self.asked(delete_topic(self.node, self.a_core(), name))
            self.learn(name, answer, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, is_there=False)

    def learn(self, name, answer, already, *, is_there):
        if answer is None:
            self.unknown.add(name)
        elif name not in self.unknown:
            assert answer is (already if self.is_there[name] is is_there else NONE), (name, answer, is_there)
            self.is_there[name] = is_there

    async def produce(self):
        core, name = self.a_core(), self.chooser.choice(NAMES)
        topic = self.node[core].view.topic(name)
        if topic is None:
            return
        index, value = self.chooser.randrange(topic.partitions_count), next(self.values)
        key = TopicPartition(topic.topic_id, PartitionIndex(index))
        core = core if self.chooser.random() < 0.2 else topic.assignment.owner_of(index)
        if core not in self.node.lives:
            return
        self.sent[key].append(value)
        # By the topic's id: one of the same name may have been made meanwhile.
        asked = produce_request(name, index, [b"%d" % value], topic_id=topic.topic_id.bytes)
        request = self.node.send(core, asked, 13, connection=1000 + value)
        with trio.move_on_after(20):
            await request.done.wait()
        answer = answer_of(request)
        told = None if answer is None else answer.responses[0].partition_responses[0]
        if told is not None and not told.error_code:
            assert self.acknowledged[key].setdefault(told.base_offset, value) == value, "one offset for two records"

    async def move(self):
        """A partition to a core; refused where there is no such topic, or it moves already."""
        kind = messages.AlterPartitionReassignmentsRequest
        index, core = self.chooser.randrange(4), self.chooser.randrange(CORES)
        part = kind.ReassignablePartition(partition_index=index, replicas=[core])
        topic = kind.ReassignableTopic(name=self.chooser.choice(NAMES), partitions=[part])
        await self.asked(self.node.ask(self.a_core(), kind(topics=[topic]), connection=2))

    async def crash(self):
        number = self.a_core()
        if len(self.node.lives) > 1:
            await self.node.crash(number)
            await trio.sleep(self.chooser.uniform(0, 3))
            await self.node.start(number)

    async def lose_calls(self):
        life = self.node.lives[self.a_core()]
        methods = set(self.chooser.sample(["metadata.apply", "leaders", "metadata.fetch", "api", "moves.adopt"], 2))
        life.mailboxes.lost |= methods
        await trio.sleep(self.chooser.uniform(0, 2))
        life.mailboxes.lost -= methods

    async def asked(self, question):
        """The answer; None when there is none."""
        answer = None
        with trio.move_on_after(40):
            try:
                answer = await question
            except AttributeError:  # no answer: the connection was closed
                answer = None
        return answer

    async def run(self):
        """Things happen beside each other."""
        steps = [*[self.create] * 2, self.delete, *[self.move] * 4, *[self.produce] * 6, self.lose_calls]
        crashing = trio.Lock()

        async def crash():
            async with crashing:
                await self.crash()

        async with trio.open_nursery() as nursery:
            for _ in range(STEPS):
                nursery.start_soon(crash if self.chooser.random() < 0.1 else self.chooser.choice(steps))
                await trio.sleep(self.chooser.uniform(0, 0.5))

    async def check(self):
        node = self.node
        images = {core: node[core].view.image for core in range(CORES)}
        assert len({image.version for image in images.values()}) == 1
        assert not images[0].moving
        for name in NAMES:
            there = node[0].view.topic(name) is not None
            assert name in self.unknown or self.is_there[name] is there, name
            if not there:
                continue
            topic = node[0].view.topic(name)
            wanted = {
                index: (owner_of(node, name, index), self.epoch_at_owner(topic, index))
                for index in range(topic.partitions_count)
            }
            for core in range(CORES):
                assert await leaders(node, core, name) == wanted, (name, core)
            for index in range(topic.partitions_count):
                found = await self.stored(name, index)
                key = TopicPartition(topic.topic_id, PartitionIndex(index))
                led_by = [core for core in range(CORES) if node[core].partitions.is_led(key)]
                assert led_by == [owner_of(node, name, index)]
                assert self.acknowledged[key].items() <= found.items(), (name, index)
                assert len(found) == len(set(found.values()))
                assert set(found.values()) <= set(self.sent[key])

    def epoch_at_owner(self, topic, index):
        core = self.node[topic.assignment.owner_of(index)]
        return core.partitions.find(topic.name, index).leader_epoch

    async def stored(self, name, index):
        answer = await self.node.ask(owner_of(self.node, name, index), fetch_request(name, index, 0, wait_ms=0), 12)
        records = read_records(bytes(answer.responses[0].partitions[0].records))
        return {record.offset: int(record.value) for record in records}


@pytest.mark.parametrize("seed", range(12))
async def test_cores_that_are_left_alone_agree_and_have_what_was_acknowledged(seed, autojump_clock):
    async with running_node(CORES, seed=seed) as node:
        story = Story(node, seed)
        node.delay_s_max, node.write_s_max = 0.5, 1.0
        await story.run()
        for number in set(range(CORES)) - set(node.lives):
            await node.start(number)
        await trio.sleep(SETTLE_S)
        await story.check()
        assert (await metadata(node, 0, "never-made")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
