import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.Optional;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * Counts the words of a topic by Flink, with its exactly-once sink, in another topic, until it is killed. Started again it goes on
 * from its newest checkpoint. Arguments: bootstrap servers, prefix of transactional ids, source, target, folder for checkpoints.
 * What a checkpoint has promised is lost if its transaction times out before the next start commits it, hence ten minutes.
 */
public class FlinkCounts {
    static class Count extends KeyedProcessFunction<String, String, Tuple2<String, Long>> {
        private transient ValueState<Long> count;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(String word, Context context, Collector<Tuple2<String, Long>> out) throws Exception {
            long number = count.value() == null ? 1 : count.value() + 1;
            count.update(number);
            out.collect(Tuple2.of(word, number));
        }
    }

    static class Word implements SerializationSchema<Tuple2<String, Long>> {
        @Override
        public byte[] serialize(Tuple2<String, Long> counted) {
            return counted.f0.getBytes();
        }
    }

    static class Number implements SerializationSchema<Tuple2<String, Long>> {
        @Override
        public byte[] serialize(Tuple2<String, Long> counted) {
            return Long.toString(counted.f1).getBytes();
        }
    }

    static Optional<Path> newestCheckpoint(Path folder) throws Exception {
        if (!Files.isDirectory(folder)) return Optional.empty();
        try (Stream<Path> files = Files.walk(folder, 3)) {
            return files.filter(one -> one.getFileName().toString().equals("_metadata"))
                .max(Comparator.comparingLong(one -> one.toFile().lastModified())).map(Path::getParent);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[4]).toAbsolutePath();
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "200 ms");
        settings.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
        settings.setString("execution.checkpointing.dir", folder.toUri().toString());
        settings.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "1000");
        settings.setString("restart-strategy.fixed-delay.delay", "500 ms");
        settings.setString("taskmanager.memory.network.min", "16mb");
        settings.setString("taskmanager.memory.network.max", "16mb");
        newestCheckpoint(folder).ifPresent(one -> settings.setString("execution.state-recovery.path", one.toUri().toString()));
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        KafkaSource<String> source = KafkaSource.<String>builder().setBootstrapServers(arguments[0]).setTopics(arguments[2])
            .setGroupId(arguments[1]).setStartingOffsets(OffsetsInitializer.earliest())
            .setValueOnlyDeserializer(new SimpleStringSchema()).build();
        KafkaSink<Tuple2<String, Long>> sink = KafkaSink.<Tuple2<String, Long>>builder().setBootstrapServers(arguments[0])
            .setRecordSerializer(KafkaRecordSerializationSchema.<Tuple2<String, Long>>builder().setTopic(arguments[3])
                .setKeySerializationSchema(new Word()).setValueSerializationSchema(new Number()).build())
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE).setTransactionalIdPrefix(arguments[1])
            .setProperty("transaction.timeout.ms", "600000").build();
        environment.fromSource(source, WatermarkStrategy.noWatermarks(), "words").keyBy(word -> word, Types.STRING)
            .process(new Count()).returns(Types.TUPLE(Types.STRING, Types.LONG)).sinkTo(sink);
        environment.execute();
    }
}
