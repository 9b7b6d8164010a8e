"""Whose batches they are: an idempotent producer of its own, none at all, or one within transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from tpc_broker.client.conversation import VERSION_MAX
from tpc_broker.client.producer.batch import NO_PRODUCER
from tpc_broker.kafka import ApiKey

if TYPE_CHECKING:
    from collections.abc import Collection

    from tpc_broker.client.batches import ProducerIdentity
    from tpc_broker.client.producer.batch import Failure
    from tpc_broker.client.producer.lane import Lane
    from tpc_broker.client.producer.settings import ProducerSettings
    from tpc_broker.client.requests import TopicPartition

UNRESOLVED_MAX: Final = 5


class TransactionPort(Protocol):
    """What a producer needs of the transactions it writes in."""

    @property
    def transactional_id(self) -> str: ...

    @property
    def produce_version_max(self) -> int:
        """Below `transaction.version` 2 not the newest, which says that brokers add partitions by themselves."""

    async def announce(self, partitions: Collection[TopicPartition]) -> None:
        """Called before the first batch of a partition in each transaction, and never again for it unless it fails:
        AddPartitionsToTxn where the broker wants that, else nothing. A retriable `ClientError` is tried again, another
        one spoils the transaction.
        """


class Session:
    """``identity`` None: it has to be asked for (without ``transaction``), or `Producer.begin` will tell."""

    def __init__(self, settings: ProducerSettings, transaction: TransactionPort | None = None) -> None:
        self.settings = settings
        self.codec = settings.codec
        self.transaction = transaction
        self.transactional_id = None if transaction is None else transaction.transactional_id
        self.is_idempotent = settings.idempotent or transaction is not None
        self.unresolved_max = UNRESOLVED_MAX if self.is_idempotent else 1
        self.identity: ProducerIdentity | None = None if self.is_idempotent else NO_PRODUCER
        self.failure: Failure | None = None
        """The transaction can only be aborted."""
        self.announced: set[Lane] = set()
        self.version_max = VERSION_MAX[ApiKey.PRODUCE]
        """Of Produce, in the transaction that is open."""

    def use_up(self, identity: ProducerIdentity) -> None:
        """There are no more epochs of this producer id."""
        if self.identity is not None and self.identity.producer_id == identity.producer_id:
            self.identity = None

    def spoil(self, failure: Failure) -> None:
        self.failure = self.failure or failure
