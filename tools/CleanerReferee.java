import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ScheduledFuture;
import java.util.function.Supplier;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Apache Kafka's own cleaner, carried out on a log that we give it, at a time that we give it. A command a line on standard
 * input, an answer of one line of JSON for each:
 *
 *   open FOLDER [NAME=VALUE ...]                      the log in a folder, with these settings of its topic
 *   configure [NAME=VALUE ...]                        other settings
 *   append HEX                                        batches with the offsets that they have, as a follower takes them
 *   roll                                              a new segment
 *   clean FIRST_DIRTY UPPER NOW MAP_BYTES [BUFFER]    one pass over it, up to an offset
 *   producers                                         who is known, and what they wrote last
 *   close
 *   dump FOLDER                                       batches and records of a folder's segments, as Kafka reads them
 */
public class CleanerReferee {
    static final PrintStream OUT = System.out;
    static final ObjectMapper JSON = new ObjectMapper();

    static class SetClock implements Time {
        long now = 1_700_000_000_000L;

        public long milliseconds() {
            return now;
        }

        public long nanoseconds() {
            return System.nanoTime();
        }

        public void sleep(long ms) {}

        public void waitObject(Object object, Supplier<Boolean> condition, long deadline) {}
    }

    /** What is to be done once is done at once, what is to be done from time to time never. */
    static class AtOnce implements Scheduler {
        public void startup() {}

        public void shutdown() {}

        public ScheduledFuture<?> schedule(String name, Runnable task, long delay, long period) {
            if (period < 0) task.run();
            return (ScheduledFuture<?>) Proxy.newProxyInstance(CleanerReferee.class.getClassLoader(),
                new Class<?>[] {ScheduledFuture.class}, (future, method, with) -> method.getReturnType() == boolean.class ? true : null);
        }

        public void resizeThreadPool(int size) {}
    }

    static final SetClock CLOCK = new SetClock();
    static UnifiedLog log;

    static LogConfig settings(String[] words, int from) {
        Map<String, String> settings = new HashMap<>();
        settings.put("cleanup.policy", "compact");
        for (String word : Arrays.copyOfRange(words, from, words.length)) {
            String[] pair = word.split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        return new LogConfig(settings);
    }

    static Object open(String[] words) throws Exception {
        if (log != null) log.close();
        log = UnifiedLog.create(new File(words[1]), settings(words, 2), 0, 0, new AtOnce(), new BrokerTopicStats(), CLOCK,
            900_000, new ProducerStateManagerConfig(Integer.MAX_VALUE, false), Integer.MAX_VALUE, new LogDirFailureChannel(1),
            true, Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
        return Map.of("end", log.logEndOffset());
    }

    static Object append(String hex) throws Exception {
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(HexFormat.of().parseHex(hex)));
        log.appendAsFollower(records, Integer.MAX_VALUE);
        log.updateHighWatermark(log.logEndOffset());
        return Map.of("end", log.logEndOffset());
    }

    static Object roll() throws Exception {
        log.roll(Optional.of(log.logEndOffset()));
        return Map.of("base", log.activeSegment().baseOffset());
    }

    static Object clean(String[] words) throws Exception {
        CLOCK.now = Long.parseLong(words[3]);
        int buffer = words.length > 5 ? Integer.parseInt(words[5]) : 1 << 20;
        Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", Time.SYSTEM);
        SkimpyOffsetMap keys = new SkimpyOffsetMap(Integer.parseInt(words[4]));
        Cleaner cleaner = new Cleaner(0, keys, buffer, Math.max(buffer, log.config().maxMessageSize()), 0.9, throttler, CLOCK,
            partition -> {});
        LogToClean cleanable = new LogToClean(log, Long.parseLong(words[1]), Long.parseLong(words[2]), false);
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        long begun = System.nanoTime(), cpuBegun = threads.getCurrentThreadCpuTime();
        Map.Entry<Long, CleanerStats> done = cleaner.doClean(cleanable, CLOCK.now);
        Map<String, Object> told = new LinkedHashMap<>();
        told.put("end", done.getKey());
        told.put("seconds", (System.nanoTime() - begun) / 1e9);
        told.put("cpu_seconds", (threads.getCurrentThreadCpuTime() - cpuBegun) / 1e9);
        told.put("keys", keys.size());
        told.put("bytes_read", done.getValue().bytesRead());
        told.put("bytes_written", done.getValue().bytesWritten());
        told.put("records_read", done.getValue().messagesRead());
        told.put("records_written", done.getValue().messagesWritten());
        List<Long> bases = new ArrayList<>();
        for (LogSegment segment : log.logSegments()) bases.add(segment.baseOffset());
        told.put("segments", bases);
        return told;
    }

    static Object producers() {
        List<Object> found = new ArrayList<>();
        log.lastRecordsOfActiveProducers().forEach((id, last) ->
            found.add(List.of(id, last.producerEpoch(), last.lastDataOffset().orElse(-1))));
        return found;
    }

    static String hex(ByteBuffer buffer) {
        if (buffer == null) return null;
        byte[] data = new byte[buffer.remaining()];
        buffer.duplicate().get(data);
        return HexFormat.of().formatHex(data);
    }

    static Object dump(String folder) throws Exception {
        File[] files = new File(folder).listFiles((where, name) -> name.matches("[0-9]{20}\\.log"));
        Arrays.sort(files);
        List<Object> segments = new ArrayList<>();
        for (File file : files) {
            List<Object> batches = new ArrayList<>();
            int read = 0;
            ByteBuffer data = ByteBuffer.wrap(Files.readAllBytes(file.toPath()));
            for (MutableRecordBatch batch : MemoryRecords.readableRecords(data.duplicate()).batches()) {
                batch.ensureValid();
                Map<String, Object> row = row(batch);
                row.put("attributes", data.getShort(read + 21));
                row.put("base_timestamp", data.getLong(read + 27));
                batches.add(row);
                read += batch.sizeInBytes();
            }
            if (read != file.length()) throw new IllegalStateException(file + ": " + read + " of " + file.length() + " bytes");
            segments.add(List.of(Long.parseLong(file.getName().substring(0, 20)), batches));
        }
        return segments;
    }

    static Map<String, Object> row(MutableRecordBatch batch) {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("base_offset", batch.baseOffset());
        row.put("last_offset", batch.lastOffset());
        row.put("leader_epoch", batch.partitionLeaderEpoch());
        row.put("crc", batch.checksum());
        row.put("codec", batch.compressionType().name);
        row.put("horizon", batch.deleteHorizonMs().isPresent() ? batch.deleteHorizonMs().getAsLong() : null);
        row.put("max_timestamp", batch.maxTimestamp());
        row.put("producer", List.of(batch.producerId(), batch.producerEpoch(), batch.baseSequence()));
        List<Object> records = new ArrayList<>();
        for (Record record : batch) {
            record.ensureValid();
            List<Object> headers = new ArrayList<>();
            for (Header header : record.headers()) {
                headers.add(Arrays.asList(header.key(), header.value() == null ? null : HexFormat.of().formatHex(header.value())));
            }
            records.add(Arrays.asList(record.offset(), record.timestamp(), hex(record.key()), hex(record.value()), headers));
        }
        row.put("count", batch.countOrNull());
        row.put("records", records);
        return row;
    }

    static Object close() throws Exception {
        if (log != null) log.close();
        log = null;
        return Map.of();
    }

    static Object done(String[] words) throws Exception {
        switch (words[0]) {
            case "open": return open(words);
            case "configure": log.updateConfig(settings(words, 1)); return Map.of();
            case "append": return append(words[1]);
            case "roll": return roll();
            case "clean": return clean(words);
            case "producers": return producers();
            case "dump": return dump(words[1]);
            case "close": return close();
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in), 1 << 20);
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            Object answer;
            try {
                answer = done(line.split(" "));
            } catch (Throwable error) {
                error.printStackTrace();
                answer = Map.of("error", error.toString());
            }
            OUT.println(JSON.writeValueAsString(answer));
            OUT.flush();
        }
    }
}
