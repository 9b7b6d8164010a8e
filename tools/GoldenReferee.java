import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Encodes messages with Apache Kafka's own generated classes. Reads lines of {"name", "version", "json"} and writes the
 * same lines with "hex" added, or "error".
 */
public class GoldenReferee {
    static final String[] PACKAGES = {
        "org.apache.kafka.common.message.",
        "org.apache.kafka.coordinator.group.generated.",
        "org.apache.kafka.coordinator.transaction.generated.",
        "org.apache.kafka.coordinator.share.generated.",
    };

    static Class<?> find(String name) throws ClassNotFoundException {
        for (String prefix : PACKAGES) {
            try {
                return Class.forName(prefix + name);
            } catch (ClassNotFoundException absent) {
                continue;
            }
        }
        throw new ClassNotFoundException(name);
    }

    static byte[] encode(String name, short version, JsonNode json) throws Exception {
        String base = name.endsWith("Request") || name.endsWith("Response") || name.endsWith("Header") ? name + "Data" : name;
        Method read = find(base + "JsonConverter").getMethod("read", JsonNode.class, short.class);
        Message message = (Message) read.invoke(null, json, version);
        ByteBufferAccessor accessor = MessageUtil.toByteBufferAccessor(message, version);
        ByteBuffer buffer = accessor.buffer();
        byte[] data = new byte[buffer.remaining()];
        buffer.get(data);
        return data;
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ObjectNode row = (ObjectNode) mapper.readTree(line);
            try {
                byte[] data = encode(row.get("name").asText(), (short) row.get("version").asInt(), row.get("json"));
                row.put("hex", HexFormat.of().formatHex(data));
            } catch (Throwable failure) {
                Throwable cause = failure.getCause() == null ? failure : failure.getCause();
                row.put("error", cause.toString());
            }
            System.out.println(mapper.writeValueAsString(row));
        }
    }
}
