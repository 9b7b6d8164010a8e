"""Rights that were decided here, installed in the data plane: what it has asked once it knows until the rules change.

The data plane leaves a Produce or a Fetch whose subject it does not know enough about. Its topics are decided here, by
`core.access`, and each decision is installed as it is made, refusals too; then the data plane is given the request
back, goes on with what is allowed, and refuses the rest by itself. So a client that is refused again and again costs
one decision for each topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.auth.principals import ANONYMOUS, Subject
from tpc_broker.broker.handled import ForwardedRequest
from tpc_broker.kafka.api_keys import ApiKey

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable

    from tpc_broker.broker.dispatch import CoreWithClients
    from tpc_broker.broker.fetch_port import Fetch
    from tpc_broker.broker.handled import Request
    from tpc_broker.broker.ports import AskedProduce
    from tpc_broker.model import TopicId

_ASKED: Final = {int(ApiKey.PRODUCE): Operation.WRITE, int(ApiKey.FETCH): Operation.READ}
"""What the data plane asks for a topic, by API."""
DATAGRAMS = Subject(ANONYMOUS, "")
"""Whose all datagrams are: where one comes from is easily forged, so no rule about a host counts for them."""


class Grants:
    """Of a core. Without an authorizer the data plane asks for nothing."""

    def __init__(self, core: CoreWithClients) -> None:
        self._core = core
        self._generation = 0
        """In the data plane; 0: it does not ask."""
        access = core.access
        access.on_decided = self._install
        access.on_rules_changed.append(self.follow)
        core.plane.on_grant_wanted(self._decide_datagrams)
        self.follow()

    # Rule: The data plane hears that the rules are others in the call that makes them so, and a decision is installed
    # in the call that makes it: between the two nothing can change. See also native/requests/grants.c. Held by
    # tests/broker/test_grants.py.
    def follow(self) -> None:
        """The rules are others, or there are some now, or none any more."""
        plane, access = self._core.plane, self._core.access
        if access.authorizer is None:
            if self._generation:
                plane.end_grants()
            self._generation = 0
        elif self._generation == 0:
            plane.begin_grants(access.generation)
            plane.set_datagrams_subject(access.number_of(DATAGRAMS))
            self._generation = access.generation
        elif self._generation != access.generation:
            self._generation = access.generation
            plane.forget_grants(access.generation)
        self._core.purgatory.look_again()  # who waits here is asked about by its handler

    def name(self, request: Request) -> None:
        """Who asks, before the data plane looks at it: a fetch session is of the one that has made it. If its client
        is gone, its number may be forgotten, but not while this goes on, and it is never another's.
        """
        access = self._core.access
        if self._generation:
            self._core.plane.name_subject(request, access.number_of(access.subject_of(request)))

    def decide_produce(self, request: Request, asked: AskedProduce) -> None:
        """Everything that the data plane asks for it."""
        self.name(request)
        self._decide(request, Operation.WRITE, (part.topic for part in asked.parts))
        if asked.transactional_id is not None:
            self._core.access.allows(request, Operation.WRITE, Resource.TRANSACTIONAL_ID, asked.transactional_id)

    def decide_fetch(self, request: Request, fetch: Fetch) -> None:
        """The same. It was begun by whom `name` has said."""
        self._decide(request, Operation.READ, (part.topic for part in fetch.parts))

    def _decide(self, request: Request, operation: Operation, keys: Iterable[str | uuid.UUID]) -> None:
        """What the image does not know has no partition that is asked about."""
        for key in dict.fromkeys(keys):
            topic = self._core.view.topic(key)
            if topic is not None:
                self._core.access.allows(request, operation, Resource.TOPIC, topic.name)

    def _install(
        self, request: Request, operation: Operation, resource: Resource, name: str, is_allowed: bool  # noqa: FBT001
    ) -> None:
        """What was decided just now, if the data plane asks for such."""
        access, plane = self._core.access, self._core.plane
        if not self._generation or isinstance(request, ForwardedRequest) or _ASKED.get(request.api_key) != operation:
            return
        if self._generation != access.generation:
            self.follow()
        subject = access.number_of(access.subject_of(request))
        if resource is Resource.TRANSACTIONAL_ID:
            plane.grant_transactional(self._generation, subject, name, is_allowed=is_allowed)
        elif resource is Resource.TOPIC and (topic := self._core.view.topic(name)) is not None:
            writes = operation is Operation.WRITE
            plane.grant(self._generation, subject, topic.topic_id, writes=writes, is_allowed=is_allowed)

    def _decide_datagrams(self, topic_id: TopicId, subject: int) -> None:
        access = self._core.access
        topic = self._core.view.topic(topic_id)
        if topic is None or access.authorizer is None or not self._generation:
            return
        is_allowed = access.allows_subject(DATAGRAMS, Operation.WRITE, Resource.TOPIC, topic.name)
        self._core.plane.grant(self._generation, subject, topic_id, writes=True, is_allowed=is_allowed)
