#!/usr/bin/env bash
# Apache Kafka 4.3.1: an InitProducerId with an epoch of long ago aborts the transaction of the living producer.
#
# An InitProducerId that names a producer id and an epoch asks for the next epoch (KIP-360); who names neither the newest
# one nor, as a retry, the one before is to be fenced, and is while no transaction is open. While one is open the epoch is
# not looked at: the coordinator aborts the transaction and asks to come again (CONCURRENT_TRANSACTIONS), and only then
# says PRODUCER_FENCED. So an instance that was replaced long ago ends what its successor does, which cannot commit then.
#
# Seen with kafka_2.13 and kafka-clients 4.3.1, Java 17, one broker: three instances with one transactional id, one after
# the other; before the third, in epoch 2, commits, a raw InitProducerId (version 5) names another epoch, twice:
#   epoch 0, no transaction is open: PRODUCER_FENCED, PRODUCER_FENCED; then EMPTY in epoch 2, the next commit: committed
#   epoch 0, a transaction is open: CONCURRENT_TRANSACTIONS, PRODUCER_FENCED; then COMPLETE_ABORT in epoch 3, its commit: InvalidTxnStateException
#   epoch 9, a transaction is open: CONCURRENT_TRANSACTIONS, PRODUCER_FENCED; then COMPLETE_ABORT in epoch 3, its commit: InvalidTxnStateException
#
# For us: our coordinator answers PRODUCER_FENCED, and the transaction goes on (docs/decisions/2026-11-29-transactional-ids.md,
# tests/coordinator/transactions/test_golden.py, INTENDED).
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
PROPERTIES
java -cp "$folder/jars/*" kafka.tools.StorageTool format --standalone -t AAAAAAAAAAAAAAAAAAAAAQ \
    -c "$folder/server.properties" > "$folder/format.log" 2>&1
java -Xmx512m -cp "$folder/jars/*" kafka.Kafka "$folder/server.properties" > "$folder/broker.log" 2>&1 &
broker=$!

cat > "$folder/Fence.java" <<'JAVA'
import java.io.DataInputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.message.InitProducerIdRequestData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.requests.AbstractResponse;
import org.apache.kafka.common.requests.InitProducerIdRequest;
import org.apache.kafka.common.requests.InitProducerIdResponse;
import org.apache.kafka.common.requests.RequestHeader;
import org.apache.kafka.common.serialization.StringSerializer;

public class Fence {
    static final short VERSION = 5;
    static String host;
    static int port;
    static Admin admin;

    static Errors init(String name, long producerId, int epoch) throws Exception {
        var data = new InitProducerIdRequestData().setTransactionalId(name).setTransactionTimeoutMs(60_000)
            .setProducerId(producerId).setProducerEpoch((short) epoch);
        RequestHeader header = new RequestHeader(ApiKeys.INIT_PRODUCER_ID, VERSION, "finding", 1);
        ByteBuffer request = new InitProducerIdRequest.Builder(data).build(VERSION).serializeWithHeader(header);
        try (Socket socket = new Socket(host, port)) {
            ByteBuffer framed = ByteBuffer.allocate(4 + request.remaining()).putInt(request.remaining()).put(request);
            socket.getOutputStream().write(framed.array());
            DataInputStream input = new DataInputStream(socket.getInputStream());
            ByteBuffer answer = ByteBuffer.wrap(input.readNBytes(input.readInt()));
            return ((InitProducerIdResponse) AbstractResponse.parseResponse(answer, header)).error();
        }
    }

    static TransactionDescription described(String name) throws Exception {
        return admin.describeTransactions(List.of(name)).description(name).get();
    }

    static TransactionDescription atRest(String name) throws Exception {
        long deadline = System.nanoTime() + 60_000_000_000L;
        TransactionDescription found = described(name);
        while (Set.of(TransactionState.PREPARE_ABORT, TransactionState.PREPARE_EPOCH_FENCE).contains(found.state())) {
            if (System.nanoTime() > deadline) throw new IllegalStateException("a minute is over");
            Thread.sleep(50);
            found = described(name);
        }
        return found;
    }

    static KafkaProducer<String, String> instance(String name) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", host + ":" + port);
        settings.put("transactional.id", name);
        KafkaProducer<String, String> producer =
            new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        return producer;
    }

    static void begin(KafkaProducer<String, String> producer) throws Exception {
        producer.beginTransaction();
        producer.send(new ProducerRecord<>("words", "hello")).get();
    }

    static String commit(KafkaProducer<String, String> producer) {
        try {
            producer.commitTransaction();
            return "committed";
        } catch (KafkaException problem) {
            return problem.getClass().getSimpleName();
        }
    }

    static void fence(String name, boolean isOpen, int epoch) throws Exception {
        for (int replaced = 0; replaced < 2; replaced++) instance(name).close();
        try (KafkaProducer<String, String> living = instance(name)) {
            if (isOpen) begin(living);
            long producerId = described(name).producerId();
            String told = init(name, producerId, epoch).toString();
            atRest(name);
            told += ", " + init(name, producerId, epoch);
            TransactionDescription after = atRest(name);
            if (!isOpen) begin(living);
            System.out.println("epoch " + epoch + ", " + (isOpen ? "a" : "no") + " transaction is open: " + told + "; then "
                + after.state().name() + " in epoch " + after.producerEpoch() + ", " + (isOpen ? "its" : "the next")
                + " commit: " + commit(living));
        }
    }

    public static void main(String[] arguments) throws Exception {
        host = arguments[0];
        port = Integer.parseInt(arguments[1]);
        admin = Admin.create(Map.of("bootstrap.servers", host + ":" + port));
        admin.createTopics(List.of(new NewTopic("words", 1, (short) 1))).all().get();
        fence("quiet", false, 0);
        fence("busy", true, 0);
        fence("ahead", true, 9);
        admin.close();
    }
}
JAVA
found=$(java -cp "$folder/jars/*" "$folder/Fence.java" 127.0.0.1 "$port" 2> "$folder/clients.log") || {
    tail -n 20 "$folder/clients.log" >&2
    exit 2
}
echo "$found"
[ "$found" = "epoch 0, no transaction is open: PRODUCER_FENCED, PRODUCER_FENCED; then EMPTY in epoch 2, the next commit: committed
epoch 0, a transaction is open: CONCURRENT_TRANSACTIONS, PRODUCER_FENCED; then COMPLETE_ABORT in epoch 3, its commit: InvalidTxnStateException
epoch 9, a transaction is open: CONCURRENT_TRANSACTIONS, PRODUCER_FENCED; then COMPLETE_ABORT in epoch 3, its commit: InvalidTxnStateException" ]
