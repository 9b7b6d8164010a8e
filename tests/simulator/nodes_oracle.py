"""What holds at every moment of simulated nodes, and what holds when they were left alone."""

from __future__ import annotations

from collections import Counter

import trio

from tests.simulator.nodes_logs import log_of, logs_of
from tpc_broker.kafka.records import read_batches
from tpc_broker.log.batch import decode_header
from tpc_broker.model import PartitionIndex, TopicPartition
from tpc_broker.raft.items import Voter
from tpc_broker.raft.output import LEADER
from tpc_broker.storage.ports import Bounds

LOOK_S = 0.05
RECOVERS_S = 90.0


class Oracle:
    """Looks at all nodes again and again: `run` until cancelled, `look` at once."""

    def __init__(self, cluster):
        self._cluster = cluster
        self.leaders: dict[tuple[str, int], tuple[int, int]] = {}
        """By group and term: a node and its core."""
        self._voters: dict[tuple[int, int, str, int], Voter] = {}
        """By node, which of its disks, group, and life of the replica."""
        self._committed: dict[object, dict[int, bytes]] = {}
        """Batches by partition and offset."""
        self._looked: dict[tuple[object, int], int] = {}
        self._bounds: dict[tuple[object, int], Bounds] = {}
        """By a core's life, and a partition's handle in it."""
        self._images: dict[int, bytes] = {}
        self._looks = 0

    async def run(self):
        while True:
            await trio.sleep(LOOK_S)
            self.look()

    def look(self):
        self._looks += 1
        for node in self._cluster.nodes.values():
            self._look_at_cores(node)
        for node, life in self._cluster.lives():
            self._look_at_machines(node, life)
            for log in logs_of(life):
                self._look_at_log(node, log)
            if self._looks % 10 == 0:
                self._look_at_image(node, life)

    def _look_at_cores(self, node):
        """A replica is on one core only."""
        held = {}
        for core, life in node.lives.items():
            for log in logs_of(life) if life.is_assembled else ():
                if held.setdefault(log.key, core) != core:
                    self._fails(f"node {node.number} has {log.key} on cores {held[log.key]} and {core}")

    def _look_at_machines(self, node, life):
        if life.replication._driver is not None:
            for name, machine in life.replication._driver.core.groups.items():
                self._look_at_leader(node, life, name, machine)
                self._look_at_follower(node, name, machine)
                self._look_at_voter(node, life, name, machine)
        group = None if life.node_main is None else life.node_main._group
        for name, machine in group.core.groups.items() if group is not None else ():
            self._look_at_leader(node, life, name, machine)

    def _look_at_leader(self, node, life, name, machine):
        if machine.role is not LEADER:
            return
        here = node.number, life.number
        other = self.leaders.setdefault((str(name), machine.term), here)
        if other != here:
            self._fails(f"{name} is led by (node, core) {other} and {here} in term {machine.term}")

    def _look_at_follower(self, node, name, machine):
        """Who is carried is woken by its leader's link alone."""
        link = machine._link_of_leader()
        if machine.carried and machine.role is not LEADER and (link is None or not link.was_fresh):
            self._fails(f"node {node.number} has C carry {name}, and believes in no leader of it")

    def _look_at_voter(self, node, life, name, machine):
        """Which does not change with the core that has it."""
        key = life.replication.replicas.key_of(name)
        topic = None if key is None else life.core.view.image.topic_by_id(key.topic_id)
        if topic is None:
            return
        of = node.number, node.machines_count, name, life.replication._lives.of(name)
        voter = self._voters.setdefault(of, machine.me)
        if voter != machine.me:
            self._fails(f"core {life.number} of node {node.number} votes in {name} as {machine.me}, and was {voter}")

    def _look_at_log(self, node, log):
        """Offsets are in their order, those that readers are told never fall, and committed prefixes are prefixes of
        each other.
        """
        bounds = log.bounds()
        if bounds is None:
            return
        label = f"{log.files.topic}-{log.key.partition} at node {node.number}"
        if list(bounds) != sorted(bounds):
            self._fails(f"{label}: {bounds} are not in order")
        before = self._bounds.get((log.life, log.handle), bounds)
        self._bounds[log.life, log.handle] = bounds
        if any(now < was for now, was in zip(bounds[:3], before[:3], strict=True)):
            self._fails(f"{label}: {before} fell to {bounds}")
        self._look_at_committed(label, log, bounds.high_watermark)

    def _look_at_committed(self, label, log, high_watermark):
        committed = self._committed.setdefault(log.key, {})
        at = self._looked.get((log.life, log.handle), 0)
        if at >= high_watermark:
            return
        for batch in log.batches(at, high_watermark):
            header = decode_header(batch)
            if header.next_offset > high_watermark:
                break
            other = committed.setdefault(header.base_offset, batch)
            if other != batch:
                self._fails(f"{label}: committed is {header}, was {decode_header(other)}")
                return
            at = header.next_offset
        self._looked[log.life, log.handle] = at

    def _look_at_image(self, node, life):
        """One version of the metadata is the same everywhere."""
        image = life.core.view.image
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
        images = {(node.number, life.number): life.core.view.image for node, life in self._cluster.lives()}
        if len({image.version for image in images.values()}) > 1:
            return f"the metadata differ: { ({core: image.version for core, image in images.items()}) }"
        controllers = [node.number for node in nodes if node.first.node_main.is_controller]
        if len(controllers) != 1:
            return f"controllers are {controllers}"
        image = next(iter(images.values()))
        if image.moving:
            return f"replicas are on their way between cores: {image.moving}"
        for topic in image.topics.values():
            for index in range(topic.partitions_count):
                if why := self._why_partition_unsettled(topic, index):
                    return f"{topic.name}-{index}: {why}"
        return self._why_uneven(image)

    def _why_partition_unsettled(self, topic, index):
        if topic.moves.get(index) is not None:
            return "its replicas are on their way"
        places = sorted((int(place.node), int(place.core)) for place in topic.replicas[index])
        logs, leaders = {}, []
        for node, life in self._cluster.lives():
            for partition in life.core.partitions.opened():
                if (partition.topic_id, partition.index) != (topic.topic_id, index):
                    continue
                leaders += [node.number] if partition.led_epoch is not None else []
                logs[node.number, life.number] = log_of(life, partition)
        if sorted(logs) != places:
            return f"replicas are at {sorted(logs)}, not at {places}"
        if len(leaders) != 1:
            return f"leaders are {leaders}"
        bounds = {place: log.bounds() for place, log in logs.items()}
        if None in bounds.values():
            return "one is withdrawn"
        ends = {place: (one.high_watermark, one.log_end_offset) for place, one in bounds.items()}
        if len({end for both in ends.values() for end in both}) > 1:
            return f"high watermarks and ends are {ends}"
        if any(log.batches() != logs[places[0]].batches() for log in logs.values()):
            return "the logs differ"
        told = {(node.number, life.number): life.core.view.leader_epoch(partition_key(topic, index))
                for node, life in self._cluster.lives()}  # fmt: skip
        return "" if len(set(told.values())) == 1 else f"epochs that clients are told are {told}"

    def _why_uneven(self, image):
        """What was placed by hand stays there. All else is even where no replica of it could go, alone or in a
        chain of them, from a node to one that is farther below its share: nodes have as many as they have cores.
        """
        count = Counter(dict.fromkeys(image.nodes, 0))
        ways = {node: set() for node in image.nodes}
        for topic in image.topics.values():
            for index, replicas in enumerate(topic.replicas):
                nodes = {place.node for place in replicas}
                count.update(nodes)
                for node in nodes if index not in topic.assignment.manual else ():
                    ways[node] |= ways.keys() - nodes
        cores = {node: known.cores for node, known in image.nodes.items()}
        unit = sum(cores.values())
        above = {node: count[node] * unit - count.total() * cores[node] for node in image.nodes}
        for node in ways:
            if any(above[node] - above[other] > unit for other in _reached_from(node, ways)):
                return f"replicas by node are {dict(count)}, of cores {cores}"
        return ""

    def _look_at_promises(self):
        promises = self._cluster.promises
        view = next(iter(self._cluster.nodes.values())).first.core.view
        for (name, index), sent in promises.sent.items():
            topic = view.topic(name)
            if topic is None:
                self._fails(f"topic {name} is gone")
                return
            place = topic.replicas[index][0]
            life = self._cluster.nodes[place.node].lives[place.core]
            partition = life.core.partitions.get(partition_key(topic, index))
            found = [record.value for data in log_of(life, partition).batches()
                     for one in read_batches(data) for record in one.records()]  # fmt: skip
            self._look_at_partition(f"{name}-{index}", (name, index), found, sent)
        for name in promises.topics:
            if view.topic(name) is None:
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
            producer, _, number = value.partition(b"|")[0].rpartition(b" ")
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
