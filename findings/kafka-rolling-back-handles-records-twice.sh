#!/usr/bin/env bash
# Apache Kafka 4.3.1: moving a consumer group back from KIP-848 by a rolling restart may handle records twice.
#
# Members of both protocols are in one group while an application is moved from `group.protocol=consumer` back to
# `classic`; when the last member of the new protocol leaves, the coordinator makes the group classic, in the group's
# newest epoch. A member whose consumers all close in order would be expected to lose nothing by that, as in a classic
# group, where who stays may commit until it joins again. But a classic member learns of an epoch with its next heartbeat
# (`heartbeat.interval.ms`, 3 s by default). If the last one leaves before, its commit is refused with ILLEGAL_GENERATION,
# its partitions count as lost, and what it handled since its last commit is handled again.
#
# Seen with kafka_2.13 and kafka-clients 4.3.1, Java 17, one broker: c (consumer) and a (classic, heartbeats every 6 s)
# have a partition each, and a has handled the 10 records of its own; b (classic) joins, c closes, then a commits:
#   c closes when the group is RECONCILING: CommitFailedException, 1 partition lost, 10 records handled twice
#   c closes when the group is STABLE: committed, 0 partitions lost, 0 records handled twice
#   reason: ILLEGAL_GENERATION from OFFSET_COMMIT
#
# For us: our coordinator refuses a commit of another generation too (tests/coordinator/test_offsets.py), and docs/groups.md,
# "Moving an application", says to let the group be Stable first. Tests that move groups with stock clients wait for it
# (`wait_settled` in tests/support/group_story.py).
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
PROPERTIES
java -cp "$folder/jars/*" kafka.tools.StorageTool format --standalone -t AAAAAAAAAAAAAAAAAAAAAQ \
    -c "$folder/server.properties" > "$folder/format.log" 2>&1
java -Xmx512m -cp "$folder/jars/*" kafka.Kafka "$folder/server.properties" > "$folder/broker.log" 2>&1 &
broker=$!

cat > "$folder/RollBack.java" <<'JAVA'
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class RollBack {
    static final int RECORDS = 10;
    static Map<String, Object> server;
    static Admin admin;
    static KafkaProducer<String, String> producer;

    static class Member implements ConsumerRebalanceListener {
        final KafkaConsumer<String, String> consumer;
        final Map<String, Integer> handled;
        final Set<TopicPartition> has = new HashSet<>();
        boolean joined;
        int lost;

        Member(String group, Map<String, Integer> handled, Map<String, Object> more) {
            Map<String, Object> settings = new HashMap<>(server);
            settings.put("group.id", group);
            settings.put("enable.auto.commit", false);
            settings.put("auto.offset.reset", "earliest");
            settings.putAll(more);
            consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
            consumer.subscribe(List.of(group), this);
            this.handled = handled;
        }

        public void onPartitionsAssigned(Collection<TopicPartition> given) { has.addAll(given); joined = true; }
        public void onPartitionsRevoked(Collection<TopicPartition> back) { consumer.commitSync(); has.removeAll(back); }
        public void onPartitionsLost(Collection<TopicPartition> gone) { lost += gone.size(); has.removeAll(gone); }

        void poll() {
            consumer.poll(Duration.ofMillis(50)).forEach(record -> handled.merge(record.value(), 1, Integer::sum));
        }
    }

    static void until(BooleanSupplier holds, Member... members) {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (!holds.getAsBoolean()) {
            if (System.nanoTime() > deadline) throw new IllegalStateException("a minute is over");
            for (Member member : members) member.poll();
        }
    }

    static void write(String topic, int first, int count) throws Exception {
        for (int number = first; number < first + count; number++)
            for (int partition = 0; partition < 2; partition++)
                producer.send(new ProducerRecord<>(topic, partition, null, partition + "-" + number)).get();
    }

    static GroupState state(String group) {
        try {
            return admin.describeConsumerGroups(List.of(group)).all().get().get(group).groupState();
        } catch (Exception problem) {
            throw new IllegalStateException(problem);
        }
    }

    static void rollBack(String group, boolean whenStable) throws Exception {
        admin.createTopics(List.of(new NewTopic(group, 2, (short) 1))).all().get();
        Map<String, Integer> handled = new HashMap<>();
        Map<String, Object> classic = Map.of("group.protocol", "classic", "heartbeat.interval.ms", 6_000);
        Member c = new Member(group, handled, Map.of("group.protocol", "consumer"));
        until(() -> c.has.size() == 2, c);
        Member a = new Member(group, handled, classic);
        until(() -> a.has.size() == 1 && c.has.size() == 1, a, c);
        write(group, 0, RECORDS);
        until(() -> handled.size() == 2 * RECORDS, a, c);
        c.consumer.commitSync();
        Member b = new Member(group, handled, classic);
        until(() -> b.joined, b);
        if (whenStable) until(() -> state(group) == GroupState.STABLE, a, b, c);
        String before = state(group).toString().toUpperCase();
        c.consumer.close();
        String commit = "committed";
        try {
            a.consumer.commitSync();
        } catch (KafkaException problem) {
            commit = problem.getClass().getSimpleName();
        }
        until(() -> a.has.size() == 1 && b.has.size() == 1, a, b);
        write(group, RECORDS, 1);
        until(() -> handled.containsKey("0-" + RECORDS) && handled.containsKey("1-" + RECORDS), a, b);
        System.out.println("c closes when the group is " + before + ": " + commit + ", " + a.lost + " partition"
            + (a.lost == 1 ? "" : "s") + " lost, " + handled.values().stream().filter(times -> times > 1).count()
            + " records handled twice");
        for (Member member : List.of(a, b)) member.consumer.close();
    }

    public static void main(String[] arguments) throws Exception {
        server = Map.of("bootstrap.servers", arguments[0]);
        admin = Admin.create(server);
        producer = new KafkaProducer<>(server, new StringSerializer(), new StringSerializer());
        rollBack("behind", false);
        rollBack("settled", true);
        producer.close();
        admin.close();
    }
}
JAVA
found=$(java -cp "$folder/jars/*" "$folder/RollBack.java" "127.0.0.1:$port" 2> "$folder/clients.log") || {
    tail -n 20 "$folder/clients.log" >&2
    exit 2
}
found+="
reason: $(grep -o 'ILLEGAL_GENERATION from OFFSET_COMMIT' "$folder/clients.log" | sort -u)"
echo "$found"
[ "$found" = "c closes when the group is RECONCILING: CommitFailedException, 1 partition lost, 10 records handled twice
c closes when the group is STABLE: committed, 0 partitions lost, 0 records handled twice
reason: ILLEGAL_GENERATION from OFFSET_COMMIT" ]
