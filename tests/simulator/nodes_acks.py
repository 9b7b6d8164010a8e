"""What a simulated node has acknowledged to leaders, in frames of the steady state as they leave it: it is durable at
that moment, as C says, and it is there after each recovery, as the disk says.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from uuid import UUID

from tests.simulator.nodes_logs import logs_of
from tests.support.steady_peers import Frames
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.model import PartitionIndex, TopicId, TopicPartition
from tpc_broker.node.replicas.core_replicas import group_of


@dataclass(frozen=True, order=True)
class Acknowledged:
    """The most of it. `life`: of the replica."""

    life: int
    term: int
    offset: int


class Acknowledgements:
    """Of one node and one disk. `fails(what)`: one is not kept."""

    def __init__(self, fails):
        self._fails = fails
        self._most: dict[TopicPartition, Acknowledged] = {}
        self.count = self.kept = 0
        """Acknowledgements that were held against what is durable; and recoveries of replicas, against those."""

    def attend(self, life):
        """Links that this life of a core gives to C from now on are listened to; what it has recovered is looked at."""
        adopt, system = life.plane.steady_adopt, life.cluster.system

        def listened(descriptor, *arguments):
            system.device(descriptor).on_sent = partial(self._sent, life, Frames())
            return adopt(descriptor, *arguments)

        life.plane.steady_adopt = listened
        for key, files in life.storage._partitions.unclaimed.items():
            self._recovered(life, key, files)

    def _sent(self, life, frames, data):
        for topic_id, index, term, _source, _target, offset, _commit in frames.acknowledged(data):
            key = TopicPartition(TopicId(UUID(bytes=topic_id)), PartitionIndex(index))
            log = next((log for log in logs_of(life) if log.key == key), None)
            if log is None:
                continue
            try:
                state = life.plane.state(log.handle)
            except PartitionOfflineError:
                continue
            if state.leader_epoch != term:
                continue  # it has been cut since then, perhaps
            self.count += 1
            if offset > state.durable_offset:
                self._fails(
                    f"core {life.number} of node {life.node.number} acknowledges {log.files.topic}-{index} up to "
                    f"{offset} in term {term}, and {state.durable_offset} is durable"
                )
            said = Acknowledged(life.replication._lives.of(group_of(key)), term, offset)
            self._most[key] = max(said, self._most.get(key, said))

    def _recovered(self, life, key, files):
        """In a later term it may have been cut."""
        said = self._most.get(key)
        if said is None or life.replication._lives.of(group_of(key)) != said.life or files.leader_epoch > said.term:
            return
        self.kept += 1
        if files.leader_epoch < said.term or files.written_end_offset < said.offset:
            self._fails(
                f"core {life.number} of node {life.node.number} has acknowledged {files.topic}-{key.partition} up to "
                f"{said.offset} in term {said.term}, and has recovered {files.written_end_offset} in term "
                f"{files.leader_epoch}"
            )
