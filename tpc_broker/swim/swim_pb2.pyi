from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_UNSPECIFIED: _ClassVar[State]
    STATE_ALIVE: _ClassVar[State]
    STATE_SUSPECT: _ClassVar[State]
    STATE_DEAD: _ClassVar[State]
    STATE_LEFT: _ClassVar[State]

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    KIND_PING: _ClassVar[Kind]
    KIND_ACK: _ClassVar[Kind]
    KIND_PING_REQ: _ClassVar[Kind]
    KIND_NACK: _ClassVar[Kind]
STATE_UNSPECIFIED: State
STATE_ALIVE: State
STATE_SUSPECT: State
STATE_DEAD: State
STATE_LEFT: State
KIND_UNSPECIFIED: Kind
KIND_PING: Kind
KIND_ACK: Kind
KIND_PING_REQ: Kind
KIND_NACK: Kind

class Address(_message.Message):
    __slots__ = ("host", "port")
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    host: str
    port: int
    def __init__(self, host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("name", "address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: Address
    def __init__(self, name: _Optional[str] = ..., address: _Optional[_Union[Address, _Mapping]] = ...) -> None: ...

class NodeInfo(_message.Message):
    __slots__ = ("address", "boot_id", "endpoints", "cores", "load_permille", "rack", "version", "lacks_space")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    LOAD_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LACKS_SPACE_FIELD_NUMBER: _ClassVar[int]
    address: Address
    boot_id: bytes
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    cores: int
    load_permille: int
    rack: str
    version: str
    lacks_space: bool
    def __init__(self, address: _Optional[_Union[Address, _Mapping]] = ..., boot_id: _Optional[bytes] = ..., endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., cores: _Optional[int] = ..., load_permille: _Optional[int] = ..., rack: _Optional[str] = ..., version: _Optional[str] = ..., lacks_space: bool = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("node", "incarnation", "state", "source", "info", "gone_for_ms")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    GONE_FOR_MS_FIELD_NUMBER: _ClassVar[int]
    node: int
    incarnation: int
    state: State
    source: int
    info: NodeInfo
    gone_for_ms: int
    def __init__(self, node: _Optional[int] = ..., incarnation: _Optional[int] = ..., state: _Optional[_Union[State, str]] = ..., source: _Optional[int] = ..., info: _Optional[_Union[NodeInfo, _Mapping]] = ..., gone_for_ms: _Optional[int] = ...) -> None: ...

class Sender(_message.Message):
    __slots__ = ("node", "incarnation", "boot_id")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    node: int
    incarnation: int
    boot_id: bytes
    def __init__(self, node: _Optional[int] = ..., incarnation: _Optional[int] = ..., boot_id: _Optional[bytes] = ...) -> None: ...

class Datagram(_message.Message):
    __slots__ = ("version", "cluster", "kind", "sender", "sequence", "subject", "address", "nack_after_ms", "updates")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NACK_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    version: int
    cluster: str
    kind: Kind
    sender: Sender
    sequence: int
    subject: int
    address: Address
    nack_after_ms: int
    updates: _containers.RepeatedCompositeFieldContainer[Update]
    def __init__(self, version: _Optional[int] = ..., cluster: _Optional[str] = ..., kind: _Optional[_Union[Kind, str]] = ..., sender: _Optional[_Union[Sender, _Mapping]] = ..., sequence: _Optional[int] = ..., subject: _Optional[int] = ..., address: _Optional[_Union[Address, _Mapping]] = ..., nack_after_ms: _Optional[int] = ..., updates: _Optional[_Iterable[_Union[Update, _Mapping]]] = ...) -> None: ...

class StateFrame(_message.Message):
    __slots__ = ("version", "cluster", "sender", "updates", "is_last")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    version: int
    cluster: str
    sender: Sender
    updates: _containers.RepeatedCompositeFieldContainer[Update]
    is_last: bool
    def __init__(self, version: _Optional[int] = ..., cluster: _Optional[str] = ..., sender: _Optional[_Union[Sender, _Mapping]] = ..., updates: _Optional[_Iterable[_Union[Update, _Mapping]]] = ..., is_last: bool = ...) -> None: ...
