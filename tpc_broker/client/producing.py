"""An idempotent producer: what is sent again after a lost answer is appended once.

One batch per partition is in flight, so sequences follow each other whatever happens. The promise holds for the life
of a `Producer`: another one has another producer id, and what both send is stored twice.

`send` waits for the answers. `begin` does not, and so the next batches can be built while the broker makes these
durable; the answers are looked at by the next `begin` or by `finish`, which send again what was lost.

In a transaction (`transacting.begin`) the producer's identity is the transaction's; ending it is the caller's matter.
What was refused for good spoils the whole transaction, so nothing more can be sent in it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tpc_broker.client import requests
from tpc_broker.client.batches import ProducerIdentity, RecordsPart, make_batch, next_sequence
from tpc_broker.client.cluster import Cluster
from tpc_broker.client.errors import ClientError, RefusedError
from tpc_broker.client.requests import TopicPartition, in_any_version
from tpc_broker.client.transacting import OpenTransaction
from tpc_broker.kafka import ApiKey, ErrorCode, messages
from tpc_broker.kafka.compression import Compression

if TYPE_CHECKING:
    from tpc_broker.client.connection import Connection

PRODUCE_TIMEOUT_MS: Final = 30_000
_APPENDED_BEFORE: Final = -1
"""The base offset of a batch whose repetition the broker recognised and no longer knows the place of."""


class Producer:
    """Not for several threads at once."""

    def __init__(
        self,
        cluster: Cluster,
        compression: Compression = Compression.NONE,
        transaction: OpenTransaction | None = None,
    ) -> None:
        self._cluster = cluster
        self._transaction = transaction
        self._is_spoiled = False
        self._compression = compression
        self._sequences: dict[TopicPartition, int] = {}
        self._waiting: dict[TopicPartition, bytes] = {}
        self._in_flight: list[Connection] = []
        self._not_sent: ClientError | None = None
        self._identity: ProducerIdentity | None = self._new_identity()

    def send(self, parts: Mapping[TopicPartition, RecordsPart]) -> dict[TopicPartition, int]:
        """Append one batch to each partition; gives their base offsets when all are acknowledged.

        `RefusedError` names the first partition that was refused for good; others may have been appended.
        """
        self.begin(parts)
        return self.finish()

    def begin(self, parts: Mapping[TopicPartition, RecordsPart]) -> None:
        """`finish` what was begun before, then send one batch to each partition, without waiting for the answers."""
        self.finish()
        self._waiting = {where: self._batch(where, part) for where, part in parts.items()}
        for where, part in parts.items():
            self._sequences[where] = next_sequence(self._sequences.get(where, 0), part.records_count)
        try:
            self._send_waiting()
        except ClientError as error:
            self._not_sent = error

    def finish(self) -> dict[TopicPartition, int]:
        """Wait until what was begun is acknowledged; gives the base offsets. Raises as `send` does."""
        appended: dict[TopicPartition, int] = {}
        attempts = self._cluster.attempts()
        try:
            while self._waiting:
                failed = next(attempts)
                try:
                    if not self._in_flight and self._not_sent is None:
                        self._send_waiting()
                    self._take_answers(appended)
                except ClientError as error:
                    failed(error)
        except ClientError:
            self._give_up()
            raise
        return appended

    def _give_up(self) -> None:
        """Whether the batches that wait were appended is not known: what comes next has another producer id."""
        self._waiting.clear()
        self._in_flight.clear()
        self._sequences.clear()
        self._identity = None
        self._is_spoiled = True

    def _batch(self, where: TopicPartition, part: RecordsPart) -> bytes:
        self._identity = self._identity or self._new_identity()
        is_transactional = self._transaction is not None
        sequence = self._sequences.get(where, 0)
        return make_batch(part, self._compression, self._identity, sequence, is_transactional=is_transactional)

    def _send_waiting(self) -> None:
        """One request to each leader."""
        by_leader: dict[Connection, dict[TopicPartition, bytes]] = {}
        for where, batch in self._waiting.items():
            by_leader.setdefault(self._cluster.connection_to_leader(where), {})[where] = batch
        for connection, batches in by_leader.items():
            name = None if self._transaction is None else self._transaction.transactional_id
            request = requests.produce_request(batches, PRODUCE_TIMEOUT_MS, name)
            connection.send(ApiKey.PRODUCE, in_any_version(request))
            self._in_flight.append(connection)

    def _take_answers(self, appended: dict[TopicPartition, int]) -> None:
        """Those of all requests in flight; raises the first error once all have come."""
        errors = [] if self._not_sent is None else [self._not_sent]
        connections, self._in_flight, self._not_sent = self._in_flight, [], None
        for connection in connections:
            try:
                answers = requests.produce_answer(connection.receive())
            except ClientError as error:
                errors.append(error)
                continue
            errors += _settle(answers, self._waiting, appended)
        if errors:
            raise errors[0]

    def _new_identity(self) -> ProducerIdentity:
        if self._transaction is not None:
            if self._is_spoiled:
                raise ClientError(f"the transaction {self._transaction} lost records and can only be aborted")
            return ProducerIdentity(self._transaction.producer_id, self._transaction.producer_epoch)
        for failed in self._cluster.attempts():
            try:
                response = self._cluster.any_connection().call(
                    ApiKey.INIT_PRODUCER_ID,
                    lambda _v: messages.InitProducerIdRequest(
                        transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
                    ),
                )
                if response.error_code:
                    raise RefusedError(response.error_code, "a producer id")
            except ClientError as error:
                failed(error)
                continue
            return ProducerIdentity(response.producer_id, response.producer_epoch)
        raise AssertionError


def _settle(
    answers: Mapping[TopicPartition, requests.ProduceAnswer],
    waiting: dict[TopicPartition, bytes],
    appended: dict[TopicPartition, int],
) -> list[ClientError]:
    """Move what was appended out of `waiting`; gives the errors, those that end the sending first."""
    errors: list[RefusedError] = []
    for where, answer in answers.items():
        if answer.error_code == ErrorCode.NONE:
            appended[where] = answer.base_offset
        elif answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            appended[where] = _APPENDED_BEFORE
        else:
            why = f" ({answer.message})" if answer.message else ""
            errors.append(RefusedError(answer.error_code, f"records for {where}{why}"))
            continue
        del waiting[where]
    return [*sorted(errors, key=lambda error: error.is_retriable)]
