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
    Intended(
        "offsets-that-are-pending-are-kept",
        "Kafka deletes a group, or an offset, where an open transaction may yet commit some, and they are lost then.",
        api="(DeleteGroups|OffsetDelete)",
        scenario="(a-group-with-pending-offsets-that-is-deleted|pending-offsets-that-are-deleted)",
        path=r"(Results|Topics\[.*\]\.Partitions)\[.*\]\.ErrorCode",
        kafka="0|69",
        ours="88|0",
    ),
    Intended(
        "offsets-that-were-pending-are-there",
        "So they are there when it is committed.",
        api="OffsetFetch",
        scenario="(a-group-with-pending-offsets-that-is-deleted|pending-offsets-that-are-deleted)",
        path=r"Groups\[.*\]\.Topics.*",
    ),
    Intended(
        "an-epoch-that-an-open-transaction-does-not-have",
        "Kafka lets anybody with the producer id end an open transaction, whatever epoch is named: one that was fenced "
        "long ago, too.",
        api="InitProducerId",
        scenario="each-call-in-the-state-ongoing",
        path="ErrorCode",
        kafka="51",
        ours="47|90",
    ),
    Intended(
        "so-it-stays-open",
        "What that InitProducerId aborts at Kafka, with a marker.",
        api="(DescribeTransactions|Produce)",
        scenario="each-call-in-the-state-ongoing",
        path=r"TransactionStates\[0\]\.(TransactionState|ProducerEpoch|Topics.*)|Responses\[.*\]\.BaseOffset",
    ),
    Intended(
        "an-end-in-the-epoch-before-one-that-no-end-has-raised",
        "Kafka compares the numbers alone, and tells a producer that was fenced the epoch of its successor.",
        api="EndTxn",
        scenario="each-call-in-the-state-(committed|aborted)-before-version-2",
        path="ErrorCode|ProducerId|ProducerEpoch",
        ours="90|-1",
    ),
    Intended(
        "the-partition-of-a-group",
        "Groups are where the first release has put them: of a negative hash Kafka takes the absolute value.",
        api="DescribeTransactions",
        scenario="each-call-in-the-state-.*",
        path=r"TransactionStates\[0\]\.Topics\[__consumer_offsets\]\.Partitions\[0\]",
        kafka="1|3",
        ours="1|3",
    ),
]
