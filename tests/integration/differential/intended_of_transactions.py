"""Where the answers about transactional ids differ from Kafka's on purpose, besides `intended`."""

from __future__ import annotations

from tests.integration.differential.intended import Intended

INTENDED_OF_TRANSACTIONS: list[Intended] = [
    Intended(
        "a-commit-of-what-was-aborted",
        "Whoever asks to commit, in the epoch before, what was aborted is fenced, as of a later release of Kafka: "
        "INVALID_TXN_STATE is fatal to Kafka Streams (KAFKA-20785).",
        api="EndTxn",
        path="ErrorCode",
        kafka="48",
        ours="90",
    ),
    Intended(
        "the-time-of-a-marker",
        "What is kept of a producer has the times of its records. A marker is none of them.",
        api="DescribeProducers",
        path=r".*\.LastTimestamp",
        kafka="<time>",
        ours="-1",
    ),
]
