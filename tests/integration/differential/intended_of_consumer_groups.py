"""Where the answers of consumer groups of KIP-848 differ from Kafka's on purpose, besides `intended`."""

from __future__ import annotations

from tests.integration.differential.intended import Intended

INTENDED_OF_CONSUMER_GROUPS: list[Intended] = [
    Intended(
        "heartbeats-while-a-group-changes",
        "While a group changes its members are told to come sooner: each step of a reconciliation is a heartbeat's.",
        api="ConsumerGroupHeartbeat",
        path="HeartbeatIntervalMs",
        kafka="5000",
        ours="500",
    ),
    Intended(
        "ids-of-any-length",
        "What is kept of a member has a bound: an id, a rack or a group of more than 1,000 characters is refused.",
        api="ConsumerGroupHeartbeat",
        scenario="names-that-are-too-long",
        path="(ErrorCode|ErrorMessage|MemberId|MemberEpoch|HeartbeatIntervalMs|Assignment.*)",
        ours="42|<text>|None|0|<missing>",
    ),
    Intended(
        "a-static-member-back-in-a-full-group",
        "It takes its own place, as it would in a classic group; Kafka counts the one that left for a while beside it.",
        api="ConsumerGroupHeartbeat",
        scenario="static-member-that-comes-back-to-a-full-group",
        path="(ErrorCode|ErrorMessage|MemberId|MemberEpoch|HeartbeatIntervalMs|Assignment.*)",
        kafka="81|<text>|None|0|<missing>",
    ),
    Intended(
        "an-expression-that-matches-nothing",
        "What a member had by another one is divided among the others when the new one is resolved. Where nothing "
        "matches that, Kafka leaves those partitions to nobody until something else changes.",
        api="ConsumerGroup(Heartbeat|Describe)",
        scenario="fenced-member-with-a-pattern",
        path=r"(Groups\[.*\]\.)?(Members\[.*\]\.)?(MemberEpoch|(Group|Assignment)Epoch|TargetAssignment.*)",
        occurs=False,
    ),
    Intended(
        "a-fetch-by-an-epoch-alone",
        "Without a member there is none of that epoch (UNKNOWN_MEMBER_ID), no error of the server.",
        api="OffsetFetch",
        scenario="fetches-of-offsets-by-members",
        path=r"Groups\[.*\]\.ErrorCode",
        kafka="-1",
        ours="25",
    ),
    Intended(
        "a-subscription-that-cannot-be-read",
        "It does not fit in (INCONSISTENT_GROUP_PROTOCOL), as for Kafka 4.4; for 4.3 it is an error of the server.",
        api="JoinGroup",
        scenario="new-members-of-both-kinds-in-a-mixed-group",
        path="ErrorCode",
        kafka="-1",
        ours="23",
    ),
    Intended(
        "a-refused-join-changes-no-kind",
        "An empty group stays of its kind after a JoinGroup without protocols; Kafka refuses it, too, but has made it "
        "a classic group by then.",
        api="ConsumerGroupDescribe",
        scenario="classic-calls-on-an-empty-consumer-group",
        path=r"Groups\[.*\]\.(ErrorCode|ErrorMessage|GroupState|GroupEpoch|AssignmentEpoch|AssignorName)",
        kafka="69|<text>||0",
    ),
    Intended(
        "what-members-have-when-a-group-becomes-classic",
        "Until they have joined again a description shows what they have; Kafka's shows what they were to have.",
        api="DescribeGroups",
        scenario="last-new-member-whose-session-ends",
        path=r"Groups\[.*\]\.Members\[.*\]\.MemberAssignment",
    ),
]
