"""How many partitions a client may make and delete: token buckets (KIP-599). A machine without a clock.

A bucket holds what may be made at once, and fills at the rate of the quota. As in Kafka a request is let in while there
is anything in it, and takes what it needs: it may go below nothing, and then nothing more is let in until it is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.quotas import CONTROLLER_MUTATION_RATE, Found, QuotaIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    Charge = Callable[[int], None]
    """Takes so many partitions; Refusal where there are none to be had."""

BUCKETS_MAX: Final = 16_384
EXCEEDED: Final = "The throttling quota has been exceeded."


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_ms: int


class MutationTicket:
    """What one request takes of its client's quota. Strict: it is refused, as newer clients expect it; otherwise it is
    carried out, and its client waits afterwards.
    """

    def __init__(self, bucket: _Bucket | None, rate: float, *, strict: bool) -> None:
        self._bucket, self._rate, self._is_strict = bucket, rate, strict
        self._is_refused = False

    def charge(self, partitions: int) -> None:
        bucket = self._bucket
        if bucket is None:
            return
        if self._is_strict and bucket.tokens < 0:
            self._is_refused = True
            raise Refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED, EXCEEDED)
        bucket.tokens -= partitions

    @property
    def throttle_ms(self) -> int:
        """For the answer: until there is something again; 0 for who need not wait."""
        bucket = self._bucket
        if bucket is None or bucket.tokens >= 0 or (self._is_strict and not self._is_refused):
            return 0
        return min(2**31 - 1, max(1, round(-bucket.tokens / self._rate * 1000)))


class MutationQuotas:
    """Of all clients. `burst_s`: how many seconds' worth may be made at once."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def ticket(  # noqa: PLR0913  (a client, its quota and the moment)
        self, index: QuotaIndex, user: str, client_id: str, now_ms: int, burst_s: float, *, strict: bool
    ) -> MutationTicket:
        """For one request of a client."""
        found = index.of_client(CONTROLLER_MUTATION_RATE, user, client_id)
        if found is None:
            return MutationTicket(None, 0.0, strict=strict)
        return MutationTicket(self._bucket_of(found, now_ms, burst_s), found.limit, strict=strict)

    def _bucket_of(self, found: Found, now_ms: int, burst_s: float) -> _Bucket:
        key, full = (found.user, found.client_id), found.limit * burst_s
        bucket = self._buckets.pop(key, None) or self._new(full, now_ms)
        self._buckets[key] = bucket  # the one used last is the last
        bucket.tokens = min(full, bucket.tokens + found.limit * (now_ms - bucket.filled_ms) / 1000)
        bucket.filled_ms = now_ms
        return bucket

    def _new(self, full: float, now_ms: int) -> _Bucket:
        """In place of the one that was not used for longest, which is full again by then or its client's bad luck: who
        can make so many names is held by the quota of its user.
        """
        if len(self._buckets) >= BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        return _Bucket(full, now_ms)
