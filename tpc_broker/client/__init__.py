"""The client library's core: what a Kafka client has to know, and a small synchronous client made of it.

Purpose
    Reading and writing topics from threads and processes of others (Spark's tasks above all), on the project's codec.

Modules
    `conversation`  one connection's requests and answers as a machine without I/O: versions, correlation, bytes
    `isolation`     which batches of a partition belong to aborted transactions; no I/O either
    `requests`      requests and answers of metadata, offsets, fetch and produce, as plain values; no I/O either
    `batches`       the bytes of a batch for an idempotent producer; no I/O either
    `introduction`  how a connection begins: versions, then a login; no I/O either
    `sasl`          the client's side of PLAIN, SCRAM and OAUTHBEARER; no I/O either
    `security`      settings of TLS and SASL
    `connection`    a blocking socket that carries a conversation, with TLS and SASL where they are asked for
    `cluster`       who leads what; sends each request to the leader and tries again until a deadline
    `reading`       offsets by time, and ranges of a partition, fetched ahead
    `producing`     an idempotent producer, also within a transaction
    `transacting`   transactions of one's own, from begin to end, with a group's offset within them
    `coordinators`  which broker answers for a group or a transactional id
    `producer`      sending from tasks: idempotent, within a byte budget, each record's fate known
    `consumer`      reading topics on anyio: `Client.read` and its streams
    `membership`    groups on anyio: which partitions a stream reads, and what is committed
    `work`          handlers on a stream's records: batches, `for_each`, partitions by themselves, retries, dead letters
    `datagrams`     records as datagrams: the format, and a producer on anyio for asyncio and trio
    `configs`       settings of topics and brokers, with their explanations
    `columns`       what was fetched as Arrow record batches (needs pyarrow)
    `codecs/`       typed keys and values: text, JSON, MessagePack; Avro, Protobuf, JSON Schema with a registry
    `errors`        what goes wrong, by culprit
    `transaction`   transactions on anyio, with what was read done in them
    `exchange`      a question to a broker and what its answer means, as one value; no I/O
    `admin`         what operators ask, as typed records, on anyio

An asynchronous client shares all that is marked as free of I/O and brings its own `connection` and `cluster`.

Invariants: a range is read whole, in order and once, or an exception says which offsets are missing. A record that was
acknowledged was appended exactly once per `Producer`, whatever was sent again.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tpc_broker.client.consumer.ports import Position as Position
    from tpc_broker.client.consumer.starts import Offset as Offset
    from tpc_broker.client.consumer.stream import Stream as Stream
    from tpc_broker.client.handle import Client as Client
    from tpc_broker.client.handle import connect as connect
    from tpc_broker.client.membership.settings import GroupSettings as GroupSettings
    from tpc_broker.client.producer.bulk import Sent as Sent
    from tpc_broker.client.producer.slip import Slip as Slip
    from tpc_broker.client.requests import TopicPartition as TopicPartition
    from tpc_broker.client.security import Mechanism as Mechanism
    from tpc_broker.client.security import OAuthSettings as OAuthSettings
    from tpc_broker.client.security import SaslSettings as SaslSettings
    from tpc_broker.client.security import TlsSettings as TlsSettings
    from tpc_broker.client.transaction.front import Transaction as Transaction
    from tpc_broker.client.transaction.owner import Outcome as Outcome
    from tpc_broker.client.values import Delivered as Delivered
    from tpc_broker.client.values import Fate as Fate
    from tpc_broker.client.values import Record as Record
    from tpc_broker.client.work.failures import DeadLetterError as DeadLetterError
    from tpc_broker.client.work.failures import HandlerError as HandlerError
    from tpc_broker.client.work.failures import PartitionRevokedError as PartitionRevokedError
    from tpc_broker.client.work.parts import Part as Part
    from tpc_broker.client.work.policies import Retry as Retry
    from tpc_broker.client.work.policies import Skip as Skip
    from tpc_broker.client.work.policies import Stop as Stop
    from tpc_broker.client.work.policies import dead_letter as dead_letter

_PUBLIC: Final = {
    "Client": "handle", "connect": "handle", "Delivered": "values", "Fate": "values", "Record": "values",
    "Sent": "producer.bulk", "Slip": "producer.slip",
    "Transaction": "transaction.front", "Outcome": "transaction.owner",
    "Offset": "consumer.starts", "Position": "consumer.ports", "Stream": "consumer.stream",
    "TopicPartition": "requests", "GroupSettings": "membership.settings",
    "Retry": "work.policies", "Skip": "work.policies", "Stop": "work.policies", "dead_letter": "work.policies",
    "HandlerError": "work.failures", "DeadLetterError": "work.failures", "PartitionRevokedError": "work.failures",
    "Part": "work.parts",
    "Mechanism": "security", "OAuthSettings": "security", "SaslSettings": "security", "TlsSettings": "security",
}  # fmt: skip
"""What `tpc_broker.client` offers by itself, and the module that is imported when it is first asked for: Spark's tasks
import parts of this package, and start sooner without anyio.
"""


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
