"""From columns of the log to the rows that a read's schema asks for: values decoded, what is malformed dealt with.

The modes are those of Spark's own readers. ``FAILFAST`` (default): the first malformed record ends the read, with an
error that names topic, partition and offset. ``DROPMALFORMED``: it is left out. ``PERMISSIVE``: the row stays, `value`
is null, and the column ``_corrupt_record`` (if the schema has it) holds the value's bytes. A record batch of the log
that cannot be read at all (its CRC is wrong, its compressed part is rubbish) is one row of that kind then: null but for
topic, partition and the first offset that is missing, with the batch's bytes as the corrupt record. Both are logged.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tpc_broker.client.errors import ClientError
from tpc_broker.client.requests import TopicPartition
from tpc_broker.native_columns import COLUMN_TYPES
from tpc_broker.spark.values import Decoder, FormatName, Malformed, ValueFormat

if TYPE_CHECKING:
    from tpc_broker.client.columns import DamagedBatch

CORRUPT_COLUMN: Final = "_corrupt_record"
logger = logging.getLogger("tpc.spark")


class Mode(StrEnum):
    """What becomes of malformed records."""

    FAILFAST = "failfast"
    PERMISSIVE = "permissive"
    DROPMALFORMED = "dropmalformed"


class MalformedValueError(ClientError):
    """A record's value that its schema does not fit: whoever wrote it, or whoever gave the schema, is mistaken."""


class RowsError(ValueError):
    """A schema that the rows of a topic cannot have."""


@dataclass(frozen=True, slots=True)
class RowPlan:
    """What a read's rows are, for all its tasks. ``schema`` is Spark's as Arrow has it."""

    schema: Any
    values: ValueFormat
    mode: Mode
    corrupt_column: str

    @classmethod
    def of(cls, schema: StructType, values: ValueFormat, mode: Mode, corrupt_column: str) -> "RowPlan":
        """`RowsError` names the column that cannot be."""
        plan = cls(to_arrow_schema(schema, timezone="UTC"), values, mode, corrupt_column)
        for field in plan.schema:
            plan._check(field)
        if plan.decodes:
            try:
                values.decoder(plan.schema.field("value").type)
            except (ValueError, TypeError) as error:
                raise RowsError(f"the column value: {error}") from None
        return plan

    def _check(self, field: Any) -> None:
        if not field.nullable:
            raise RowsError(f"the column {field.name} may be null; a schema cannot say NOT NULL")
        if field.name == self.corrupt_column:
            if field.type not in (pa.binary(), pa.string()):
                raise RowsError(f"the column {field.name} is {field.type}; it has to be binary or string")
        elif field.name not in COLUMN_TYPES:
            known = [*COLUMN_TYPES, self.corrupt_column]
            raise RowsError(f"there is no column {field.name}; the columns of a topic are {', '.join(known)}")
        elif not (field.name == "value" and self.decodes) and field.type != COLUMN_TYPES[field.name]:
            raise RowsError(f"the column {field.name} is {field.type}; it has to be {COLUMN_TYPES[field.name]}")

    @property
    def decodes(self) -> bool:
        return self.values.name != FormatName.RAW and "value" in self.schema.names

    @property
    def keeps_damage(self) -> bool:
        return self.mode != Mode.FAILFAST

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the log that the rows are made of; offsets are needed to name what is malformed."""
        wanted = [name for name in self.schema.names if name in COLUMN_TYPES]
        return tuple(wanted if not self.decodes or "offset" in wanted else [*wanted, "offset"])


class RowMaker:
    """The rows of one task."""

    def __init__(self, plan: RowPlan, where: TopicPartition) -> None:
        self._plan = plan
        self._where = where
        self._decoder: Decoder | None = None
        if plan.decodes:
            self._decoder = plan.values.decoder(plan.schema.field("value").type)
        self._is_plain = plan.columns == tuple(plan.schema.names) and self._decoder is None

    def rows(self, read: Iterator[Any]) -> Iterator[Any]:
        """What a `ColumnReader` gives, as record batches of the plan's schema, none of them empty."""
        from tpc_broker.client.columns import DamagedBatch  # noqa: PLC0415 - a plan does not need it

        for batch in read:
            if isinstance(batch, DamagedBatch):
                logger.warning("%s", batch.error)
                if self._plan.mode == Mode.PERMISSIVE:
                    yield self._damaged_row(batch)
            elif self._is_plain:
                yield batch
            else:
                made = self._made(batch)
                if made.num_rows:
                    yield made

    def _made(self, batch: Any) -> Any:
        columns = {name: batch.column(number) for number, name in enumerate(batch.schema.names)}
        values = columns.get("value")
        malformed: list[Malformed] = []
        if self._decoder is not None:
            columns["value"], malformed = self._decoder.decode(values)
            if malformed:
                self._report(malformed, columns["offset"])
        columns[self._plan.corrupt_column] = self._corrupt(values, malformed, batch.num_rows)
        made = pa.RecordBatch.from_arrays(
            [columns[name] for name in self._plan.schema.names], schema=self._plan.schema
        )
        if malformed and self._plan.mode == Mode.DROPMALFORMED:
            return made.filter(pa.array(_mask(malformed, made.num_rows, hit=False)))
        return made

    def _report(self, malformed: Sequence[Malformed], offsets: Any) -> None:
        first = malformed[0]
        text = f"{self._where}, offset {offsets[first.row]}: {first.reason}"
        if self._plan.mode == Mode.FAILFAST:
            raise MalformedValueError(f"{text}; to go on with such records, set mode to PERMISSIVE or DROPMALFORMED")
        more = f" (and {len(malformed) - 1} more of {len(offsets)})" if len(malformed) > 1 else ""
        logger.warning("%s%s", text, more)

    def _corrupt(self, values: Any, malformed: Sequence[Malformed], rows_count: int) -> Any:
        if self._plan.corrupt_column not in self._plan.schema.names:
            return None
        kind = self._plan.schema.field(self._plan.corrupt_column).type
        if not malformed:
            return pa.nulls(rows_count, kind)
        found: list[bytes | None] = [None] * rows_count
        for row, _reason in malformed:
            found[row] = values[row].as_py()
        return _corrupt_column(found, kind)

    def _damaged_row(self, damage: "DamagedBatch") -> Any:
        known: dict[str, Any] = {
            "topic": self._where.topic, "partition": self._where.partition, "offset": damage.offset,
        }  # fmt: skip
        columns = [
            _corrupt_column([damage.data], field.type)
            if field.name == self._plan.corrupt_column
            else pa.array([known.get(field.name)], field.type)
            for field in self._plan.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._plan.schema)


def _corrupt_column(found: list[bytes | None], kind: Any) -> Any:
    if pa.types.is_string(kind):
        return pa.array([None if one is None else one.decode(errors="replace") for one in found], kind)
    return pa.array(found, kind)


def _mask(malformed: Sequence[Malformed], rows_count: int, *, hit: bool) -> list[bool]:
    mask = [not hit] * rows_count
    for row, _reason in malformed:
        mask[row] = hit
    return mask
