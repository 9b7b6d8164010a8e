"""Where our answers differ from Kafka's on purpose, each with its reason. What is not listed here is a defect."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tpc_broker.feature_levels import SPOKEN


@dataclass(frozen=True)
class Intended:
    """Matches differences by regular expressions on scenario, API and path (the whole of each).

    `occurs` is false for what only sometimes happens; the others must be seen in a complete run, or they are listed
    for nothing.
    """

    name: str
    reason: str
    api: str
    path: str = ".*"
    scenario: str = ".*"
    kafka: str = ".*"
    ours: str = ".*"
    occurs: bool = True

    def matches(self, scenario: str, api: str, path: str, kafka: Any, ours: Any) -> bool:
        pairs = (
            (self.scenario, scenario),
            (self.api, api),
            (self.path, path),
            (self.kafka, str(kafka)),
            (self.ours, str(ours)),
        )
        return all(re.fullmatch(pattern, text, re.DOTALL) for pattern, text in pairs)


INTENDED: list[Intended] = [
    Intended(
        "advertised-apis",
        "A broker advertises only what it implements; share groups, ACLs and so on are not there yet.",
        api="ApiVersions",
        path=r"ApiKeys(\.length|\[\d+\]\..*)",
        ours=r"<missing>|\d+",
        kafka=r"\d+",
    ),
    Intended(
        "telemetry-apis",
        "Clients' metrics are always taken, for /metrics: Kafka offers that only where it has a receiver of them.",
        api="ApiVersions",
        path=r"ApiKeys\[7[12]\]\..*",
        kafka="<missing>",
    ),
    Intended(
        "no-text-for-a-feature-that-is-there",
        "A level that a feature has already is no error, and has no text; Kafka's answer has one.",
        api="UpdateFeatures",
        scenario="update-the-feature-of-consumer-groups",
        path=r"Results\[group\.version\]\.ErrorMessage",
        kafka="<text>",
        ours="None",
    ),
    Intended(
        "features",
        "Kafka's features are named, at the levels whose behaviour is there: none of share groups, of streams "
        "groups; and there is ours, the level of what nodes write.",
        api="ApiVersions",
        path=r"(SupportedFeatures|FinalizedFeatures)(\.length|\[.*\]\..*)",
        ours=rf"<missing>|0|2|4|5|8|30|{SPOKEN.highest}|tpc\.version",
    ),
    Intended(
        "nothing-of-share-and-streams-groups",
        "Nothing here would obey a setting of a share group or of a streams group, so none is taken.",
        api="(Incremental)?AlterConfigs",
        scenario="set-configs-of-share-and-streams-groups",
        path=r"Responses\[.*\]\.Error(Code|Message)",
        kafka="0|None",
        ours="40|<text>",
    ),
    Intended(
        "no-loggers",
        "The log levels of Java's classes are not there.",
        api="ListConfigResources",
        path=r"ConfigResources(\.length|\[<loggers of a broker>\]\..*)",
    ),
    Intended(
        "quorum-directory",
        "A broker alone has no incarnation of its copy of the metadata, as a voter of Kafka's with a static quorum.",
        api="DescribeQuorum",
        path=r".*\.ReplicaDirectoryId",
        ours="0{8}-0{4}-0{4}-0{4}-0{12}",
    ),
    Intended(
        "own-settings",
        "`durability` and `segment.age.ms` are our own topic settings.",
        api="(CreateTopics|DescribeConfigs)",
        path=r".*Configs(\.length|\[(durability|segment\.age\.ms)\].*)",
        kafka="<missing>|33|0",
        ours=".*",
    ),
    Intended(
        "min-insync-replicas-source",
        "Kafka's feature eligible.leader.replicas writes min.insync.replicas as a dynamic default of the cluster.",
        api="(CreateTopics|DescribeConfigs)",
        path=r".*Configs\[min\.insync\.replicas\]\.(ConfigSource|Synonyms.*)",
    ),
    Intended(
        "trailing-bytes",
        "Bytes after a request are refused, so that a wrong length shows; Kafka ignores them.",
        api=r"(Metadata|FindCoordinator|ApiVersions) \d",
        scenario="bytes-after-the-request",
        ours=re.escape("<connection closed>"),
    ),
    Intended(
        "lengths-below-null",
        "Only -1 is null; Kafka takes every negative count for null, and reads a count of 2^32 - 1 as negative.",
        api="(array count -2|compact array of 2\\^32)",
        scenario="bytes-that-are-no-request",
        ours=re.escape("<connection closed>"),
    ),
    Intended(
        "text-that-is-no-utf-8",
        "Refused; Kafka replaces the bytes by question marks in diamonds and looks for such a topic.",
        api="text that is no UTF-8",
        ours=re.escape("<connection closed>"),
    ),
    Intended(
        "topic-without-a-name",
        "An empty name is an invalid one, no error of the server.",
        api="DescribeTopicPartitions",
        scenario="describe-topic-partitions",
        path=r"Topics\[,.*\]\.(ErrorCode|TopicAuthorizedOperations)",
        kafka="-1|-2147483648",
        ours="17|3576",
    ),
    Intended(
        "unknown-config-operation",
        "An operation that does not exist is the client's fault (INVALID_REQUEST), no error of the server.",
        api="IncrementalAlterConfigs",
        path=r"Responses\[.*\]\.Error(Code|Message)",
        kafka="-1|None",
        ours="42|<text>",
    ),
    Intended(
        "config-resource-twice",
        "A resource named twice gets one answer, not one answer per naming.",
        api="IncrementalAlterConfigs",
        path=r"Responses(\.length|\[.*#2\]\..*)",
        scenario="change-topic-configs",
    ),
    Intended(
        "id-of-a-topic-that-is-not-made",
        "A dry run shows no topic id: Kafka shows one that no topic will ever have.",
        api="CreateTopics",
        path=r"Topics\[.*\]\.TopicId",
        ours="0{8}-.*",
    ),
    Intended(
        "configs-as-they-act",
        "CreateTopics shows a value as it acts (true, 0.0), Kafka as it was written (TRUE, 0).",
        api="CreateTopics",
        path=r".*\[(preallocate|min\.cleanable\.dirty\.ratio|retention\.ms)\]\.Value",
        kafka="TRUE|0|1| 5 ",
        ours=r"true|0\.0|1\.0|5",
    ),
    Intended(
        "offset-delete-of-nothing",
        "A topic without partitions in OffsetDelete is echoed; Kafka leaves it out.",
        api="OffsetDelete",
        path=r"Topics(\.length|\[.*\]\.(Name|Partitions\.length))",
        ours=r"\d|delete-offsets-one",
    ),
    Intended(
        "offset-fetch-of-nothing",
        "A topic without partitions in OffsetFetch is left out; Kafka echoes it.",
        api="OffsetFetch",
        path=r"(Groups\[.*\]\.)?Topics(\.length|\[.*\]\.(Name|TopicId|Partitions\.length))",
        scenario="fetch-offsets",
        kafka=r"\d|fetch-offsets-one|<id of fetch-offsets-one>",
    ),
    Intended(
        "isolation-that-does-not-exist",
        "An unknown isolation level reads as READ_UNCOMMITTED; Kafka fails with UNKNOWN_SERVER_ERROR.",
        api="Fetch",
        scenario="fetch-with-an-isolation-that-does-not-exist",
    ),
    Intended(
        "limit-below-zero",
        "A negative limit of bytes counts as none allowed, so one batch comes; Kafka fails with UNKNOWN_SERVER_ERROR.",
        api="Fetch",
        scenario="fetch-with-limits-below-zero",
    ),
    Intended(
        "no-group-from-a-refused-join",
        "A JoinGroup that is refused leaves no empty group behind.",
        api="DescribeGroups",
        scenario="join-that-is-refused",
        path=r"Groups\[.*\]\.(GroupState|ErrorCode|ErrorMessage|ProtocolType)",
        ours="Dead|69|<text>|",
    ),
    Intended(
        "neither-name-nor-id",
        "Kafka fails with UNKNOWN_SERVER_ERROR and shows no brokers.",
        api="Metadata",
        scenario="metadata-without-name-or-id",
    ),
    Intended(
        "a-topic-is-there-when-it-is-made",
        "Metadata that makes a topic waits until it is there; Kafka answers with an error first.",
        api="Metadata",
        scenario="metadata-makes-topics",
        path=r"Topics\[.*\]\..*",
        kafka="3|5|0|<missing>|0{8}-.*|False",
    ),
    Intended(
        "epochs-below-none",
        "Epoch -5 is none; Kafka echoes it with offset 0.",
        api="OffsetForLeaderEpoch",
        path=r".*\.(EndOffset|LeaderEpoch)",
        kafka="0|-5",
        ours="-1",
    ),
    Intended(
        "no-compression-by-the-broker",
        "Batches stay as their producers sent them, so a topic's compression.type that would change them is refused.",
        api="CreateTopics",
        scenario="create-topics-that-the-broker-would-compress",
    ),
    Intended(
        "compressed-batches-are-not-walked",
        "Records inside a compression are the producer's business; Kafka decompresses every batch.",
        api="(Produce|ListOffsets)",
        scenario="produce-damaged-inside-a-compression",
    ),
    Intended(
        "offsets-that-repeat",
        "Two records of a batch with one offset are refused; Kafka stores them.",
        api="(Produce|ListOffsets)",
        scenario="produce-offsets-that-repeat-inside-a-batch",
        path=".*(ErrorCode|BaseOffset|Offset|RecordErrors.*|ErrorMessage|LogStartOffset)",
    ),
    Intended(
        "one-partition-twice",
        "Both batches are appended and both are answered; Kafka keeps the last one.",
        api="(Produce|ListOffsets|Fetch)",
        scenario="produce-several-partitions",
        path=r".*(PartitionResponses(\.length|\[0#2\].*|\[0\]\.BaseOffset)|Offset|HighWatermark|Records.*)",
    ),
    Intended(
        "first-sequence-of-all",
        "A producer's first sequence in a partition that never held a record is 0, as it will be for Kafka 4.5: what "
        "comes before another one could never be written.",
        api="Produce",
        scenario="produce-idempotent-first-of-all",
    ),
    Intended(
        "text-of-a-length-of-zero",
        "The error is the same; only Kafka has a text for this one.",
        api="Produce",
        path=r".*\.ErrorMessage",
        scenario="produce-(damaged|accepted-leaves-what-kafka-leaves)",
        ours="None",
    ),
]
