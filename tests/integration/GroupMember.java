import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** One member of a group, by Kafka's own client: group_member.py says what it writes, and what its arguments are. */
public class GroupMember implements ConsumerRebalanceListener {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int COMMIT_EVERY = 20;
    private static volatile boolean isToLeave;
    private final FileChannel file;
    private final String name;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
    private int handled;

    private GroupMember(String path, String name, Map<String, Object> settings) throws Exception {
        file = FileChannel.open(Path.of(path), StandardOpenOption.APPEND);
        this.name = name;
        Map<String, Object> all = new HashMap<>(Map.of("auto.offset.reset", "earliest", "enable.auto.commit", "false"));
        all.putAll(settings);
        consumer = new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    public static void main(String[] arguments) throws Exception {
        Thread reader = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (java.io.IOException end) {
                // it has ended all the same
            }
            isToLeave = true;
        });
        reader.setDaemon(true);
        reader.start();
        @SuppressWarnings("unchecked")
        Map<String, Object> settings = JSON.readValue(arguments[3], Map.class);
        new GroupMember(arguments[0], arguments[1], settings).run(arguments[2]);
    }

    private void run(String topics) {
        if (topics.startsWith("^")) {
            consumer.subscribe(new SubscriptionPattern(topics), this);
        } else {
            consumer.subscribe(List.of(topics), this);
        }
        while (!isToLeave) {
            for (ConsumerRecord<byte[], byte[]> one : consumer.poll(Duration.ofMillis(100))) {
                write("handled", one.topic(), one.partition(), one.offset());
                next.put(new TopicPartition(one.topic(), one.partition()), new OffsetAndMetadata(one.offset() + 1));
                if (++handled % COMMIT_EVERY == 0) {
                    commit();
                }
            }
            commit();
        }
        consumer.close();
        write("left");
    }

    private void commit() {
        if (next.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync(next);
        } catch (KafkaException failure) {
            write("not committed", failure.toString());
            return;
        }
        List<Object> done = new ArrayList<>();
        next.forEach((place, offset) -> done.add(List.of(place.topic(), place.partition(), offset.offset())));
        next.clear();
        write("committed", done);
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        write("given", named(partitions));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        commit();
        forget("back", partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        forget("lost", partitions);
    }

    private void forget(String what, Collection<TopicPartition> partitions) {
        next.keySet().removeAll(partitions);
        write(what, named(partitions));
    }

    private static List<Object> named(Collection<TopicPartition> partitions) {
        List<Object> names = new ArrayList<>();
        partitions.forEach(one -> names.add(List.of(one.topic(), one.partition())));
        return names;
    }

    private void write(String what, Object... facts) {
        List<Object> line = new ArrayList<>(List.of(name, what));
        line.addAll(List.of(facts));
        try {
            file.write(ByteBuffer.wrap((JSON.writeValueAsString(line) + "\n").getBytes()));
        } catch (java.io.IOException failure) {
            throw new java.io.UncheckedIOException(failure);
        }
    }
}
