"""Topics as tables of Spark: a data source ``tpc`` for PySpark 4.2 and newer, batch and streaming.

    from tpc_broker.spark import register

    register(spark)
    spark.read.format("tpc").option("bootstrap", "127.0.0.1:9092").option("subscribe", "events").load()

Where the package is installed, Spark finds it by itself (module `pyspark_tpc`); `register` is for other cases.

Options for reading (names as in Spark's own Kafka source, where it has them)
    `bootstrap` (or `kafka.bootstrap.servers`)  host:port, several with commas
    `subscribe`, `subscribePattern`, `assign`   which topics or partitions; exactly one of them
    `startingOffsets`, `endingOffsets`          `earliest`, `latest`, or JSON {"topic": {"0": 23, "1": -2}}
    `startingTimestamp`, `endingTimestamp`      milliseconds, for all partitions
    `startingOffsetsByTimestamp`, `endingOffsetsByTimestamp`  JSON {"topic": {"0": 1700000000000}}
    `startingOffsetsByTimestampStrategy`        `error` (default) or `latest`, when no record is so late
    `maxOffsetsPerTrigger`                      streaming: rows of one micro-batch
    `minOffsetsPerTrigger`, `maxTriggerDelay`   streaming: rows to wait for, and for how long
    `minPartitions`, `maxRecordsPerPartition`, `maxBytesPerPartition`, `bytesTogether`  how ranges become tasks
    `failOnDataLoss`                            `true` (default): offsets and topics that are gone are an error
    `includeHeaders`, `columns`                 which columns; `columns` is a comma-separated list
    `isolation.level`                           `read_uncommitted` (default) or `read_committed`
    `path`                                      a broker's data folder: segment files are read as far as they go
    `valueFormat`                               `raw` (default), `json`, `avro`, `protobuf`, with the schema in
    `valueSchema`, `avroSchema`, `protobufDescriptor` and `messageName`
    `mode`, `columnNameOfCorruptRecord`         `FAILFAST` (default), `PERMISSIVE`, `DROPMALFORMED`
    `kafka.security.protocol`, `kafka.ssl.*`, `kafka.sasl.*`  as in docs/spark.md, which says more about all of them

Options for writing: `bootstrap`, `topic` (or a column `topic`), `compression`, `batchBytes`,
`taskRecordsPerSecond`, `taskBytesPerSecond`; `exactlyOnce` (`auto`, `true`, `false`), `transactionalIdPrefix`,
`kafka.transaction.timeout.ms`, `failOnDataLoss` (of transactions); for batch writes that are done once `txnAppId` and
`txnVersion`; for streams `allowRepeatedEpochs` (write also where Spark does not say which epoch it is; see `sink`).

Modules: `options` (what the options say), `given` and `security_options` (options as given, and those of security),
`names` (of what others see), `pace` (how fast), `ranges` (which offsets a read covers), `losses` (which it cannot
have), `task_sizes` (how they become tasks), `source` (what Spark calls first), `readers` (what it asks of a read),
`task_rows` (what a task reads), `segments`, `folder_log` and `log_starts` (files without a broker), `lag` (of a
stream), `rows` and `values` (what becomes of values and of what is malformed), `ddl` (schemas in words), `value_json`,
`value_avro`, `value_protobuf` (the formats), `sink` (writers), `exactly_once` (their transactions), `epochs` (which
epochs of streaming writes are done),
`tasks` (connections inside Spark's Python workers), `shipping` (what is said where they lack this package), `session`
(sessions for own jobs), `pipelines` (whole programs, as `tpc pipeline` starts them), `demo` (all of it on real input).

Invariants: a task reads its range whole or fails; control records are never rows, nor are aborted ones where committed
records are asked for; no step in Python per row, save for values in Avro and Protobuf, and malformed JSON.
"""

from typing import Any, Final

import pyspark

PYSPARK_OLDEST: Final = (4, 2)
"""The first that has limits of a micro-batch for Python data sources."""

if tuple(int(number) for number in pyspark.__version__.split(".")[:2]) < PYSPARK_OLDEST:
    raise ImportError(f"tpc_broker.spark needs PySpark 4.2 or newer; this is {pyspark.__version__}")

from tpc_broker.spark.lag import offsets_behind_latest  # noqa: E402 - an older one would fail at something else before
from tpc_broker.spark.source import TpcDataSource  # noqa: E402

__all__ = ["TpcDataSource", "offsets_behind_latest", "register"]


def register(spark: Any) -> None:
    """Make ``format("tpc")`` known to this session."""
    spark.dataSource.register(TpcDataSource)
