"""What a member asks of its group. Times in seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from tpc_broker.client.membership.assignors import ASSIGNORS, COOPERATIVE_STICKY

Protocol: TypeAlias = Literal["auto", "classic", "consumer"]
OLDER_ASSIGNORS: Final = ("range", "roundrobin")
"""What a classic group has whose members were not told otherwise, as librdkafka's and older Java's."""


class Subscription(NamedTuple):
    """Topics by name, or all that an expression matches as a whole. One of the two."""

    names: tuple[str, ...] = ()
    pattern: str | None = None

    def __str__(self) -> str:
        return ", ".join(self.names) if self.pattern is None else f"topics that match {self.pattern!r}"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """``instance_id`` makes a static member: it keeps its partitions while it is away for less than the session.

    ``protocol``: "auto" is that of KIP-848 where the broker and the group have it, else the classic one.
    ``assignors`` are of the classic protocol, in order of preference; all members of a group need one in common. None
    is "cooperative-sticky", and "range", "roundrobin" in a group whose members only have those.
    ``server_assignor`` is of KIP-848; None is what the broker prefers.

    ``session_seconds`` without a heartbeat and a classic member is out (KIP-848: a setting of the broker);
    ``max_work_seconds`` is the longest that one item may be worked at before the member leaves (Kafka's
    ``max.poll.interval.ms``), and how long the group waits for a member in a rebalance;
    ``grace_seconds``: how long a rebalance lets what was handed out be finished, before the partition is given back.
    """

    group: str
    instance_id: str | None = None
    protocol: Protocol = "auto"
    assignors: tuple[str, ...] | None = None
    server_assignor: str | None = None
    session_seconds: float = 45.0
    heartbeat_seconds: float = 3.0
    max_work_seconds: float = 300.0
    grace_seconds: float = 30.0
    topics_seconds: float = 30.0
    """Between two looks at which topics there are, and how many partitions they have."""
    commit_retry_seconds: float | None = None
    """For one commit with its repetitions; None: the client's ``retry_seconds``."""
    rack: str = field(default="")

    def __post_init__(self) -> None:
        if not self.group:
            raise ValueError("a group needs a name")
        if self.instance_id == "":
            raise ValueError("instance_id is empty: None is a member without one")
        if self.protocol not in {"auto", "classic", "consumer"}:
            raise ValueError(f"protocol is {self.protocol!r}: one of 'auto', 'classic', 'consumer'")
        unknown = [name for name in self.assignors or () if name not in ASSIGNORS]
        if unknown or self.assignors == ():
            raise ValueError(f"assignors are {self.assignors!r}: one or more of {', '.join(ASSIGNORS)}")
        if self.assignors and self.protocol == "consumer":
            raise ValueError("assignors are of the classic protocol: server_assignor is that of 'consumer'")
        for name in ("session_seconds", "heartbeat_seconds", "max_work_seconds", "topics_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name):g}: more than 0 seconds")
        if self.grace_seconds < 0:
            raise ValueError(f"grace_seconds is {self.grace_seconds:g}: 0 or more")
        if self.heartbeat_seconds >= self.session_seconds:
            bound = f"less than session_seconds, {self.session_seconds:g}"
            raise ValueError(f"heartbeat_seconds is {self.heartbeat_seconds:g}: {bound}")

    @property
    def wished_assignors(self) -> tuple[str, ...]:
        return self.assignors or (COOPERATIVE_STICKY,)


def checked_subscription(names: tuple[str, ...], pattern: str | None) -> Subscription:
    """`ValueError`: both or neither, or an expression that is none; `TypeError`: a name that is none."""
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"the name of a topic is str, not {type(name).__name__}")
    if bool(names) == (pattern is not None):
        raise ValueError("either names of topics or an expression")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    return Subscription(tuple(dict.fromkeys(names)), pattern)
