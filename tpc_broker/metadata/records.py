"""Records of the metadata log and their bytes.

A record's value is one JSON object in UTF-8 with two fixed members: `type` (the names of `RECORD_TYPES`) and `v`, the
version of that type's layout, now always 1; the other members are the fields of the dataclass of that name. Topic ids
are UUID texts. Keys are unused. JSON, because the log is small, rewritten when it has grown, and must be readable when
everything else is broken. A reader refuses a type or version that it does not know: guessing would be losing metadata.

Every record is idempotent: applied again on top of its own effect it changes nothing. So a snapshot is simply records
appended at the end of the log before its start is moved there, and a crash between the two does no harm.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping  # noqa: TC003 - the fields of a dataclass are read at run time
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

from tpc_broker.auth.credentials import SALT_BYTES_MAX, ScramCredential, ScramMechanism, user_name_fault
from tpc_broker.feature_levels import UNSAID, Levels
from tpc_broker.metadata.acl_records import AclsChanged, acl_from_json, acl_to_json
from tpc_broker.model import BrokerId, CoreId, FirstVoter, NodeId, PartitionIndex, ProducerId, Replica, TopicId

RECORD_VERSION: Final = 1

ASKED: Final = "asked"
CANCELLED: Final = "cancelled"
ONLY_NODE: Final = NodeId(-1)
"""In place of a node's id: the broker is no cluster, so there is but one."""
"""Reasons of moves; others are the cluster's own."""
GROUP: Final = "group"
CLIENT_METRICS: Final = "client_metrics"
RESOURCE_KINDS: Final = (GROUP, CLIENT_METRICS)
"""That have settings of their own: `ResourceConfigChanged`."""
USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = frozenset((USER, CLIENT_ID, IP))
"""Of whom quotas are."""


class MetadataDamagedError(Exception):
    """A metadata record that cannot be read: damage, or written by a later release."""


class NodeAddress(NamedTuple):
    """Where something is reached."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ClusterCreated:
    """The first record of all: the identity that clients see as the cluster id."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """A topic with everything it has: `owners[p]` owns partition p; `manual` partitions were assigned by hand.

    In a cluster of nodes `replicas[p]` says where partition p is, the preferred leader first, and `owners[p]` is that
    one's core. `voters[p]` are the first ones of its group, where it has several replicas: they never change, whatever
    becomes of the replicas. `lives`: (partition, node, life, term), as in `ReplicasMoved`. `first_leaders[p]`: which of
    them leads the first term of the group, or `NO_NODE`; that never changes, either. Written from feature level 5 on.
    """

    name: str
    topic_id: TopicId
    owners: tuple[CoreId, ...]
    created_ms: int
    manual: tuple[PartitionIndex, ...] = ()
    configs: Mapping[str, str] = field(default_factory=dict)
    replicas: tuple[tuple[Replica, ...], ...] = ()
    voters: tuple[tuple[FirstVoter, ...], ...] = ()
    lives: tuple[tuple[int, int, int, int], ...] = ()
    first_leaders: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicAssigned:
    """The whole ownership table of a topic, after partitions were added or the number of cores changed.

    `first_leaders`: as in `TopicCreated`, of the partitions that were added.
    """

    topic_id: TopicId
    owners: tuple[CoreId, ...]
    manual: tuple[PartitionIndex, ...] = ()
    replicas: tuple[tuple[Replica, ...], ...] = ()
    voters: tuple[tuple[FirstVoter, ...], ...] = ()
    first_leaders: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """The topic is gone; its id is never used again."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class TopicConfigChanged:
    """One setting of a topic; a null value removes the override."""

    topic_id: TopicId
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class BrokerConfigChanged:
    """One dynamic setting of a broker, or of all of them (`broker` null); a null value removes it."""

    broker: BrokerId | None
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ResourceConfigChanged:
    """Settings of a group or of a subscription to metrics of clients (`kind`), of that name; a null value removes one.

    Written from feature level 4 on.
    """

    kind: str
    name: str
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class ClientQuotaChanged:
    """Quotas of clients: `entity` says of whom, by type ("user", "client-id" or "ip") and name, null for whoever has
    none of its own; `changes` are Kafka's names and new values, a null removes one.

    Written from feature level 6 on.
    """

    entity: Mapping[str, str | None]
    changes: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class ProducerIdsReserved:
    """Producer ids [first, first + count) belong to a core and are never given out again, used or not."""

    core: CoreId
    first: ProducerId
    count: int


@dataclass(frozen=True, slots=True)
class CoresChanged:
    """The node now runs this many cores; `TopicAssigned` records in the same batch say what that moved."""

    cores_count: int


@dataclass(frozen=True, slots=True)
class NodeRegistered:
    """A node of the cluster, as it is since its last start: where other nodes and clients reach it.

    `incarnation` is of its data directory; `listeners` are (name, an advertised address for each core).
    """

    node: NodeId
    incarnation: int
    cores: int
    rack: str
    version: str
    address: NodeAddress
    listeners: tuple[tuple[str, tuple[NodeAddress, ...]], ...]
    levels: Levels = UNSAID
    """Feature levels that its release speaks."""


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    """A node is gone for good: its data directory, which has this incarnation, may not come back."""

    node: NodeId
    incarnation: int


@dataclass(frozen=True, slots=True)
class MoveBegun:
    """A partition is to go from its core to another one of its node. `move_id` is random; clock: the wall's. `node`: of
    a cluster the one whose replica it is; without a cluster there is but one. `is_cancelled`, in a second record of the
    same move: no core may adopt it any more, and who has it then, keeps it.
    """

    topic_id: TopicId
    partition: PartitionIndex
    target: CoreId
    move_id: int
    begun_ms: int
    node: NodeId = ONLY_NODE
    is_cancelled: bool = False

    def is_on(self, node: NodeId) -> bool:
        """Whether it is that node's."""
        return self.node in (ONLY_NODE, node)


@dataclass(frozen=True, slots=True)
class MoveDone:
    """The move is over, and `owner` has the partition: the target, or, where it was given up, the one before. `node`:
    as it was begun.
    """

    topic_id: TopicId
    partition: PartitionIndex
    owner: CoreId
    node: NodeId = ONLY_NODE


@dataclass(frozen=True, slots=True)
class ReplicasMoving:
    """The replicas of a partition are to be `wanted`, the preferred leader first; until that is done `places` may have
    one. In place of an earlier one of that partition. `move_id` is random; clock: the wall's.
    """

    topic_id: TopicId
    partition: PartitionIndex
    wanted: tuple[Replica, ...]
    places: tuple[Replica, ...]
    reason: str
    move_id: int
    begun_ms: int

    @property
    def is_by_hand(self) -> bool:
        """Somebody has asked for it, or that it be cancelled."""
        return self.reason in (ASKED, CANCELLED)


@dataclass(frozen=True, slots=True)
class ReplicasMoved:
    """The replicas of a partition are these, and no others: its group has committed that in `term`.

    `lives`: (node, life, term) of those that went: which life a replica on that node would have now (the first is 0),
    and the term from which on the one before counts for nothing.
    """

    topic_id: TopicId
    partition: PartitionIndex
    places: tuple[Replica, ...]
    lives: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class FeatureLevelChanged:
    """The cluster's feature level from here on; `epoch` rises by one each time."""

    level: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ScramCredentialChanged:
    """What is kept of a user's password by one mechanism (`auth.credentials.ScramMechanism`); bytes are base64. With
    nothing in it but the name and the mechanism that user has none by this mechanism any more.

    Written from feature level 6 on. It is a secret: none of its bytes is in the text of the object.
    """

    user: str
    mechanism: int
    salt: str | None = field(default=None, repr=False)
    iterations: int = 0
    stored_key: str | None = field(default=None, repr=False)
    server_key: str | None = field(default=None, repr=False)

    @property
    def credential(self) -> ScramCredential | None:
        """None: it is deleted."""
        if self.salt is None or self.stored_key is None or self.server_key is None:
            return None
        stored, server = base64.b64decode(self.stored_key), base64.b64decode(self.server_key)
        return ScramCredential(base64.b64decode(self.salt), self.iterations, stored, server)


def credential_changed(
    user: str, mechanism: ScramMechanism, credential: ScramCredential | None
) -> ScramCredentialChanged:
    """The record that makes it so; None: deleted."""
    if credential is None:
        return ScramCredentialChanged(user, int(mechanism))
    salt, stored, server = (
        base64.b64encode(each).decode() for each in (credential.salt, credential.stored_key, credential.server_key)
    )
    return ScramCredentialChanged(user, int(mechanism), salt, credential.iterations, stored, server)


MetadataRecord = (
    ClusterCreated
    | TopicCreated
    | TopicAssigned
    | TopicDeleted
    | TopicConfigChanged
    | BrokerConfigChanged
    | ResourceConfigChanged
    | ClientQuotaChanged
    | ProducerIdsReserved
    | CoresChanged
    | NodeRegistered
    | NodeRemoved
    | MoveBegun
    | MoveDone
    | ReplicasMoving
    | ReplicasMoved
    | FeatureLevelChanged
    | ScramCredentialChanged
    | AclsChanged
)

RECORD_TYPES: Final[Mapping[str, type[MetadataRecord]]] = {
    "cluster_created": ClusterCreated,
    "topic_created": TopicCreated,
    "topic_placed": TopicAssigned,
    "topic_deleted": TopicDeleted,
    "topic_config_changed": TopicConfigChanged,
    "broker_config_changed": BrokerConfigChanged,
    "resource_config_changed": ResourceConfigChanged,
    "client_quota_changed": ClientQuotaChanged,
    "producer_ids_reserved": ProducerIdsReserved,
    "cores_changed": CoresChanged,
    "node_registered": NodeRegistered,
    "node_removed": NodeRemoved,
    "move_begun": MoveBegun,
    "move_done": MoveDone,
    "replicas_moving": ReplicasMoving,
    "replicas_moved": ReplicasMoved,
    "feature_level_changed": FeatureLevelChanged,
    "scram_credential_changed": ScramCredentialChanged,
    "acls_changed": AclsChanged,
}
_TYPE_NAMES: Final = {record_type: name for name, record_type in RECORD_TYPES.items()}


def to_json(record: MetadataRecord) -> dict[str, Any]:
    """The JSON object of a record."""
    members: dict[str, Any] = {"type": _TYPE_NAMES[type(record)], "v": RECORD_VERSION}
    for part in fields(record):
        value = getattr(record, part.name)
        if part.name in {"replicas", "voters", "lives", "first_leaders"} and not value:
            continue  # without a cluster records are as they always were
        if part.name == "levels" and value == UNSAID:
            continue
        if part.name == "node" and value == ONLY_NODE:
            continue
        if part.name == "is_cancelled" and not value:
            continue
        if isinstance(record, AclsChanged):
            value = [acl_to_json(binding) for binding in value]
        members[part.name] = str(value) if isinstance(value, uuid.UUID) else value
    return members


def from_json(members: Any) -> MetadataRecord:
    """The record of a JSON object; MetadataDamagedError when it is none that is known here."""
    if not isinstance(members, dict):
        raise MetadataDamagedError(f"a metadata record is an object, not {members!r}")
    record_type = RECORD_TYPES.get(members.get("type", ""))
    if record_type is None or members.get("v") != RECORD_VERSION:
        raise MetadataDamagedError(
            f"metadata record of unknown type or version: {members.get('type')} {members.get('v')}"
        )
    values = {name: value for name, value in members.items() if name not in {"type", "v"}}
    try:
        _read_tables(values)
        if record_type is NodeRegistered:
            _read_node(values)
        if record_type is ResourceConfigChanged:
            _check_resource(values)
        if record_type is ScramCredentialChanged:
            _check_credential(values)
        if record_type is AclsChanged:
            values = {name: tuple(acl_from_json(one) for one in those) for name, those in values.items()}
        if record_type is ClientQuotaChanged:
            _check_quota(values)
        return record_type(**values)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise MetadataDamagedError(f"metadata record of type {members['type']} is damaged: {error}") from error


def _read_tables(values: dict[str, Any]) -> None:
    """Lists of JSON, in place, as what they are; TypeError or ValueError when they are not."""
    if "topic_id" in values:
        values["topic_id"] = TopicId(uuid.UUID(values["topic_id"]))
    for name in ("owners", "manual", "first_leaders"):
        if name in values:
            values[name] = tuple(values[name])
    for name in ("wanted", "places"):
        if name in values:
            values[name] = tuple(Replica(*one) for one in values[name])
    if "lives" in values:
        values["lives"] = tuple(tuple(one) for one in values["lives"])
    if "replicas" in values:
        values["replicas"] = tuple(tuple(Replica(*one) for one in each) for each in values["replicas"])
    if "voters" in values:
        values["voters"] = tuple(tuple(FirstVoter(*one) for one in each) for each in values["voters"])


def _read_node(values: dict[str, Any]) -> None:
    values["address"] = NodeAddress(*values["address"])
    values["levels"] = Levels(*values.get("levels", UNSAID))
    values["listeners"] = tuple(
        (name, tuple(NodeAddress(*one) for one in addresses)) for name, addresses in values["listeners"]
    )


def _check_resource(values: dict[str, Any]) -> None:
    if values["kind"] not in RESOURCE_KINDS or not isinstance(values["changes"], dict):
        raise ValueError(f"settings of {values['kind']}")


def _check_credential(values: dict[str, Any]) -> None:
    """What is wrong is told without its bytes."""
    mechanism = ScramMechanism(values["mechanism"])
    if user_name_fault(values["user"]) is not None:
        raise ValueError("the name of a user")
    texts: list[Any] = [values.get(name) for name in ("salt", "stored_key", "server_key")]
    if texts == [None, None, None]:
        return
    try:
        salt, *keys = (base64.b64decode(text, validate=True) for text in texts)
    except (TypeError, ValueError):
        raise ValueError("a credential that is no base64") from None
    if len(salt) > SALT_BYTES_MAX or any(len(key) != mechanism.key_bytes for key in keys):
        raise ValueError("a credential of another size")
    if not isinstance(values["iterations"], int) or values["iterations"] < 1:
        raise ValueError("iterations of a credential")
def _check_quota(values: dict[str, Any]) -> None:
    entity, changes = values["entity"], values["changes"]
    if not entity or not all(kind in ENTITY_TYPES and isinstance(name, str | None) for kind, name in entity.items()):
        raise ValueError(f"quotas of {entity}")
    values["changes"] = {key: None if value is None else float(value) for key, value in changes.items()}


def encode_record(record: MetadataRecord) -> bytes:
    """A record's value as the log holds it."""
    return json.dumps(to_json(record), ensure_ascii=False, separators=(",", ":")).encode()


def decode_record(value: bytes) -> MetadataRecord:
    """The record of a value of the log; MetadataDamagedError when it cannot be read."""
    try:
        members = json.loads(value)
    except ValueError as error:
        raise MetadataDamagedError(f"metadata record is not JSON: {error}") from error
    return from_json(members)
