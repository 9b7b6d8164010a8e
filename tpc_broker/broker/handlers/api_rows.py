"""What is known of an API besides its messages, in one row: who answers it and where, what it needs, which quota.

The rows are in `table`; `docs/apis.md` is made from them. What a client needs is asked for by the handler, or before it
where all of it is on the cluster (`refused`). A row that lacks something fails the tests
(`tests/tidy/test_api_rows.py`), and so does one whose needs are not asked for (`tests/broker/test_rights.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from tpc_broker.feature_levels import FIRST_OF_CLUSTERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.auth.operations import Operation, Resource
    from tpc_broker.broker.core import Handler
    from tpc_broker.broker.handlers.no_controller import Said
    from tpc_broker.kafka.message import Message

    Refused = Callable[[int, Any, Said], Message]
    """The answer to a version and its message of who may not have it. `Any`: that of its API."""


class Served(Enum):
    """Which core answers."""

    LOCAL = "the one it comes to"
    BY_GROUP = "the group's"
    BY_TRANSACTION = "the transactional id's"
    BY_PARTITION = "the partition's"
    EVERY_CORE = "all of the node"
    CONTROLLER = "the controller's"


class Place(Protocol):
    """Where an API is served, and how a request gets there that came elsewhere."""

    @property
    def served(self) -> Served: ...

    def serving(self, handler: Handler) -> Handler:
        """The handler for whatever core a request comes to."""


@dataclass(frozen=True, slots=True)
class AsItComes:
    """Python sends no request on."""

    served: Served

    def serving(self, handler: Handler) -> Handler:
        return handler


LOCAL: Final = AsItComes(Served.LOCAL)
SENT_ON_BY_C: Final = AsItComes(Served.BY_PARTITION)
"""On listeners that the cores share (`native/requests/forward.h`)."""


@dataclass(frozen=True, slots=True)
class Need:
    operation: Operation
    resource: Resource
    when: str = ""
    """Where it is not always, or not alone."""


class Throttle(Enum):
    """The quota that a request uses up."""

    NONE = "none"
    REQUEST = "requests"
    PRODUCE = "produce"
    FETCH = "fetch"
    MUTATION = "mutations"


@dataclass(frozen=True, slots=True)
class ApiRow:
    handler: Handler
    place: Place
    needs: tuple[Need, ...]
    """With an authorizer; without a condition each of them, and of those on the cluster, where `refused` is, one."""
    throttle: Throttle = Throttle.REQUEST
    is_prompt: bool = False
    """It is of a group's member, whose session ends when it is late: begun before the others."""
    may_wait: bool = False
    """As long as its client allows: it is never among the slowest requests that are told (`native/io/latency.c`)."""
    free_because: str = ""
    """Why nothing is needed."""
    refused: Refused | None = None
    """The answer to who may do nothing of what is needed, which is all on the cluster; None: the handler asks."""
    first_level: int = FIRST_OF_CLUSTERS
    """Of the cluster's feature levels: below it the API is not offered."""
