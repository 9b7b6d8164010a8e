"""A range of a partition, fetched ahead: while the caller works on one answer, the next is on its way."""

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker._bytes import ffi, lib
from tpc_broker.client import requests
from tpc_broker.client.cluster import Cluster
from tpc_broker.client.errors import (
    ClientError,
    DamagedDataError,
    OffsetsMissingError,
    RefusedError,
    TopicReplacedError,
)
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.requests import NO_TOPIC_ID, FetchAnswer, TopicPartition
from tpc_broker.kafka import ApiKey, ErrorCode
from tpc_broker.kafka.records import CRC_START, read_batches
from tpc_broker.native_bytes import crc32c

if TYPE_CHECKING:
    from tpc_broker.client.connection import Connection

FETCH_WAIT_MS: Final = 500
EMPTY_ANSWERS: Final = 3
"""In a row, each of which the broker has waited for: there is nothing at all up to where it says that the log goes."""
logger = logging.getLogger("tpc.client")


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """``skips_missing``: offsets that are not in the log any more are passed over with a warning, instead of an
    `OffsetsMissingError`. ``keeps_damage``: the reader goes on behind damaged batches, so the place to go on at is not
    taken from one that contradicts itself.
    """

    isolation: Isolation = Isolation.READ_COMMITTED
    fetch_bytes_max: int = 8 * 1024 * 1024
    skips_missing: bool = False
    keeps_damage: bool = False


class Chunk(NamedTuple):
    """Whole batches from `fetch_offset` on (the first may begin before it, the last may be cut off)."""

    fetch_offset: int
    next_offset: int
    records: memoryview
    aborted: Sequence[tuple[int, ...]]
    """As `isolation.AbortedTransactions` takes them."""


def whole_batches(records: memoryview) -> tuple[int, int]:
    """How many bytes from the beginning on are whole batches, and the offset behind them (0 and -1: none)."""
    state = ffi.new("tpc_scan_state *", {"position": 0, "next_offset": -1})
    size = memoryview(records).nbytes
    lib.tpc_batch_scan(ffi.from_buffer(records), size, lib.TPC_SCAN_ALLOW_GAPS, state, ffi.NULL, 2**31 - 1)
    return int(state.position), int(state.next_offset)


def last_batch(records: memoryview) -> tuple[int, bool]:
    """The base offset of the last whole batch, and whether its header is sure about where the next one begins.

    It is when the CRC is right, or when the header's two ways of saying it agree.
    """
    [last] = deque(read_batches(records), maxlen=1)
    is_consistent = last.last_offset_delta + 1 == last.records_count
    return last.base_offset, is_consistent or crc32c(last.data[CRC_START:]) == last.crc


class RangeReader:
    """The offsets [first_offset, end_offset) of one partition, once.

    With ``topic_id`` they are those of that topic only, not of another one that has its name by now.
    """

    def __init__(  # noqa: PLR0913 - what is read, and how
        self,
        cluster: Cluster,
        where: TopicPartition,
        first_offset: int,
        end_offset: int,
        settings: ReadSettings,
        topic_id: bytes = b"",
    ) -> None:
        self._cluster = cluster
        self._where = where
        self._next_offset = first_offset
        self._end_offset = end_offset
        self._settings = settings
        self._topic_id = topic_id
        self._ahead: tuple[Connection, int] | None = None

    @property
    def next_offset(self) -> int:
        """What lies before it has been given."""
        return self._next_offset

    def chunks(self) -> Iterator[Chunk]:
        """All chunks in order. `OffsetsMissingError`, `DamagedDataError`, `TopicReplacedError`, or the cluster's error
        after its retries.
        """
        while self._next_offset < self._end_offset:
            chunk = self._chunk()
            if chunk is None:
                return
            self._next_offset = chunk.next_offset
            if self._next_offset < self._end_offset:
                self._send_ahead()
            yield chunk

    def _chunk(self) -> Chunk | None:
        """The next chunk that holds something; None when what is left of the range is missing and may be skipped."""
        empty_since: float | None = None
        empty_count = 0
        for failed in self._cluster.attempts():
            try:
                answer = self._told()
                if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    if not self._skip_missing():
                        return None
                    continue
                if answer.error_code:
                    raise RefusedError(answer.error_code, f"fetch of {self._where} from offset {self._next_offset}")
            except ClientError as error:
                self._ahead = None
                failed(error)
                continue
            if len(answer.records):
                return self._chunk_of(answer)
            if self._reaches_end(answer):
                empty_count += 1
                if empty_count == EMPTY_ANSWERS:  # records were cleaned away up to the end: a gap, and no loss
                    self._next_offset = self._end_offset
                    return None
                continue
            empty_count = 0
            empty_since = empty_since or time.monotonic()
            if time.monotonic() - empty_since > self._cluster.settings.retry_seconds and not self._skip_missing():
                return None
        raise AssertionError

    def _reaches_end(self, answer: FetchAnswer) -> bool:
        """Whether readers may have all of the range by now, as far as it is there."""
        is_committed = self._settings.isolation == Isolation.READ_COMMITTED
        end = answer.last_stable_offset if is_committed and answer.last_stable_offset >= 0 else answer.high_watermark
        return end >= self._end_offset and answer.log_start_offset <= self._next_offset

    def _chunk_of(self, answer: FetchAnswer) -> Chunk:
        whole, behind = whole_batches(answer.records)
        if behind <= self._next_offset:
            raise DamagedDataError(f"{self._where}, offset {self._next_offset}: the answer holds no whole record batch")
        if self._settings.keeps_damage:
            begin, is_sure = last_batch(answer.records[:whole])
            if not is_sure:
                where = f"{self._where}, offset {max(begin, self._next_offset)}"
                raise DamagedDataError(f"{where}: a damaged record batch, and where the log goes on cannot be told")
        return Chunk(self._next_offset, behind, answer.records, answer.aborted)

    def _told(self) -> FetchAnswer:
        """An answer that says something: above a quota one does not, and the broker holds up what is asked next."""
        while True:
            answer = self._fetch()
            if answer.error_code or answer.high_watermark >= 0:
                return answer

    def _fetch(self) -> FetchAnswer:
        """The answer for the next offset, which may have been asked for already."""
        if self._ahead is None or self._ahead[1] != self._next_offset or self._ahead[0].is_closed:
            self._send_ahead()
        assert self._ahead is not None
        connection = self._ahead[0]
        self._ahead = None
        return requests.fetch_answer(connection.receive())

    def _send_ahead(self) -> None:
        topic_id = self._current_topic_id()
        connection = self._cluster.connection_to_leader(self._where)
        offset = self._next_offset

        def make(version: int) -> object:
            return requests.fetch_request(
                version,
                self._where,
                topic_id,
                offset,
                isolation=self._settings.isolation,
                wait_ms=FETCH_WAIT_MS,
                bytes_max=self._settings.fetch_bytes_max,
            )

        connection.send(ApiKey.FETCH, make)
        self._ahead = (connection, offset)

    def _current_topic_id(self) -> bytes:
        """The id that the topic's name has; what is known of it may be old, where it is not the one that is wanted."""
        topic, wanted = self._where.topic, self._topic_id
        found = self._cluster.topic(topic).topic_id
        if not wanted or found in (wanted, NO_TOPIC_ID):
            return found
        facts = self._cluster.existing([topic], {topic: wanted}).get(topic)
        if facts is None or facts.topic_id != wanted:
            raise TopicReplacedError(f"{self._where}: the topic was deleted" + (" and created again" if facts else ""))
        return wanted

    def _skip_missing(self) -> bool:
        """Go to where the log goes on; False when nothing of the range is left. Raises when that is not allowed."""
        isolation = self._settings.isolation
        start = self._cluster.list_offsets({self._where: requests.EARLIEST}, isolation)[self._where]
        end = self._cluster.list_offsets({self._where: requests.LATEST}, isolation)[self._where]
        missing_end = min(start, self._end_offset) if start > self._next_offset else self._end_offset
        missing = f"offsets [{self._next_offset}, {missing_end})"
        text = f"{self._where}: {missing} are not in the log, which holds [{start}, {end})"
        if not self._settings.skips_missing:
            raise OffsetsMissingError(text)
        logger.warning("%s; they are skipped", text)
        self._next_offset = max(start, self._next_offset)
        return start <= self._next_offset < min(end, self._end_offset)
