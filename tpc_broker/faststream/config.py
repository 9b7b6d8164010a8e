"""Settings of the parts of a FastStream broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from faststream import AckPolicy
from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream.exceptions import IncorrectState

from tpc_broker.client.work.policies import DeadLetter, LastResort, Retry, Skip
from tpc_broker.faststream.failures import NackedError

if TYPE_CHECKING:
    from tpc_broker.client.consumer.options import IsolationLike, OnMissing
    from tpc_broker.client.consumer.starts import StartLike
    from tpc_broker.client.handle import Client
    from tpc_broker.client.membership.settings import GroupSettings
    from tpc_broker.client.net.settings import AuthSettings
    from tpc_broker.client.producer.settings import CompressionName, Partitioner
    from tpc_broker.client.security import TlsSettings

FOR_EVER = 1 << 62
"""Times."""
Order: TypeAlias = Literal["key", "partition", "none"]


class ConnectOptions(TypedDict, total=False):
    """Of `tpc_broker.client.connect`, which explains them."""

    client_id: str
    tls: TlsSettings | bool | None
    auth: AuthSettings | None
    rack: str
    connect_seconds: float
    request_seconds: float
    retry_seconds: float
    memory: int | str
    compression: CompressionName
    batch_bytes: int | str
    linger_seconds: float
    delivery_seconds: float
    leave_seconds: float
    idempotent: bool
    acks: Literal["all", 1]
    partitioner: Partitioner | None


class ReadOptions(TypedDict, total=False):
    """Of `Client.read`, which explains them; for all but topics and group."""

    isolation: IsolationLike
    on_missing: OnMissing
    memory: int | str
    fetch_bytes: int
    partition_bytes: int
    wait_seconds: float
    rack: str | None
    commit_seconds: float
    leave_seconds: float
    topics_seconds: float


@dataclass(kw_only=True)
class TpcBrokerConfig(BrokerConfig):
    """`client` is there while the broker is connected."""

    connected: Client | None = field(default=None, repr=False)

    @property
    def client(self) -> Client:
        if self.connected is None:
            raise IncorrectState("the broker is not connected: `await broker.connect()`, or start the app")
        return self.connected


@dataclass(kw_only=True)
class TpcSubscriberConfig(SubscriberUsecaseConfig):
    topics: tuple[str, ...]
    group: str | GroupSettings | None
    start: StartLike
    concurrency: int
    order: Order
    retries: int | None
    retry_seconds: float
    dead_letter: str | None
    max_records: int
    """Of a batch, where the handler gets those."""
    read: ReadOptions

    def __post_init__(self) -> None:
        if not self.topics:
            raise ValueError("a subscriber needs a topic")
        if self.retries is not None and self.dead_letter is None:
            raise ValueError("retries= needs dead_letter=: where records go that were tried so often")
        if self.max_records < 1:
            raise ValueError(f"max_records={self.max_records}: a batch has at least one record")

    @property
    def ack_policy(self) -> AckPolicy:
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        given = self._outer_config.ack_policy
        return AckPolicy.ACK if given is EMPTY else given

    @property
    def auto_ack_disabled(self) -> bool:
        return self.ack_policy in {AckPolicy.MANUAL, AckPolicy.ACK_FIRST}

    @property
    def on_error(self) -> Retry:
        """Nacked records are tried again; whatever else is raised is rejected."""
        then: LastResort = Skip() if self.dead_letter is None else DeadLetter(self.dead_letter)
        times = FOR_EVER if self.retries is None else self.retries
        return Retry(times, delay_seconds=self.retry_seconds, then=then, errors=(NackedError,))


@dataclass(kw_only=True)
class TpcSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    topics: tuple[str, ...]


@dataclass(kw_only=True)
class TpcPublisherConfig(PublisherUsecaseConfig):
    topic: str
    key: bytes | str | None
    partition: int | None
    headers: dict[str, str]
    reply_to: str


@dataclass(kw_only=True)
class TpcPublisherSpecificationConfig(PublisherSpecificationConfig):
    topic: str


def names_of(prefix: str, topics: tuple[str, ...]) -> list[str]:
    return [f"{prefix}{topic}" for topic in topics]


