#!/usr/bin/env bash
# librdkafka 2.16.0: records with an empty key go to any partition, where other clients keep them in one.
#
# A key of no bytes is a key: Java's producer, aiokafka and kafka-python hash it as any other, and only a record without a
# key goes anywhere. librdkafka's own default, `consistent_random`, treats both alike, which its table of settings says in
# passing. So the records of that key have no order, and compaction keeps one of each partition instead of the newest one:
# a reader of the compacted topic finds old values beside the new one. Its `murmur2_random`, which is there to agree with
# Java's, does keep them in one partition, and so does `consistent`.
#
# Seen with confluent-kafka 2.16.1 (which has librdkafka 2.16.0), aiokafka 0.14.0, kafka-python 3.0.12, CPython 3.11, Java
# 17, kafka_2.13 and kafka-clients 4.3.1, one broker: 40 records each, 20 ms apart, to a topic of 8 partitions:
#   Java's producer: empty key: one partition; no key: several partitions
#   librdkafka: empty key: several partitions; no key: several partitions
#   librdkafka, murmur2_random: empty key: one partition; no key: several partitions
#   librdkafka, consistent: empty key: one partition; no key: one partition
#   aiokafka: empty key: one partition; no key: several partitions
#   kafka-python: empty key: one partition; no key: several partitions
#
# For us: our client goes with Java's (tests/client/test_producer.py, test_an_empty_key_is_a_key_and_no_key_goes_anywhere).
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
"$folder/python/bin/pip" install --quiet --disable-pip-version-check confluent-kafka==2.16.1 aiokafka==0.14.0 kafka-python==3.0.12

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

cat > "$folder/keys.py" <<'PYTHON'
import asyncio
import sys
import time

from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

SERVER = sys.argv[1]
RECORDS = 40
SECONDS = 0.02


def say(client, partitions_of):
    told = []
    for what, key in (("empty key", b""), ("no key", None)):
        partitions = partitions_of(key)
        assert len(partitions) == RECORDS
        told.append(f"{what}: {'one partition' if len(set(partitions)) == 1 else 'several partitions'}")
    print(f"{client}: {'; '.join(told)}")


def of_librdkafka(settings):
    def partitions_of(key):
        partitions = []
        producer = Producer({"bootstrap.servers": SERVER, "linger.ms": 0, **settings})
        for _ in range(RECORDS):
            producer.produce("words", b"hello", key, on_delivery=lambda _error, sent: partitions.append(sent.partition()))
            producer.flush()
            time.sleep(SECONDS)
        return partitions

    return partitions_of


def of_aiokafka(key):
    async def send():
        partitions = []
        async with AIOKafkaProducer(bootstrap_servers=SERVER) as producer:
            for _ in range(RECORDS):
                partitions.append((await producer.send_and_wait("words", key=key, value=b"hello")).partition)
                await asyncio.sleep(SECONDS)
        return partitions

    return asyncio.run(send())


def of_kafka_python(key):
    partitions = []
    producer = KafkaProducer(bootstrap_servers=SERVER)
    for _ in range(RECORDS):
        partitions.append(producer.send("words", key=key, value=b"hello").get(30).partition)
        time.sleep(SECONDS)
    producer.close()
    return partitions


admin = AdminClient({"bootstrap.servers": SERVER})
admin.create_topics([NewTopic("words", 8, 1)])["words"].result()
say("librdkafka", of_librdkafka({}))
for partitioner in ("murmur2_random", "consistent"):
    say(f"librdkafka, {partitioner}", of_librdkafka({"partitioner": partitioner}))
say("aiokafka", of_aiokafka)
say("kafka-python", of_kafka_python)
PYTHON
cat > "$folder/Keys.java" <<'JAVA'
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Keys {
    static final byte[] VALUE = {1};

    static String told(String server, byte[] key) throws Exception {
        Set<Integer> partitions = new HashSet<>();
        for (int number = 0; number < 4; number++) {
            Map<String, Object> settings = Map.of("bootstrap.servers", server, "linger.ms", 0, "batch.size", 1);
            try (KafkaProducer<byte[], byte[]> producer =
                    new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
                for (int record = 0; record < 10; record++) {
                    partitions.add(producer.send(new ProducerRecord<>("words", key, VALUE)).get().partition());
                    Thread.sleep(20);
                }
            }
        }
        return partitions.size() == 1 ? "one partition" : "several partitions";
    }

    public static void main(String[] arguments) throws Exception {
        System.out.println("Java's producer: empty key: " + told(arguments[0], new byte[0]) + "; no key: "
            + told(arguments[0], null));
    }
}
JAVA
of_python=$("$folder/python/bin/python" "$folder/keys.py" "127.0.0.1:$port" 2> "$folder/clients.log") \
    && of_java=$(java -cp "$folder/jars/*" "$folder/Keys.java" "127.0.0.1:$port" 2> "$folder/clients.log") || {
    tail -n 20 "$folder/clients.log" >&2
    exit 2
}
found="$of_java
$of_python"
echo "$found"
[ "$found" = "Java's producer: empty key: one partition; no key: several partitions
librdkafka: empty key: several partitions; no key: several partitions
librdkafka, murmur2_random: empty key: one partition; no key: several partitions
librdkafka, consistent: empty key: one partition; no key: one partition
aiokafka: empty key: one partition; no key: several partitions
kafka-python: empty key: one partition; no key: several partitions" ]
