"""What the options of a read or a write say, checked once. Pure; everything here can be pickled to tasks.

An option that is not known is an error: most of them are typing mistakes, the rest wishes that would be ignored.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.client.cluster import ClusterSettings, parse_bootstrap
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.requests import EARLIEST, LATEST, TopicPartition
from tpc_broker.log.files import decode_topic_id
from tpc_broker.spark.given import Given, OptionError
from tpc_broker.spark.names import TOPIC_ID
from tpc_broker.spark.pace import Rate
from tpc_broker.spark.rows import CORRUPT_COLUMN, Mode
from tpc_broker.spark.security_options import SECURITY_OPTIONS, security_of
from tpc_broker.spark.values import FormatName, GivenSchema, ValueFormat

if TYPE_CHECKING:
    from tpc_broker.kafka.compression import Compression

__all__ = [
    "COLUMNS",
    "OptionError",
    "Position",
    "ReadOptions",
    "RowShape",
    "Selection",
    "TableOptions",
    "TransactionOptions",
    "WriteOptions",
    "read_options",
    "table_options",
    "write_options",
]

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
RECORDS_PER_TASK_MAX: Final = 2_000_000
BYTES_PER_TASK_MAX: Final = 128 * 1024 * 1024
"""As Spark's own file sources have it (spark.sql.files.maxPartitionBytes)."""
BYTES_TOGETHER: Final = 32 * 1024 * 1024
"""A tenth of a second of reading, several times what a task costs whatever it reads."""
TRIGGER_DELAY_MAX: Final = "15m"
BATCH_BYTES: Final = 900_000
TRANSACTIONAL_ID_PREFIX: Final = "tpc-spark"
TRANSACTION_TIMEOUT_MS: Final = 900_000
"""As long as brokers allow by default (`transaction.max.timeout.ms`): a task's is open until all tasks are done."""

_COMMON: Final = {
    "bootstrap", "kafka.bootstrap.servers", "kafka.client.id", "kafka.request.timeout.ms", "retrySeconds",
    *SECURITY_OPTIONS,
}  # fmt: skip
_READ: Final = _COMMON | {
    "path", "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition",
    "maxBytesPerPartition", "bytesTogether", "failOnDataLoss", "includeHeaders", "columns",
    "isolation.level", "kafka.isolation.level", "mode", "columnNameOfCorruptRecord", "valueFormat", "valueSchema",
    "avroSchema", "protobufDescriptor", "messageName",
}  # fmt: skip
_WRITE: Final = _COMMON | {
    "topic", "compression", "kafka.compression.type", "batchBytes", "allowRepeatedEpochs", "taskRecordsPerSecond",
    "taskBytesPerSecond", "exactlyOnce", "transactionalIdPrefix", "kafka.transaction.timeout.ms", "txnAppId",
    "txnVersion", "failOnDataLoss",
    "checkpointLocation", "queryName",   # Spark hands a stream's own options on
}  # fmt: skip
IGNORED: Final = (
    "groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    *(f"kafka.{name}" for name in (
        "acks", "allow.auto.create.topics", "batch.size", "buffer.memory", "check.crcs", "client.dns.lookup",
        "client.rack", "connections.max.idle.ms", "default.api.timeout.ms", "delivery.timeout.ms", "enable.idempotence",
        "enable.metrics.push", "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes", "group.id",
        "heartbeat.interval.ms", "linger.ms", "max.block.ms", "max.in.flight.requests.per.connection",
        "max.partition.fetch.bytes", "max.poll.interval.ms", "max.poll.records", "max.request.size",
        "metadata.max.age.ms", "metadata.max.idle.ms", "metric.reporters", "metrics.num.samples",
        "metrics.recording.level", "metrics.sample.window.ms", "partition.assignment.strategy", "receive.buffer.bytes",
        "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retries", "retry.backoff.max.ms", "retry.backoff.ms",
        "send.buffer.bytes", "session.timeout.ms", "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    )),
)  # fmt: skip
"""Options of Spark's own Kafka source and sink, and of the Kafka clients in them, that change no row: what they tune
is done otherwise here, or never less safely (`acks` is all, and writing is idempotent)."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which partitions: exactly one field is set."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class Position:
    """Where to begin or to end. ``default`` and the values of ``offsets`` may be `EARLIEST` or `LATEST`.

    ``time_ms`` comes before ``times_ms``, both before offsets, as in Spark's Kafka source.
    """

    default: int
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    """Of topics, where the JSON with the offsets names them."""
    time_ms: int | None = None
    times_ms: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    cluster: ClusterSettings | None
    path: str
    selection: Selection
    start: Position
    end: Position
    late_is_latest: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int
    trigger_delay_max_seconds: float
    tasks: "TaskShape"
    fails_on_data_loss: bool
    columns: tuple[str, ...]
    isolation: Isolation
    shape: "RowShape"


@dataclass(frozen=True, slots=True)
class TaskShape:
    """``tasks_min`` tasks at least, about, where it is not 0; no task above the other two bounds.

    Ranges whose bytes are known come together up to ``bytes_together``, where ``tasks_min`` leaves room for that.
    """

    tasks_min: int
    records_max: int
    bytes_max: int
    bytes_together: int


@dataclass(frozen=True, slots=True)
class RowShape:
    """What the options say about rows: the format of values, and what becomes of malformed ones."""

    values: ValueFormat
    mode: Mode
    corrupt_column: str


@dataclass(frozen=True, slots=True)
class TransactionOptions:
    """``mode`` is `auto` (where the cluster has them), `true` or `false`. ``numbered``: name and number of a batch
    write that is done once however often it is asked for.
    """

    mode: str = "auto"
    prefix: str = TRANSACTIONAL_ID_PREFIX
    timeout_ms: int = TRANSACTION_TIMEOUT_MS
    numbered: tuple[str, int] | None = None
    fails_on_data_loss: bool = True


@dataclass(frozen=True, slots=True)
class WriteOptions:
    cluster: ClusterSettings
    topic: str
    compression: "Compression"
    batch_bytes: int
    allows_repeated_epochs: bool
    rate: Rate | None = None
    transactions: TransactionOptions = field(default_factory=TransactionOptions)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What a table looks like, before it is known whether it is read as a batch or as a stream."""

    columns: tuple[str, ...]
    shape: RowShape
    names_columns: bool


def table_options(options: Mapping[str, str]) -> TableOptions:
    given = Given(options, _READ | _WRITE, IGNORED)
    named = bool(given.text("columns"))
    return TableOptions(_columns(given), _shape(given), named)


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """`OptionError` when they do not fit together."""
    given = Given(options, _READ, IGNORED)
    has_broker = bool(_bootstrap(given))
    if streaming and given.text("path") and not has_broker:
        raise OptionError("a stream needs a broker beside its path: set kafka.bootstrap.servers")
    if streaming and any(given.text(name) for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")):
        raise OptionError("a stream has no end: endingOffsets, endingTimestamp and the like are for batch reads")
    isolation = given.either("isolation.level", "kafka.isolation.level", "read_uncommitted")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise OptionError(f"isolation.level is {isolation!r}; allowed are read_committed, read_uncommitted")
    most, least = given.number("maxOffsetsPerTrigger", 0), given.number("minOffsetsPerTrigger", 0)
    if most and least > most:
        raise OptionError(f"minOffsetsPerTrigger is {least}; allowed is at most maxOffsetsPerTrigger = {most}")
    return ReadOptions(
        cluster=_cluster(given) if has_broker or not given.text("path") else None,
        path=given.text("path"),
        selection=_selection(given),
        start=_position(given, "starting", LATEST if streaming else EARLIEST, forbidden=None if streaming else LATEST),
        end=_position(given, "ending", LATEST, forbidden=EARLIEST),
        late_is_latest=given.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error") == "latest",
        max_offsets_per_trigger=most or None,
        min_offsets_per_trigger=least,
        trigger_delay_max_seconds=given.seconds("maxTriggerDelay", TRIGGER_DELAY_MAX),
        tasks=TaskShape(
            given.number("minPartitions", 0),
            given.number("maxRecordsPerPartition", RECORDS_PER_TASK_MAX),
            given.number("maxBytesPerPartition", BYTES_PER_TASK_MAX),
            given.number("bytesTogether", BYTES_TOGETHER, 0),
        ),
        fails_on_data_loss=given.flag("failOnDataLoss", default=True),
        columns=_columns(given),
        isolation=Isolation[isolation.upper()],
        shape=_shape(given),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    from tpc_broker.kafka.compression import Compression  # noqa: PLC0415 - a read does not need it

    given = Given(options, _WRITE, IGNORED)
    codec = given.either("compression", "kafka.compression.type", "none")
    if codec.upper() not in Compression.__members__:
        raise OptionError(f"compression is {codec!r}; allowed are {', '.join(Compression.__members__).lower()}")
    return WriteOptions(
        _cluster(given),
        given.text("topic"),
        Compression[codec.upper()],
        given.number("batchBytes", BATCH_BYTES, 100),
        given.flag("allowRepeatedEpochs", default=False),
        _rate(given),
        _transactions(given),
    )


def _transactions(given: Given) -> TransactionOptions:
    name, number = given.text("txnAppId"), given.number("txnVersion", -1, 0)
    if bool(name) != (number >= 0):
        raise OptionError("txnAppId and txnVersion name a batch write together; give both")
    return TransactionOptions(
        given.choice("exactlyOnce", ("auto", "true", "false"), "auto"),
        given.text("transactionalIdPrefix", TRANSACTIONAL_ID_PREFIX) or TRANSACTIONAL_ID_PREFIX,
        given.number("kafka.transaction.timeout.ms", TRANSACTION_TIMEOUT_MS),
        (name, number) if name else None,
        given.flag("failOnDataLoss", default=True),
    )


def _rate(given: Given) -> Rate | None:
    """None: as fast as it goes."""
    names = ("taskRecordsPerSecond", "taskBytesPerSecond")
    try:
        rate = Rate(*(float(given.text(name) or 0) for name in names))
    except ValueError:
        raise OptionError(f"{' and '.join(names)} are numbers") from None
    if min(rate.records_per_second, rate.bytes_per_second) < 0:
        raise OptionError(f"{' and '.join(names)} are above 0")
    if rate.records_per_second and rate.bytes_per_second:
        raise OptionError(f"{' and '.join(names)} say the same thing in two ways; give one")
    return rate if rate.records_per_second > 0 or rate.bytes_per_second > 0 else None


def _bootstrap(given: Given) -> str:
    return given.either("bootstrap", "kafka.bootstrap.servers")


def _cluster(given: Given) -> ClusterSettings:
    bootstrap = _bootstrap(given)
    if not bootstrap:
        raise OptionError("the option kafka.bootstrap.servers (host:port) is missing")
    try:
        parse_bootstrap(bootstrap)
    except ValueError as error:
        raise OptionError(f"bootstrap: {error}") from None
    return ClusterSettings(
        bootstrap,
        given.text("kafka.client.id", "tpc-spark"),
        given.number("kafka.request.timeout.ms", 30_000) / 1000,
        given.number("retrySeconds", 60),
        security_of(given),
    )


def _selection(given: Given) -> Selection:
    said = [name for name in ("subscribe", "subscribePattern", "assign") if given.text(name)]
    if len(said) != 1:
        raise OptionError(f"exactly one of subscribe, subscribePattern and assign is needed, not {len(said)}")
    if said == ["subscribe"]:
        names = (name.strip() for name in given.text("subscribe").split(","))
        topics = tuple(dict.fromkeys(name for name in names if name))
        if not topics:
            raise OptionError("subscribe names no topic")
        return Selection(topics=topics)
    if said == ["subscribePattern"]:
        return Selection(pattern=given.text("subscribePattern"))
    listed = _json(given, "assign")
    try:
        places = [TopicPartition(topic, int(number)) for topic, numbers in listed.items() for number in numbers]
    except (TypeError, ValueError) as error:
        raise OptionError(f'assign has the form {{"topic": [0, 1]}}: {error}') from None
    if not places:
        raise OptionError("assign names no partition")
    return Selection(assigned=tuple(dict.fromkeys(places)))


def _columns(given: Given) -> tuple[str, ...]:
    listed = tuple(name.strip() for name in given.text("columns").split(",") if name.strip())
    with_headers = given.flag("includeHeaders", default=False)
    if not listed:
        return COLUMNS if with_headers else COLUMNS[:-1]
    if with_headers and "headers" not in listed:
        raise OptionError(f"includeHeaders is true, and columns is {', '.join(listed)}, without headers")
    wrong = [name for name in listed if name not in COLUMNS]
    if wrong or len(set(listed)) != len(listed):
        raise OptionError(f"columns is {', '.join(listed)}; allowed, each once, are {', '.join(COLUMNS)}")
    return listed


def _shape(given: Given) -> RowShape:
    return RowShape(
        _value_format(given),
        Mode(given.choice("mode", Mode, Mode.FAILFAST)),
        given.text("columnNameOfCorruptRecord", CORRUPT_COLUMN),
    )


def _value_format(given: Given) -> ValueFormat:
    name = FormatName(given.choice("valueFormat", FormatName, FormatName.RAW))
    belongs = {
        FormatName.RAW: (),
        FormatName.JSON: ("valueSchema",),
        FormatName.AVRO: ("avroSchema",),
        FormatName.PROTOBUF: ("protobufDescriptor", "messageName"),
    }
    for option in ("valueSchema", "avroSchema", "protobufDescriptor", "messageName"):
        if given.text(option) and option not in belongs[name]:
            raise OptionError(f"{option} says nothing about valueFormat={name}")
        if not given.text(option) and option in belongs[name] and option != "valueSchema":
            raise OptionError(f"valueFormat={name} needs the option {option}")
    if name == FormatName.AVRO:
        text = given.text("avroSchema")
        return ValueFormat(name, GivenSchema(text if text[0] in '{["' else given.file_text("avroSchema")))
    if name == FormatName.PROTOBUF:
        return ValueFormat(name, GivenSchema(given.file_bytes("protobufDescriptor")), given.text("messageName"))
    return ValueFormat(name, json_type=given.text("valueSchema"))


def _position(given: Given, which: str, default: int, forbidden: int | None) -> Position:
    names = {"earliest": EARLIEST, "latest": LATEST}
    text = given.text(f"{which}Offsets")
    offsets: dict[TopicPartition, int] = {}
    ids: dict[str, str] = {}
    if text.lower() in names:
        default = names[text.lower()]
    elif text and not text.startswith("{"):
        raise OptionError(f'{which}Offsets is {text!r}; allowed are earliest, latest and JSON {{"topic": {{"0": 23}}}}')
    elif text:
        offsets = _per_partition(given, f"{which}Offsets", EARLIEST, ids)
    if forbidden in (default, *offsets.values()):
        word = next(name for name, value in names.items() if value == forbidden)
        raise OptionError(f"{which}Offsets cannot be {word} here")
    time_ms = given.number(f"{which}Timestamp", -1, 0)
    times = f"{which}OffsetsByTimestamp"
    return Position(
        default,
        offsets,
        ids,
        None if time_ms < 0 else time_ms,
        _per_partition(given, times, 0) if given.text(times) else {},
    )


def _per_partition(
    given: Given, name: str, minimum: int, ids: dict[str, str] | None = None
) -> dict[TopicPartition, int]:
    """``ids`` takes the topics' ids, where they are allowed."""
    found: dict[TopicPartition, int] = {}
    try:
        for topic, numbers in _json(given, name).items():
            for partition, value in numbers.items():
                if ids is not None and partition == TOPIC_ID:
                    decode_topic_id(value)
                    ids[topic] = value
                    continue
                found[TopicPartition(topic, int(partition))] = int(value)
    except (AttributeError, TypeError, ValueError) as error:
        raise OptionError(f'{name} has the form {{"topic": {{"0": 23}}}}: {error}') from None
    if any(value < minimum for value in found.values()):
        raise OptionError(f"{name} has a number below {minimum}")
    return found


def _json(given: Given, name: str) -> dict[str, Any]:
    try:
        value = json.loads(given.text(name))
    except ValueError as error:
        raise OptionError(f"{name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise OptionError(f"{name} is not a JSON object")
    return value
