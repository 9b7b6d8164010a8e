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
]
