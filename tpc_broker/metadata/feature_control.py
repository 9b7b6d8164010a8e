"""Decides changes of a cluster's feature level: up to what all its nodes speak, and never back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpc_broker.error_codes import ErrorCode
from tpc_broker.feature_levels import FEATURE, KAFKA_FEATURES, SPOKEN, Levels
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.records import FeatureLevelChanged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import MetadataRecord

UPGRADE: Final = 1


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """`upgrade_type`: 1 is upgrade, 2 and 3 are downgrades, safe or not."""

    feature: str
    level: int
    upgrade_type: int


@dataclass(frozen=True, slots=True)
class FeatureOutcome:
    feature: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


def update_features(
    image: ClusterImage, updates: Sequence[FeatureUpdate], *, validate_only: bool = False, spoken: Levels = SPOKEN
) -> tuple[list[MetadataRecord], list[FeatureOutcome]]:
    """All of it or nothing. `spoken`: by this release."""
    records: list[MetadataRecord] = []
    outcomes: list[FeatureOutcome] = []
    for update in updates:
        try:
            _check_once(update, updates)
            if _check(image, update, spoken):
                records.append(FeatureLevelChanged(update.level, image.feature_epoch + 1))
        except Refusal as refusal:
            outcomes.append(FeatureOutcome(update.feature, refusal.code, refusal.message))
        else:
            outcomes.append(FeatureOutcome(update.feature))
    is_refused = any(outcome.error_code for outcome in outcomes)
    return ([] if validate_only or is_refused else records), outcomes


def _check_once(update: FeatureUpdate, updates: Sequence[FeatureUpdate]) -> None:
    if sum(update.feature == other.feature for other in updates) > 1:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Feature {update.feature} is named more than once.")


def _check(image: ClusterImage, update: FeatureUpdate, spoken: Levels) -> bool:
    """Whether it changes anything. Refusal."""
    if update.feature in KAFKA_FEATURES:
        at = KAFKA_FEATURES[update.feature]
        raise _invalid(f"{update.feature} is Kafka's, here at {at}, and cannot be changed; {FEATURE} is this broker's.")
    if update.feature != FEATURE:
        raise _invalid(f"There is no feature {update.feature}; there is {FEATURE}.")
    if not image.nodes:
        raise _invalid(f"A broker without a cluster is at the newest {FEATURE} that it speaks, {spoken.highest}.")
    present = image.feature_level
    if update.level < present:
        raise _invalid(
            f"{FEATURE} does not go back from {present} to {update.level}: what has been written since cannot be read "
            "at an earlier level."
        )
    if update.upgrade_type != UPGRADE and update.level != present:
        raise _invalid(f"{FEATURE} {update.level} is an upgrade, from {present}.")
    ranges = [(f"node {node} (release {known.version})", known.levels) for node, known in sorted(image.nodes.items())]
    for who, levels in [*ranges, ("the node that leads the metadata", spoken)]:
        if not levels.has(update.level):
            raise _invalid(f"{FEATURE} {update.level} is not spoken by {who}, which speaks {levels}.")
    return update.level != present


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_UPDATE_VERSION, message)
