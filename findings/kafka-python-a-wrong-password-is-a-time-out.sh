#!/usr/bin/env bash
# kafka-python 3.0.12: a wrong password is tried again and again, and told as a time-out.
#
# A login that the broker refuses is final, and a program is expected to hear of it as soon as it is refused: the callback
# of librdkafka does, and aiokafka raises at once (without saying why; its log does). While it makes its first connection,
# kafka-python takes the refusal for a connection that did not work, logs in with the same password again until
# `bootstrap_timeout_ms` (30 s) is over, and raises a KafkaTimeoutError that says nothing of passwords. In part of the
# attempts it does not even see the refusal: where the end of the connection came along with the answer, what was read
# before the end is dropped. So an alert on failed logins counts many for each start of a program, and whoever reads its
# error looks for a network that does not work.
#
# Seen with kafka-python 3.0.12, aiokafka 0.14.0, confluent-kafka 2.16.1, CPython 3.11, kafka_2.13 4.3.1, SASL_PLAINTEXT with
# PLAIN, and ten seconds in which each may find out:
#   kafka-python: KafkaTimeoutError when all of the time is over; it names the login: no; logins: many
#   aiokafka: KafkaConnectionError at once; it names the login: no
#   confluent-kafka: _AUTHENTICATION at once
#
# For us: "Unable to bootstrap" of this client may be a wrong password; the broker's log names it (docs/troubleshooting.md).
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
"$folder/python/bin/pip" install --quiet --disable-pip-version-check \
    kafka-python==3.0.12 aiokafka==0.14.0 confluent-kafka==2.16.1

is_taken() { (: < "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }
port=$(shuf -n 1 -i 20000-31998)
while is_taken "$port" || is_taken $((port + 1)); do port=$(shuf -n 1 -i 20000-31998); done
cat > "$folder/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=0
controller.quorum.bootstrap.servers=127.0.0.1:$((port + 1))
listeners=CLIENTS://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
listener.security.protocol.map=CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=CLIENTS
controller.listener.names=CONTROLLER
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.clients.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
    username="broker" password="secret" user_broker="secret" user_alice="right";
log.dirs=$folder/data
PROPERTIES
java -cp "$folder/jars/*" kafka.tools.StorageTool format --standalone -t AAAAAAAAAAAAAAAAAAAAAQ \
    -c "$folder/server.properties" > "$folder/format.log" 2>&1
java -Xmx512m -cp "$folder/jars/*" kafka.Kafka "$folder/server.properties" > "$folder/broker.log" 2>&1 &
broker=$!
for _ in $(seq 120); do
    if is_taken "$port"; then break; fi
    sleep 0.5
done

cat > "$folder/login.py" <<'PYTHON'
import asyncio
import logging
import sys
import time

from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer

SERVER, PATIENCE_S = sys.argv[1], 10
attempts = []


class Attempts(logging.Handler):
    def emit(self, record):
        if "in the clear" in record.getMessage():
            attempts.append(record)


def settings(password):
    return {
        "bootstrap_servers": SERVER, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice", "sasl_plain_password": password,
    }


def when(begun_s):
    return "at once" if time.monotonic() - begun_s < PATIENCE_S / 2 else "when all of the time is over"


def told(error, begun_s):
    names = "yes" if "uthenti" in str(error) or "password" in str(error) else "no"
    return f"{type(error).__name__} {when(begun_s)}; it names the login: {names}"


def by_kafka_python():
    KafkaProducer(**settings("right")).close()
    attempts.clear()
    begun_s = time.monotonic()
    try:
        KafkaProducer(**settings("wrong"), bootstrap_timeout_ms=1000 * PATIENCE_S)
    except Exception as error:
        return f"{told(error, begun_s)}; logins: {'many' if len(attempts) > 3 else len(attempts)}"


async def by_aiokafka():
    producer = AIOKafkaProducer(**settings("wrong"))
    begun_s = time.monotonic()
    try:
        await asyncio.wait_for(producer.start(), PATIENCE_S)
    except Exception as error:
        return told(error, begun_s)
    finally:
        await producer.stop()


def by_confluent():
    errors = []
    producer = Producer({
        "bootstrap.servers": SERVER, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.username": "alice", "sasl.password": "wrong", "error_cb": lambda error: errors.append(error.name()),
    })
    begun_s = time.monotonic()
    while not errors and time.monotonic() < begun_s + PATIENCE_S:
        producer.poll(0.1)
    return f"{errors[0]} {when(begun_s)}" if errors else "nothing"


logging.getLogger("kafka.net.sasl.plain").addHandler(Attempts())
print("kafka-python:", by_kafka_python())
print("aiokafka:", asyncio.run(by_aiokafka()))
print("confluent-kafka:", by_confluent())
PYTHON
found=$("$folder/python/bin/python" "$folder/login.py" "127.0.0.1:$port" 2> "$folder/clients.log") || {
    tail -n 20 "$folder/clients.log" >&2
    exit 2
}
echo "$found"
[ "$found" = "kafka-python: KafkaTimeoutError when all of the time is over; it names the login: no; logins: many
aiokafka: KafkaConnectionError at once; it names the login: no
confluent-kafka: _AUTHENTICATION at once" ]
