"""Frames of links: a header (length, version, kind), and protobuf behind it (`link.proto`).

The length counts what follows it. Before the other side has proved that it knows the secret a frame has at most
`LINK_GREETING_BYTES_MAX` bytes, afterwards `LINK_FRAME_BYTES_MAX`; the driver asks `check_header` before it takes
memory.
"""

from __future__ import annotations

import enum
import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from tpc_broker.cluster import link_pb2 as pb
from tpc_broker.cluster.secret import MAC_BYTES, NONCE_BYTES
from tpc_broker.feature_levels import LEVEL_MAX, UNSAID, Levels
from tpc_broker.foreign_protocols import foreign_protocol
from tpc_broker.limits import (
    LINK_FRAME_BYTES_MAX,
    LINK_GREETING_BYTES_MAX,
    LINK_TEXT_BYTES_MAX,
    SWIM_CLUSTER_BYTES_MAX,
    SWIM_HOST_BYTES_MAX,
    SWIM_NAME_BYTES_MAX,
)
from tpc_broker.model import CORES_PER_NODE_MAX, NODE_ID_MAX, CoreId, NodeId

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADER: Final = struct.Struct(">IBB")
_STEADY: Final = struct.Struct(">Q")
_PART: Final = struct.Struct(">Q")
PART_PREFIX_BYTES: Final = _PART.size
"""In a frame of kind PART, in front of the file's bytes."""
VERSION: Final = 1
NUMBER_MAX: Final = 2**63 - 1


class LinkDecodeError(Exception):
    """Bytes that are no frame of a link: what is wrong, and what is allowed."""


class Kind(enum.IntEnum):
    CHALLENGE = 1
    PROOF = 2
    HELLO = 3
    REFUSED = 4
    REQUEST = 5
    ANSWER = 6
    RAFT = 7
    REPLICA = 8
    """As RAFT, of the partitions of two cores, and not of the metadata."""
    STEADY = 9
    """From here on the connection carries the steady state of replication (`native/bytes/cdef/82_steady_frame.h`), and
    belongs to C: with the boot id of the sender's core, from the dialler and back.
    """
    PART = 10
    """An answer that is bytes of a file, and nothing else."""


class Reason(enum.StrEnum):
    """Why a link is refused."""

    SECRET = "secret"  # noqa: S105 (the name of a reason)
    CLUSTER = "cluster"
    """It belongs to another cluster."""
    NODE_ID = "node-id"
    """Another node with its id is alive."""
    LEVEL = "level"
    """It does not speak the cluster's feature level."""
    REMOVED = "removed"
    """An operator has removed it from the cluster."""
    AUTHORIZER = "authorizer"
    """One of the two has an authorizer, and the other does not."""
    NODE_ITSELF = "itself"
    """It dialled its own address."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Who is at the other end. `incarnation` is of its data, `boot` of its process; `cluster` is empty of a node that
    is in none yet.
    """

    cluster: str
    node: NodeId
    incarnation: int
    boot: int
    core: CoreId
    host: str
    port: int
    version: str
    replication: bool = False
    """Between two cores, for their partitions."""
    levels: Levels = UNSAID
    has_authorizer: bool = False

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port


@dataclass(frozen=True, slots=True)
class Request:
    id: int
    method: str
    payload: Any
    blobs: list[bytes]


@dataclass(frozen=True, slots=True)
class Answer:
    """`error`: what went wrong there; empty when nothing did. `blobs`: bytes, or a part of a file, as it was given."""

    id: int
    payload: Any
    blobs: list[Any]
    error: str


def frame(kind: Kind, body: bytes) -> bytes:
    assert len(body) + 2 <= LINK_FRAME_BYTES_MAX, len(body)
    return HEADER.pack(len(body) + 2, VERSION, kind) + body


def check_header(header: bytes, *, is_known: bool) -> tuple[Kind, int]:
    """Kind and length of the body that follows; LinkDecodeError for what no frame begins with. `is_known`: the other
    side has proved who it is.
    """
    length, version, kind = HEADER.unpack(header)
    foreign = None if is_known else foreign_protocol(header)
    if foreign is not None:
        raise LinkDecodeError(f"it speaks {foreign} to a port that is for the nodes of a cluster")
    bytes_max = LINK_FRAME_BYTES_MAX if is_known else LINK_GREETING_BYTES_MAX
    if version != VERSION:
        raise LinkDecodeError(f"version {version} of a link; this node speaks {VERSION}")
    if not 2 <= length <= bytes_max:
        raise LinkDecodeError(f"a frame of {length} bytes; allowed are 2 to {bytes_max}")
    if kind not in _KINDS:
        raise LinkDecodeError(f"a frame of kind {kind}; known are {min(_KINDS)} to {max(_KINDS)}")
    if not is_known and kind not in _GREETING:
        raise LinkDecodeError(f"a frame of kind {Kind(kind).name} from one who has not proved the secret")
    return Kind(kind), length - 2


_KINDS: Final = frozenset(int(kind) for kind in Kind)
_GREETING: Final = frozenset({Kind.CHALLENGE, Kind.PROOF, Kind.REFUSED})


# Rule: Whoever has not proved the cluster's secret gets a challenge and nothing else. A datagram is taken once. See
# also tpc_broker/cluster/secret.py, tpc_broker/node/links/links.py. Held by tests/cluster/test_codecs.py,
# tests/cluster/test_secret.py, tests/cluster/test_nodes.py.
def encode_challenge(nonce: bytes) -> bytes:
    return frame(Kind.CHALLENGE, pb.Challenge(nonce=nonce).SerializeToString())


def decode_challenge(body: bytes) -> bytes:
    nonce: bytes = _parsed(pb.Challenge, body).nonce
    if len(nonce) != NONCE_BYTES:
        raise LinkDecodeError(f"a challenge of {len(nonce)} bytes; it has {NONCE_BYTES}")
    return nonce


def encode_proof(mac: bytes) -> bytes:
    return frame(Kind.PROOF, pb.Proof(mac=mac).SerializeToString())


def decode_proof(body: bytes) -> bytes:
    mac: bytes = _parsed(pb.Proof, body).mac
    if len(mac) != MAC_BYTES:
        raise LinkDecodeError(f"a proof of {len(mac)} bytes; it has {MAC_BYTES}")
    return mac


def encode_hello(hello: Hello) -> bytes:
    message = pb.Hello(
        cluster=hello.cluster, node=hello.node, incarnation=hello.incarnation, boot=hello.boot,
        core=hello.core, host=hello.host, port=hello.port, version=hello.version, replication=hello.replication,
        level_min=hello.levels.lowest, level_max=hello.levels.highest,
        has_authorizer=hello.has_authorizer,
    )  # fmt: skip
    return frame(Kind.HELLO, message.SerializeToString())


def decode_hello(body: bytes) -> Hello:
    message = _parsed(pb.Hello, body)
    for text, name, bytes_max in (
        (message.cluster, "cluster id", SWIM_CLUSTER_BYTES_MAX),
        (message.host, "host", SWIM_HOST_BYTES_MAX),
        (message.version, "version", SWIM_NAME_BYTES_MAX),
    ):
        if len(text.encode()) > bytes_max:
            raise LinkDecodeError(f"a {name} of {len(text.encode())} bytes; at most {bytes_max} are allowed")
    for number, name, largest in (
        (message.node, "node id", NODE_ID_MAX),
        (message.core, "core", CORES_PER_NODE_MAX - 1),
        (message.port, "port", 65_535),
        (message.incarnation, "incarnation", NUMBER_MAX),
        (message.boot, "boot id", NUMBER_MAX),
        (message.level_max, "feature level", LEVEL_MAX),
        (message.level_min, "lowest feature level", message.level_max),
    ):
        if number > largest:
            raise LinkDecodeError(f"{name} {number} is above {largest}")
    return Hello(
        message.cluster, NodeId(message.node), message.incarnation, message.boot,
        CoreId(message.core), message.host, message.port, message.version, message.replication,
        Levels(message.level_min, message.level_max) if message.level_max else UNSAID,
        message.has_authorizer,
    )  # fmt: skip


def encode_steady(boot_id: int) -> bytes:
    return frame(Kind.STEADY, _STEADY.pack(boot_id))


def decode_steady(body: bytes) -> int:
    """The boot id. LinkDecodeError: it is none."""
    if len(body) != _STEADY.size:
        raise LinkDecodeError(f"a boot id of {len(body)} bytes; it has {_STEADY.size}")
    boot_id = int(_STEADY.unpack(body)[0])
    if boot_id > NUMBER_MAX:
        raise LinkDecodeError(f"boot id {boot_id} is above {NUMBER_MAX}")
    return boot_id


def encode_refused(reason: Reason, text: str) -> bytes:
    return frame(Kind.REFUSED, pb.Refused(reason=reason.value, text=text[:LINK_TEXT_BYTES_MAX]).SerializeToString())


def decode_refused(body: bytes) -> tuple[Reason | None, str]:
    """None: for a reason that this release does not know."""
    message = _parsed(pb.Refused, body)
    known = [reason for reason in Reason if reason.value == message.reason]
    return (known[0] if known else None), message.text[:LINK_TEXT_BYTES_MAX]


def encode_request(request_id: int, method: str, payload: Any, blobs: Sequence[bytes] = ()) -> bytes:
    message = pb.Request(id=request_id, method=method, payload=json.dumps(payload).encode(), blobs=list(blobs))
    return _bounded(Kind.REQUEST, message)


def decode_request(body: bytes) -> Request:
    message = _parsed(pb.Request, body)
    return Request(message.id, message.method, _json(message.payload), list(message.blobs))


def encode_answer(request_id: int, payload: Any, blobs: Sequence[bytes] = (), error: str = "") -> bytes:
    message = pb.Answer(id=request_id, payload=json.dumps(payload).encode(), blobs=list(blobs))
    message.error = error[:LINK_TEXT_BYTES_MAX]
    return _bounded(Kind.ANSWER, message)


def decode_answer(body: bytes) -> Answer:
    message = _parsed(pb.Answer, body)
    return Answer(message.id, _json(message.payload), list(message.blobs), message.error[:LINK_TEXT_BYTES_MAX])


def part_header(request_id: int, length: int) -> bytes:
    """What goes in front of the bytes of a file that answer a request."""
    return HEADER.pack(_PART.size + length + 2, VERSION, Kind.PART) + _PART.pack(request_id)


def decode_part(body: bytes | memoryview) -> Answer:
    if len(body) < _PART.size:
        raise LinkDecodeError(f"a part of a file of {len(body)} bytes; it has {_PART.size} and more")
    return Answer(_PART.unpack_from(body)[0], {}, [body[_PART.size :]], "")


def _bounded(kind: Kind, message: Any) -> bytes:
    size = message.ByteSize()
    if size + 2 > LINK_FRAME_BYTES_MAX:
        raise ValueError(f"a message of {size} bytes to another node; at most {LINK_FRAME_BYTES_MAX} are allowed")
    return frame(kind, message.SerializeToString())


def _parsed(what: Any, body: bytes) -> Any:
    try:
        return what.FromString(body)
    except DecodeError as error:
        raise LinkDecodeError(f"not a {what.DESCRIPTOR.name}: {error}") from error


def _json(payload: bytes) -> Any:
    try:
        found = json.loads(payload) if payload else {}
    except (ValueError, RecursionError) as error:
        raise LinkDecodeError(f"a payload that is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise LinkDecodeError("a payload is a JSON object")
    return found
