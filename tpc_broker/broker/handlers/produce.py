"""A Produce that the data plane left to Python: partitions it does not lead, no room yet, keys to be checked.

The data plane answers a plain Produce by itself. What it leaves changes nothing; Python finds out what only the
metadata knows, makes room where there is none, and hands the request back with one verdict per partition. What the
request says is what the data plane has read: it is not decoded here.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker import limits
from tpc_broker.auth.operations import Operation
from tpc_broker.broker.confirmed import CONFIRM_S
from tpc_broker.broker.partition import Partition
from tpc_broker.broker.ports import ProduceFallback, Verdict
from tpc_broker.broker.unpacking import NotUnpackedError, keyless_of
from tpc_broker.broker.verification import Verification, find_to_write
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import LeadershipLostError, PartitionOfflineError
from tpc_broker.kafka.codec import codec
from tpc_broker.kafka.errors import DecodeError
from tpc_broker.metadata.cleaner_settings import decompressed_bytes_max

if TYPE_CHECKING:
    import uuid
    from contextlib import AbstractContextManager

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request
    from tpc_broker.broker.ports import AskedPart, AskedProduce

log = logging.getLogger(__name__)

ROOM_RETRY_S = 0.002
COMMIT_RETRY_S = 0.02
"""Much is committed in that, and all that wait try again."""
ROOM_WAIT_MS_MAX = 30_000
REFUSAL_WAIT_MS_MAX = 1_000
TRIED_AGAIN: Final = frozenset(
    {
        ProduceFallback.JOURNAL_FULL, ProduceFallback.NOT_ADMITTED, ProduceFallback.NO_MEMORY, ProduceFallback.GAP,
        ProduceFallback.UNCOMMITTED, ProduceFallback.VERIFY, ProduceFallback.AUTHORIZE,
    }
)  # fmt: skip
"""Reasons to leave a Produce that is to be taken with other verdicts, or later."""

ATTRIBUTES_PLACE: Final = 22
"""In a batch: the lower byte."""
TRANSACTIONAL_BIT: Final = 0x10

_Part = tuple["str | uuid.UUID", int]
"""A topic, by name or id, and a partition's number."""


@dataclass(slots=True)
class _Hold:
    """Whether a Produce was held: until somebody leads, until a partition has moved, or until a quorum has spoken.

    One whose client goes meanwhile is dropped: that client sends it again elsewhere, or does not want it any more. What
    was not held is carried out all the same, and so is what merely waits for room: acks=0 is sent and left alone.
    """

    core: Core
    request: Request
    asked: AskedProduce
    refused: dict[int, ErrorCode] = field(default_factory=dict)
    """What the client may not write, by the place in the request."""
    has_waited: bool = False

    def while_open(self) -> AbstractContextManager[trio.CancelScope]:
        """For a wait: it ends when the client goes."""
        return self.core.dispatcher.while_open(self.request.connection)

    def is_over(self) -> bool:
        """Whether it was held and its client has gone: to be asked behind each wait."""
        return self.has_waited and not self.core.dispatcher.is_open(self.request.connection)


async def handle_produce(core: Core, request: Request, _message: None) -> None:
    """Answered by the data plane once it takes the request; never returns a response."""
    asked = core.plane.asked(request)
    if isinstance(asked, ProduceFallback):
        raise _unreadable(request, asked)
    if request.fallback_reason == ProduceFallback.AUTHORIZE:
        core.grants.decide_produce(request, asked)
        if core.produce_now(request):
            return
    deadline_ms = core.clock.monotonic_ms() + min(max(asked.timeout_ms, 1000), ROOM_WAIT_MS_MAX)
    verification = Verification(core, request, asked)
    verification.errors.update(refused := _refused(core, request, asked))
    try:
        await _carry_out(_Hold(core, request, asked, refused), deadline_ms, verification)
    finally:
        verification.end()


# Rule: What a client may not write is neither looked for, nor made room for, nor added to a transaction, and the rights
# are those of the moment in which the records are taken. Held by tests/broker/test_rights_of_data.py.
def _refused(core: Core, request: Request, asked: AskedProduce, *, is_told: bool = True) -> dict[int, ErrorCode]:
    """What the client may not write, by the place in the request: none of it where a batch is of a transaction that is
    not the client's. With an authorizer there are transactions, so it is not mistaken for what is said where there are
    none.
    """
    if core.access.authorizer is None:
        return {}
    refused: dict[int, ErrorCode] = {}
    by_topic: dict[str | uuid.UUID, ErrorCode] = {}
    for place, part in enumerate(asked.parts):
        if part.topic not in by_topic:
            by_topic[part.topic] = _fault_to_write(core, request, part.topic, is_told=is_told)
        if by_topic[part.topic]:
            refused[place] = by_topic[part.topic]
    transactional_id = asked.transactional_id
    if any(_is_transactional(request, part) for part in asked.parts) and (
        transactional_id is None
        or not core.access.allows_transaction(request, Operation.WRITE, transactional_id, is_told=is_told)
    ):
        return dict.fromkeys(range(len(asked.parts)), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return refused


def _fault_to_write(core: Core, request: Request, key: str | uuid.UUID, *, is_told: bool) -> ErrorCode:
    if isinstance(key, str):
        name = key
    else:
        topic = core.view.topic(key)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        name = topic.name
    is_allowed = core.access.allows_topic(request, Operation.WRITE, name, is_told=is_told)
    return ErrorCode.NONE if is_allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _is_transactional(request: Request, part: AskedPart) -> bool:
    """By its first batch: of more than one the data plane takes none."""
    attributes = part.records_place + ATTRIBUTES_PLACE
    return part.records_bytes > ATTRIBUTES_PLACE and bool(request.body[attributes] & TRANSACTIONAL_BIT)


def _sizes(hold: _Hold) -> Counter[_Part]:
    """Bytes of all that a partition gets: it may be named twice."""
    sizes: Counter[_Part] = Counter()
    for place, part in enumerate(hold.asked.parts):
        if place not in hold.refused:
            sizes[part.topic, part.partition] += part.records_bytes
    return sizes


async def _carry_out(hold: _Hold, deadline_ms: int, verification: Verification) -> None:
    core, request, parts = hold.core, hold.request, hold.asked.parts
    sizes = _sizes(hold)
    verdicts: list[Verdict | None] = [None] * len(parts)
    gaps: dict[_Part, ErrorCode] = {}
    is_refused = False
    if request.fallback_reason == ProduceFallback.VERIFY:
        await _ask_coordinator(hold, verification, deadline_ms)
    while await _wait_between_leaders(hold, list(sizes)):
        verdicts = [
            verdict
            if place in hold.refused or (verdict is not None and verdict.is_final)
            else await _judge(hold, part, sizes[part.topic, part.partition], gaps)
            for place, (part, verdict) in enumerate(zip(parts, verdicts, strict=True))
        ]
        if hold.is_over():
            break
        verdicts = _final(hold, verification, verdicts)
        left = core.plane.produce_with(request, verdicts, core.view.endpoints(request.listener))
        if left is ProduceFallback.NONE:
            return
        if left not in TRIED_AGAIN:
            raise _unreadable(request, left)
        if core.clock.monotonic_ms() > deadline_ms:
            if is_refused:  # not even a refusal can be encoded; the connection ends, which its client understands
                raise MemoryError("there is no memory to refuse a Produce")
            verdicts, is_refused = [_gives_up(left) for _ in parts], True
            deadline_ms += REFUSAL_WAIT_MS_MAX
        elif left is ProduceFallback.GAP:
            gaps = await _gaps(hold, list(sizes))
        elif left is ProduceFallback.VERIFY:
            await _ask_coordinator(hold, verification, deadline_ms)
        else:
            await _prepare(hold, left)
    core.connections.answer_none(request)


def _final(hold: _Hold, verification: Verification, verdicts: list[Verdict | None]) -> list[Verdict | None]:
    """With what the client may not write as this is called."""
    hold.refused |= _refused(hold.core, hold.request, hold.asked, is_told=False)
    verification.errors.update(hold.refused)
    return [
        Verdict(hold.refused[place]) if place in hold.refused else _verified(verification, place, verdict)
        for place, verdict in enumerate(verdicts)
    ]


async def _ask_coordinator(hold: _Hold, verification: Verification, deadline_ms: int) -> None:
    hold.has_waited = True
    with hold.while_open():
        await verification.ask(deadline_ms)


_NOT_ADDED: Final = {ErrorCode.INVALID_TXN_STATE: "The partition was not added to the transaction."}
"""Clients that know TRANSACTION_ABORTABLE need no words."""


def _verified(verification: Verification, index: int, verdict: Verdict | None) -> Verdict | None:
    """What the coordinator of its transaction has said of a batch, if it was asked."""
    if verdict is None or verdict.error_code:
        return verdict
    error = verification.errors.get(index)
    if error is not None:
        return Verdict(error, _NOT_ADDED.get(error))
    guard = verification.guards.get(index, 0)
    return replace(verdict, guard=guard) if guard else verdict


async def _prepare(hold: _Hold, left: ProduceFallback) -> None:
    """What the data plane lacks: rights that it does not know, as after a change of the rules, or room."""
    core = hold.core
    if left is ProduceFallback.AUTHORIZE:
        await trio.sleep(ROOM_RETRY_S)
        core.grants.decide_produce(hold.request, hold.asked)
    elif left is ProduceFallback.JOURNAL_FULL:
        await core.partitions.wait_journal_room()
    else:
        await trio.sleep(COMMIT_RETRY_S if left is ProduceFallback.UNCOMMITTED else ROOM_RETRY_S)


def _gives_up(left: ProduceFallback) -> Verdict:
    return Verdict(ErrorCode.NOT_ENOUGH_REPLICAS) if left is ProduceFallback.UNCOMMITTED else _storage_error()


def _unreadable(request: Request, reason: ProduceFallback) -> Exception:
    if reason is ProduceFallback.NO_MEMORY:
        return MemoryError("there is no memory to read a Produce")
    if reason is ProduceFallback.MALFORMED:
        codec("ProduceRequest", request.api_version).decode(request.body)  # says where it is wrong
    fault = f"the data plane does not read it: {reason.name}"
    if reason is ProduceFallback.TOO_MANY:
        fault = f"it names more partitions than the {limits.PRODUCE_PARTITIONS_MAX:,} that one may"
    return DecodeError(fault, "ProduceRequest", request.api_version)


async def _wait_between_leaders(hold: _Hold, parts: list[_Part]) -> bool:
    """Whether it is wanted still. What has lost its leader, or is being handed over by it, and has a replica here, is
    held for as long as an election takes, together with later requests of the connection, which are behind this one.
    Then the client is told to look for the leader: a replica that is cut off may be the only one that knows of none,
    and with NOT_ENOUGH_REPLICAS clients come back to it for ever.
    """
    core, request = hold.core, hold.request
    if core.replicated is not None:
        find = core.partitions.waiting_for_leader
        waiting = [partition for key, index in parts if (partition := find(key, index)) is not None]
        if waiting:
            now_ns = core.clock.monotonic_ns()
            left_s = core.replicated.holds.left_s(request.connection, request.received_ns, now_ns)
            hold.has_waited = True
            with hold.while_open():
                await core.replicated.wait_leaders(waiting, left_s, to_write=True)
    return not hold.is_over()


async def _gaps(hold: _Hold, parts: list[_Part]) -> dict[_Part, ErrorCode]:
    """What a batch is refused with that lacks what came before it, by partition.

    Where a quorum follows the leader that is here, what was acknowledged before the request came is in its log, so the
    producer is out of order. A leader that was paused, or is cut off, may not have heard yet of the one that took it:
    then its client is to look for that one.
    """
    core, replicated = hold.core, hold.core.replicated
    assert replicated is not None, "only what is replicated is left for a gap"
    found = dict.fromkeys(parts, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def ask(part: _Part) -> None:
        partition = core.partitions.find(*part)
        if isinstance(partition, Partition) and await replicated.replication.leaderships.confirm(partition.key):
            found[part] = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    hold.has_waited = True
    with hold.while_open(), trio.move_on_after(CONFIRM_S):
        async with trio.open_nursery() as nursery:
            for part in parts:
                nursery.start_soon(ask, part)
    return found


async def _judge(hold: _Hold, part: AskedPart, size: int, gaps: dict[_Part, ErrorCode]) -> Verdict:
    """What Python knows of one partition: an error, or room for so many bytes."""
    core, request = hold.core, hold.request
    refused: Partition | None = None
    while True:
        found = await _find(hold, part)
        if not isinstance(found, Partition):
            return _not_here(hold, part, found)
        if found is refused:
            return _storage_error()
        if (unfit := await _unfit(core, found, request, part)) is not None:
            return unfit
        try:
            await core.partitions.make_room(found, size)
        except OSError:
            return _storage_error()
        except LeadershipLostError:  # the data plane says so, unless it leads again by then
            return Verdict(ErrorCode.NONE, is_final=False)
        except PartitionOfflineError:
            refused = found  # unless it has left meanwhile, which is looked at
        else:
            return Verdict(ErrorCode.NONE, is_final=False, gap=gaps.get((part.topic, part.partition), ErrorCode.NONE))


async def _find(hold: _Hold, part: AskedPart) -> Partition | ErrorCode:
    """The partition, or why it cannot be served here: behind its move, if it goes to another core."""
    partitions = hold.core.partitions
    if partitions.is_any_moving:  # a scope costs as much as all the rest here
        with hold.while_open() as scope:
            hold.has_waited |= await partitions.wait_moved(part.topic, part.partition)
        hold.has_waited |= scope.cancelled_caught
    return find_to_write(partitions, part.topic, part.partition)


def _not_here(hold: _Hold, part: AskedPart, error: ErrorCode) -> Verdict:
    if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        leader = hold.core.view.leader_of(hold.request.listener, part.topic, part.partition)
        if leader is not None:
            return Verdict(error, leader_id=leader[0], leader_epoch=leader[1])
    return Verdict(error)


def _storage_error() -> Verdict:
    return Verdict(ErrorCode.KAFKA_STORAGE_ERROR)


async def _unfit(core: Core, partition: Partition, request: Request, part: AskedPart) -> Verdict | None:
    """A compacted topic's refusal of records without keys; and of a batch of which nobody can see whether its records
    have some, and which no cleaning could look into.
    """
    if "compact" not in partition.config.cleanup_policy or partition.is_internal:
        return None
    records = request.body[part.records_place : part.records_place + part.records_bytes]
    try:
        keyless = await keyless_of(records, decompressed_bytes_max(core.settings))
    except NotUnpackedError as error:
        text = f"{partition.label}, a compacted topic's, refused a batch that cannot be unpacked: {error}"
        core.log_limiter.say(log, "batches refused that cannot be unpacked", partition.label, text)
        return Verdict(ErrorCode.INVALID_RECORD, message="The batch cannot be unpacked, or is too large unpacked")
    return Verdict(ErrorCode.INVALID_RECORD, keyless=keyless) if keyless else None
