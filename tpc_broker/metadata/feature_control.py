"""Decides changes of a cluster's feature level: up to what all its nodes speak, and never back.

Kafka's features have no levels of their own. One that comes with a level of ours raises ours to it (`group.version`,
`transaction.version`), and what is so already is taken as done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpc_broker.error_codes import ErrorCode
from tpc_broker.feature_levels import (
    BROUGHT_BY,
    FEATURE,
    KAFKA_FEATURES,
    SPOKEN,
    Levels,
    kafka_level,
)
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
    outcomes: list[FeatureOutcome] = []
    level = image.level
    for update in updates:
        try:
            _check_once(update, updates)
            level = max(level, _wanted(image, update, spoken))
        except Refusal as refusal:
            outcomes.append(FeatureOutcome(update.feature, refusal.code, refusal.message))
        else:
            outcomes.append(FeatureOutcome(update.feature))
    outcomes = [_agreed(*each, level) for each in zip(updates, outcomes, strict=True)]
    is_refused = any(outcome.error_code for outcome in outcomes)
    if validate_only or is_refused or level == image.level:
        return [], outcomes
    return [FeatureLevelChanged(level, image.feature_epoch + 1)], outcomes


def _check_once(update: FeatureUpdate, updates: Sequence[FeatureUpdate]) -> None:
    if sum(update.feature == other.feature for other in updates) > 1:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Feature {update.feature} is named more than once.")


def _agreed(update: FeatureUpdate, outcome: FeatureOutcome, level: int) -> FeatureOutcome:
    """Its outcome, where the level is to be this by all updates of a request together."""
    is_kafkas = update.feature in KAFKA_FEATURES
    found = kafka_level(update.feature, level) if is_kafkas else level
    if outcome.error_code or found == update.level:
        return outcome
    message = f"{update.feature} {update.level} does not go with the others: together they want {FEATURE} {level}."
    return FeatureOutcome(update.feature, ErrorCode.INVALID_UPDATE_VERSION, message)


def _wanted(image: ClusterImage, update: FeatureUpdate, spoken: Levels) -> int:
    """The level of ours that has it. Refusal."""
    if update.feature in KAFKA_FEATURES:
        return _wanted_by_kafkas_name(image, update, spoken)
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
    _check_spoken(image, update.level, spoken)
    return update.level


def _wanted_by_kafkas_name(image: ClusterImage, update: FeatureUpdate, spoken: Levels) -> int:
    there, present = KAFKA_FEATURES[update.feature], kafka_level(update.feature, image.level)
    if update.level == present:
        return image.level
    if update.feature not in BROUGHT_BY or not there.highest:
        raise _invalid(
            f"{update.feature} is Kafka's, here at {there}, and cannot be changed; {FEATURE} is this broker's."
        )
    if not there.has(update.level):
        raise _invalid(f"{update.feature} {update.level} is not there; this release speaks {there}.")
    brought = kafka_level(update.feature, BROUGHT_BY[update.feature])
    if present < update.level < brought:
        raise _invalid(
            f"{update.feature} {update.level} is passed over: {FEATURE} {BROUGHT_BY[update.feature]} brings {brought}."
        )
    if update.level < present:
        raise _invalid(
            f"{update.feature} does not go back from {present} to {update.level}: it comes with {FEATURE} "
            f"{BROUGHT_BY[update.feature]}, which does not go back."
        )
    if update.upgrade_type != UPGRADE:
        raise _invalid(f"{update.feature} {update.level} is an upgrade, from {present}.")
    _check_spoken(image, BROUGHT_BY[update.feature], spoken)
    return BROUGHT_BY[update.feature]


def _check_spoken(image: ClusterImage, level: int, spoken: Levels) -> None:
    """By all nodes, as they registered last. Refusal."""
    ranges = [(f"node {node} (release {known.version})", known.levels) for node, known in sorted(image.nodes.items())]
    for who, levels in [*ranges, ("the node that leads the metadata", spoken)]:
        if not levels.has(level):
            raise _invalid(f"{FEATURE} {level} is not spoken by {who}, which speaks {levels}.")


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_UPDATE_VERSION, message)
