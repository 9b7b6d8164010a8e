import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.SimpleRecord;

/**
 * Record batches by Apache Kafka's own builder, as the JSON of tests/kafka/golden/batches.json. With base64 batches as
 * arguments it reads those instead, so that ours can be shown to Kafka.
 */
public class BatchReferee {
    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static SimpleRecord[] records() {
        Header[] headers = {new RecordHeader("name", utf8("value")), new RecordHeader("null", (byte[]) null)};
        return new SimpleRecord[] {
            new SimpleRecord(1_700_000_000_000L, utf8("key"), utf8("a value"), headers),
            new SimpleRecord(1_700_000_000_123L, (byte[]) null, null),
            new SimpleRecord(1_699_999_999_999L, new byte[0], utf8("x".repeat(300))),
        };
    }

    static String hex(ByteBuffer buffer) {
        if (buffer == null) return null;
        byte[] data = new byte[buffer.remaining()];
        buffer.duplicate().get(data);
        return HexFormat.of().formatHex(data);
    }

    static Map<String, Object> row(String name, MemoryRecords batch) {
        Map<String, Object> row = new LinkedHashMap<>();
        byte[] data = new byte[batch.sizeInBytes()];
        batch.buffer().duplicate().get(data);
        row.put("name", name);
        row.put("batch", Base64.getEncoder().encodeToString(data));
        List<Object> found = new ArrayList<>();
        for (MutableRecordBatch part : batch.batches()) {
            part.ensureValid();
            row.put("producer", List.of(part.producerId(), part.producerEpoch(), part.baseSequence(), part.baseOffset()));
            row.put("flags", List.of(part.isTransactional(), part.isControlBatch(), part.partitionLeaderEpoch()));
            for (Record record : part) {
                List<Object> headers = new ArrayList<>();
                for (Header header : record.headers()) {
                    byte[] value = header.value();
                    headers.add(Arrays.asList(header.key(), value == null ? null : HexFormat.of().formatHex(value)));
                }
                found.add(Arrays.asList(record.offset(), record.timestamp(), hex(record.key()), hex(record.value()), headers));
            }
        }
        row.put("records", found);
        return row;
    }

    static MemoryRecords marker(ControlRecordType type) {
        EndTransactionMarker marker = new EndTransactionMarker(type, 7);
        return MemoryRecords.withEndTransactionMarker(44L, 1_700_000_000_500L, 3, 1234L, (short) 6, marker);
    }

    public static void main(String[] arguments) throws Exception {
        List<Object> rows = new ArrayList<>();
        for (String argument : arguments) {
            rows.add(row("argument", MemoryRecords.readableRecords(ByteBuffer.wrap(Base64.getDecoder().decode(argument)))));
        }
        if (arguments.length == 0) {
            for (CompressionType type : CompressionType.values()) {
                rows.add(row(type.name, MemoryRecords.withRecords(10L, Compression.of(type).build(), records())));
            }
            rows.add(row("idempotent", MemoryRecords.withIdempotentRecords(
                (byte) 2, 5L, Compression.NONE, 99L, (short) 4, 17, 8, records())));
            rows.add(row("transactional", MemoryRecords.withTransactionalRecords(
                5L, Compression.NONE, 99L, (short) 4, 17, 8, records())));
            rows.add(row("commit", marker(ControlRecordType.COMMIT)));
            rows.add(row("abort", marker(ControlRecordType.ABORT)));
        }
        System.out.println(new ObjectMapper().writeValueAsString(rows));
    }
}
