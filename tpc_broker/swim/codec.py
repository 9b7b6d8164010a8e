"""Datagrams and frames of streams in protobuf (`swim.proto`), to and from the machine's values.

What comes from the network is not believed: its length is checked before it is parsed, which bounds the memory that the
parser takes (`docs/decisions/2026-11-22-swim.md` has the measured factor), and every text, number and count before a
value is made of it.
Everything that is wrong with it is a `SwimDecodeError`, and so is a message of another cluster or another version.

A stream carries frames of 4 bytes of length (big-endian, without themselves) and a `StateFrame`; the driver reads the
length, asks `check_frame_bytes`, and takes memory then. Each frame is merged when it has come, so that neither side
ever holds more than one.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from tpc_broker.limits import SWIM_CLUSTER_BYTES_MAX, SWIM_DATAGRAM_BYTES_MAX, SWIM_FRAME_BYTES_MAX
from tpc_broker.model import NODE_ID_MAX, NodeId
from tpc_broker.swim import swim_pb2 as pb
from tpc_broker.swim.model import (
    INCARNATION_MAX,
    Address,
    Kind,
    Message,
    NodeInfo,
    Sender,
    State,
    Update,
    checked_address,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VERSION: Final = 1
_STATES: Final = {state: getattr(pb, f"STATE_{state.name}") for state in State}
_STATES_READ: Final = {number: state for state, number in _STATES.items()}
_KINDS: Final = {kind: getattr(pb, f"KIND_{kind.name}") for kind in Kind}
_UPDATE_FRAMING_BYTES: Final = 3
"""Tag and length of an update, or of an address, at most."""
_SEQUENCE_MAX: Final = 2**32 - 1


class SwimDecodeError(Exception):
    """Bytes that are no message of this cluster: what is wrong, and what is allowed."""


class SwimCodec:
    """The codec of one cluster; its name is in every message, so that two clusters on one network do not mix."""

    def __init__(self, cluster: str) -> None:
        if not cluster or len(cluster.encode()) > SWIM_CLUSTER_BYTES_MAX:
            raise ValueError(
                f"the cluster's name has {len(cluster.encode())} bytes; 1 to {SWIM_CLUSTER_BYTES_MAX} are allowed"
            )
        self._cluster = cluster
        sender = Sender(NodeId(NODE_ID_MAX), INCARNATION_MAX, uuid.UUID(int=2**128 - 1))
        longest = Message(Kind.PING_REQ, sender, _SEQUENCE_MAX, NodeId(NODE_ID_MAX), None, 2**31 - 1)
        self._header_bytes = len(self.encode(longest))

    def header_bytes(self, address: Address | None) -> int:
        """What a datagram with this address takes without updates, at most."""
        return self._header_bytes + (0 if address is None else _to_address(address).ByteSize() + _UPDATE_FRAMING_BYTES)

    def update_bytes(self, update: Update) -> int:
        """What an update takes in a datagram."""
        size: int = _to_update(update).ByteSize()
        return size + _UPDATE_FRAMING_BYTES

    def encode(self, message: Message) -> bytes:
        """A datagram. The machine keeps it within bounds: one above them is our bug."""
        datagram = pb.Datagram(
            version=VERSION,
            cluster=self._cluster,
            kind=_KINDS[message.kind],
            sender=_to_sender(message.sender),
            sequence=message.sequence,
            subject=message.subject,
            nack_after_ms=message.nack_after_ms,
            updates=map(_to_update, message.updates),
        )
        if message.address is not None:
            datagram.address.host, datagram.address.port = message.address
        data: bytes = datagram.SerializeToString()
        assert len(data) <= SWIM_DATAGRAM_BYTES_MAX, len(data)
        return data

    def decode(self, data: bytes) -> Message:
        """The message of a datagram; SwimDecodeError when it is none."""
        if len(data) > SWIM_DATAGRAM_BYTES_MAX:
            raise SwimDecodeError(f"{len(data)} bytes; a datagram has at most {SWIM_DATAGRAM_BYTES_MAX}")
        try:
            datagram = pb.Datagram.FromString(data)
            self._check(datagram.version, datagram.cluster)
            kind = Kind(datagram.kind)
            if (kind is Kind.PING_REQ) != datagram.HasField("address"):
                raise SwimDecodeError(f"{kind.name} {'without' if kind is Kind.PING_REQ else 'with'} an address")
            if kind is not Kind.PING and not datagram.HasField("subject"):
                raise SwimDecodeError(f"{kind.name} without a subject")
            return Message(
                kind,
                _from_sender(datagram.sender),
                datagram.sequence,
                _node(datagram.subject) if datagram.HasField("subject") else None,
                _from_address(datagram.address) if kind is Kind.PING_REQ else None,
                datagram.nack_after_ms,
                tuple(map(_from_update, datagram.updates)),
            )
        except (DecodeError, ValueError) as error:
            raise SwimDecodeError(f"not a membership datagram: {error}") from error

    def encode_state(self, sender: Sender, updates: Iterable[Update]) -> Iterator[bytes]:
        """A whole state as frames, each with its length in front, the last one marked."""
        frame = pb.StateFrame(version=VERSION, cluster=self._cluster, sender=_to_sender(sender))
        header_bytes = room = frame.ByteSize() + 2
        for update in updates:
            part = _to_update(update)
            size = part.ByteSize() + _UPDATE_FRAMING_BYTES
            if room + size > SWIM_FRAME_BYTES_MAX:
                yield _framed(frame)
                del frame.updates[:]
                room = header_bytes
            frame.updates.append(part)
            room += size
        frame.is_last = True
        yield _framed(frame)

    @staticmethod
    def check_frame_bytes(length: int) -> None:
        """SwimDecodeError for a length that no frame has; to be asked before memory is taken for it."""
        if not 0 < length <= SWIM_FRAME_BYTES_MAX:
            raise SwimDecodeError(f"a frame of {length} bytes; allowed are 1 to {SWIM_FRAME_BYTES_MAX}")

    def decode_state(self, data: bytes) -> tuple[Sender, list[Update], bool]:
        """A frame without its length: whose state, a part of it, whether it is the last; or SwimDecodeError."""
        self.check_frame_bytes(len(data))
        try:
            frame = pb.StateFrame.FromString(data)
            self._check(frame.version, frame.cluster)
            return _from_sender(frame.sender), list(map(_from_update, frame.updates)), frame.is_last
        except (DecodeError, ValueError) as error:
            raise SwimDecodeError(f"not a frame of members: {error}") from error

    def _check(self, version: int, cluster: str) -> None:
        if version != VERSION:
            raise SwimDecodeError(f"version {version}; this node knows {VERSION}")
        if cluster != self._cluster:
            raise SwimDecodeError(f"of cluster {cluster[:SWIM_CLUSTER_BYTES_MAX]!r}; this one is {self._cluster!r}")


def _framed(frame: pb.StateFrame) -> bytes:
    data: bytes = frame.SerializeToString()
    return len(data).to_bytes(4, "big") + data


def _to_sender(sender: Sender) -> pb.Sender:
    return pb.Sender(node=sender.node, incarnation=sender.incarnation, boot_id=sender.boot_id.bytes)


def _from_sender(sender: pb.Sender) -> Sender:
    if sender.incarnation > INCARNATION_MAX:
        raise ValueError(f"incarnation {sender.incarnation} is above {INCARNATION_MAX}")
    return Sender(_node(sender.node), sender.incarnation, uuid.UUID(bytes=sender.boot_id))


def _to_update(update: Update) -> pb.Update:
    info = update.info
    return pb.Update(
        node=update.node,
        incarnation=update.incarnation,
        state=_STATES[update.state],
        source=update.source,
        gone_for_ms=update.gone_for_ms,
        info=None
        if info is None
        else pb.NodeInfo(
            address=_to_address(info.address),
            boot_id=info.boot_id.bytes,
            endpoints=[pb.Endpoint(name=name, address=_to_address(address)) for name, address in info.endpoints],
            cores=info.cores,
            load_permille=info.load_permille,
            rack=info.rack,
            version=info.version,
            lacks_space=info.lacks_space,
        ),
    )


def _from_update(update: pb.Update) -> Update:
    state = _STATES_READ.get(update.state)
    if state is None:
        raise ValueError(f"state {update.state} of node {update.node} is none of {sorted(_STATES_READ)}")
    info = _from_info(update.info) if update.HasField("info") else None
    return Update(_node(update.node), update.incarnation, state, _node(update.source), info, update.gone_for_ms)


def _from_info(info: pb.NodeInfo) -> NodeInfo:
    return NodeInfo(
        address=_from_address(info.address),
        boot_id=uuid.UUID(bytes=info.boot_id),
        endpoints=tuple((endpoint.name, _from_address(endpoint.address)) for endpoint in info.endpoints),
        cores=info.cores,
        load_permille=info.load_permille,
        rack=info.rack,
        version=info.version,
        lacks_space=info.lacks_space,
    )


def _to_address(address: Address) -> pb.Address:
    return pb.Address(host=address.host, port=address.port)


def _from_address(address: pb.Address) -> Address:
    return checked_address(Address(address.host, address.port))


def _node(number: int) -> NodeId:
    if number > NODE_ID_MAX:
        raise ValueError(f"node {number} is above {NODE_ID_MAX}")
    return NodeId(number)
