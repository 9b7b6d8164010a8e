import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Moves records from one topic to another, the member's offsets in the same transactions; each third transaction is aborted, and
 * what was in it is read again. Arguments: bootstrap servers, group protocol, source, target, how many records. At the end another
 * producer of the same id fences the first one, and a transaction of its own stays open, which it leaves to the broker. Prints what
 * a reader of committed records finds.
 */
public class Transactions {
    static Properties settings(String servers, String... more) {
        Properties made = new Properties();
        made.put("bootstrap.servers", servers);
        made.put("key.serializer", StringSerializer.class.getName());
        made.put("value.serializer", StringSerializer.class.getName());
        made.put("key.deserializer", StringDeserializer.class.getName());
        made.put("value.deserializer", StringDeserializer.class.getName());
        made.put("isolation.level", "read_committed");
        made.put("auto.offset.reset", "earliest");
        made.put("enable.auto.commit", "false");
        for (int number = 0; number < more.length; number += 2) {
            made.put(more[number], more[number + 1]);
        }
        return made;
    }

    static Map<TopicPartition, OffsetAndMetadata> behind(ConsumerRecords<String, String> records) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
            offsets.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        return offsets;
    }

    static void again(KafkaConsumer<String, String> consumer) {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (TopicPartition partition : consumer.assignment()) {
            OffsetAndMetadata place = committed.get(partition);
            consumer.seek(partition, place == null ? 0 : place.offset());
        }
    }

    static KafkaProducer<String, String> producer(String servers, String id) {
        KafkaProducer<String, String> made = new KafkaProducer<>(settings(servers, "transactional.id", id, "transaction.timeout.ms", "5000"));
        made.initTransactions();
        return made;
    }

    static void move(String[] arguments, KafkaProducer<String, String> producer) {
        int left = Integer.parseInt(arguments[4]), transactions = 0, aborted = 0;
        Properties member = settings(arguments[0], "group.id", arguments[2], "group.protocol", arguments[1], "max.poll.records", "40");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(member)) {
            consumer.subscribe(List.of(arguments[2]));
            while (left > 0) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofSeconds(1));
                if (records.isEmpty()) continue;
                producer.beginTransaction();
                for (ConsumerRecord<String, String> record : records) {
                    producer.send(new ProducerRecord<>(arguments[3], record.partition(), record.key(), record.value()));
                }
                producer.sendOffsetsToTransaction(behind(records), consumer.groupMetadata());
                if (++transactions % 3 == 0) {
                    producer.flush();
                    producer.abortTransaction();
                    again(consumer);
                    aborted += records.count();
                } else {
                    producer.commitTransaction();
                    left -= records.count();
                }
            }
        }
        System.out.println("transactions: " + transactions + ", aborted records: " + aborted);
    }

    static void fence(String[] arguments, KafkaProducer<String, String> old) {
        old.beginTransaction();
        old.send(new ProducerRecord<>(arguments[3], 0, "old", "of the fenced one"));
        old.flush();
        try (KafkaProducer<String, String> next = producer(arguments[0], arguments[3])) {
            try {
                old.commitTransaction();
                System.out.println("fenced: no");
            } catch (ProducerFencedException expected) {
                System.out.println("fenced: yes");
            }
            next.beginTransaction();
            next.send(new ProducerRecord<>(arguments[3], 0, "last", "committed"));
            next.commitTransaction();
        }
        KafkaProducer<String, String> gone = producer(arguments[0], arguments[3] + "-gone");
        gone.beginTransaction();
        gone.send(new ProducerRecord<>(arguments[3], 0, "gone", "left open"));
        gone.flush(); // not closed: that would abort
        try (KafkaProducer<String, String> plain = new KafkaProducer<>(settings(arguments[0]))) {
            plain.send(new ProducerRecord<>(arguments[3], 0, "plain", "behind it")).get();
        } catch (Exception failure) {
            throw new IllegalStateException(failure);
        }
    }

    static void read(String[] arguments) {
        int count = Integer.parseInt(arguments[4]) + 2;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings(arguments[0]))) {
            List<TopicPartition> all = consumer.partitionsFor(arguments[3]).stream()
                .map(one -> new TopicPartition(one.topic(), one.partition())).toList();
            consumer.assign(all);
            consumer.seekToBeginning(all);
            for (int found = 0; found < count;) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println("read: " + record.partition() + " " + record.value());
                    found++;
                }
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        KafkaProducer<String, String> producer = producer(arguments[0], arguments[3]);
        move(arguments, producer);
        fence(arguments, producer);
        read(arguments);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
