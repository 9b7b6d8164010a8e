"""What a backup of a cluster's node has beside the files: the cluster's metadata, and how far each replica counts.

It is `cluster-node.json` in the backup. Nothing that says who the node is goes along (no incarnation, no votes, no part
of the metadata's log): what is restored is a broker of its own, in no cluster, so it cannot take the place of the node
with what that has forgotten.
"""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.log.files import partition_folder_name
from tpc_broker.metadata.copied_node import as_of_one_node, partitions_on
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import MetadataDamagedError
from tpc_broker.model import NodeId, PartitionIndex, TopicId, TopicPartition
from tpc_broker.options import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tpc_broker.node.membership.identity import NodeIdentity

NODE_FILE: Final = "cluster-node.json"
NAMES_TOLD: Final = 5
UNBOUND: Final = -1


@dataclass(slots=True)
class NodeCopy:
    """`bounds`: of each replica that is copied how many of its records count: those that were committed; UNBOUND: all
    that are there. Partitions without replication are in none of these, and are copied as they are.
    """

    node: NodeId
    cluster_id: str
    image: ClusterImage = field(default_factory=ClusterImage)
    bounds: dict[TopicPartition, int] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    """What certainly never changes, of each replica."""
    behind: dict[TopicPartition, str] = field(default_factory=dict)
    """Voters that may lack what was acknowledged, with their names."""

    @classmethod
    def of(cls, identity: NodeIdentity) -> NodeCopy:
        assert identity.founding is not None
        return cls(NodeId(identity.node), identity.founding.cluster)

    def note(self, rows: Iterable[Any]) -> None:
        """Rows of `catching_up.CaughtUp`. A replica that is still filled is no copy."""
        for topic_id, index, label, committed_offset, is_sure, is_voter in rows:
            key = TopicPartition(TopicId(uuid.UUID(topic_id)), PartitionIndex(int(index)))
            self.committed[key] = max(int(committed_offset), 0)
            if is_sure:
                self.bounds[key] = self.committed[key]
            elif is_voter:
                self.bounds[key] = UNBOUND
                self.behind[key] = str(label)

    def copied(self) -> set[TopicPartition]:
        """Partitions whose records are in the copy."""
        found = set()
        for topic, index in partitions_on(self.image, self.node):
            key = TopicPartition(topic.topic_id, index)
            if key in self.bounds or not topic.is_replicated(index):
                found.add(key)
        return found

    def left_out(self) -> list[str]:
        """The others of the cluster, by their names."""
        copied = self.copied()
        return sorted(
            f"{topic.name}-{index}"
            for topic in self.image.topics.values()
            for index in range(topic.partitions_count)
            if TopicPartition(topic.topic_id, PartitionIndex(index)) not in copied
        )

    def committed_by_folder(self) -> dict[str, int]:
        """By partition folder: files with offsets below this one never change."""
        found = {}
        for key, offset in self.committed.items():
            topic = self.image.topic_by_id(key.topic_id)
            if topic is not None:
                found[partition_folder_name(topic.name, key.partition)] = offset
        return found

    def image_alone(self, cluster_id: str) -> ClusterImage:
        """The metadata of what is restored."""
        return as_of_one_node(self.image, self.node, cluster_id, self.copied())

    def write(self, path: Path) -> None:
        bounds = [[str(key.topic_id), key.partition, offset] for key, offset in sorted(self.bounds.items(), key=str)]
        document = {
            "node": self.node,
            "cluster_id": self.cluster_id,
            "bounds": bounds,
            "image": json.loads(self.image.to_bytes()),
        }
        path.write_text(json.dumps(document))

    @classmethod
    def read(cls, path: Path) -> NodeCopy:
        """StartError: one line."""
        try:
            document = json.loads(path.read_bytes())
            found = cls(NodeId(int(document["node"])), str(document["cluster_id"]))
            for topic_id, index, offset in document["bounds"]:
                key = TopicPartition(TopicId(uuid.UUID(topic_id)), PartitionIndex(int(index)))
                found.bounds[key] = int(offset)
            found.image = ClusterImage.from_bytes(json.dumps(document["image"]).encode())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, MetadataDamagedError) as error:
            raise StartError(f"{path} cannot be read: {error}") from error
        if found.node not in found.image.nodes:
            raise StartError(f"{path} cannot be read: node {found.node} is not among its nodes")
        return found


def joined_image(parts: Iterator[str]) -> ClusterImage:
    """ValueError: they are no image."""
    encoded = b"".join(map(base64.b64decode, parts))
    try:
        return ClusterImage.from_bytes(encoded)
    except MetadataDamagedError as error:
        raise ValueError(str(error)) from error


def some(names: list[str]) -> str:
    """The first ones, and how many there are beside."""
    more = f" and {len(names) - NAMES_TOLD:,} more" if len(names) > NAMES_TOLD else ""
    return ", ".join(names[:NAMES_TOLD]) + more
