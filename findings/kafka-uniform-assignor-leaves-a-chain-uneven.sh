#!/usr/bin/env bash
# Apache Kafka 4.3.1: the `uniform` assignor of consumer groups leaves a chain of members uneven, for good.
#
# The server-side assignor of KIP-848 that is taken by default is to give all members equally many partitions. Where they
# subscribe to different topics it levels the subscribers of one topic at a time, and is content when no two of them are
# more than one apart. So in a chain of members, each of which shares a topic with the next, each may have one more than
# its neighbour: the first has the more above the last, the longer the chain. It stays so however often it is asked again.
#
# Seen with kafka-group-coordinator 4.3.1 (the classes alone, without a broker), Java 17: nine members, eight topics of 46
# partitions, topic n for members n-1 and n; at first each but the last has a whole topic. 41 for eight and 40 for one
# are possible; the counts after each of four assignments, each from the one before:
#   45 44 42 42 41 40 39 38 37, 126 moved
#   44 44 43 42 41 40 39 38 37, 2 moved
#   44 44 43 42 41 40 39 38 37, 0 moved
#   44 44 43 42 41 40 39 38 37, 0 moved
#
# For us: our `uniform` answers as Kafka's does (tests/coordinator/assignor_cases.py has the chain;
# docs/decisions/2026-11-29-assignors.md), and docs/groups.md says what "equally many" means.
# Needs Java 17 and Maven; exit code 1: it behaves otherwise now.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat > "$folder/pom.xml" <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-group-coordinator</artifactId><version>4.3.1</version></dependency>
  </dependencies>
</project>
XML
mvn -q -B -f "$folder/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$folder/jars"

cat > "$folder/Chain.java" <<'JAVA'
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.MemberSubscription;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;

public class Chain {
    static final int TOPICS = 8, PARTITIONS = 46;

    record Member(Set<Uuid> subscribedTopicIds, Map<Uuid, Set<Integer>> partitions)
        implements MemberSubscription, MemberAssignment {
        public Optional<String> rackId() { return Optional.empty(); }
        public Optional<String> instanceId() { return Optional.empty(); }
    }

    record Group(TreeMap<String, Member> members) implements GroupSpec {
        public Collection<String> memberIds() { return members.keySet(); }
        public SubscriptionType subscriptionType() { return SubscriptionType.HETEROGENEOUS; }
        public boolean isPartitionAssigned(Uuid topic, int partition) {
            return members.values().stream()
                .anyMatch(member -> member.partitions().getOrDefault(topic, Set.of()).contains(partition));
        }
        public boolean isPartitionAssignable(Uuid topic, int partition) { return true; }
        public MemberSubscription memberSubscription(String id) { return members.get(id); }
        public MemberAssignment memberAssignment(String id) { return members.get(id); }
    }

    static class Topics implements SubscribedTopicDescriber {
        public int numPartitions(Uuid topic) { return PARTITIONS; }
        public Set<String> racksForPartition(Uuid topic, int partition) { return Set.of(); }
        public Set<Integer> assignablePartitions(Uuid topic) {
            return java.util.stream.IntStream.range(0, PARTITIONS).boxed().collect(Collectors.toSet());
        }
    }

    static Uuid topic(int number) { return new Uuid(0, number); }

    static int count(Member member) { return member.partitions().values().stream().mapToInt(Set::size).sum(); }

    public static void main(String[] arguments) {
        TreeMap<String, Member> members = new TreeMap<>();
        for (int number = 0; number <= TOPICS; number++) {
            Set<Uuid> subscribed = new HashSet<>();
            if (number >= 1) subscribed.add(topic(number));
            if (number < TOPICS) subscribed.add(topic(number + 1));
            Map<Uuid, Set<Integer>> has = new HashMap<>();
            if (number < TOPICS) has.put(topic(number + 1), new Topics().assignablePartitions(topic(number + 1)));
            members.put("m" + number, new Member(subscribed, Collections.unmodifiableMap(has)));
        }
        for (int round = 1; round <= 4; round++) {
            var answer = new UniformAssignor().assign(new Group(members), new Topics()).members();
            TreeMap<String, Member> after = new TreeMap<>();
            int moved = 0;
            for (var entry : members.entrySet()) {
                Map<Uuid, Set<Integer>> gets = answer.get(entry.getKey()).partitions();
                after.put(entry.getKey(), new Member(entry.getValue().subscribedTopicIds(), Collections.unmodifiableMap(new HashMap<>(gets))));
                for (var given : gets.entrySet()) {
                    Set<Integer> had = entry.getValue().partitions().getOrDefault(given.getKey(), Set.of());
                    moved += given.getValue().stream().filter(partition -> !had.contains(partition)).count();
                }
            }
            String counts = after.values().stream().map(member -> "" + count(member)).collect(Collectors.joining(" "));
            System.out.println(counts + ", " + moved + " moved");
            members = after;
        }
    }
}
JAVA
found=$(java -cp "$folder/jars/*" "$folder/Chain.java" 2> "$folder/errors") || { cat "$folder/errors" >&2; exit 2; }
echo "$found"
[ "$found" = "45 44 42 42 41 40 39 38 37, 126 moved
44 44 43 42 41 40 39 38 37, 2 moved
44 44 43 42 41 40 39 38 37, 0 moved
44 44 43 42 41 40 39 38 37, 0 moved" ]
