#!/usr/bin/env bash
# confluent-kafka 2.16.1: a cancelled `poll` of its AIOConsumer takes the next record, and nobody gets it.
#
# In asyncio a read that is cancelled, by `asyncio.wait_for` or a task group that ends, is expected to take nothing. This
# one runs in a thread, which goes on when the one who waits is gone: the call stays in the consumer until its own time is
# over, takes the record that comes next, and moves the position behind it. The next `poll` gives the record after that, and
# a commit of the position counts the lost one as handled. No error tells of it. A program that comes from aiokafka, where
# `getone` may be cancelled, may lose a record whenever it gives up a wait.
#
# Seen with confluent-kafka 2.16.1, aiokafka 0.14.0, CPython 3.11, kafka_2.13 4.3.1, one broker: a read is cancelled after
# half a second, before record 1 is written, and record 2 after it; then all is read, and the position committed:
#   AIOConsumer.poll: read 0, 2; committed 3; read by the next consumer of the group: nothing
#   AIOConsumer.consume: read 0, 2; committed 3; read by the next consumer of the group: nothing
#   AIOKafkaConsumer.getone: read 0, 1, 2; committed 3; read by the next consumer of the group: nothing
#
# For us: a cancelled read of our client takes nothing (docs/client.md). Who uses the AIOConsumer gives `poll` a short time
# of its own instead of cancelling it.
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
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
PROPERTIES
java -cp "$folder/jars/*" kafka.tools.StorageTool format --standalone -t AAAAAAAAAAAAAAAAAAAAAQ \
    -c "$folder/server.properties" > "$folder/format.log" 2>&1
java -Xmx512m -cp "$folder/jars/*" kafka.Kafka "$folder/server.properties" > "$folder/broker.log" 2>&1 &
broker=$!

cat > "$folder/cancel.py" <<'PYTHON'
import asyncio
import sys

from aiokafka import AIOKafkaConsumer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.aio import AIOConsumer

SERVER = sys.argv[1]
SETTINGS = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
producer = Producer({"bootstrap.servers": SERVER, "linger.ms": 0})


class Confluent:
    def __init__(self, group):
        self.consumer = AIOConsumer({"bootstrap.servers": SERVER, "group.id": group, **SETTINGS})

    async def start(self, topic):
        await self.consumer.subscribe([topic])

    async def position(self):
        return (await self.consumer.position(await self.consumer.assignment()))[0].offset

    async def commit(self):
        positions = await self.consumer.position(await self.consumer.assignment())
        return (await self.consumer.commit(offsets=positions, asynchronous=False))[0].offset

    async def stop(self):
        await self.consumer.close()


class Poll(Confluent):
    name = "AIOConsumer.poll"

    async def read(self, seconds):
        record = await self.consumer.poll(seconds)
        return record and record.value().decode()


class Consume(Confluent):
    name = "AIOConsumer.consume"

    async def read(self, seconds):
        records = await self.consumer.consume(1, seconds)
        return records[0].value().decode() if records else None


class Aiokafka:
    name = "AIOKafkaConsumer.getone"

    def __init__(self, group):
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=SERVER, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )

    async def start(self, topic):
        self.consumer.subscribe([topic])
        await self.consumer.start()

    async def read(self, seconds):
        try:
            return (await asyncio.wait_for(self.consumer.getone(), seconds)).value.decode()
        except TimeoutError:
            return None

    async def position(self):
        return await self.consumer.position(*self.consumer.assignment())

    async def commit(self):
        where, = self.consumer.assignment()
        position = await self.consumer.position(where)
        await self.consumer.commit({where: position})
        return position

    async def stop(self):
        await self.consumer.stop()


def write(topic, value):
    producer.produce(topic, value=value, partition=0)
    producer.flush()


async def rest(consumer, seconds):
    values = []
    while (value := await consumer.read(seconds)) is not None:
        values.append(value)
    return values


async def story(kind):
    topic = kind.__name__.lower()
    admin = AdminClient({"bootstrap.servers": SERVER})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    write(topic, "0")
    consumer = kind(topic)
    await consumer.start(topic)
    values = [await consumer.read(30)]
    try:
        await asyncio.wait_for(consumer.read(20), 0.5)
        raise AssertionError("there is no record to read")
    except TimeoutError:
        pass
    write(topic, "1")
    await consumer.position()   # waits until the call that is left in the AIOConsumer is over
    write(topic, "2")
    values += await rest(consumer, 3)
    committed = await consumer.commit()
    await consumer.stop()
    after = kind(topic)
    await after.start(topic)
    again = await rest(after, 6)
    await after.stop()
    print(f"{kind.name}: read {', '.join(values)}; committed {committed}; read by the next consumer of the group: "
          f"{', '.join(again) or 'nothing'}")


async def main():
    for kind in (Poll, Consume, Aiokafka):
        await story(kind)


asyncio.run(main())
PYTHON
found=$("$folder/python/bin/python" "$folder/cancel.py" "127.0.0.1:$port" 2> "$folder/clients.log") || {
    tail -n 20 "$folder/clients.log" >&2
    exit 2
}
echo "$found"
[ "$found" = "AIOConsumer.poll: read 0, 2; committed 3; read by the next consumer of the group: nothing
AIOConsumer.consume: read 0, 2; committed 3; read by the next consumer of the group: nothing
AIOKafkaConsumer.getone: read 0, 1, 2; committed 3; read by the next consumer of the group: nothing" ]
