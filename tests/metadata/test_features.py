"""The feature level of a cluster: raised by an operator, up to what all nodes speak, and never back."""

from __future__ import annotations

import pytest

from tpc_broker.feature_levels import Levels
from tpc_broker.metadata.feature_control import FeatureUpdate, update_features
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import FeatureLevelChanged, NodeAddress, NodeRegistered
from tpc_broker.model import MetadataVersion, NodeId

UPGRADE, SAFE, UNSAFE = 1, 2, 3
SPOKEN = Levels(2, 4)


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
    assert updated(cluster_of((2, 5)), to(5))[1][0].startswith("tpc.version 5 is not spoken by the node that leads")


def test_all_of_it_or_nothing():
    level, refused = updated(cluster_of((2, 4)), to(4), to(1, UPGRADE, "other"))
    assert (level, len(refused)) == (3, 1)
    assert len(updated(cluster_of((2, 4)), to(4), to(4))[1]) == 2


def test_a_broker_alone_has_no_level_to_change():
    assert "without a cluster is at the newest" in updated(ClusterImage(), to(4))[1][0]
