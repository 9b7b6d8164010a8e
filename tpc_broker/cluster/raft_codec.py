"""`raft`'s values in protobuf: frames of links, and the entries of the file of a metadata voter.

Groups are named by a text. What is read is checked: numbers against their bounds, items against what an item is. What
only the machine can judge (does this fit behind the log?) is the machine's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from google.protobuf.message import DecodeError

from tpc_broker.cluster import link_pb2 as pb
from tpc_broker.cluster.link_codec import NUMBER_MAX, LinkDecodeError
from tpc_broker.limits import CLUSTER_GROUP_BYTES_MAX
from tpc_broker.model import CORES_PER_NODE_MAX, NODE_ID_MAX, CoreId, NodeId
from tpc_broker.raft.items import Address, Batch, Config, Marker, Position, Voter
from tpc_broker.raft.journal import AdoptEntry, AppendEntry, Checkpoint, CutEntry, MarkerEntry, VoteEntry
from tpc_broker.raft.log import LogImage
from tpc_broker.raft.messages import (
    Ack,
    AppendEntries,
    Frame,
    GroupList,
    Heartbeat,
    Install,
    ReadRound,
    ReadRoundReply,
    Reason,
    Reject,
    RequestVote,
    Resign,
    TimeoutNow,
    Vote,
)

if TYPE_CHECKING:
    from tpc_broker.raft.items import Item
    from tpc_broker.raft.journal import JournalEntry
    from tpc_broker.raft.messages import GroupMessage, Message

_REASONS: Final = {1: Reason.TIMEOUT, 2: Reason.TRANSFER, 3: Reason.OWN_NEXT_TERM}
_REASON_NUMBERS: Final = {reason: number for number, reason in _REASONS.items()}


class FileEntry(NamedTuple):
    """An entry as the file has it: of the machine, or a checkpoint; `image`: the cluster, where a log was adopted."""

    entry: JournalEntry | Checkpoint
    image: bytes = b""


# -- frames ------------------------------------------------------------------------------------------------------------


def encode_frame(frame: Frame) -> bytes:
    message = pb.RaftFrame(
        source_node=frame.source.node,
        source_core=frame.source.core,
        target_node=frame.target.node,
        target_core=frame.target.core,
        boot_id=frame.boot_id,
        messages=[_to_message(each) for each in frame.messages],
    )
    data: bytes = message.SerializeToString()
    return data


def decode_frame(data: bytes) -> Frame:
    """LinkDecodeError for what is none. It has arrived, so it waits for nothing."""
    try:
        frame = pb.RaftFrame.FromString(data)
        source = _address(frame.source_node, frame.source_core)
        target = _address(frame.target_node, frame.target_core)
        return Frame(source, target, _number(frame.boot_id), 0, tuple(map(_from_message, frame.messages)))
    except (DecodeError, ValueError) as error:
        raise LinkDecodeError(f"not a frame of replication: {error}") from error


def _to_message(message: Message) -> pb.RaftMessage:
    if isinstance(message, Heartbeat):
        facts = [pb.GroupFact(group=str(group), term=term) for group, term in message.resigned]
        return pb.RaftMessage(
            kind=pb.RaftMessage.KIND_HEARTBEAT, number=message.number, groups=facts, silent_ms=message.silent_ms
        )
    if isinstance(message, GroupList):
        facts = [pb.GroupFact(group=str(group), term=term, leads=leads) for group, term, leads in message.groups]
        return pb.RaftMessage(kind=pb.RaftMessage.KIND_GROUP_LIST, groups=facts)
    if isinstance(message, ReadRound):
        facts = [pb.GroupFact(group=str(group), term=term) for group, term in message.groups]
        return pb.RaftMessage(kind=pb.RaftMessage.KIND_READ_ROUND, number=message.round_number, groups=facts)
    if isinstance(message, ReadRoundReply):
        facts = [
            pb.GroupFact(group=str(group), term=term, voter=_to_voter(voter)) for group, term, voter in message.groups
        ]
        return pb.RaftMessage(kind=pb.RaftMessage.KIND_READ_ROUND_REPLY, number=message.round_number, groups=facts)
    return _to_group_message(message)


def _to_group_message(message: GroupMessage) -> pb.RaftMessage:
    made = pb.RaftMessage(
        group=str(message.group),
        source=_to_voter(message.source),
        target=_to_voter(message.target),
        term=message.term,
    )
    match message:
        case RequestVote():
            made.kind, made.reason = pb.RaftMessage.KIND_REQUEST_VOTE, _REASON_NUMBERS[message.reason]
            made.pre_vote = message.pre_vote
            _set(made.position, message.last)
        case Vote():
            made.kind, made.granted, made.pre_vote = pb.RaftMessage.KIND_VOTE, message.granted, message.pre_vote
        case AppendEntries():
            made.kind = pb.RaftMessage.KIND_APPEND_ENTRIES
            _set(made.position, message.prev)
            _set(made.second, message.commit)
            made.items.extend(map(_to_item, message.items))
        case Ack():
            made.kind = pb.RaftMessage.KIND_ACK
            _set(made.position, message.position)
            _set(made.second, message.commit)
        case Reject():
            made.kind = pb.RaftMessage.KIND_REJECT
            _set(made.position, message.prev)
            _set(made.second, message.end)
        case TimeoutNow():
            made.kind = pb.RaftMessage.KIND_TIMEOUT_NOW
            _set(made.position, message.commit)
        case Install():
            made.kind, made.log_start_offset = pb.RaftMessage.KIND_INSTALL, message.log_start_offset
            _set(made.position, message.position)
            made.items.extend(map(_to_item, message.markers))
        case Resign():
            made.kind = pb.RaftMessage.KIND_RESIGN
    return made


def _from_message(message: pb.RaftMessage) -> Message:
    facts = message.groups
    match message.kind:
        case pb.RaftMessage.KIND_HEARTBEAT:
            resigned = tuple((_group(f.group), _number(f.term)) for f in facts)
            return Heartbeat(_number(message.number), resigned, _number(message.silent_ms))
        case pb.RaftMessage.KIND_GROUP_LIST:
            return GroupList(tuple((_group(f.group), _number(f.term), f.leads) for f in facts))
        case pb.RaftMessage.KIND_READ_ROUND:
            return ReadRound(_number(message.number), tuple((_group(f.group), _number(f.term)) for f in facts))
        case pb.RaftMessage.KIND_READ_ROUND_REPLY:
            answered = tuple((_group(f.group), _number(f.term), _voter(f.voter)) for f in facts)
            return ReadRoundReply(_number(message.number), answered)
    return _from_group_message(message)


def _from_group_message(message: pb.RaftMessage) -> GroupMessage:  # noqa: PLR0911 (one for each kind)
    who = _group(message.group), _voter(message.source), _voter(message.target), _number(message.term)
    kinds = pb.RaftMessage
    if message.kind == kinds.KIND_REQUEST_VOTE:
        if message.reason not in _REASONS:
            raise ValueError(f"reason {message.reason} of an election is none of {sorted(_REASONS)}")
        return RequestVote(*who, _position(message.position), _REASONS[message.reason], message.pre_vote)
    if message.kind == kinds.KIND_VOTE:
        return Vote(*who, message.granted, message.pre_vote)
    if message.kind == kinds.KIND_APPEND_ENTRIES:
        items = tuple(map(_item, message.items))
        return AppendEntries(*who, _position(message.position), items, _position(message.second))
    if message.kind == kinds.KIND_ACK:
        return Ack(*who, _position(message.position), _position(message.second))
    if message.kind == kinds.KIND_REJECT:
        return Reject(*who, _position(message.position), _position(message.second))
    if message.kind == kinds.KIND_TIMEOUT_NOW:
        return TimeoutNow(*who, _position(message.position))
    if message.kind == kinds.KIND_INSTALL:
        markers = tuple(map(_marker, message.items))
        return Install(*who, _position(message.position), markers, _number(message.log_start_offset))
    if message.kind == kinds.KIND_RESIGN:
        return Resign(*who)
    raise ValueError(f"a message of kind {message.kind}, which this node does not know")


# -- the file of a voter -----------------------------------------------------------------------------------------------


def encode_entry(entry: JournalEntry | Checkpoint, image: bytes = b"") -> bytes:
    kinds = pb.JournalEntry
    match entry:
        case VoteEntry():
            made = kinds(kind=kinds.KIND_VOTE, term=entry.term, voted_for=_to_optional_voter(entry.voted_for))
        case MarkerEntry():
            made = kinds(kind=kinds.KIND_MARKER, items=[_to_item(entry.marker)])
        case AppendEntry():
            made = kinds(kind=kinds.KIND_APPEND, items=map(_to_item, entry.batches))
        case CutEntry():
            made = kinds(kind=kinds.KIND_CUT, position=pb.Position(epoch=entry.last_epoch_kept, offset=entry.offset))
        case AdoptEntry():
            made = kinds(
                kind=kinds.KIND_ADOPT,
                position=_to_position(entry.position),
                items=map(_to_item, entry.markers),
                log_start_offset=entry.log_start_offset,
                term=entry.term,
                voted_for=_to_optional_voter(entry.voted_for),
                commit=_to_position(entry.commit),
                image=image,
            )
        case Checkpoint():
            made = kinds(kind=kinds.KIND_CHECKPOINT, checkpoint=_to_checkpoint(entry), image=image)
        case _:
            raise TypeError(f"{type(entry).__name__} is of partitions, and none of this file")
    data: bytes = made.SerializeToString()
    return data


def decode_entry(group: str, data: bytes) -> FileEntry:
    """LinkDecodeError for what is none."""
    try:
        return _entry(group, pb.JournalEntry.FromString(data))
    except (DecodeError, ValueError) as error:
        raise LinkDecodeError(f"not an entry of a voter's file: {error}") from error


def _entry(group: str, made: pb.JournalEntry) -> FileEntry:
    kinds = pb.JournalEntry
    voted_for = _voter(made.voted_for) if made.HasField("voted_for") else None
    if made.kind == kinds.KIND_VOTE:
        return FileEntry(VoteEntry(group, _number(made.term), voted_for))
    if made.kind == kinds.KIND_MARKER:
        if len(made.items) != 1:
            raise ValueError(f"{len(made.items)} markers in one entry")
        return FileEntry(MarkerEntry(group, _marker(made.items[0])))
    if made.kind == kinds.KIND_APPEND:
        batches = tuple(map(_item, made.items))
        found = tuple(batch for batch in batches if isinstance(batch, Batch))
        if not found or len(found) != len(batches):
            raise ValueError("an append without batches, or with a marker")
        return FileEntry(AppendEntry(group, found))
    if made.kind == kinds.KIND_CUT:
        place = _position(made.position)
        return FileEntry(CutEntry(group, place.offset, place.epoch))
    if made.kind == kinds.KIND_ADOPT:
        markers = tuple(map(_marker, made.items))
        log_start_offset, term = _number(made.log_start_offset), _number(made.term)
        position, commit = _position(made.position), _position(made.commit)
        return FileEntry(AdoptEntry(group, position, markers, log_start_offset, term, voted_for, commit), made.image)
    if made.kind == kinds.KIND_CHECKPOINT:
        return FileEntry(_checkpoint(made.checkpoint), made.image)
    raise ValueError(f"an entry of kind {made.kind}, which this release does not know")


def _to_checkpoint(checkpoint: Checkpoint) -> pb.Checkpoint:
    log = checkpoint.log
    return pb.Checkpoint(
        term=checkpoint.term,
        voted_for=_to_optional_voter(checkpoint.voted_for),
        commit=_to_position(checkpoint.commit_hint),
        start=_to_position(log.start),
        log_start_offset=log.log_start_offset,
        end_offset=log.end_offset,
        markers=map(_to_item, log.markers),
        items=map(_to_item, log.items),
    )


def _checkpoint(made: pb.Checkpoint) -> Checkpoint:
    markers, items = tuple(map(_marker, made.markers)), tuple(map(_item, made.items))
    starts, ends = _number(made.log_start_offset), _number(made.end_offset)
    log = LogImage(_position(made.start), starts, ends, markers, items)
    voted_for = _voter(made.voted_for) if made.HasField("voted_for") else None
    return Checkpoint(_number(made.term), voted_for, _position(made.commit), log)


# -- parts -------------------------------------------------------------------------------------------------------------


def _to_position(position: Position) -> pb.Position:
    return pb.Position(epoch=position.epoch, offset=position.offset)


def _set(target: pb.Position, position: Position) -> None:
    target.epoch, target.offset = position


def _position(made: pb.Position) -> Position:
    return Position(_number(made.epoch), _number(made.offset))


def _to_voter(voter: Voter) -> pb.Voter:
    return pb.Voter(node=voter.node, incarnation=voter.incarnation)


def _to_optional_voter(voter: Voter | None) -> pb.Voter | None:
    return None if voter is None else _to_voter(voter)


def _voter(made: pb.Voter) -> Voter:
    return Voter(_node(made.node), _number(made.incarnation))


def _to_item(item: Item) -> pb.Item:
    if isinstance(item, Marker):
        return pb.Item(epoch=item.epoch, end_offset=item.end_offset, config=_to_config(item.config))
    assert isinstance(item.payload, bytes), item
    return pb.Item(epoch=item.epoch, end_offset=item.end_offset, base_offset=item.base_offset, payload=item.payload)


def _to_config(config: Config) -> pb.Config:
    return pb.Config(old=map(_to_voter, sorted(config.old)), new=map(_to_voter, sorted(config.new)))


def _item(made: pb.Item) -> Item:
    if made.HasField("config"):
        return _marker(made)
    base_offset, end_offset = _number(made.base_offset), _number(made.end_offset)
    if not base_offset < end_offset:
        raise ValueError(f"a batch from {base_offset} to {end_offset}")
    return Batch(_number(made.epoch), end_offset, base_offset, len(made.payload), made.payload)


def _marker(made: pb.Item) -> Marker:
    if not made.HasField("config"):
        raise ValueError("a batch in the place of a marker")
    old = frozenset(map(_voter, made.config.old))
    new = frozenset(map(_voter, made.config.new))
    return Marker(_number(made.epoch), _number(made.end_offset), Config(old, old if old == new else new))


def _address(node: int, core: int) -> Address:
    if core >= CORES_PER_NODE_MAX:
        raise ValueError(f"core {core}; allowed are 0 to {CORES_PER_NODE_MAX - 1}")
    return Address(_node(node), CoreId(core))


def _node(number: int) -> NodeId:
    if number > NODE_ID_MAX:
        raise ValueError(f"node {number} is above {NODE_ID_MAX}")
    return NodeId(number)


def _number(number: int) -> int:
    if number > NUMBER_MAX:
        raise ValueError(f"{number} is above {NUMBER_MAX}")
    return number


def _group(name: str) -> str:
    if not 0 < len(name.encode()) <= CLUSTER_GROUP_BYTES_MAX:
        raise ValueError(f"a group's name of {len(name.encode())} bytes; allowed are 1 to {CLUSTER_GROUP_BYTES_MAX}")
    return name
