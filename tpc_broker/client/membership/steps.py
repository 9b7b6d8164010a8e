"""What a member's machine wants to be carried out, one step after another; heartbeats go on meanwhile.

    Ask      send a request that may be answered late, and give the answer to `take`
    Divide   find out how many partitions these topics have (a classic group's leader)
    Resolve  find out the names of topics (KIP-848 tells ids)
    Revoke   let what was handed out be finished, commit it, and forget the partitions
    Assign   read these from what is committed
    Lose     forget these at once: they are somebody else's already

Each is told to the machine as `done`, or as `abandoned` when the membership ended meanwhile (`life` is another one).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from tpc_broker.client.consumer.ports import GroupIdentity
    from tpc_broker.client.requests import TopicPartition
    from tpc_broker.kafka import ApiKey


class Ask(NamedTuple):
    key: ApiKey
    make: Callable[[int], Any]
    take: Callable[[Any], None]


class Divide(NamedTuple):
    topics: frozenset[str]


class Resolve(NamedTuple):
    topic_ids: frozenset[bytes]


class Revoke(NamedTuple):
    partitions: frozenset[TopicPartition]


class Assign(NamedTuple):
    partitions: frozenset[TopicPartition]


class Lose(NamedTuple):
    partitions: frozenset[TopicPartition]


Step: TypeAlias = Ask | Divide | Resolve | Revoke | Assign | Lose


class Beat(NamedTuple):
    """A heartbeat to send; the machine gets it back with its answer."""

    key: ApiKey
    make: Callable[[int], Any]
    life: int
    generation_or_epoch: int


class MemberMachine(Protocol):
    """A member of a group, of either kind."""

    life: int
    """Of one membership: another one begins when the coordinator has forgotten this one."""

    @property
    def interval_seconds(self) -> float:
        """Between two heartbeats."""

    @property
    def identity(self) -> GroupIdentity:
        """Who commits now."""

    @property
    def owned(self) -> frozenset[TopicPartition]: ...

    @property
    def is_settled(self) -> bool:
        """A member that is not between two rounds: what it commits is taken."""

    @property
    def is_hurried(self) -> bool:
        """The next heartbeat is due at once."""

    def step(self) -> Step | None:
        """What is to be carried out next; None: nothing, until a heartbeat's answer or `subscribe` says otherwise."""

    def divided(self, counts: Mapping[str, int]) -> None:
        """How many partitions the topics of `Divide` have; those that are not there are left out."""

    def resolved(self, step: Resolve, names: Mapping[bytes, str]) -> None:
        """The names of `Resolve`; topics that are not there are left out."""

    def done(self, step: Step) -> None: ...

    def abandoned(self, step: Step) -> None: ...

    def beat(self) -> Beat | None:
        """None: none is due, until a step is done."""

    def beaten(self, beat: Beat, answer: Any) -> None:
        """`RefusedError`: what cannot be mended, or what is to be tried again (`is_retriable`)."""

    def beat_lost(self) -> None:
        """It had no answer."""

    def subscribe(self, names: Collection[str]) -> None:
        """Topics by name, when they are others now."""

    def topics_grew(self) -> None:
        """A subscribed topic has another number of partitions, or is another one."""

    def refused(self, identity: GroupIdentity) -> None:
        """A commit under that identity was refused for it."""

    def stop(self) -> None:
        """Give up the membership until `resume`: what it has is lost. `leave_request` tells the coordinator."""

    def resume(self) -> None:
        """Join again."""

    def leave_request(self) -> tuple[ApiKey, Callable[[int], Any]] | None:
        """What tells the coordinator that the member is gone; None: nothing is to be told."""
