"""The feature level of a cluster: raised by an operator, up to what all nodes speak, and never back."""

from __future__ import annotations

import pytest

from tpc_broker.feature_levels import Levels, kafka_level
from tpc_broker.metadata.feature_control import FeatureUpdate, update_features
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import FeatureLevelChanged, NodeAddress, NodeRegistered
from tpc_broker.model import MetadataVersion, NodeId

UPGRADE, SAFE, UNSAFE = 1, 2, 3
SPOKEN = Levels(2, 5)


def cluster_of(*levels: tuple[int, int]) -> ClusterImage:
    records: list = [FeatureLevelChanged(3, 1)]
    records += [
        NodeRegistered(NodeId(node), node, 1, "", f"r{node}", NodeAddress("h", 1), (), Levels(*each))
        for node, each in enumerate(levels, start=1)
    ]
    return ClusterImage().apply(records, MetadataVersion(len(records)))


def updated(image: ClusterImage, *updates: FeatureUpdate, validate_only: bool = False) -> tuple[int, list[str]]:
    """The level afterwards, and what was refused."""
    records, outcomes = update_features(image, updates, validate_only=validate_only, spoken=SPOKEN)
    after = image.apply(records, MetadataVersion(image.version + len(records)))
    assert after.feature_epoch == image.feature_epoch + len(records)
    return after.feature_level, [outcome.error_message for outcome in outcomes if outcome.error_code]


def to(level: int, kind: int = UPGRADE, feature: str = "tpc.version") -> FeatureUpdate:
    return FeatureUpdate(feature, level, kind)


def test_it_is_raised_to_what_all_nodes_speak():
    image = cluster_of((2, 4), (3, 4))
    assert updated(image, to(4)) == (4, [])
    assert updated(image, to(4), validate_only=True) == (3, [])
    assert updated(image, to(3)) == (3, [])
    assert updated(image, to(3, SAFE)) == (3, [])


@pytest.mark.parametrize(
    ("update", "said"),
    [
        (to(5), "tpc.version 5 is not spoken by node 1 (release r1), which speaks levels 2 to 4."),
        (to(4), "tpc.version 4 is not spoken by node 2 (release r2), which speaks level 3."),
        (to(2, SAFE), "tpc.version does not go back from 3 to 2: what has been written since cannot be read at an"),
        (to(2, UNSAFE), "tpc.version does not go back from 3 to 2"),
        (to(0), "tpc.version does not go back from 3 to 0"),
        (to(4, SAFE), "tpc.version 4 is an upgrade, from 3."),
        (to(1, UPGRADE, "absent.version"), "There is no feature absent.version; there is tpc.version."),
        (
            to(29, SAFE, "metadata.version"),
            "metadata.version is Kafka's, here at level 30, and cannot be changed; tpc.version is this broker's.",
        ),
    ],
)
def test_what_is_refused_says_why(update, said):
    level, (message,) = updated(cluster_of((2, 4), (3, 3)), update)
    assert level == 3
    assert message.startswith(said)


def test_who_leads_may_not_have_registered_anew_yet():
    assert updated(cluster_of((2, 6)), to(6))[1][0].startswith("tpc.version 6 is not spoken by the node that leads")


def test_all_of_it_or_nothing():
    level, refused = updated(cluster_of((2, 4)), to(4), to(1, UPGRADE, "other"))
    assert (level, len(refused)) == (3, 1)
    assert len(updated(cluster_of((2, 4)), to(4), to(4))[1]) == 2


def group(level: int, kind: int = UPGRADE) -> FeatureUpdate:
    return to(level, kind, "group.version")


def transactions(level: int, kind: int = UPGRADE) -> FeatureUpdate:
    return to(level, kind, "transaction.version")


def test_kafkas_name_of_transactions_raises_the_level_that_has_them():
    image = cluster_of((2, 5), (3, 6))
    assert updated(image, transactions(2)) == updated(image, transactions(2), group(1)) == (5, [])
    assert updated(image, transactions(0)) == (3, []), "so it is"
    assert updated(ClusterImage(), transactions(2)) == (2, []), "a broker alone has them"


def test_kafkas_name_of_the_group_protocol_raises_the_level_that_has_it():
    image = cluster_of((2, 4), (2, 5))
    assert updated(image, group(1)) == (4, [])
    assert updated(image, group(1), validate_only=True) == (3, [])
    assert updated(image, group(0)) == updated(image, group(0, SAFE)) == (3, []), "so it is"
    assert updated(image, group(1), to(4)) == updated(image, to(4), group(1)) == (4, [])
    there = image.apply([FeatureLevelChanged(4, 2)], MetadataVersion(9))
    assert updated(there, group(1)) == updated(there, group(1, SAFE)) == (4, [])


@pytest.mark.parametrize(
    ("level", "update", "said"),
    [
        (3, group(1), "tpc.version 4 is not spoken by node 2 (release r2), which speaks levels 2 to 3."),
        (3, group(1, SAFE), "group.version 1 is an upgrade, from 0."),
        (3, group(2), "group.version 2 is not there; this release speaks levels 0 to 1."),
        (3, group(-1, SAFE), "group.version -1 is not there; this release speaks levels 0 to 1."),
        (4, group(0, SAFE), "group.version does not go back from 1 to 0: it comes with tpc.version 4, which does n"),
        (4, group(0, UNSAFE), "group.version does not go back from 1 to 0"),
        (4, transactions(2), "tpc.version 5 is not spoken by node 1 (release r1), which speaks levels 2 to 4."),
        (4, transactions(1), "transaction.version 1 is passed over: tpc.version 5 brings 2."),
        (4, transactions(3), "transaction.version 3 is not there; this release speaks levels 0 to 2."),
        (5, transactions(1, SAFE), "transaction.version does not go back from 2 to 1: it comes with tpc.version 5, w"),
        (4, to(1, UPGRADE, "share.version"), "share.version is Kafka's, here at level 0, and cannot be changed; tpc.v"),
    ],
)
def test_what_is_refused_by_kafkas_names_says_why(level, update, said):
    image = cluster_of((2, 4), (2, 3)).apply([FeatureLevelChanged(level, 2)], MetadataVersion(9))
    after, (message,) = updated(image, update)
    assert (after, message[: len(said)]) == (level, said)


@pytest.mark.parametrize(
    ("updates", "said"),
    [
        ((to(3), group(1)), "tpc.version 3 does not go with the others: together they want tpc.version 4."),
        ((group(0), to(4)), "group.version 0 does not go with the others: together they want tpc.version 4."),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(updates, said):
    assert updated(cluster_of((2, 4)), *updates) == (3, [said])


def test_what_is_so_already_is_done():
    """As Kafka has it, of its features too: a tool names all that come with a release."""
    asked = [to(30, UPGRADE, "metadata.version"), to(0, SAFE, "transaction.version"), to(3)]
    assert updated(cluster_of((2, 4)), *asked) == (3, [])


def test_a_broker_alone_has_the_group_protocol():
    assert updated(ClusterImage(), group(1)) == (2, []), "nothing is written: it is at the newest level"
    assert "does not go back from 1 to 0" in updated(ClusterImage(), group(0, SAFE))[1][0]


def test_a_broker_alone_has_no_level_to_change():
    assert "without a cluster is at the newest" in updated(ClusterImage(), to(4))[1][0]


def test_transactions_come_with_a_level_as_their_second_version():
    assert [kafka_level("transaction.version", level) for level in (2, 4, 5, 6)] == [0, 0, 2, 2]
