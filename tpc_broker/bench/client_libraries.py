"""One client library under one load, in a process of its own, so that its CPU is its own:
``python -m tpc_broker.bench.client_libraries LIBRARY LOAD BOOTSTRAP TOPIC COUNT``. Prints a JSON object.

Loads
    one         COUNT records of 1 KiB, each awaited before the next one is sent; half as many before them to warm up
    post        COUNT records of 100 B handed to the client as fast as it takes them, then all of them acknowledged
    send-all    COUNT records of 1 KiB likewise, by what the library offers for many at once
    consume     COUNT records of 100 B read one by one, each by a call or an await of its own
    batches     COUNT records read in the batches that the library gives

CPU is that of the whole process (librdkafka's threads too) from behind the first record on, which takes the time for
connections, metadata and imports out of it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.bench.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.client import Client

SMALL, LARGE = b"x" * 100, b"x" * 1024
PARTITIONS: Final = 4
POSTED_AT_ONCE: Final = 20_000
"""Records that wait for their acknowledgement, of libraries that bound nothing by themselves."""
BATCH_RECORDS: Final = 5_000
READS: Final = ("consume", "batches")
_WAIT_S: Final = 60.0


@dataclass
class Measured:
    """From the first record on."""

    count: int = 0
    began_s: float = 0.0
    cpu_began_s: float = 0.0
    histogram: Histogram = field(default_factory=Histogram)

    def begin(self) -> None:
        self.began_s, self.cpu_began_s = time.perf_counter(), time.process_time()

    def saw(self, count: int) -> int:
        """So many more were read; gives how many that makes."""
        if self.count == 0 and count:
            self.begin()
        self.count += count
        return self.count

    def told(self) -> dict[str, Any]:
        return {
            "records": self.count,
            "seconds": time.perf_counter() - self.began_s,
            "cpu_s": time.process_time() - self.cpu_began_s,
            "latency_us": self.histogram.percentiles_us() if self.histogram.count else {},
            "buckets": self.histogram.buckets(),
        }


class Timed:
    """Each record of `one` behind the first half of them."""

    def __init__(self, measured: Measured, count: int) -> None:
        self._measured, self._warm_up = measured, count // 2
        self.total = count + self._warm_up

    def begin(self, number: int) -> int:
        if number == self._warm_up:
            self._measured.begin()
        return time.perf_counter_ns()

    def end(self, number: int, began_ns: int) -> None:
        if number >= self._warm_up:
            self._measured.histogram.add(time.perf_counter_ns() - began_ns)
            self._measured.count += 1


async def _native(load: str, bootstrap: str, topic: str, count: int, measured: Measured) -> None:
    from tpc_broker.client import connect  # noqa: PLC0415 - each process imports what it measures

    async with connect(bootstrap) as client:
        await (_native_read if load in READS else _native_write)(client, load, topic, count, measured)


async def _native_write(client: Client, load: str, topic: str, count: int, measured: Measured) -> None:
    if load == "one":
        timed = Timed(measured, count)
        for number in range(timed.total):
            began = timed.begin(number)
            await client.send(topic, LARGE)
            timed.end(number, began)
        return
    await client.send(topic, SMALL)
    measured.begin()
    if load == "post":
        for _ in range(count):
            await client.post(topic, SMALL)
        await client.flush()
    else:
        await client.send_all(topic, (LARGE for _ in range(count)))
    measured.count = count


async def _native_read(client: Client, load: str, topic: str, count: int, measured: Measured) -> None:
    async with client.read(topic, start="earliest") as stream:
        if load == "consume":
            async for _record in stream:
                if measured.saw(1) == count:
                    return
        else:
            async for batch in stream.batches():
                if measured.saw(len(batch.records)) >= count:
                    return


def _on(backend: str) -> Callable[..., None]:
    def run(*arguments: Any) -> None:
        import anyio  # noqa: PLC0415

        anyio.run(_native, *arguments, backend=backend)

    return run


async def _aiokafka(load: str, bootstrap: str, topic: str, count: int, measured: Measured) -> None:
    import aiokafka  # noqa: PLC0415

    if load in READS:
        consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        async with consumer:
            if load == "consume":
                while measured.count < count:
                    await consumer.getone()
                    measured.saw(1)
            while measured.count < count:
                batches = await consumer.getmany(timeout_ms=1000, max_records=BATCH_RECORDS)
                measured.saw(sum(map(len, batches.values())))
        return
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        if load == "one":
            timed = Timed(measured, count)
            for number in range(timed.total):
                began = timed.begin(number)
                await producer.send_and_wait(topic, LARGE)
                timed.end(number, began)
            return
        await producer.send_and_wait(topic, SMALL)
        measured.begin()
        waiting = []
        for _ in range(count):
            waiting.append(await producer.send(topic, SMALL if load == "post" else LARGE))
            if len(waiting) == POSTED_AT_ONCE:
                await asyncio.gather(*waiting)
                waiting.clear()
        await asyncio.gather(*waiting)
        measured.count = count


def _consumer_settings(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "group.id": f"bench-{time.time_ns()}", "auto.offset.reset": "earliest"}


async def _confluent_aio(load: str, bootstrap: str, topic: str, count: int, measured: Measured) -> None:
    from confluent_kafka.aio import AIOConsumer, AIOProducer  # noqa: PLC0415

    if load in READS:
        consumer = AIOConsumer(_consumer_settings(bootstrap))
        await consumer.subscribe([topic])
        while measured.count < count:
            if load == "consume":
                measured.saw(int(await consumer.poll(1.0) is not None))
            else:
                measured.saw(len(await consumer.consume(BATCH_RECORDS, 1.0)))
        await consumer.close()
        return
    producer = AIOProducer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    if load == "one":
        timed = Timed(measured, count)
        for number in range(timed.total):
            began = timed.begin(number)
            waiting = await producer.produce(topic, LARGE)
            await producer.flush()  # without it a record waits for a second
            await waiting
            timed.end(number, began)
    else:
        measured.begin()
        futures: list[Any] = []
        for _ in range(count):
            futures.append(await producer.produce(topic, SMALL if load == "post" else LARGE))
            if len(futures) == POSTED_AT_ONCE:
                await producer.flush()
                await asyncio.gather(*futures)
                futures.clear()
        await producer.flush()
        await asyncio.gather(*futures)
        measured.count = count
    await producer.close()


def _confluent(load: str, bootstrap: str, topic: str, count: int, measured: Measured) -> None:
    (_confluent_read if load in READS else _confluent_write)(load, bootstrap, topic, count, measured)


def _confluent_read(load: str, bootstrap: str, topic: str, count: int, measured: Measured) -> None:
    from confluent_kafka import Consumer  # noqa: PLC0415

    consumer = Consumer(_consumer_settings(bootstrap))
    consumer.subscribe([topic])
    if load == "consume":
        while measured.count < count:
            measured.saw(int(consumer.poll(1.0) is not None))
    while measured.count < count:
        measured.saw(len(consumer.consume(BATCH_RECORDS, 1.0)))
    consumer.close()


def _confluent_write(load: str, bootstrap: str, topic: str, count: int, measured: Measured) -> None:
    from confluent_kafka import Producer  # noqa: PLC0415

    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "enable.idempotence": True}
    producer = Producer(settings | ({"linger.ms": 0} if load == "one" else {}))
    if load == "one":
        timed = Timed(measured, count)
        for number in range(timed.total):
            began = timed.begin(number)
            producer.produce(topic, LARGE)
            producer.flush(_WAIT_S)
            timed.end(number, began)
        return
    producer.produce(topic, SMALL)
    producer.flush(_WAIT_S)
    measured.begin()
    value = SMALL if load == "post" else LARGE
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value)
            except BufferError:
                producer.poll(0.01)
            else:
                break
        if number % 64 == 0:
            producer.poll(0)
    if producer.flush(_WAIT_S):
        raise RuntimeError("not everything was acknowledged")
    measured.count = count


def _aio(run: Callable[..., Any]) -> Callable[..., None]:
    return lambda *arguments: asyncio.run(run(*arguments))


LIBRARIES: Final[dict[str, Callable[..., None]]] = {
    "trio": _on("trio"),
    "asyncio": _on("asyncio"),
    "aiokafka": _aio(_aiokafka),
    "confluent": _confluent,
    "confluent-aio": _aio(_confluent_aio),
}
"""By the name in reports; the first two are our client."""


def main() -> None:
    library, load, bootstrap, topic, count = sys.argv[1:]
    measured = Measured()
    LIBRARIES[library](load, bootstrap, topic, int(count), measured)
    print(json.dumps(measured.told()))


if __name__ == "__main__":
    main()
