#!/usr/bin/env bash
# Apache Kafka 4.3.1: with group.protocol=consumer a static member that was killed cannot come back, and then stands still.
#
# `group.instance.id` is there for restarts: in a classic group the instance that starts again takes the place of the one
# before at once, and that one is fenced. In a group of KIP-848 it does so only if the one before has closed in order. If it
# was killed, the new one is refused with UNRELEASED_INSTANCE_ID until the session of the old one is over
# (`group.consumer.session.timeout.ms`, 45 s by default), and Java's consumer does not wait for that: `poll` throws once.
# Who catches that and polls on, as after other errors, gets no further error and no partition, also when the session is
# over: only a new consumer joins. So whoever moves to the new protocol has to make new ones until one is let in.
#
# Seen with kafka_2.13 and kafka-clients 4.3.1, Java 17, one broker with a session of 6 s: an instance has the partition,
# ends, and is started again, and then goes on to poll until the session is long over:
#   classic, killed: has the partition
#   consumer, closed: has the partition
#   consumer, killed: UnreleasedInstanceIdException 1 time, then nothing
#   consumer, killed, a new one after the session: has the partition
#
# For us: our coordinator refuses it too (tests/coordinator/consumer/test_histories.py). Our client tries again for its
# `retry_seconds`, and says what it waits for (tpc_broker/client/membership/group.py).
# Needs Java 17 and Maven; exit code 1: it behaves otherwise now.
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
group.consumer.min.heartbeat.interval.ms=1000
group.consumer.heartbeat.interval.ms=1000
group.consumer.min.session.timeout.ms=6000
group.consumer.session.timeout.ms=6000
PROPERTIES
java -cp "$folder/jars/*" kafka.tools.StorageTool format --standalone -t AAAAAAAAAAAAAAAAAAAAAQ \
    -c "$folder/server.properties" > "$folder/format.log" 2>&1
java -Xmx512m -cp "$folder/jars/*" kafka.Kafka "$folder/server.properties" > "$folder/broker.log" 2>&1 &
broker=$!

cat > "$folder/Restart.java" <<'JAVA'
import java.io.IOException;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Restart {
    static final Duration POLL = Duration.ofMillis(100);

    static KafkaConsumer<String, String> instance(String server, String protocol, String group) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", server);
        settings.put("group.protocol", protocol);
        settings.put("group.id", group);
        settings.put("group.instance.id", "one");
        KafkaConsumer<String, String> consumer =
            new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of("words"));
        return consumer;
    }

    static String polled(KafkaConsumer<String, String> consumer, int seconds) {
        long deadline = System.nanoTime() + seconds * 1_000_000_000L;
        String error = null;
        int errors = 0;
        while (System.nanoTime() < deadline) {
            try {
                consumer.poll(POLL);
            } catch (KafkaException problem) {
                error = problem.getClass().getSimpleName();
                errors++;
            }
            if (!consumer.assignment().isEmpty()) return "has the partition";
        }
        return error + " " + errors + " time" + (errors == 1 ? "" : "s") + ", then nothing";
    }

    static boolean readsToTheEnd() {
        try {
            return System.in.read() < 0;
        } catch (IOException problem) {
            return false;
        }
    }

    static void restart(String server, String protocol, boolean isKilled) throws Exception {
        String end = isKilled ? "killed" : "closed";
        String group = protocol + "-" + end;
        Process first = new ProcessBuilder("java", "-cp", System.getProperty("java.class.path"), "Restart",
            server, protocol, group).redirectError(ProcessBuilder.Redirect.DISCARD).start();
        first.inputReader().readLine();
        if (isKilled) first.destroyForcibly();
        first.getOutputStream().close();
        first.waitFor();
        String told;
        try (KafkaConsumer<String, String> second = instance(server, protocol, group)) {
            told = polled(second, 20);
        }
        System.out.println(protocol + ", " + end + ": " + told);
        if (told.equals("has the partition")) return;
        try (KafkaConsumer<String, String> third = instance(server, protocol, group)) {
            System.out.println(protocol + ", " + end + ", a new one after the session: " + polled(third, 20));
        }
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 3) {
            try (KafkaConsumer<String, String> consumer = instance(arguments[0], arguments[1], arguments[2])) {
                System.out.println(polled(consumer, 30));
                var isToldToEnd = CompletableFuture.supplyAsync(Restart::readsToTheEnd);
                while (!isToldToEnd.isDone()) consumer.poll(POLL);
            }
            return;
        }
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            admin.createTopics(List.of(new NewTopic("words", 1, (short) 1))).all().get();
        }
        restart(arguments[0], "classic", true);
        restart(arguments[0], "consumer", false);
        restart(arguments[0], "consumer", true);
    }
}
JAVA
javac -cp "$folder/jars/*" -d "$folder/classes" "$folder/Restart.java"
found=$(java -cp "$folder/jars/*:$folder/classes" Restart "127.0.0.1:$port" 2> "$folder/clients.log") || {
    tail -n 20 "$folder/clients.log" >&2
    exit 2
}
echo "$found"
[ "$found" = "classic, killed: has the partition
consumer, closed: has the partition
consumer, killed: UnreleasedInstanceIdException 1 time, then nothing
consumer, killed, a new one after the session: has the partition" ]
