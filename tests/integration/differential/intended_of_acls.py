"""Where rules of access differ from Kafka's on purpose."""

from __future__ import annotations

from tests.integration.differential.intended import Intended

INTENDED_OF_ACLS: list[Intended] = [
    Intended(
        "rules-at-an-address-however-it-is-written",
        "A rule at ::ffff:127.0.0.2 is one at 127.0.0.2, whom a denial must reach; in Kafka it matches nobody.",
        api="DescribeAcls",
        scenario="rules-on-the-cluster-decide-about-rules",
        path="Error(Code|Message)",
        kafka="31|<text>",
        ours="0|",
    ),
    Intended(
        "a-topic-is-there-when-it-is-made-by-right",
        "Metadata that makes a topic waits until it is there; Kafka answers with an error first.",
        api="Metadata",
        scenario="rules-on-topics-that-are-to-come",
        path=r"Topics\[.*\]\..*",
        kafka="3|0|<missing>|0{8}-.*",
        ours="0|1|<.*>",
    ),
    Intended(
        "users-that-were-asked-for-without-the-right",
        "Each is named in the answer, in every form of the question; Kafka's names nobody, or is not given at all.",
        api="DescribeUserScramCredentials",
        path=r"ErrorMessage|Results\[.*\]\..*",
        kafka="31|None|<missing>|0|",
        ours="31|<text>|<missing>|0|nobody",
    ),
]
