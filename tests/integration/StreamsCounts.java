import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts the values of a topic by Kafka Streams, in another topic. Arguments: bootstrap servers, application id, processing
 * guarantee, source, target, how many records, folder for state, more settings (name=value). Prints what ended it, and how
 * long that and the end took.
 */
public class StreamsCounts {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("application.id", arguments[1]);
        settings.put("processing.guarantee", arguments[2]);
        settings.put("state.dir", arguments[6]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("commit.interval.ms", "100");
        settings.put("statestore.cache.max.bytes", "0");
        for (int number = 7; number < arguments.length; number++) {
            String[] setting = arguments[number].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        CountDownLatch left = new CountDownLatch(Integer.parseInt(arguments[5])), failed = new CountDownLatch(1);
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[3], Consumed.with(Serdes.String(), Serdes.String()))
            .groupBy((key, value) -> value, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .peek((value, count) -> left.countDown())
            .to(arguments[4], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                System.out.println("fatal: " + cause);
            }
            failed.countDown();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        long began = System.nanoTime();
        streams.start();
        while (!left.await(50, TimeUnit.MILLISECONDS) && failed.getCount() > 0) {
        }
        System.out.println("left: " + left.getCount() + " after ms: " + (System.nanoTime() - began) / 1_000_000);
        began = System.nanoTime();
        streams.close();
        System.out.println("closed after ms: " + (System.nanoTime() - began) / 1_000_000);
    }
}
