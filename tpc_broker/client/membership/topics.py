"""Names and numbers of topics, as the cluster tells them now: one attempt each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpc_broker.client import requests
from tpc_broker.kafka import ApiKey, messages

if TYPE_CHECKING:
    from collections.abc import Collection

    from tpc_broker.client.membership.settings import Subscription
    from tpc_broker.client.net.fleet import Fleet


async def counts_of(fleet: Fleet, names: Collection[str]) -> dict[str, int]:
    """How many partitions each has; those that are not there are left out."""
    if not names:
        return {}
    facts = await fleet.metadata_once(sorted(names))  # which may tell of others as well
    return {name: len(facts.topics[name].leaders) for name in names if name in facts.topics}


async def counts_found(fleet: Fleet, subscription: Subscription) -> dict[str, int]:
    """The same of what is subscribed to. An expression has to match the whole name, and finds no internal topics."""
    if subscription.pattern is None:
        return await counts_of(fleet, subscription.names)
    expression = re.compile(subscription.pattern)
    facts = await fleet.metadata_once(None)
    return {
        name: len(topic.leaders)
        for name, topic in facts.topics.items()
        if not topic.is_internal and expression.fullmatch(name)
    }


async def names_of(fleet: Fleet, topic_ids: Collection[bytes]) -> dict[bytes, str]:
    """Of topics by id; those that are not there are left out."""
    asked = messages.MetadataRequest.MetadataRequestTopic
    request = messages.MetadataRequest(
        topics=[asked(topic_id=topic_id, name=None) for topic_id in sorted(topic_ids)], allow_auto_topic_creation=False
    )
    answer = await (await fleet.any_channel()).call(ApiKey.METADATA, requests.in_any_version(request))
    return {bytes(topic.topic_id): topic.name for topic in answer.topics if topic.name and not topic.error_code}
