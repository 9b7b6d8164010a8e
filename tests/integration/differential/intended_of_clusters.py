"""Where the answers of three nodes differ from Kafka's on purpose, besides `intended`."""

from __future__ import annotations

from tests.integration.differential.intended import Intended

INTENDED_OF_CLUSTERS: list[Intended] = [
    Intended(
        "facts-of-the-cluster",
        "What `tpc cluster` shows is in a tagged field, which other clients pass over.",
        api="DescribeCluster",
        path=r"_tags\.10000",
        kafka="<missing>",
    ),
    Intended(
        "why-nothing-is-cancelled",
        "The error is the same; only ours has a text for it.",
        api="AlterPartitionReassignments",
        path=r"Responses\[.*\]\.Partitions\[.*\]\.ErrorMessage",
        kafka="None",
    ),
    Intended(
        "no-text-for-no-error",
        "Where nothing was asked for, and nothing is wrong, Kafka's text is empty and ours is none.",
        api="AlterPartitionReassignments",
        path="ErrorMessage",
        kafka="",
        ours="None",
    ),
]
