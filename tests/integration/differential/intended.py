"""Where our answers differ from Kafka's on purpose, each with its reason. What is not listed here is a defect."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


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
        "A broker advertises only what it implements; share groups, transactions, ACLs and so on are not there yet.",
        api="ApiVersions",
        path=r"ApiKeys(\.length|\[\d+\]\..*)",
        ours=r"<missing>|\d+",
        kafka=r"\d+",
    ),
    Intended(
        "features",
        "Kafka's features switch behaviour that is not there yet (transactions, share groups); none is advertised.",
        api="ApiVersions",
        path=r"(SupportedFeatures|FinalizedFeatures).*",
        ours=r"<missing>|0",
    ),
    Intended(
        "features-epoch",
        "Without features there is no epoch of them.",
        api="ApiVersions",
        path="FinalizedFeaturesEpoch",
    ),
    Intended(
        "durability-setting",
        "`durability` is our own topic setting.",
        api="(CreateTopics|DescribeConfigs)",
        path=r".*Configs(\.length|\[durability\].*)",
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
        "unknown-config-operation",
        "An operation that does not exist is the client's fault (INVALID_REQUEST), no error of the server.",
        api="IncrementalAlterConfigs",
        path=r"Responses\[.*\]\.Error(Code|Message)",
        kafka="-1|None",
        ours="42|<text>",
    ),
    Intended(
        "delete-the-group-without-a-name",
        "INVALID_GROUP_ID always; Kafka says NONE the first time and GROUP_ID_NOT_FOUND later.",
        api="DeleteGroups",
        path=r"Results\[\]\.ErrorCode",
        ours="24",
    ),
]
