"""The instances of clients that push metrics, and each decision about them, as Kafka 4.3.1 makes it.

An instance is asked for its metrics anew when subscriptions have changed: the next push of it meets another
subscription's id, and is refused with that. Its first push may come at once, each later one, and each new question,
when its interval is over; a terminating push at any time, and nothing behind it. Who comes too early is refused.

An instance is forgotten with the connection that it began on, when it has said nothing for three intervals and at least
a minute, and when there are too many: nothing is lost by that but its time, because what it is asked for follows from
what it is.
"""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka.compression import Compression
from tpc_broker.limits import TELEMETRY_EXPIRY_MS_MIN, TELEMETRY_INSTANCES_MAX, TELEMETRY_SWEEP_MS
from tpc_broker.telemetry.pushed.aggregates import Aggregates
from tpc_broker.telemetry.pushed.subscriptions import Asked, Client, Subscriptions, subscription_id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpc_broker.telemetry.pushed.payload import Pushed

NO_ID: Final = uuid.UUID(int=0)
RESERVED_IDS: Final = frozenset({NO_ID, uuid.UUID(int=1)})
"""Kafka gives them to nobody."""
ACCEPTED_COMPRESSIONS: Final = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
"""As clients are told, the best first. Uncompressed metrics are taken, too."""
INTERVALS_KEPT: Final = 3
REFUSALS: Final = {
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: "early",
    ErrorCode.UNKNOWN_SUBSCRIPTION_ID: "subscription",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "compression",
    ErrorCode.TELEMETRY_TOO_LARGE: "large",
    ErrorCode.INVALID_REQUEST: "invalid",
    ErrorCode.INVALID_RECORD: "unreadable",
}
"""By what the client is told, as they are counted."""
REASONS: Final = (*REFUSALS.values(), "busy")
_COMPRESSIONS: Final = frozenset(map(int, Compression))
_ASKS_AGAIN: Final = frozenset({ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE})


@dataclass(slots=True)
class _Instance:
    client: Client
    asked: Asked
    subscription_id: int
    version: int
    connection: int
    """That it began on, by the subscriptions that are in force."""
    expires_ms: int = 0
    asked_ms: int | None = None
    """When it last asked what it is to push, and when it last pushed."""
    pushed_ms: int | None = None
    is_terminating: bool = False
    last_error: ErrorCode = ErrorCode.NONE

    def may_ask(self, now_ms: int) -> bool:
        latest = max((at for at in (self.asked_ms, self.pushed_ms) if at is not None), default=None)
        if latest is None or now_ms - latest >= self.asked.interval_ms:
            self.asked_ms = now_ms
            return True
        return self.last_error in _ASKS_AGAIN

    def may_push(self, now_ms: int) -> bool:
        """At once when it has been asked for something since it last pushed."""
        is_first = self.asked_ms is not None and (self.pushed_ms is None or self.asked_ms > self.pushed_ms)
        if is_first or self.pushed_ms is None or now_ms - self.pushed_ms >= self.asked.interval_ms:
            self.pushed_ms = now_ms
            return True
        return False


class Given(NamedTuple):
    """The answer to a client that asks what it is to push."""

    instance_id: uuid.UUID
    subscription_id: int
    asked: Asked


class Push(NamedTuple):
    """What a push says of itself."""

    instance_id: uuid.UUID
    subscription_id: int
    is_terminating: bool
    compression: int
    size: int


@dataclass(frozen=True, slots=True)
class TelemetryStatistics:
    """Since the core started, but for `instances` and `subscriptions`, which are now."""

    instances: dict[str, int]
    """By `Kind`."""
    subscriptions: int
    asked: int
    """Times that a client was told what to push."""
    pushes: int
    """That were taken."""
    pushed_bytes: int
    evicted: int
    """Instances that made room for others."""
    refused: dict[str, int]
    """By reason: `REASONS`."""


class Instances:
    def __init__(self, count_max: int = TELEMETRY_INSTANCES_MAX) -> None:
        self._count_max = count_max
        self._subscriptions = Subscriptions({})
        self._version = 0
        self._all: dict[uuid.UUID, _Instance] = {}  # the one that was longest silent first
        self._begun_on: dict[int, set[uuid.UUID]] = {}  # by connection; none is empty
        self._sweep_ms = 0
        self.aggregates = Aggregates()
        self._refused = Counter(dict.fromkeys(REASONS, 0))
        self._asked = self._pushes = self._pushed_bytes = self._evicted = 0

    def follow(self, configs: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
        """Other subscriptions from now on; those that cannot be used, and why."""
        self._subscriptions = Subscriptions(configs, self._subscriptions)
        self._version += 1
        return self._subscriptions.faults

    def ask(
        self,
        instance_id: uuid.UUID,
        connection: int,
        describe: Callable[[uuid.UUID], Client],
        new_id: Callable[[], uuid.UUID],
        now_ms: int,
    ) -> Given | ErrorCode:
        """What an instance is to push. `describe` is called for one that is not known."""
        if instance_id == NO_ID:
            instance_id = new_id()
        instance = self._instance(instance_id, connection, describe, now_ms)
        if not instance.may_ask(now_ms):
            return self._refuse(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        instance.last_error = ErrorCode.NONE
        self._asked += 1
        return Given(instance_id, instance.subscription_id, instance.asked)

    def push(
        self, push: Push, connection: int, describe: Callable[[uuid.UUID], Client], bytes_max: int, now_ms: int
    ) -> ErrorCode:
        """NONE: it is taken, and `taken` or `unreadable` follows with what it says, if it says something."""
        if push.instance_id in RESERVED_IDS:
            return self._refuse(ErrorCode.INVALID_REQUEST)
        instance = self._instance(push.instance_id, connection, describe, now_ms)
        error = self._fault(instance, push, bytes_max, now_ms)
        instance.is_terminating = push.is_terminating
        instance.last_error = error
        return self._refuse(error) if error else ErrorCode.NONE

    def too_many(self) -> ErrorCode:
        """More are waiting to be read than may: this one changes nothing, and comes later."""
        self._refused["busy"] += 1
        return ErrorCode.THROTTLING_QUOTA_EXCEEDED

    def taken(self, push: Push, pushed: Pushed | None) -> None:
        """`pushed`: nothing if the push had no metrics. The instance may be gone meanwhile: then only growth counts."""
        self._pushes += 1
        self._pushed_bytes += push.size
        if pushed is not None:
            self.aggregates.take(push.instance_id, pushed, is_here=push.instance_id in self._all)

    def unreadable(self, push: Push) -> ErrorCode:
        if push.instance_id in self._all:
            self._all[push.instance_id].last_error = ErrorCode.INVALID_RECORD
        return self._refuse(ErrorCode.INVALID_RECORD)

    def closed(self, connection: int) -> None:
        for instance_id in tuple(self._begun_on.get(connection, ())):
            self._forget(instance_id)

    def statistics(self, now_ms: int) -> TelemetryStatistics:
        self._sweep(now_ms)
        return TelemetryStatistics(
            instances=self.aggregates.kinds(),
            subscriptions=len(self._subscriptions),
            asked=self._asked,
            pushes=self._pushes,
            pushed_bytes=self._pushed_bytes,
            evicted=self._evicted,
            refused=dict(self._refused),
        )

    def _fault(self, instance: _Instance, push: Push, bytes_max: int, now_ms: int) -> ErrorCode:
        if instance.is_terminating:
            return ErrorCode.INVALID_REQUEST
        if not instance.may_push(now_ms) and not push.is_terminating:
            return ErrorCode.THROTTLING_QUOTA_EXCEEDED
        if push.subscription_id != instance.subscription_id:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        if push.compression not in _COMPRESSIONS:
            return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        return ErrorCode.TELEMETRY_TOO_LARGE if push.size > bytes_max else ErrorCode.NONE

    def _refuse(self, error: ErrorCode) -> ErrorCode:
        self._refused[REFUSALS[error]] += 1
        return error

    # -- which are known -----------------------------------------------------------------------------------------------

    def _instance(
        self, instance_id: uuid.UUID, connection: int, describe: Callable[[uuid.UUID], Client], now_ms: int
    ) -> _Instance:
        self._sweep(now_ms)
        known = found = self._all.pop(instance_id, None)
        if found is not None and found.expires_ms <= now_ms:
            found = None
        if found is None or found.version != self._version:
            client = found.client if found is not None else describe(instance_id)
            asked = self._subscriptions.asked_of(client)
            found = _Instance(client, asked, subscription_id_of(asked, instance_id), self._version, connection)
            if known is not None:
                self._left(known.connection, instance_id)
            self._begun_on.setdefault(connection, set()).add(instance_id)
        self._all[instance_id] = found  # behind all others
        self.aggregates.came(instance_id)
        found.expires_ms = now_ms + max(TELEMETRY_EXPIRY_MS_MIN, INTERVALS_KEPT * found.asked.interval_ms)
        while len(self._all) > self._count_max:
            self._forget(next(iter(self._all)))
            self._evicted += 1
        return found

    def _forget(self, instance_id: uuid.UUID) -> None:
        instance = self._all.pop(instance_id, None)
        if instance is None:
            return
        self._left(instance.connection, instance_id)
        self.aggregates.went(instance_id)

    def _left(self, connection: int, instance_id: uuid.UUID) -> None:
        begun = self._begun_on[connection]
        begun.remove(instance_id)
        if not begun:
            del self._begun_on[connection]

    def _sweep(self, now_ms: int) -> None:
        """Those that have been silent for too long, now and then."""
        if now_ms >= self._sweep_ms:
            self._sweep_ms = now_ms + TELEMETRY_SWEEP_MS
            for instance_id in [one for one, found in self._all.items() if found.expires_ms <= now_ms]:
                self._forget(instance_id)
