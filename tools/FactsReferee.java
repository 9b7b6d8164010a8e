import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.Errors;

/** Versions, header versions and error codes by Apache Kafka itself, as tests/kafka/golden/facts.json. */
public class FactsReferee {
    public static void main(String[] arguments) throws Exception {
        List<Object> apis = new ArrayList<>();
        for (ApiMessageType type : ApiMessageType.values()) {
            List<Object> headers = new ArrayList<>();
            for (short version = type.lowestSupportedVersion(); version <= type.highestSupportedVersion(false); version++) {
                headers.add(List.of(version, type.requestHeaderVersion(version), type.responseHeaderVersion(version)));
            }
            apis.add(List.of(type.apiKey(), type.name(), headers));
        }
        List<Object> errors = new ArrayList<>();
        for (Errors error : Errors.values()) {
            errors.add(List.of(error.code(), error.name(), error.exception() instanceof RetriableException));
        }
        System.out.println(new ObjectMapper().writeValueAsString(Map.of("apis", apis, "errors", errors)));
    }
}
