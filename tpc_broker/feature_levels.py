"""Feature levels: what releases can read of what others have written, on disks, in the metadata and on links.

A level is a number that rises with every change that an earlier release could not live with (docs/formats.md has the
table). A release speaks a range of them. A broker alone takes the newest at its start. A cluster has one level, that of
its founding until an operator raises it, and its nodes write nothing that is newer, whatever else they could: so a
cluster can be upgraded node by node, and back, until then.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

FEATURE: Final = "tpc.version"
"""Its name in ApiVersions and UpdateFeatures."""
GROUP_FEATURE: Final = "group.version"
"""Kafka's, for groups of KIP-848: 1 from `FIRST_WITH_GROUPS` on, 0 below."""
TRANSACTION_FEATURE: Final = "transaction.version"
"""Kafka's, for transactions whose ends raise the producer's epoch (KIP-890): 2 from `FIRST_WITH_TRANSACTIONS` on."""
FIRST_OF_CLUSTERS: Final = 2
"""The level that clusters began with, and of whatever says nothing of levels."""
FIRST_WITH_MOVES: Final = 3
"""Partitions go from core to core, and replicas are filled with segments: entries of journals that begin a life."""
FIRST_WITH_GROUPS: Final = 4
"""Groups of KIP-848, and settings of groups and of client metrics: a record of the metadata."""
FIRST_WITH_TRANSACTIONS: Final = 5
"""Transactions of clients: `__transaction_state`, and offsets in transactions."""
FIRST_WITH_NAMED_LEADERS: Final = 5
"""Who leads the first term of a partition is named by the record that makes it: `first_leaders`."""
FIRST_WITH_SECURITY: Final = 6
"""Users, rules of access and quotas: records of the metadata."""
FIRST_WITH_COMPACTION: Final = 7
"""Logs are compacted: segments with gaps, each with its seal (`log.seals`)."""


def kept_from(what: str, first: int, level: int) -> str:
    """Why a cluster at a lower level refuses them, and what brings them."""
    return f"{what} are kept from {FEATURE}={first} on; the level is {level} (tpc cluster level --raise {first})."


class Levels(NamedTuple):
    """From the lowest to the highest, both included."""

    lowest: int
    highest: int

    def __str__(self) -> str:
        one = self.lowest == self.highest
        return f"level {self.lowest}" if one else f"levels {self.lowest} to {self.highest}"

    def has(self, level: int) -> bool:
        return self.lowest <= level <= self.highest


def _spoken() -> Levels:
    """TPC_TEST_FEATURE_LEVELS=LOWEST-HIGHEST: the tests' releases of the past and the future."""
    text = os.environ.get("TPC_TEST_FEATURE_LEVELS", "")
    if not text:
        return Levels(FIRST_OF_CLUSTERS, FIRST_WITH_COMPACTION)
    lowest, _, highest = text.partition("-")
    return Levels(int(lowest), int(highest))


SPOKEN: Final = _spoken()
"""By this release."""


def kafka_level(feature: str, level: int) -> int:
    """Where one of `KAFKA_FEATURES` is at a level of ours."""
    if feature == GROUP_FEATURE:
        return 1 if level >= FIRST_WITH_GROUPS else 0
    if feature == TRANSACTION_FEATURE:
        return 2 if level >= FIRST_WITH_TRANSACTIONS else 0
    return KAFKA_FEATURES[feature].highest


KAFKA_FEATURES: Final = {
    "eligible.leader.replicas.version": Levels(0, 0),
    GROUP_FEATURE: Levels(0, kafka_level(GROUP_FEATURE, SPOKEN.highest)),
    "kraft.version": Levels(0, 0),
    "metadata.version": Levels(30, 30),
    "share.version": Levels(0, 0),
    "streams.version": Levels(0, 0),
    TRANSACTION_FEATURE: Levels(0, kafka_level(TRANSACTION_FEATURE, SPOKEN.highest)),
}
"""Kafka's, with the levels whose behaviour is there: 30 is 4.3's, 0 is none. None has a level of its own: where the
cluster is with one follows from ours. A client that finds `transaction.version` 2 leaves out what would tell a
coordinator of partitions and offsets.
"""
BROUGHT_BY: Final = {GROUP_FEATURE: FIRST_WITH_GROUPS, TRANSACTION_FEATURE: FIRST_WITH_TRANSACTIONS}
"""Of Kafka's those that come with a level of ours."""
UNSAID: Final = Levels(FIRST_OF_CLUSTERS, FIRST_OF_CLUSTERS)
"""Of a node that says nothing of levels."""
LEVEL_MAX: Final = 32_767
"""In ApiVersions it is a signed number of 16 bits."""
