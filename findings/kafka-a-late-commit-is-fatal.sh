#!/usr/bin/env bash
# Apache Kafka 4.3.1: a commit that comes after its transaction was timed out is a fatal error, where before it was a fence.
#
# A transaction that is open for longer than `transaction.timeout.ms` is aborted by its coordinator, which raises the
# producer's epoch. At `transaction.version` 1 whatever the producer ends then is refused as fenced, which applications
# know how to handle: they begin anew. At version 2, the default of new clusters, the epoch before the newest is also that
# of a producer that repeats its EndTxn as the answer was lost, so that the coordinator takes it for that: an abort is told
# that it went well, and the producer goes on in the new epoch; a commit is told INVALID_TXN_STATE, which says that the
# application is wrong. Upstream calls it a defect (KAFKA-20785), and has changed the answer since.
#
# Seen with kafka_2.13 and kafka-clients 4.3.1, Java 17, one broker: a producer with `transaction.timeout.ms` 4000 sends a
# record, waits until its transaction is COMPLETE_ABORT, ends it, and then commits another one:
#   transaction.version 2, epoch + 1, commit: InvalidTxnStateException; the next transaction: KafkaException
#   transaction.version 2, epoch + 1, abort: no error; the next transaction: no error
#   transaction.version 1, epoch + 1, commit: ProducerFencedException; the next transaction: ProducerFencedException
#   transaction.version 1, epoch + 1, abort: ProducerFencedException; the next transaction: ProducerFencedException
#
# For us: our coordinator answers such a commit with PRODUCER_FENCED, and the abort as Kafka does
# (docs/decisions/2026-11-29-transactional-ids.md; tests/coordinator/transactions/test_golden.py, `by_time`).
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
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=100
PROPERTIES
java -cp "$folder/jars/*" kafka.tools.StorageTool format --standalone -t AAAAAAAAAAAAAAAAAAAAAQ \
    -c "$folder/server.properties" > "$folder/format.log" 2>&1
java -Xmx512m -cp "$folder/jars/*" kafka.Kafka "$folder/server.properties" > "$folder/broker.log" 2>&1 &
broker=$!

cat > "$folder/Late.java" <<'JAVA'
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringSerializer;

public class Late {
    static String server;
    static Admin admin;

    interface Condition { boolean holds() throws Exception; }

    static void until(Condition condition) throws Exception {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (!condition.holds()) {
            if (System.nanoTime() > deadline) throw new IllegalStateException("a minute is over");
            Thread.sleep(50);
        }
    }

    static TransactionDescription described(String name) throws Exception {
        return admin.describeTransactions(List.of(name)).description(name).get();
    }

    static short level() throws Exception {
        return admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("transaction.version").maxVersionLevel();
    }

    static String told(Runnable what) {
        try {
            what.run();
            return "no error";
        } catch (KafkaException problem) {
            return problem.getClass().getSimpleName();
        }
    }

    static void begin(KafkaProducer<String, String> producer) {
        producer.beginTransaction();
        try {
            producer.send(new ProducerRecord<>("words", "hello")).get();
        } catch (Exception problem) {
            throw new IllegalStateException(problem);
        }
    }

    static void late(boolean commit) throws Exception {
        String name = level() + (commit ? "-commit" : "-abort");
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", server);
        settings.put("transactional.id", name);
        settings.put("transaction.timeout.ms", 4_000);
        settings.put("delivery.timeout.ms", 4_000);
        settings.put("request.timeout.ms", 3_000);
        settings.put("linger.ms", 0);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            begin(producer);
            int epoch = described(name).producerEpoch();
            until(() -> described(name).state() == TransactionState.COMPLETE_ABORT);
            int raised = described(name).producerEpoch() - epoch;
            String end = told(commit ? producer::commitTransaction : producer::abortTransaction);
            String next = told(() -> { begin(producer); producer.commitTransaction(); });
            System.out.println("transaction.version " + level() + ", epoch + " + raised + ", "
                + (commit ? "commit: " : "abort: ") + end + "; the next transaction: " + next);
        }
    }

    public static void main(String[] arguments) throws Exception {
        server = arguments[0];
        admin = Admin.create(Map.of("bootstrap.servers", server));
        admin.createTopics(List.of(new NewTopic("words", 1, (short) 1))).all().get();
        late(true);
        late(false);
        var older = new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.SAFE_DOWNGRADE);
        admin.updateFeatures(Map.of("transaction.version", older), new UpdateFeaturesOptions()).all().get();
        until(() -> level() == 1);
        late(true);
        late(false);
        admin.close();
    }
}
JAVA
found=$(java -cp "$folder/jars/*" "$folder/Late.java" "127.0.0.1:$port" 2> "$folder/clients.log") || {
    tail -n 20 "$folder/clients.log" >&2
    exit 2
}
echo "$found"
[ "$found" = "transaction.version 2, epoch + 1, commit: InvalidTxnStateException; the next transaction: KafkaException
transaction.version 2, epoch + 1, abort: no error; the next transaction: no error
transaction.version 1, epoch + 1, commit: ProducerFencedException; the next transaction: ProducerFencedException
transaction.version 1, epoch + 1, abort: ProducerFencedException; the next transaction: ProducerFencedException" ]
