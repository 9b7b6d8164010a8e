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
]
