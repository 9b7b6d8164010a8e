"""UpdateFeatures, and what ApiVersions says of features: there is one, the level of what nodes write.

Kafka's own features are told as well, for clients and tools that look for them. Each is where ours puts it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.auth.operations import Operation
from tpc_broker.broker.handlers.refusals import while_allowed
from tpc_broker.feature_levels import FEATURE, KAFKA_FEATURES, SPOKEN, kafka_level
from tpc_broker.kafka import messages
from tpc_broker.metadata.feature_control import UPGRADE, FeatureUpdate, update_features

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request
    from tpc_broker.metadata.feature_control import FeatureOutcome
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import MetadataRecord

FEATURES_VERSION = 3
"""ApiVersions has features from here on."""
SAFE_DOWNGRADE = 2
ZERO_VERSION = 4
"""Before it clients do not understand a feature whose lowest level is 0, and Kafka leaves it out."""
RESULTS_VERSION_MAX = 1
"""Up to here UpdateFeatures names each feature that was updated."""


def tell_features(core: Core, response: messages.ApiVersionsResponse, version: int) -> None:
    """Into an answer to ApiVersions."""
    if version < FEATURES_VERSION:
        return
    image = core.view.image
    answer = messages.ApiVersionsResponse
    supported = {**KAFKA_FEATURES, FEATURE: SPOKEN}
    response.supported_features = [
        answer.SupportedFeatureKey(name=name, min_version=levels.lowest, max_version=levels.highest)
        for name, levels in supported.items()
        if levels.lowest or version >= ZERO_VERSION
    ]
    at = {name: kafka_level(name, image.level) for name in KAFKA_FEATURES} | {FEATURE: image.level}
    response.finalized_features = [
        answer.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
        for name, level in at.items()
        if level
    ]
    response.finalized_features_epoch = image.feature_epoch


async def handle_update_features(
    core: Core, request: Request, message: messages.UpdateFeaturesRequest
) -> messages.UpdateFeaturesResponse:
    updates = [
        FeatureUpdate(each.feature, each.max_version_level, _type_of(each, request.api_version))
        for each in message.feature_updates
    ]

    def decide(image: ClusterImage) -> tuple[list[MetadataRecord], list[FeatureOutcome]]:
        return update_features(image, updates, validate_only=message.validate_only)

    return _answer(request, await core.metadata.change(while_allowed(core, request, Operation.ALTER, decide)))


def _type_of(update: messages.UpdateFeaturesRequest.FeatureUpdateKey, version: int) -> int:
    if version == 0:
        return SAFE_DOWNGRADE if update.allow_downgrade else UPGRADE
    return int(update.upgrade_type)


def _answer(request: Request, outcomes: list[FeatureOutcome]) -> messages.UpdateFeaturesResponse:
    """The first refusal stands for all: nothing was done."""
    response = messages.UpdateFeaturesResponse
    for outcome in outcomes:
        if outcome.error_code:
            return response(error_code=int(outcome.error_code), error_message=outcome.error_message)
    done = [response.UpdatableFeatureResult(feature=each.feature, error_message=None) for each in outcomes]
    return response(error_message=None, results=done if request.api_version <= RESULTS_VERSION_MAX else [])
