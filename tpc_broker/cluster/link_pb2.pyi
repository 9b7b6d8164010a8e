from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Challenge(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("mac",)
    MAC_FIELD_NUMBER: _ClassVar[int]
    mac: bytes
    def __init__(self, mac: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("cluster", "node", "incarnation", "boot", "core", "host", "port", "version", "replication", "level_min", "level_max", "has_authorizer")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    CORE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    LEVEL_MIN_FIELD_NUMBER: _ClassVar[int]
    LEVEL_MAX_FIELD_NUMBER: _ClassVar[int]
    HAS_AUTHORIZER_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    node: int
    incarnation: int
    boot: int
    core: int
    host: str
    port: int
    version: str
    replication: bool
    level_min: int
    level_max: int
    has_authorizer: bool
    def __init__(self, cluster: _Optional[str] = ..., node: _Optional[int] = ..., incarnation: _Optional[int] = ..., boot: _Optional[int] = ..., core: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., version: _Optional[str] = ..., replication: bool = ..., level_min: _Optional[int] = ..., level_max: _Optional[int] = ..., has_authorizer: bool = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "text")
    REASON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    text: str
    def __init__(self, reason: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("id", "method", "payload", "blobs")
    ID_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    id: int
    method: str
    payload: bytes
    blobs: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, id: _Optional[int] = ..., method: _Optional[str] = ..., payload: _Optional[bytes] = ..., blobs: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("id", "payload", "blobs", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: int
    payload: bytes
    blobs: _containers.RepeatedScalarFieldContainer[bytes]
    error: str
    def __init__(self, id: _Optional[int] = ..., payload: _Optional[bytes] = ..., blobs: _Optional[_Iterable[bytes]] = ..., error: _Optional[str] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("epoch", "offset")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    offset: int
    def __init__(self, epoch: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Voter(_message.Message):
    __slots__ = ("node", "incarnation")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    node: int
    incarnation: int
    def __init__(self, node: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Config(_message.Message):
    __slots__ = ("old", "new")
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    old: _containers.RepeatedCompositeFieldContainer[Voter]
    new: _containers.RepeatedCompositeFieldContainer[Voter]
    def __init__(self, old: _Optional[_Iterable[_Union[Voter, _Mapping]]] = ..., new: _Optional[_Iterable[_Union[Voter, _Mapping]]] = ...) -> None: ...

class Item(_message.Message):
    __slots__ = ("epoch", "end_offset", "config", "base_offset", "payload")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    end_offset: int
    config: Config
    base_offset: int
    payload: bytes
    def __init__(self, epoch: _Optional[int] = ..., end_offset: _Optional[int] = ..., config: _Optional[_Union[Config, _Mapping]] = ..., base_offset: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class RaftMessage(_message.Message):
    __slots__ = ("kind", "group", "source", "target", "term", "position", "second", "reason", "pre_vote", "granted", "items", "log_start_offset", "number", "groups", "silent_ms")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[RaftMessage.Kind]
        KIND_REQUEST_VOTE: _ClassVar[RaftMessage.Kind]
        KIND_VOTE: _ClassVar[RaftMessage.Kind]
        KIND_APPEND_ENTRIES: _ClassVar[RaftMessage.Kind]
        KIND_ACK: _ClassVar[RaftMessage.Kind]
        KIND_REJECT: _ClassVar[RaftMessage.Kind]
        KIND_TIMEOUT_NOW: _ClassVar[RaftMessage.Kind]
        KIND_INSTALL: _ClassVar[RaftMessage.Kind]
        KIND_RESIGN: _ClassVar[RaftMessage.Kind]
        KIND_HEARTBEAT: _ClassVar[RaftMessage.Kind]
        KIND_GROUP_LIST: _ClassVar[RaftMessage.Kind]
        KIND_READ_ROUND: _ClassVar[RaftMessage.Kind]
        KIND_READ_ROUND_REPLY: _ClassVar[RaftMessage.Kind]
    KIND_UNSPECIFIED: RaftMessage.Kind
    KIND_REQUEST_VOTE: RaftMessage.Kind
    KIND_VOTE: RaftMessage.Kind
    KIND_APPEND_ENTRIES: RaftMessage.Kind
    KIND_ACK: RaftMessage.Kind
    KIND_REJECT: RaftMessage.Kind
    KIND_TIMEOUT_NOW: RaftMessage.Kind
    KIND_INSTALL: RaftMessage.Kind
    KIND_RESIGN: RaftMessage.Kind
    KIND_HEARTBEAT: RaftMessage.Kind
    KIND_GROUP_LIST: RaftMessage.Kind
    KIND_READ_ROUND: RaftMessage.Kind
    KIND_READ_ROUND_REPLY: RaftMessage.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    kind: RaftMessage.Kind
    group: str
    source: Voter
    target: Voter
    term: int
    position: Position
    second: Position
    reason: int
    pre_vote: bool
    granted: bool
    items: _containers.RepeatedCompositeFieldContainer[Item]
    log_start_offset: int
    number: int
    groups: _containers.RepeatedCompositeFieldContainer[GroupFact]
    silent_ms: int
    def __init__(self, kind: _Optional[_Union[RaftMessage.Kind, str]] = ..., group: _Optional[str] = ..., source: _Optional[_Union[Voter, _Mapping]] = ..., target: _Optional[_Union[Voter, _Mapping]] = ..., term: _Optional[int] = ..., position: _Optional[_Union[Position, _Mapping]] = ..., second: _Optional[_Union[Position, _Mapping]] = ..., reason: _Optional[int] = ..., pre_vote: bool = ..., granted: bool = ..., items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., log_start_offset: _Optional[int] = ..., number: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupFact, _Mapping]]] = ..., silent_ms: _Optional[int] = ...) -> None: ...

class GroupFact(_message.Message):
    __slots__ = ("group", "term", "leads", "voter")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADS_FIELD_NUMBER: _ClassVar[int]
    VOTER_FIELD_NUMBER: _ClassVar[int]
    group: str
    term: int
    leads: bool
    voter: Voter
    def __init__(self, group: _Optional[str] = ..., term: _Optional[int] = ..., leads: bool = ..., voter: _Optional[_Union[Voter, _Mapping]] = ...) -> None: ...

class RaftFrame(_message.Message):
    __slots__ = ("source_node", "source_core", "target_node", "target_core", "boot_id", "messages")
    SOURCE_NODE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_CORE_FIELD_NUMBER: _ClassVar[int]
    TARGET_NODE_FIELD_NUMBER: _ClassVar[int]
    TARGET_CORE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    source_node: int
    source_core: int
    target_node: int
    target_core: int
    boot_id: int
    messages: _containers.RepeatedCompositeFieldContainer[RaftMessage]
    def __init__(self, source_node: _Optional[int] = ..., source_core: _Optional[int] = ..., target_node: _Optional[int] = ..., target_core: _Optional[int] = ..., boot_id: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[RaftMessage, _Mapping]]] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("term", "voted_for", "commit", "start", "log_start_offset", "end_offset", "markers", "items")
    TERM_FIELD_NUMBER: _ClassVar[int]
    VOTED_FOR_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MARKERS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    term: int
    voted_for: Voter
    commit: Position
    start: Position
    log_start_offset: int
    end_offset: int
    markers: _containers.RepeatedCompositeFieldContainer[Item]
    items: _containers.RepeatedCompositeFieldContainer[Item]
    def __init__(self, term: _Optional[int] = ..., voted_for: _Optional[_Union[Voter, _Mapping]] = ..., commit: _Optional[_Union[Position, _Mapping]] = ..., start: _Optional[_Union[Position, _Mapping]] = ..., log_start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., markers: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ...) -> None: ...

class JournalEntry(_message.Message):
    __slots__ = ("kind", "term", "voted_for", "items", "position", "log_start_offset", "commit", "checkpoint", "image")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[JournalEntry.Kind]
        KIND_VOTE: _ClassVar[JournalEntry.Kind]
        KIND_MARKER: _ClassVar[JournalEntry.Kind]
        KIND_APPEND: _ClassVar[JournalEntry.Kind]
        KIND_CUT: _ClassVar[JournalEntry.Kind]
        KIND_ADOPT: _ClassVar[JournalEntry.Kind]
        KIND_CHECKPOINT: _ClassVar[JournalEntry.Kind]
    KIND_UNSPECIFIED: JournalEntry.Kind
    KIND_VOTE: JournalEntry.Kind
    KIND_MARKER: JournalEntry.Kind
    KIND_APPEND: JournalEntry.Kind
    KIND_CUT: JournalEntry.Kind
    KIND_ADOPT: JournalEntry.Kind
    KIND_CHECKPOINT: JournalEntry.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    VOTED_FOR_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    kind: JournalEntry.Kind
    term: int
    voted_for: Voter
    items: _containers.RepeatedCompositeFieldContainer[Item]
    position: Position
    log_start_offset: int
    commit: Position
    checkpoint: Checkpoint
    image: bytes
    def __init__(self, kind: _Optional[_Union[JournalEntry.Kind, str]] = ..., term: _Optional[int] = ..., voted_for: _Optional[_Union[Voter, _Mapping]] = ..., items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., position: _Optional[_Union[Position, _Mapping]] = ..., log_start_offset: _Optional[int] = ..., commit: _Optional[_Union[Position, _Mapping]] = ..., checkpoint: _Optional[_Union[Checkpoint, _Mapping]] = ..., image: _Optional[bytes] = ...) -> None: ...
