#!/usr/bin/env bash
# Apache Kafka 4.3.1: asked for stable offsets, Java's Admin leaves out the partitions whose offset is not stable.
#
# `listConsumerGroupOffsets` with `requireStable(true)` is for who must not see an offset that an open transaction is about
# to replace, as a tool that moves a group to another cluster. One would expect it to wait, as the consumer's `committed`
# does, or to fail. It does neither: a partition with an offset in an open transaction is not in the map, also if it was
# named, and also if it has an older offset; nothing but a line in the log tells it from a partition nobody asked for. A
# partition without any offset is there, as null. librdkafka's admin client has the error UNSTABLE_OFFSET_COMMIT in its
# place. If all partitions are asked for, there is one thing more: a partition that has nothing but a pending offset is
# left out by the broker already, so that no client can tell.
#
# Seen with kafka_2.13 and kafka-clients 4.3.1, Java 17, confluent-kafka 2.16.1, CPython 3.11, one broker: 5 is committed
# for partition 0; an open transaction has 7 for it, and 8 for partition 1; partition 2 has nothing:
#   Java, named: 2: null
#   Java, all: nothing
#   Java, all, not stable: 0: 5
#   librdkafka, named: 0: UNSTABLE_OFFSET_COMMIT, 1: UNSTABLE_OFFSET_COMMIT, 2: none
#   librdkafka, all: 0: UNSTABLE_OFFSET_COMMIT
#   Java, all, committed: 0: 7, 1: 8
#
# For us: our coordinator answers as Kafka's (tests/coordinator/test_transactions.py,
# test_all_that_is_asked_for_is_what_is_committed_and_of_that_what_is_unstable). Tests that ask Java's Admin for stable
# offsets have to look for what is missing.
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
"$folder/python/bin/pip" install --quiet --disable-pip-version-check confluent-kafka==2.16.1

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
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
PROPERTIES
java -cp "$folder/jars/*" kafka.tools.StorageTool format --standalone -t AAAAAAAAAAAAAAAAAAAAAQ \
    -c "$folder/server.properties" > "$folder/format.log" 2>&1
java -Xmx512m -cp "$folder/jars/*" kafka.Kafka "$folder/server.properties" > "$folder/broker.log" 2>&1 &
broker=$!

cat > "$folder/stable.py" <<'PYTHON'
import sys

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

admin = AdminClient({"bootstrap.servers": sys.argv[1]})
for what, asked in (("named", [TopicPartition("words", number) for number in range(3)]), ("all", None)):
    wanted = [ConsumerGroupTopicPartitions("readers", asked)]
    told = admin.list_consumer_group_offsets(wanted, require_stable=True)["readers"].result().topic_partitions
    print(f"librdkafka, {what}: " + ", ".join(
        f"{one.partition}: {one.error.name() if one.error else one.offset if one.offset >= 0 else 'none'}"
        for one in sorted(told, key=lambda one: one.partition)
    ))
PYTHON
cat > "$folder/Stable.java" <<'JAVA'
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

public class Stable {
    static final String GROUP = "readers";
    static final List<TopicPartition> PARTITIONS =
        List.of(new TopicPartition("words", 0), new TopicPartition("words", 1), new TopicPartition("words", 2));
    static Admin admin;

    static String told(ListConsumerGroupOffsetsSpec wanted, boolean isStable) throws Exception {
        var found = admin.listConsumerGroupOffsets(Map.of(GROUP, wanted),
            new ListConsumerGroupOffsetsOptions().requireStable(isStable)).partitionsToOffsetAndMetadata(GROUP).get();
        Map<Integer, Long> offsets = new TreeMap<>();
        found.forEach((where, offset) -> offsets.put(where.partition(), offset == null ? null : (Long) offset.offset()));
        if (offsets.isEmpty()) return "nothing";
        return offsets.toString().replace("{", "").replace("}", "").replace("=", ": ");
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", arguments[0]));
        admin = Admin.create(settings);
        admin.createTopics(List.of(new NewTopic("words", 3, (short) 1))).all().get();
        admin.alterConsumerGroupOffsets(GROUP, Map.of(PARTITIONS.get(0), new OffsetAndMetadata(5))).all().get();
        var named = new ListConsumerGroupOffsetsSpec().topicPartitions(PARTITIONS);
        var all = new ListConsumerGroupOffsetsSpec();
        settings.put("transactional.id", "mover");
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(
                Map.of(PARTITIONS.get(0), new OffsetAndMetadata(7), PARTITIONS.get(1), new OffsetAndMetadata(8)),
                new ConsumerGroupMetadata(GROUP, -1, "", Optional.empty()));
            System.out.println("Java, named: " + told(named, true));
            System.out.println("Java, all: " + told(all, true));
            System.out.println("Java, all, not stable: " + told(all, false));
            Process other = new ProcessBuilder(arguments[1], arguments[2], arguments[0])
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
            System.out.print(new String(other.getInputStream().readAllBytes()));
            if (other.waitFor() != 0) throw new IllegalStateException("the other client failed");
            producer.commitTransaction();
        }
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (told(named, true).length() < "0: 7, 1: 8, 2: null".length()) {
            if (System.nanoTime() > deadline) throw new IllegalStateException("a minute is over");
            Thread.sleep(50);
        }
        System.out.println("Java, all, committed: " + told(all, true));
        admin.close();
    }
}
JAVA
found=$(java -cp "$folder/jars/*" "$folder/Stable.java" "127.0.0.1:$port" "$folder/python/bin/python" "$folder/stable.py" \
        2> "$folder/clients.log") || {
    tail -n 20 "$folder/clients.log" >&2
    exit 2
}
echo "$found"
[ "$found" = "Java, named: 2: null
Java, all: nothing
Java, all, not stable: 0: 5
librdkafka, named: 0: UNSTABLE_OFFSET_COMMIT, 1: UNSTABLE_OFFSET_COMMIT, 2: none
librdkafka, all: 0: UNSTABLE_OFFSET_COMMIT
Java, all, committed: 0: 7, 1: 8" ]
