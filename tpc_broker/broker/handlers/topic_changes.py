"""Who may change which topics and settings: what is refused is answered for here, the rest goes to the controller.

Asked where the change is decided, by the rights of that moment. What is named twice is the controller's to refuse,
whoever asks, as in Kafka.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from tpc_broker.auth.operations import Operation
from tpc_broker.broker.handlers.configs import refusal_of
from tpc_broker.broker.handlers.refusals import TOPIC_REFUSED
from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.config_control import AlteredResource
from tpc_broker.metadata.controller import CreatedTopic, DeletedTopic, GrownTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request
    from tpc_broker.metadata.config_control import AlterableResource
    from tpc_broker.metadata.controller import CreatableTopic, DeletableTopic, GrowableTopic
    from tpc_broker.metadata.image import ClusterImage

T = TypeVar("T")
R = TypeVar("R")

FAILED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _parted(
    wanted: Iterable[T], named: Callable[[T], Hashable], refused: Callable[[T], R | None]
) -> tuple[list[T], list[R]]:
    """What goes on, and the results of the rest."""
    wanted = list(wanted)
    counts = Counter(map(named, wanted))
    allowed, results = list[T](), list[R]()
    for one in wanted:
        result = refused(one) if counts[named(one)] == 1 else None
        if result is None:
            allowed.append(one)
        else:
            results.append(result)
    return allowed, results


def may_create(core: Core, request: Request, name: str) -> bool:
    """A topic of that name."""
    access = core.access
    may_make_any = access.allows_on_cluster(request, Operation.CREATE, is_told=False)
    return may_make_any or access.allows_topic(request, Operation.CREATE, name)


def creatable(
    core: Core, request: Request, topics: Sequence[CreatableTopic]
) -> tuple[list[CreatableTopic], list[CreatedTopic]]:
    def refused(topic: CreatableTopic) -> CreatedTopic | None:
        if may_create(core, request, topic.name):
            return None
        return CreatedTopic(name=topic.name, error_code=FAILED, error_message="Authorization failed.")

    return _parted(topics, lambda topic: topic.name, refused)


def deletable(
    core: Core, request: Request, image: ClusterImage, topics: Sequence[DeletableTopic]
) -> tuple[list[DeletableTopic], list[DeletedTopic]]:
    """Who may not see a topic is told neither whether there is one of that name, nor the name behind an id."""
    access = core.access
    if access.allows_on_cluster(request, Operation.DELETE, is_told=False):
        return list(topics), []

    def refused(topic: DeletableTopic) -> DeletedTopic | None:
        found = image.topics.get(topic.topic_id)
        name = topic.name if topic.name is not None else None if found is None else found.name
        if name is None or (found is not None and topic.name is not None):
            return None  # there is none of that id, or it is named in both ways
        by_name = topic.name is not None
        may_see = access.allows_topic(request, Operation.DESCRIBE, name, is_told=False)
        is_good = name not in image.ids or access.allows_topic(request, Operation.DELETE, name)
        if is_good and (may_see or not by_name):
            return None
        told = name if may_see or by_name else None
        return DeletedTopic(name=told, topic_id=topic.topic_id, error_code=FAILED, error_message=TOPIC_REFUSED)

    return _parted(topics, lambda topic: (topic.name, topic.topic_id), refused)


def growable(
    core: Core, request: Request, topics: Sequence[GrowableTopic]
) -> tuple[list[GrowableTopic], list[GrownTopic]]:
    def refused(topic: GrowableTopic) -> GrownTopic | None:
        if core.access.allows_topic(request, Operation.ALTER, topic.name):
            return None
        return GrownTopic(name=topic.name, error_code=FAILED)

    return _parted(topics, lambda topic: topic.name, refused)


def alterable(
    core: Core, request: Request, resources: Sequence[AlterableResource]
) -> tuple[list[AlterableResource], list[AlteredResource]]:
    def refused(resource: AlterableResource) -> AlteredResource | None:
        kind, name = resource.resource_type, resource.resource_name
        refusal = refusal_of(core, request, Operation.ALTER_CONFIGS, kind, name)
        return None if refusal is None else AlteredResource(kind, name, *refusal)

    return _parted(resources, lambda resource: (resource.resource_type, resource.resource_name), refused)
