"""Who asks for something, and whether they may: what handlers ask before they do it.

Without an authorizer everybody may do everything, as in Kafka. With one, each resource that a request names is asked
about at the core that has it, by the image of that core: a request that was sent on carries who asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tpc_broker import limits
from tpc_broker.auth.operations import CLUSTER_NAME, Operation, Resource
from tpc_broker.auth.principals import SubjectNumbers
from tpc_broker.broker.handlers.forward import ForwardedRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpc_broker.auth.principals import Subject
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request


class Authorizer(Protocol):
    """The rules of one image (`tpc_broker.auth`)."""

    def allows(self, subject: Subject, operation: Operation, resource: Resource, name: str) -> bool: ...

    def allows_some(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        """On any resource of that kind (Kafka's `authorizeByResourceType`)."""
        ...


class AccessControl:
    """Of a core."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._authorizer: Authorizer | None = None
        self._numbers = SubjectNumbers(self._in_use, limits.SUBJECTS_KNOWN_MAX)
        self.number_of = self._numbers.number_of
        """Of a subject, for C: > 0, and never that of another one. Let in at once whoever it is asked for, or it may be
        forgotten.
        """
        self.subject_of_number = self._numbers.subject_of

    def _in_use(self) -> Iterator[Subject]:
        return self._core.dispatcher.subjects()

    @property
    def authorizer(self) -> Authorizer | None:
        """None: everybody may do everything."""
        return self._authorizer

    @authorizer.setter
    def authorizer(self, authorizer: Authorizer | None) -> None:
        """From the first one on C serves nobody of whom it does not know who it is."""
        was_asked, self._authorizer = self._authorizer is not None, authorizer
        is_asked = authorizer is not None
        if is_asked != was_asked:
            self._core.connections.require_subject(on=is_asked)
            if is_asked:
                self._core.dispatcher.name_all()

    def subject_of(self, request: Request) -> Subject:
        """Who asks, whichever core it came to."""
        if isinstance(request, ForwardedRequest):
            return request.subject
        return self._core.dispatcher.subject_of(request.connection)

    def allows(self, request: Request, operation: Operation, resource: Resource, name: str) -> bool:
        authorizer = self._authorizer
        return authorizer is None or authorizer.allows(self.subject_of(request), operation, resource, name)

    def allows_on_cluster(self, request: Request, operation: Operation) -> bool:
        return self.allows(request, operation, Resource.CLUSTER, CLUSTER_NAME)

    def allows_some(self, request: Request, operation: Operation, resource: Resource) -> bool:
        authorizer = self._authorizer
        return authorizer is None or authorizer.allows_some(self.subject_of(request), operation, resource)

    def bits(self, request: Request, resource: Resource, name: str, everything: int) -> int:
        """Of the operations in the bit field `everything` those that are allowed (KIP-430)."""
        if self.authorizer is None:
            return everything
        subject = self.subject_of(request)
        return sum(
            1 << operation
            for operation in Operation
            if everything >> operation & 1 and self.authorizer.allows(subject, operation, resource, name)
        )
