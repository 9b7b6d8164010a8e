#!/usr/bin/env bash
# confluent-kafka 2.16.1: its AIOProducer sends nothing for as long as records come slowly but steadily.
#
# The AIOProducer gathers records before it gives them to librdkafka, so `linger.ms` does not count for them. It gives them
# away when `batch_size` (1000) are there, or after `buffer_timeout` (1 s), which one would take for the longest time that
# a record waits. But every `produce` begins that time anew: with a record each 300 ms nothing at all is written before the
# thousandth, five minutes later. Java's producer, librdkafka's and aiokafka's count from the first record of a batch.
# A single record too waits for that time, whatever `linger.ms` says.
#
# Seen with confluent-kafka 2.16.1, aiokafka 0.14.0, CPython 3.11, kafka_2.13 4.3.1, one broker: a record each 300 ms, 40
# in all, then 3 s of silence; `linger.ms` is 0:
#   AIOProducer: 0 of 40 records are in the log after 12 s, all after the silence
#   Producer: 40 of 40 records are in the log after 12 s, all after the silence
#   AIOKafkaProducer: 40 of 40 records are in the log after 12 s, all after the silence
#
# For us: a batch of our client leaves as soon as its broker can take it (docs/decisions/2026-11-30-sending-from-tasks.md).
# Our comparison calls the AIOProducer's `flush` itself (tpc_broker/bench/client_libraries.py).
# Needs Java 17, Maven and python3 3.11; exit code 1: it behaves otherwise now.
set -euo pipefail

folder=$(mktemp -d)
broker=
stop() {
    if [ -n "$broker" ]; then kill "$broker" || true; wait "$broker" || true; fi
    rm -rf "$folder"
}
trap stop EXIT

cat > "$folder/pom.xml" <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.3.1</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
XML
mvn -q -B -f "$folder/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$folder/jars"
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet --disable-pip-version-check confluent-kafka==2.16.1 aiokafka==0.14.0

is_taken() { (: < "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }
port=$(shuf -n 1 -i 20000-31998)
while is_taken "$port" || is_taken $((port + 1)); do port=$(shuf -n 1 -i 20000-31998); done
cat > "$folder/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=0
controller.quorum.bootstrap.servers=127.0.0.1:$((port + 1))
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
controller.listener.names=CONTROLLER
log.dirs=$folder/data
PROPERTIES
java -cp "$folder/jars/*" kafka.tools.StorageTool format --standalone -t AAAAAAAAAAAAAAAAAAAAAQ \
    -c "$folder/server.properties" > "$folder/format.log" 2>&1
java -Xmx512m -cp "$folder/jars/*" kafka.Kafka "$folder/server.properties" > "$folder/broker.log" 2>&1 &
broker=$!

cat > "$folder/trickle.py" <<'PYTHON'
import asyncio
import sys

from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.aio import AIOProducer

SERVER = sys.argv[1]
SETTINGS = {"bootstrap.servers": SERVER, "linger.ms": 0}
RECORDS = 40
SECONDS = 0.3
looker = Consumer({"bootstrap.servers": SERVER, "group.id": "looker"})


async def story(topic, send):
    for _ in range(RECORDS):
        await send(topic)
        await asyncio.sleep(SECONDS)
    there = written(topic)
    await asyncio.sleep(3)
    rest = "all" if written(topic) == RECORDS else f"{written(topic)}"
    print(f"{topic}: {there} of {RECORDS} records are in the log after {RECORDS * SECONDS:g} s, {rest} after the silence")


def written(topic):
    first, end = looker.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    return end - first


async def main():
    topics = ["AIOProducer", "Producer", "AIOKafkaProducer"]
    admin = AdminClient({"bootstrap.servers": SERVER})
    for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        made.result()

    gathering = AIOProducer(dict(SETTINGS))
    await story("AIOProducer", lambda topic: gathering.produce(topic, value=b"hello"))
    await gathering.close()

    plain = Producer(SETTINGS)

    async def produce(topic):
        plain.produce(topic, value=b"hello")

    await story("Producer", produce)
    plain.flush()

    other = AIOKafkaProducer(bootstrap_servers=SERVER, linger_ms=0)
    await other.start()
    await story("AIOKafkaProducer", lambda topic: other.send(topic, b"hello"))
    await other.stop()


asyncio.run(main())
PYTHON
found=$("$folder/python/bin/python" "$folder/trickle.py" "127.0.0.1:$port" 2> "$folder/clients.log") || {
    tail -n 20 "$folder/clients.log" >&2
    exit 2
}
echo "$found"
[ "$found" = "AIOProducer: 0 of 40 records are in the log after 12 s, all after the silence
Producer: 40 of 40 records are in the log after 12 s, all after the silence
AIOKafkaProducer: 40 of 40 records are in the log after 12 s, all after the silence" ]
