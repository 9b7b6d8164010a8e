"""What holds at every moment of simulated nodes, and what holds when they were left alone."""

from __future__ import annotations

from collections import Counter

import trio

from tpc_broker.kafka.records import read_batches
from tpc_broker.log.batch import decode_header
from tpc_broker.model import PartitionIndex, TopicPartition
from tpc_broker.raft.output import LEADER

LOOK_S = 0.05
RECOVERS_S = 90.0


class Oracle:
    """Looks at all nodes again and again: `run` until cancelled, `look` at once."""

    def __init__(self, cluster):
        self._cluster = cluster
        self.leaders: dict[tuple[str, int], int] = {}
        """By group and term: a node."""
        self._committed: dict[object, list[bytes]] = {}
        self._looked: dict[tuple[int, object, int], int] = {}
        self._images: dict[int, bytes] = {}
        self._looks = 0

    async def run(self):
        while True:
            await trio.sleep(LOOK_S)
            self.look()

    def look(self):
        self._looks += 1
        for node in self._cluster.nodes.values():
            life = node.life
            if life is None:
                continue
            self._look_at_leaders(node, life)
            for files in life.storage.handles.values():
                if files.log.is_replicated:
                    self._look_at_committed(node, files)
            if self._looks % 10 == 0:
                self._look_at_image(node, life)

    def _look_at_leaders(self, node, life):
        cores = [life.replication._driver.core] if life.replication._driver is not None else []
        group = life.node_main._group
        cores += [group.core] if group is not None else []
        for core in cores:
            for name, machine in core.groups.items():
                if machine.role is LEADER:
                    other = self.leaders.setdefault((str(name), machine.term), node.number)
                    if other != node.number:
                        self._fails(f"{name} is led by nodes {other} and {node.number} in term {machine.term}")

    def _look_at_committed(self, node, files):
        """Committed prefixes are prefixes of each other."""
        log, committed = files.log, self._committed.setdefault(files.key, [])
        looked = node.number, files.key, id(log)
        at = self._looked.get(looked, 0)
        while at < len(log.batches) and decode_header(log.batches[at]).next_offset <= log.high_watermark:
            if at == len(committed):
                committed.append(log.batches[at])
            elif committed[at] != log.batches[at]:
                one, other = decode_header(committed[at]), decode_header(log.batches[at])
                self._fails(
                    f"{files.topic}-{files.key.partition}: committed at node {node.number} is {other}, was {one}"
                )
                return
            at += 1
        self._looked[looked] = at

    def _look_at_image(self, node, life):
        """One version of the metadata is the same everywhere."""
        image = life.node_main.image
        if image.version and self._images.setdefault(image.version, image.to_bytes()) != image.to_bytes():
            self._fails(f"node {node.number} has another version {image.version} of the metadata")

    def _fails(self, what):
        self._cluster.fails(f"at {trio.current_time():.3f} s: {what}")

    # -- at the end ----------------------------------------------------------------------------------------------------

    async def must_settle(self):
        """Everything is healed and up: nodes come to agree, within a bounded time."""
        deadline_s = trio.current_time() + RECOVERS_S
        why = "nobody has looked"
        while trio.current_time() < deadline_s:
            why = self.why_unsettled()
            if not why:
                self.look()
                self._look_at_promises()
                return
            await trio.sleep(0.5)
        self._fails(f"{RECOVERS_S:g} s after everything was healed: {why}")

    def why_unsettled(self):
        nodes = list(self._cluster.nodes.values())
        if not all(node.is_ready for node in nodes):
            return f"not all are ready: {[node.number for node in nodes if node.is_ready]}"
        images = {node.number: node.life.core.view.image for node in nodes}
        if len({image.version for image in images.values()}) > 1:
            return f"the metadata differ: { ({number: image.version for number, image in images.items()}) }"
        controllers = [node.number for node in nodes if node.life.node_main.is_controller]
        if len(controllers) != 1:
            return f"controllers are {controllers}"
        image = images[nodes[0].number]
        for topic in image.topics.values():
            for index in range(topic.partitions_count):
                if why := self._why_partition_unsettled(topic, index):
                    return f"{topic.name}-{index}: {why}"
        return self._why_uneven(image)

    def _why_partition_unsettled(self, topic, index):
        if topic.moves.get(index) is not None:
            return "its replicas are on their way"
        places = sorted(int(place.node) for place in topic.replicas[index])
        logs, leaders = {}, []
        for node in self._cluster.nodes.values():
            for partition in node.life.core.partitions.opened():
                if (partition.topic_id, partition.index) != (topic.topic_id, index):
                    continue
                leaders += [node.number] if partition.led_epoch is not None else []
                logs[node.number] = partition.files.log
        if sorted(logs) != places:
            return f"replicas are at {sorted(logs)}, not at {places}"
        if len(leaders) != 1:
            return f"leaders are {leaders}"
        ends = {number: (log.high_watermark, log.log_end_offset) for number, log in logs.items()}
        if len({end for both in ends.values() for end in both}) > 1:
            return f"high watermarks and ends are {ends}"
        if any(log.batches != logs[places[0]].batches for log in logs.values()):
            return "the logs differ"
        told = {node.number: node.life.core.view.leader_epoch(partition_key(topic, index))
                for node in self._cluster.nodes.values()}  # fmt: skip
        return "" if len(set(told.values())) == 1 else f"epochs that clients are told are {told}"

    def _why_uneven(self, image):
        """What was placed by hand stays there. All else is even where no replica of it could go, alone or in a
        chain of them, from a node to one that has two less.
        """
        count = Counter(dict.fromkeys(image.nodes, 0))
        ways = {node: set() for node in image.nodes}
        for topic in image.topics.values():
            for index, replicas in enumerate(topic.replicas):
                nodes = {place.node for place in replicas}
                count.update(nodes)
                for node in nodes if index not in topic.assignment.manual else ():
                    ways[node] |= ways.keys() - nodes
        for node in ways:
            reached = _reached_from(node, ways)
            if any(count[other] <= count[node] - 2 for other in reached):
                return f"replicas by node are {dict(count)}"
        return ""

    def _look_at_promises(self):
        promises = self._cluster.promises
        node = next(iter(self._cluster.nodes.values()))
        for (name, index), sent in promises.sent.items():
            topic = node.life.core.view.topic(name)
            if topic is None:
                self._fails(f"topic {name} is gone")
                return
            holder = self._cluster.nodes[topic.replicas[index][0].node]
            partition = holder.life.core.partitions.get(partition_key(topic, index))
            found = [record.value for data in partition.files.log.batches
                     for one in read_batches(data) for record in one.records()]  # fmt: skip
            self._look_at_partition(f"{name}-{index}", (name, index), found, sent)
        for name in promises.topics:
            if node.life.core.view.topic(name) is None:
                self._fails(f"topic {name} was made, and is gone")

    def _look_at_partition(self, label, key, found, sent):
        promises = self._cluster.promises
        for offset, value in sorted(promises.acknowledged[key].items()):
            if offset >= len(found) or found[offset] != value:
                there = found[offset] if offset < len(found) else "nothing"
                self._fails(f"{label}: {value} was acknowledged at {offset}, where there is {there}")
                return
        for offset, value in promises.seen[key].items():
            if offset >= len(found) or found[offset] != value:
                self._fails(f"{label}: {value} was shown at {offset}, and is not there")
                return
        if len(set(found)) != len(found):
            self._fails(f"{label}: {[value for value, times in Counter(found).items() if times > 1]} are there twice")
        by_producer: dict[bytes, list[int]] = {}
        for value in found:
            producer, _, number = value.rpartition(b" ")
            by_producer.setdefault(producer, []).append(int(number))
        for producer, numbers in by_producer.items():
            if numbers != list(range(len(numbers))):
                self._fails(f"{label}: of {producer} there are {numbers}, not in order")
        if not set(found) <= set(sent):
            self._fails(f"{label}: {set(found) - set(sent)} were never sent")


def _reached_from(node, ways):
    reached, ahead = {node}, [node]
    while ahead:
        new = ways[ahead.pop()] - reached
        reached |= new
        ahead += new
    return reached


def partition_key(topic, index):
    return TopicPartition(topic.topic_id, PartitionIndex(index))
