import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.MemberSubscription;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

/**
 * Assigns partitions with Apache Kafka's own assignors. Reads a line of tests/coordinator/assignor_cases.py after the
 * other and answers each at once with {"answer", "racks_asked"}: what every member gets, and how often the assignor
 * asked for a rack of a member or a partition. In the order "sorted" it is given members, topics and partitions sorted;
 * in the order "hash" in Kafka's own classes and hash tables, where the racks of members are not counted.
 */
public class AssignorReferee {
    static int racksAsked;

    static Uuid id(String hex) {
        BigInteger number = new BigInteger(hex, 16);
        return new Uuid(number.shiftRight(64).longValue(), number.longValue());
    }

    static String hex(Uuid id) {
        BigInteger mask = BigInteger.ONE.shiftLeft(64).subtract(BigInteger.ONE);
        BigInteger high = BigInteger.valueOf(id.getMostSignificantBits()).and(mask);
        return high.shiftLeft(64).or(BigInteger.valueOf(id.getLeastSignificantBits()).and(mask)).toString(16);
    }

    static Optional<String> text(JsonNode member, String name) {
        return member.has(name) ? Optional.of(member.get(name).asText()) : Optional.empty();
    }

    record Member(Optional<String> rack, Optional<String> instanceId, Set<Uuid> subscribedTopicIds,
                  Map<Uuid, Set<Integer>> partitions) implements MemberSubscription, MemberAssignment {
        @Override
        public Optional<String> rackId() {
            racksAsked++;
            return rack;
        }
    }

    record Sorted(TreeMap<String, Member> members, SubscriptionType subscriptionType) implements GroupSpec {
        @Override
        public Collection<String> memberIds() {
            return members.keySet();
        }

        @Override
        public boolean isPartitionAssigned(Uuid topicId, int partition) {
            return members.values().stream()
                .anyMatch(member -> member.partitions().getOrDefault(topicId, Set.of()).contains(partition));
        }

        @Override
        public boolean isPartitionAssignable(Uuid topicId, int partition) {
            return true;
        }

        @Override
        public MemberSubscription memberSubscription(String memberId) {
            return members.get(memberId);
        }

        @Override
        public MemberAssignment memberAssignment(String memberId) {
            return members.get(memberId);
        }
    }

    record Topics(JsonNode topics) implements SubscribedTopicDescriber {
        @Override
        public int numPartitions(Uuid topicId) {
            JsonNode topic = topics.get(hex(topicId));
            return topic == null ? -1 : topic.get("partitions").asInt();
        }

        @Override
        public Set<String> racksForPartition(Uuid topicId, int partition) {
            racksAsked++;
            Set<String> racks = new HashSet<>();
            JsonNode topic = topics.get(hex(topicId));
            if (topic != null && topic.has("racks")) {
                topic.get("racks").get(partition).forEach(rack -> racks.add(rack.asText()));
            }
            return racks;
        }
    }

    static TreeMap<String, Member> members(JsonNode row, Topics topics) {
        TreeMap<String, Member> members = new TreeMap<>();
        row.get("members").properties().forEach(entry -> {
            JsonNode member = entry.getValue();
            Set<Uuid> subscribed = new TreeSet<>();
            member.get("topics").forEach(topic -> subscribed.add(id(topic.asText())));
            subscribed.removeIf(topicId -> topics.numPartitions(topicId) == -1);
            Map<Uuid, Set<Integer>> assigned = new TreeMap<>();
            if (member.has("assigned")) {
                member.get("assigned").properties().forEach(topic -> {
                    Set<Integer> partitions = new TreeSet<>();
                    topic.getValue().forEach(partition -> partitions.add(partition.asInt()));
                    assigned.put(id(topic.getKey()), partitions);
                });
            }
            members.put(entry.getKey(), new Member(
                text(member, "rack"), text(member, "instance"), subscribed, Collections.unmodifiableMap(assigned)));
        });
        return members;
    }

    static GroupSpec hashed(TreeMap<String, Member> sorted, SubscriptionType type) {
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        sorted.forEach((memberId, member) -> {
            Map<Uuid, Set<Integer>> assigned = new HashMap<>();
            member.partitions().forEach((topicId, partitions) -> {
                assigned.put(topicId, new HashSet<>(partitions));
                partitions.forEach(partition ->
                    owners.computeIfAbsent(topicId, unknown -> new HashMap<>()).put(partition, memberId));
            });
            members.put(memberId, new MemberSubscriptionAndAssignmentImpl(member.rack(), member.instanceId(),
                new HashSet<>(member.subscribedTopicIds()), new Assignment(assigned)));
        });
        return new GroupSpecImpl(members, type, owners);
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        Map<String, ConsumerGroupPartitionAssignor> assignors =
            Map.of("uniform", new UniformAssignor(), "range", new RangeAssignor());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode row = mapper.readTree(line);
            Topics topics = new Topics(row.get("topics"));
            TreeMap<String, Member> members = members(row, topics);
            Set<Set<Uuid>> subscriptions = new HashSet<>();
            members.values().forEach(member -> subscriptions.add(member.subscribedTopicIds()));
            SubscriptionType type =
                subscriptions.size() <= 1 ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
            GroupSpec group =
                row.get("order").asText().equals("sorted") ? new Sorted(members, type) : hashed(members, type);
            racksAsked = 0;
            Map<String, MemberAssignment> answer =
                assignors.get(row.get("assignor").asText()).assign(group, topics).members();
            ObjectNode said = mapper.createObjectNode();
            ObjectNode targets = said.putObject("answer");
            new TreeMap<>(answer).forEach((memberId, target) -> {
                ObjectNode of = targets.putObject(memberId);
                new TreeMap<>(target.partitions()).forEach((topicId, partitions) -> {
                    ArrayNode numbers = of.putArray(hex(topicId));
                    List<Integer> ordered = new ArrayList<>(partitions);
                    Collections.sort(ordered);
                    ordered.forEach(numbers::add);
                });
            });
            said.put("racks_asked", racksAsked);
            System.out.println(mapper.writeValueAsString(said));
        }
    }
}
