"""Who asks for something, and whether they may: what handlers ask before they do it.

Without an authorizer everybody may do everything, as in Kafka. With one, each resource that a request names is asked
about at the core that has it, by the image of that core: a request that was sent on carries who asked. Until there is
an image all is refused, and rules of a new one decide before anything else of it is seen. NOBODY is refused everything,
whatever the rules.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

import trio

from tpc_broker import limits
from tpc_broker.auth.acls import AclAuthorizer, RefusesAll
from tpc_broker.auth.operations import CLUSTER_NAME, Operation, Resource
from tpc_broker.auth.principals import NOBODY, SubjectNumbers
from tpc_broker.kafka.api_keys import ApiKey, api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tpc_broker.auth.acls import Rules
    from tpc_broker.auth.principals import Subject
    from tpc_broker.broker.dispatch import CoreWithClients
    from tpc_broker.broker.handled import Request


log = logging.getLogger(__name__)

REFUSED: Final = "access"
"""The cause of lines about it."""


class Authorizer(Protocol):
    """The rules of one image (`tpc_broker.auth`)."""

    def allows(self, subject: Subject, operation: Operation, resource: Resource, name: str) -> bool: ...

    def allows_some(self, subject: Subject, operation: Operation, resource: Resource) -> bool:
        """On any resource of that kind (Kafka's `authorizeByResourceType`)."""
        ...


class AccessControl:
    """Of a core."""

    def __init__(self, core: CoreWithClients) -> None:
        self._core = core
        self._rules: Rules | None = None
        self._authorizer: Authorizer | None = RefusesAll() if core.settings.has_authorizer else None
        self.is_known = trio.Event()
        """Set when a right can be asked for: until there are rules who asked would be refused for good."""
        if self._authorizer is not None:
            core.connections.require_subject(on=True)
        else:
            self.is_known.set()
        self.generation = 1
        """Of the rules: what was decided in another one may not be so any more."""
        self.on_rules_changed: list[Callable[[], None]] = [lambda: core.plane.forget_answers(int(ApiKey.METADATA))]
        """Called at each new generation, before anything else of its image is seen."""
        self.on_decided: Callable[[Request, Operation, Resource, str, bool], None] = lambda *_decided: None
        """Called with each decision about a name, in the call that decides."""
        self.refusals = 0
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
        self.is_known.set()
        is_asked = authorizer is not None
        if is_asked != was_asked:
            self._core.connections.require_subject(on=is_asked)
            if is_asked:
                self._core.dispatcher.name_all()
        self.rules_changed()

    def follow(self, rules: Rules) -> None:
        """These are the rules from here on."""
        settings = self._core.settings
        if not settings.has_authorizer or rules is self._rules:
            return
        self._rules = rules
        self.authorizer = self._by(rules)

    def _by(self, rules: Rules) -> AclAuthorizer:
        settings = self._core.settings
        return AclAuthorizer(
            rules, settings.super_principals, allows_without_rules=settings.allow_everyone_if_no_acl_found
        )

    def rules_changed(self) -> None:
        """What was decided is decided again, and whoever waits is asked about."""
        self.generation += 1
        for tell in self.on_rules_changed:
            tell()

    def subject_of(self, request: Request) -> Subject:
        """Who asks, whichever core it came to."""
        return request.subject

    def allows_subject(self, subject: Subject, operation: Operation, resource: Resource, name: str) -> bool:
        """Of whom it is not a request that is decided about. Neither told nor installed anywhere."""
        authorizer = self._authorizer
        return authorizer is None or (subject != NOBODY and authorizer.allows(subject, operation, resource, name))

    def allows(
        self, request: Request, operation: Operation, resource: Resource, name: str, *, is_told: bool = True
    ) -> bool:
        """`is_told`: a refusal is counted and logged, as that of something that the request names is. What is only left
        out of an answer is not.
        """
        if self._authorizer is None:
            return True
        is_allowed = self.allows_subject(self.subject_of(request), operation, resource, name)
        self.on_decided(request, operation, resource, name, is_allowed)
        if not is_allowed and is_told:
            self._tell(request, operation, resource, name)
        return is_allowed

    def allows_on_cluster(self, request: Request, operation: Operation, *, is_told: bool = True) -> bool:
        return self.allows(request, operation, Resource.CLUSTER, CLUSTER_NAME, is_told=is_told)

    def allows_change(self, request: Request, operation: Operation, rules: Rules) -> bool:
        """On the cluster, by the rules that are committed, which this core may not have seen yet."""
        if not self.allows_on_cluster(request, operation):
            return False
        if self._rules is None or rules is self._rules:
            return True
        is_allowed = self._by(rules).allows(self.subject_of(request), operation, Resource.CLUSTER, CLUSTER_NAME)
        if not is_allowed:
            self._tell(request, operation, Resource.CLUSTER, CLUSTER_NAME)
        return is_allowed

    def allows_topic(self, request: Request, operation: Operation, name: str, *, is_told: bool = True) -> bool:
        return self.allows(request, operation, Resource.TOPIC, name, is_told=is_told)

    def allows_group(self, request: Request, operation: Operation, group_id: str, *, is_told: bool = True) -> bool:
        return self.allows(request, operation, Resource.GROUP, group_id, is_told=is_told)

    def allows_transaction(
        self, request: Request, operation: Operation, transactional_id: str, *, is_told: bool = True
    ) -> bool:
        return self.allows(request, operation, Resource.TRANSACTIONAL_ID, transactional_id, is_told=is_told)

    def allows_some(
        self, request: Request, operation: Operation, resource: Resource, *, is_told: bool = True
    ) -> bool:
        if self._authorizer is None:
            return True
        subject = self.subject_of(request)
        if subject != NOBODY and self._authorizer.allows_some(subject, operation, resource):
            return True
        if is_told:
            self._tell(request, operation, resource, None)
        return False

    def _tell(self, request: Request, operation: Operation, resource: Resource, name: str | None) -> None:
        """One line a minute for each principal, operation and resource, of so many; the others share one."""
        self.refusals += 1
        subject = self.subject_of(request)
        who = _shown(str(subject.principal))
        wanted = f"{operation.name} on {resource.name} " + ("of any name" if name is None else _shown(name))
        text = f"{who} at {subject.host} lacks {wanted}: {api(request.api_key).name} is refused"
        self._core.log_limiter.say(log, REFUSED, f"{who} {wanted}", text)

    def bits(self, request: Request, resource: Resource, name: str, everything: int) -> int:
        """Of the operations in the bit field `everything` those that are allowed (KIP-430)."""
        if self._authorizer is None:
            return everything
        subject = self.subject_of(request)
        return sum(
            1 << operation
            for operation in Operation
            if everything >> operation & 1 and self.allows_subject(subject, operation, resource, name)
        )


def _shown(name: str) -> str:
    """In quotes, in one line and of a bounded length, whatever a client has sent."""
    cut = name[: limits.CLIENT_ID_SHOWN_MAX]
    return ascii(cut) + ("…" if cut != name else "")
