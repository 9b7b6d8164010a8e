"""Where our answers about compacted topics differ from Kafka's on purpose, beside those of `intended`."""

from __future__ import annotations

from tests.integration.differential.intended import Intended

INTENDED_OF_COMPACTION: list[Intended] = [
    Intended(
        "markers-that-stay-keep-what-they-say",
        "The marker that a producer wrote last stays, for its epoch, when its time is over. Kafka takes its record "
        "away, and does not know of the producer any more when it reads the log again; ours keeps it whole.",
        api="Fetch",
        scenario="a-cleaned-log-with-transactions",
        path=r"Responses\[.*\]\.Partitions\[0\]\.Records\[\d\]\."
        r"(attributes|base_timestamp|records\.length|records\[0\]|records_count)",
        kafka="48|-1|0|<missing>",
        ours=r"112|<time>|1|b'\\x00\\x00\\x00\\x00'",
    ),
]
