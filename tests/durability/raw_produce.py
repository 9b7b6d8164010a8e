"""Single produces and reads over a raw connection: one batch, one answer, no retries, exact error codes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self

from tests.support.raw_client import Closed, RawConnection
from tests.support.record_batches import Record, batch, read_batches
from tests.support.server_process import Broker
from tests.support.today import now_ms

KAFKA_STORAGE_ERROR = 56
_MOVING = (3, 5, 6)  # unknown here, no leader, another leader: ask again


class PartitionClient:
    """One partition of one topic, wherever its leader is."""

    def __init__(self, broker: Broker, topic: str, index: int = 0) -> None:
        self.broker = broker
        self.topic = topic
        self.index = index
        self._connection: RawConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _leader(self) -> RawConnection:
        if self._connection is None:
            with RawConnection("127.0.0.1", self.broker.ports[0]) as peer:
                found = peer.ask("Metadata", 9, {"Topics": [{"Name": self.topic}]})
            ports = {node["NodeId"]: node["Port"] for node in found["Brokers"]}
            partitions = {one["PartitionIndex"]: one for one in found["Topics"][0]["Partitions"]}
            leader = partitions[self.index]["LeaderId"] if self.index in partitions else -1
            if leader not in ports:
                raise Closed("no leader")
            self._connection = RawConnection("127.0.0.1", ports[leader])
        return self._connection

    def _ask(self, api: str, version: int, values: dict[str, Any], code_of: Callable[[Any], int]) -> Any:
        """Ask the leader; look for it again while there is none (20 s)."""
        give_up_at = time.monotonic() + 20
        while True:
            try:
                answer = self._leader().ask(api, version, values)
                if code_of(answer) not in _MOVING:
                    return answer
            except (OSError, IndexError, KeyError):
                if time.monotonic() > give_up_at:
                    raise
            self.close()
            assert time.monotonic() < give_up_at, f"{self.topic}-{self.index} has no leader"
            time.sleep(0.05)

    def produce_bytes(self, records: bytes, version: int = 9) -> tuple[int, int]:
        """Error code and base offset of one produce with acks=all."""
        partition = {"Index": self.index, "Records": records}
        topic = {"Name": self.topic, "PartitionData": [partition]}
        values = {"Acks": -1, "TimeoutMs": 10_000, "TopicData": [topic]}

        def code_of(answer: Any) -> int:
            return answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"]

        answer = self._ask("Produce", version, values, code_of)["Responses"][0]["PartitionResponses"][0]
        return answer["ErrorCode"], answer["BaseOffset"]

    def produce(self, *values: bytes, timestamp_ms: int | None = None, key: bytes | None = None) -> tuple[int, int]:
        stamp_ms = now_ms() if timestamp_ms is None else timestamp_ms
        return self.produce_bytes(batch([Record(value, key) for value in values], base_timestamp_ms=stamp_ms))

    def offset(self, timestamp: int) -> int:
        """ListOffsets: -2 the log start, -1 the high watermark."""
        partition = {"PartitionIndex": self.index, "CurrentLeaderEpoch": -1, "Timestamp": timestamp}
        values = {"ReplicaId": -1, "Topics": [{"Name": self.topic, "Partitions": [partition]}]}

        def code_of(answer: Any) -> int:
            return answer["Topics"][0]["Partitions"][0]["ErrorCode"]

        answer = self._ask("ListOffsets", 4, values, code_of)["Topics"][0]["Partitions"][0]
        assert answer["ErrorCode"] == 0, answer
        return answer["Offset"]

    @property
    def log_start_offset(self) -> int:
        return self.offset(-2)

    @property
    def high_watermark(self) -> int:
        return self.offset(-1)

    def batches(self) -> list[dict[str, Any]]:
        """Every batch from the log start to the high watermark, as `read_batches` shows it."""
        position, end = self.log_start_offset, self.high_watermark
        found: list[dict[str, Any]] = []
        while position < end:
            wanted = {"Partition": self.index, "FetchOffset": position, "PartitionMaxBytes": 4 << 20}
            topic = {"Topic": self.topic, "Partitions": [wanted]}
            values = {"MaxWaitMs": 1000, "MinBytes": 1, "MaxBytes": 8 << 20, "Topics": [topic]}

            def code_of(answer: Any) -> int:
                return answer["Responses"][0]["Partitions"][0]["ErrorCode"]

            answer = self._ask("Fetch", 11, values, code_of)["Responses"][0]["Partitions"][0]
            assert answer["ErrorCode"] == 0, answer
            batches = read_batches(answer["Records"] or b"")
            assert batches, f"nothing at {position}, the end is {end}"
            assert all(one["crc_right"] for one in batches), position
            found += batches
            position = batches[-1]["base_offset"] + batches[-1]["last_offset_delta"] + 1
        return found

    def values(self) -> dict[int, bytes]:
        """Everything there is, by offset, of uncompressed batches; contiguous or an assertion fails."""
        start = position = self.log_start_offset
        found: dict[int, bytes] = {}
        for one in self.batches():
            for delta, _stamp, _key, value, _headers in one["records"]:
                offset = one["base_offset"] + delta
                if offset >= start:
                    assert offset == position, (offset, position)
                    found[offset] = value
                    position += 1
        return found
