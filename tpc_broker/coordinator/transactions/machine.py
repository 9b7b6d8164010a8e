"""`TransactionCoordinator`: the transactional ids of one partition of `__transaction_state`, as a machine."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from tpc_broker.coordinator.effects import Effects, OnFailed, OnWritten, Timers, Token, WriteId, Writes
from tpc_broker.coordinator.transactions.limits import Ended, Statistics, TransactionLimits
from tpc_broker.coordinator.transactions.messages import (
    AddPartitionsRequest,
    AddPartitionsResponse,
    DescribedTransaction,
    EndRequest,
    InitProducerIdRequest,
    ListedTransaction,
    ListFilter,
    Marker,
    ProducerResponse,
)
from tpc_broker.coordinator.transactions.records import producer_id_of, state_of, transaction_record
from tpc_broker.coordinator.transactions.states import (
    ENDS_BEFORE,
    ENDS_OF_VERSION_2,
    PREPARED,
    End,
    Standing,
    State,
)
from tpc_broker.coordinator.transactions.stored import Stored
from tpc_broker.coordinator.transactions.transaction import (
    LAST_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    RAISES_EPOCH,
    Transaction,
    added,
    after_end,
    completed,
    fenced,
    initialised,
    prepared,
)
from tpc_broker.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tpc_broker.coordinator.transactions.transaction import TopicPartition


MARKERS_AT_ONCE: Final = 64
"""Of a transaction that ends in one step: they are appended together with its records."""
AGAIN_MS: Final = 1_000
"""Until what time asked for, and what could not be written, is tried again."""
STEPS_AT_ONCE: Final = 100
"""Transactions that are aborted in one step because their time is over, and ends that are tried again."""
_EXPIRY: Final = ("expiry",)
_TIMEOUT: Final = "time-out"
_COMPLETION: Final = "completion"
_NOT_HERE: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR,
)  # fmt: skip


@dataclass(slots=True)
class TransactionEffects(Effects):
    """What a step asks for: also to send these markers, until they are written."""

    markers: list[Marker] = field(default_factory=list)


@dataclass(slots=True)
class _AtOnce:
    """An end in one step: what became of its parts."""

    is_prepared: bool = False
    has_failed: bool = False
    """Its markers may be written or not, and its last record is not."""


class TransactionCoordinator:
    """One partition's transactional ids: a `driven.Machine`, whose docstring tells what a driver does. This one also
    sends the `markers` among the effects, until each is written or its partition is gone, and calls `markers_written`.

    What a request is answered at once comes from memory: before it is told, the driver has to be certain that nobody
    else coordinates this partition by now (`Coordinators.until_confirmed`).
    """

    def __init__(  # noqa: PLR0913 - what it asks its surroundings
        self,
        coordinator_epoch: int,
        next_producer_id: Callable[[], int | None],
        limits: TransactionLimits | None = None,
        server_version: Callable[[], int] = lambda: RAISES_EPOCH,
        ended: Ended | None = None,
        shares_journal: Callable[[TopicPartition], bool] = lambda _partition: False,
    ) -> None:
        """`coordinator_epoch`: the leader epoch of the partition. `next_producer_id`: one that nobody has had, or None
        when there is none at hand, and one is being fetched. `server_version`: `transaction.version` of the cluster.
        `ended`: where it counts. `shares_journal`: whether what is appended to a partition behind a record of this log
        is there after a crash only if that record is.
        """
        self._coordinator_epoch = coordinator_epoch
        self._next_producer_id = next_producer_id
        self._limits = limits or TransactionLimits()
        self._server_version = server_version
        self._ended_count = Ended() if ended is None else ended
        self._shares_journal = shares_journal
        self._stored = Stored()
        self._pending: dict[str, State] = {}
        """Where an id is on its way to. Not at all what is stored, and among them ids that are not stored yet."""
        self._initialised: dict[str, tuple[int, int]] = {}
        """The producer id and epoch that an InitProducerId replaced which named them: it may come again. Lost with this
        machine, as in Kafka: the record does not say whether it was named.
        """
        self._beginning = 0
        """Ids whose first record is under way."""
        self._endings: dict[str, dict[Marker, None]] = {}
        """The markers that are owed, by id."""
        self._ends_count = 0
        self._to_send: deque[str] = deque()
        self._markers_sent = 0
        self._timers = Timers()
        self._writes = Writes()
        self._news: dict[WriteId, Transaction] = {}
        """What a write under way says of an id, so that it need not be read again."""
        self._is_loaded = False
        self._finishing: Iterator[None] | None = None
        self._effects_of_loading = TransactionEffects()
        self._next_part = 0
        """Of all ids, to be looked at for those that are not used."""

    # Replay: the only way in which what is stored changes.

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Applies one record of the log; RecordDamagedError when it cannot be read. What later releases wrote is only
        kept, until it is written anew.
        """
        self._stored.replay(key, value)

    # Rule: After a load the markers of every transaction that is about to end are effects once more: whoever had them
    # sent before may have died in the midst. Held by tests/coordinator/transactions/test_ends.py, test_histories.py.
    def finish_loading(self, now_ms: int) -> TransactionEffects:
        """The log has been replayed to its end: ends go on, time runs."""
        assert not self._is_loaded
        for _transaction in self.transactions_finished(now_ms):
            pass
        self._is_loaded = True
        return self._effects_of_loading

    def transactions_finished(self, now_ms: int) -> Iterator[None]:
        """The same, but for its end: after each one others have their turn, but no other call comes in between."""
        if self._finishing is None:
            self._finishing = self._finish(now_ms)
        return self._finishing

    def _finish(self, now_ms: int) -> Iterator[None]:
        for name, transaction in self._stored.open.items():
            if transaction.state in PREPARED:
                self._owe(name, self._effects_of_loading, now_ms)
            else:
                self._keep_time(name)
            yield
        self._timers.set(_EXPIRY, now_ms + self._limits.expiration_interval_ms)

    def written(self, write_id: WriteId, now_ms: int) -> TransactionEffects:
        """A write is durable: its records are replayed here, and what waited for it is answered."""
        effects = TransactionEffects()
        write, new = self._writes.end(write_id), self._news.pop(write_id, None)
        for record in write.records:
            self._stored.replay(record.key, record.value, new)
        write.written(effects, now_ms)
        return effects

    def write_failed(self, write_id: WriteId, error: ErrorCode, now_ms: int) -> TransactionEffects:
        """A write did not become durable: nothing of it happened, and clients are told to try again."""
        effects = TransactionEffects()
        self._news.pop(write_id, None)
        self._writes.fail(write_id).failed(effects, _client_error(error), now_ms)
        return effects

    # Requests

    def init_producer_id(self, request: InitProducerIdRequest, token: Token, now_ms: int) -> TransactionEffects:
        """InitProducerId. Of a transaction that is open, its abort is asked for, and the client told to come again."""
        effects = TransactionEffects()
        name = request.transactional_id
        refused = partial(self._refuse_producer, effects, token, knows_fenced=request.knows_fenced)
        error = self._fault_of_init(request)
        if error is not ErrorCode.NONE:
            refused(error)
            return effects
        was = self._stored.find(name)
        named = None if request.producer_id == NO_PRODUCER_ID else (request.producer_id, request.producer_epoch)
        if was is not None and was.state is State.ONGOING:
            # Kafka 4.3.1 lets anybody with the producer id end an open transaction, whatever epoch was named.
            if named not in (None, (was.producer_id, was.producer_epoch)):
                refused(ErrorCode.PRODUCER_FENCED)
            else:
                self._fence(name, was, effects, now_ms, lambda later, code, _ms: self._refuse_producer(
                    later, token, code, knows_fenced=request.knows_fenced
                ))  # fmt: skip
            return effects
        begun = self._begun(name, was, named)
        if isinstance(begun, ErrorCode):
            is_full = begun is ErrorCode.POLICY_VIOLATION
            refused(begun, error_message="too many transactional ids: transactional.ids.max" if is_full else None)
            return effects
        (producer_id, producer_epoch), replaced = begun
        old = was or Transaction(producer_id, NO_PRODUCER_EPOCH, State.EMPTY, request.timeout_ms, now_ms)
        new = initialised(old, producer_id, producer_epoch, request.timeout_ms, now_ms)
        self._beginning += was is None

        def done(later: Effects, _now_ms: int) -> None:
            self._beginning -= was is None
            self._initialised.pop(name, None)
            if replaced is not None:
                self._initialised[name] = replaced
            later.reply(token, ProducerResponse(producer_id=producer_id, producer_epoch=producer_epoch))

        def failed(later: Effects, code: ErrorCode, _now_ms: int) -> None:
            self._beginning -= was is None
            self._refuse_producer(later, token, code)

        self._store(name, new, effects, done, failed)
        return effects

    def _fault_of_init(self, request: InitProducerIdRequest) -> ErrorCode:
        has_id, has_epoch = request.producer_id != NO_PRODUCER_ID, request.producer_epoch != NO_PRODUCER_EPOCH
        if not request.transactional_id or has_id != has_epoch:
            return ErrorCode.INVALID_REQUEST
        if request.enable_two_phases:
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if request.keep_prepared:
            return ErrorCode.UNSUPPORTED_VERSION
        if not 0 < request.timeout_ms <= self._limits.max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return self._fault_of(request.transactional_id)

    def _begun(
        self, name: str, was: Transaction | None, named: tuple[int, int] | None
    ) -> tuple[tuple[int, int], tuple[int, int] | None] | ErrorCode:
        """The producer id and epoch of a producer that begins, and those that it named and may name again."""
        if was is None and self._is_full():
            return ErrorCode.POLICY_VIOLATION
        if was is not None:
            current = was.producer_id, was.producer_epoch
            before = self._initialised.get(name, was.before_end)
            if named is not None and named == before:
                return current, named
            if named not in (None, current):
                return ErrorCode.PRODUCER_FENCED
            if not was.epochs_are_used_up:
                return (was.producer_id, was.producer_epoch + 1), named
        producer_id = self._next_producer_id()
        if producer_id is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return (producer_id, 0), None if was is None else named

    def _is_full(self) -> bool:
        """Of ids, also of those whose first record is under way, or of bytes."""
        count = self._stored.ids_count + self._beginning
        return count >= self._limits.ids_max or self._stored.size_bytes >= self._limits.ids_bytes_max

    def add_partitions(self, request: AddPartitionsRequest, token: Token, now_ms: int) -> TransactionEffects:
        """AddPartitionsToTxn of one transaction, AddOffsetsToTxn. Whether topic and partition exist is for the caller
        to check. What is in the transaction already, and verification, write nothing.
        """
        effects = TransactionEffects()
        name = request.transactional_id
        error, was = self._fault_of_producer(name, request.producer_id, request.producer_epoch)
        if was is None:
            self._refuse_partitions(request, token, effects, error)
            return effects
        of_transaction = frozenset(was.partitions)
        missing = tuple(each for each in request.partitions if each not in of_transaction)
        if request.verify_only:
            effects.reply(token, AddPartitionsResponse(missing=frozenset(missing)))
        elif was.state is State.ONGOING and not missing:
            effects.reply(token, AddPartitionsResponse())
        elif len(was.partitions) + len(set(missing)) > self._limits.partitions_max or (
            self._stored.size_bytes >= self._limits.ids_bytes_max
        ):
            self._refuse_partitions(request, token, effects, ErrorCode.POLICY_VIOLATION)
        else:
            new = added(was, missing, self._version_of(request.client_version), now_ms)
            self._store(
                name, new, effects, lambda later, _ms: later.reply(token, AddPartitionsResponse()),
                lambda later, code, _ms: self._refuse_partitions(request, token, later, code),
            )  # fmt: skip
        return effects

    def end(self, request: EndRequest, token: Token, now_ms: int) -> TransactionEffects:
        """EndTxn: answered when it is certain how the transaction ends, which is before its markers are written."""
        effects = TransactionEffects()
        name = request.transactional_id
        client_version = self._version_of(request.client_version)
        refused = partial(self._refuse_producer, effects, token, knows_fenced=request.knows_fenced)
        error = self._fault_of(name)
        was = self._stored.find(name)
        if error is not ErrorCode.NONE or was is None:
            refused(error if error is not ErrorCode.NONE else ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            return effects
        outcome = self._outcome(was, request, client_version)
        if isinstance(outcome, ErrorCode):
            refused(outcome)
            return effects
        if outcome is End.AS_BEFORE:
            effects.reply(token, self._ended(was, client_version))
            return effects
        next_producer_id: int | None = NO_PRODUCER_ID
        if client_version >= RAISES_EPOCH and was.epochs_are_used_up:
            next_producer_id = self._next_producer_id()
        if next_producer_id is None:
            refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return effects
        new = prepared(
            was, commit=request.commit, client_version=client_version, next_producer_id=next_producer_id, now_ms=now_ms
        )

        self._prepare(
            name, new, effects, lambda later, _ms: later.reply(token, self._ended(new, client_version)),
            lambda later, code, _ms: self._refuse_producer(later, token, code),
        )  # fmt: skip
        return effects

    def _outcome(self, was: Transaction, request: EndRequest, client_version: int) -> End | ErrorCode:
        """By the tables."""
        named = request.producer_id, request.producer_epoch
        standing = None
        if named == (was.producer_id, was.producer_epoch) and was.producer_epoch <= LAST_EPOCH:
            standing = Standing.CURRENT
        elif named == was.before_end:
            standing = Standing.RETRY
        elif request.producer_id != was.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if standing is None:
            return ErrorCode.PRODUCER_FENCED
        table = ENDS_OF_VERSION_2 if client_version >= RAISES_EPOCH else ENDS_BEFORE
        return table.get((was.state, standing, request.commit), ErrorCode.PRODUCER_FENCED)

    def is_pending(self, transactional_id: str) -> bool:
        """Whether something is under way that changes an id: CONCURRENT_TRANSACTIONS is what it is told."""
        return transactional_id in self._pending

    def describe(self, transactional_id: str) -> DescribedTransaction:
        """DescribeTransactions of one id; answered at once."""
        if not transactional_id:
            return DescribedTransaction(transactional_id, ErrorCode.INVALID_REQUEST)
        if self._stored.is_of_later_release(transactional_id):
            return DescribedTransaction(transactional_id, ErrorCode.UNKNOWN_SERVER_ERROR)
        found = self._stored.find(transactional_id)
        if found is None or self._pending.get(transactional_id) is State.DEAD:
            return DescribedTransaction(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return DescribedTransaction(
            transactional_id, ErrorCode.NONE, found.state.value, found.timeout_ms, found.start_ms, found.producer_id,
            found.producer_epoch, found.partitions,
        )  # fmt: skip

    def list_transactions(self, wanted: ListFilter, now_ms: int) -> Iterator[list[ListedTransaction]]:
        """ListTransactions, a part of all ids at a time, as each is then: other calls come in between. An id that has
        never had a transaction lasts longer than anything, as in Kafka.
        """
        shortest_ms = wanted.longer_than_ms
        for part in self._stored.in_parts():
            found = []
            for name, value in part:
                state, producer_id = state_of(value), producer_id_of(value)
                if (
                    (not wanted.states or state.value in wanted.states)
                    and (not wanted.producer_ids or producer_id in wanted.producer_ids)
                    and (shortest_ms < 0 or now_ms - self._stored.start_ms(name, value) > shortest_ms)
                    and self._pending.get(name) is not State.DEAD
                ):
                    found.append(ListedTransaction(name, producer_id, state.value))
            yield found

    def markers_written(self, markers: Iterable[Marker], now_ms: int) -> TransactionEffects:
        """Each is written, or will never be needed: its partition is gone."""
        effects = TransactionEffects()
        for marker in markers:
            owed = self._endings.get(marker.transactional_id)
            if not owed or marker not in owed:
                continue
            del owed[marker]
            self._markers_sent -= 1
            if not owed:
                self._complete(marker.transactional_id, effects, now_ms)
        self._send(effects)
        return effects

    # Time

    def next_deadline_ms(self) -> int | None:
        """When `on_deadline` wants to be called."""
        return self._timers.next_deadline_ms()

    def on_deadline(self, now_ms: int) -> TransactionEffects:
        """Aborts what is open for too long, forgets what was not used, tries again what failed; not all at once."""
        effects = TransactionEffects()
        for _ in range(STEPS_AT_ONCE):
            key = self._timers.pop_due(now_ms)
            if key is None:
                break
            if key == _EXPIRY:
                self._expire(effects, now_ms)
                break
            assert isinstance(key, tuple)
            kind, name = key
            if kind == _COMPLETION:
                self._complete(name, effects, now_ms)
            elif name in self._stored.open and name not in self._pending:
                self._fence(name, self._stored.open[name], effects, now_ms, self._time_is_over)
        return effects

    def _time_is_over(self, _effects: Effects, error: ErrorCode, _now_ms: int) -> None:
        """Nobody waits for its abort; who would is told to come again when that is certain."""
        self._ended_count.timed_out += error is ErrorCode.CONCURRENT_TRANSACTIONS

    def clock_was_set(self, by_ms: int) -> None:
        """Deadlines move by so much; times that are stored stay what they are."""
        self._timers.shift(by_ms)

    def unload(self) -> TransactionEffects:
        """The partition goes to another core: everybody who waits is answered; this machine is not used again."""
        effects = TransactionEffects()
        while self._writes:
            self._writes.end(self._writes.oldest).failed(effects, ErrorCode.NOT_COORDINATOR, 0)
        effects.forget_writes()
        effects.markers.clear()
        return effects

    def statistics(self) -> Statistics:
        """Counts at this moment."""
        stored, ending = self._stored, len(self._endings)
        return Statistics(
            stored.ids_count, len(stored.open) - ending, ending, stored.size_bytes, self._markers_sent,
            len(self._writes), self.next_deadline_ms(),
        )  # fmt: skip

    # What requests have in common

    # Rule: Whether an id is pending is asked before its producer id and epoch: those are about to change, and a
    # producer that has been told the next ones must not be fenced for them (KAFKA-18464). Held by
    # tests/coordinator/transactions/test_pending.py.
    def _fault_of(self, name: str) -> ErrorCode:
        """Whatever is asked of it."""
        if not name:
            return ErrorCode.INVALID_REQUEST
        if self._stored.is_of_later_release(name):
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.CONCURRENT_TRANSACTIONS if name in self._pending else ErrorCode.NONE

    def _fault_of_producer(
        self, name: str, producer_id: int, producer_epoch: int
    ) -> tuple[ErrorCode, Transaction | None]:
        """The transaction, when this producer may add to it."""
        error = self._fault_of(name)
        if error is not ErrorCode.NONE:
            return error, None
        found = self._stored.find(name)
        if found is None or found.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, None
        if found.producer_epoch != producer_epoch or producer_epoch > LAST_EPOCH:
            return ErrorCode.PRODUCER_FENCED, None
        return ErrorCode.NONE, found

    def _version_of(self, client_version: int) -> int:
        """Of a client, as far as what is stored can say it."""
        return client_version if self._server_version() > 0 else 0

    @staticmethod
    def _refuse_producer(
        effects: Effects, token: Token, error: ErrorCode, *, knows_fenced: bool = True, error_message: str | None = None
    ) -> None:
        code = _told(error, knows_fenced=knows_fenced)
        effects.reply(token, ProducerResponse(code, error_message=error_message))

    @staticmethod
    def _refuse_partitions(request: AddPartitionsRequest, token: Token, effects: Effects, error: ErrorCode) -> None:
        effects.reply(token, AddPartitionsResponse(_told(error, knows_fenced=request.knows_fenced)))

    @staticmethod
    def _ended(ending: Transaction, client_version: int) -> ProducerResponse:
        if client_version < RAISES_EPOCH:
            return ProducerResponse()
        producer_id, producer_epoch = after_end(ending)
        return ProducerResponse(producer_id=producer_id, producer_epoch=producer_epoch)

    def _store(
        self, name: str, new: Transaction, effects: Effects, on_written: OnWritten, on_failed: OnFailed
    ) -> None:
        """A step: the id is pending until the record is written."""
        assert name not in self._pending, f"{name} is on its way to {self._pending[name].value}"
        self._pending[name] = new.state

        def written(later: Effects, now_ms: int) -> None:
            del self._pending[name]
            self._keep_time(name)
            on_written(later, now_ms)

        def failed(later: Effects, error: ErrorCode, now_ms: int) -> None:
            del self._pending[name]
            self._keep_time(name, now_ms + AGAIN_MS)
            on_failed(later, error, now_ms)

        self._begin(effects, name, new, written, failed)

    def _begin(  # noqa: PLR0913 - what a write may be
        self, effects: Effects, name: str, new: Transaction, on_written: OnWritten, on_failed: OnFailed,
        markers: tuple[Marker, ...] = (),
    ) -> None:  # fmt: skip
        """Asks for the record of an id."""
        version = 1 if self._server_version() > 0 else 0
        record = transaction_record(name, new, version)
        write_id = self._writes.begin(effects, [record], on_written, on_failed, markers=markers)
        if version:  # the other one does not say everything
            self._news[write_id] = new

    def _keep_time(self, name: str, not_before_ms: int = 0) -> None:
        """Of what is open now."""
        found = self._stored.open.get(name)
        deadline_ms = None if found is None else found.deadline_ms
        if deadline_ms is None:
            self._timers.cancel((_TIMEOUT, name))
        else:
            self._timers.set((_TIMEOUT, name), max(deadline_ms, not_before_ms))

    # The end of a transaction

    def _fence(self, name: str, was: Transaction, effects: Effects, now_ms: int, refuse: OnFailed) -> None:
        """Abort it for somebody else, in the next epoch: whoever has it open can do nothing more. `refuse` tells that
        somebody to come again.
        """
        server_version = self._server_version()
        next_producer_id: int | None = NO_PRODUCER_ID
        if server_version >= RAISES_EPOCH and was.epochs_are_used_up:
            next_producer_id = self._next_producer_id()  # KAFKA-20090
        if next_producer_id is None:
            self._keep_time(name, now_ms + AGAIN_MS)
            refuse(effects, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, now_ms)
            return
        new = fenced(was, server_version=server_version, next_producer_id=next_producer_id, now_ms=now_ms)

        self._prepare(
            name, new, effects, lambda later, ms: refuse(later, ErrorCode.CONCURRENT_TRANSACTIONS, ms), refuse
        )
        self._pending[name] = State.PREPARE_EPOCH_FENCE

    # Rule: Markers and the record that says that they are written are appended behind PrepareX without waiting for it
    # only where all are in one journal, of which a crash leaves what was appended first. What becomes of PrepareX is
    # judged by itself: while that is not known, nothing else is decided of the id. Why:
    # docs/decisions/2026-11-30-ends-in-one-step.md. Held by tests/broker/test_ends_in_one_step.py,
    # tests/coordinator/transactions/test_ends_in_one_step.py.
    def _prepare(
        self, name: str, new: Transaction, effects: Effects, told: OnWritten, failed: OnFailed
    ) -> None:
        """PrepareX, upon which it is certain how it ends, and somebody `told`; then markers, and CompleteX."""
        partitions = new.partitions
        in_one = 0 < len(partitions) <= MARKERS_AT_ONCE and all(map(self._shares_journal, partitions))
        at_once = _AtOnce() if in_one else None

        def done(later: Effects, later_ms: int) -> None:
            told(later, later_ms)
            self._initialised.pop(name, None)  # it cannot come again once the epoch was raised
            if at_once is None or at_once.has_failed:
                self._owe(name, later, later_ms)
            else:
                at_once.is_prepared = True
                self._pending[name] = _completes(new)

        self._store(name, new, effects, done, failed)
        if at_once is not None:
            self._complete_at_once(name, new, effects, at_once)

    def _complete_at_once(self, name: str, new: Transaction, effects: Effects, at_once: _AtOnce) -> None:
        closed = completed(new, new.last_update_ms)

        def written(_later: Effects, _now_ms: int) -> None:
            self._note_completed(name, closed)

        def failed(later: Effects, _error: ErrorCode, later_ms: int) -> None:
            at_once.has_failed = True
            if at_once.is_prepared:
                self._owe(name, later, later_ms)

        self._begin(effects, name, closed, written, failed, self._markers_of(name, new))

    def _markers_of(self, name: str, ending: Transaction) -> tuple[Marker, ...]:
        self._ends_count += 1
        return tuple([
            Marker(
                name, self._ends_count, each, ending.producer_id, ending.producer_epoch,
                ending.state is State.PREPARE_COMMIT, self._coordinator_epoch, ending.client_version,
            )
            for each in ending.partitions
        ])  # fmt: skip

    def _owe(self, name: str, effects: Effects, now_ms: int) -> None:
        """Its markers."""
        assert isinstance(effects, TransactionEffects)
        found = self._stored.open[name]
        self._pending[name] = _completes(found)
        self._endings[name] = dict.fromkeys(self._markers_of(name, found))
        if found.partitions:
            self._to_send.append(name)
            self._send(effects)
        else:
            self._complete(name, effects, now_ms)

    def _send(self, effects: TransactionEffects) -> None:
        """As many as may be under way, of whole transactions."""
        while self._to_send:
            owed = self._endings[self._to_send[0]]
            if self._markers_sent and self._markers_sent + len(owed) > self._limits.markers_max:
                return
            self._to_send.popleft()
            self._markers_sent += len(owed)
            effects.markers.extend(owed)

    def _complete(self, name: str, effects: Effects, now_ms: int) -> None:
        """All markers are written: so that nobody sends them once more. It stays pending however often that fails."""
        new = completed(self._stored.open[name], now_ms)

        def written(_later: Effects, _now_ms: int) -> None:
            del self._endings[name]
            self._note_completed(name, new)

        def failed(_later: Effects, _error: ErrorCode, later_ms: int) -> None:
            self._timers.set((_COMPLETION, name), later_ms + AGAIN_MS)

        self._begin(effects, name, new, written, failed)

    def _note_completed(self, name: str, new: Transaction) -> None:
        committed = new.state is State.COMPLETE_COMMIT
        self._ended_count.committed += committed
        self._ended_count.aborted += not committed
        del self._pending[name]

    # Ids that are not used

    # Rule: An id whose tombstone is under way is pending: nothing is added to it any more (KAFKA-5279). Tombstones go
    # in batches that fit (KAFKA-13099). Held by tests/coordinator/transactions/test_time.py.
    def _expire(self, effects: Effects, now_ms: int) -> None:
        """Some of those that were not used for long; the next ones in the next step."""
        names, records, self._next_part = self._stored.unused(
            now_ms - self._limits.expiration_ms, self._pending, self._next_part
        )
        has_more = self._next_part > 0
        later_ms = now_ms + self._limits.expiration_interval_ms
        self._timers.set(_EXPIRY, now_ms if has_more and not names else later_ms)
        if not names:
            return
        for name in names:
            self._pending[name] = State.DEAD

        def ended() -> None:
            for name in names:
                del self._pending[name]

        def written(_later: Effects, later_ms: int) -> None:
            ended()
            for name in names:
                self._initialised.pop(name, None)
            if has_more:
                self._timers.set(_EXPIRY, later_ms)

        def failed(_later: Effects, _error: ErrorCode, _now_ms: int) -> None:
            ended()

        self._writes.begin(effects, records, written, failed)


def _completes(ending: Transaction) -> State:
    return State.COMPLETE_COMMIT if ending.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT


def unknown_states(names: Iterable[str]) -> list[str]:
    """Of the filter of ListTransactions, those that are no states: they are told back."""
    known = {state.value for state in State}
    return [name for name in names if name not in known]


def _told(error: ErrorCode, *, knows_fenced: bool) -> ErrorCode:
    if error is ErrorCode.PRODUCER_FENCED and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


def _client_error(error: ErrorCode) -> ErrorCode:
    """What a client of the coordinator is told when the log refused: codes of Produce mean nothing to it."""
    if error in _NOT_HERE:
        return ErrorCode.NOT_COORDINATOR
    too_large = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
    return ErrorCode.UNKNOWN_SERVER_ERROR if error in too_large else ErrorCode.COORDINATOR_NOT_AVAILABLE
