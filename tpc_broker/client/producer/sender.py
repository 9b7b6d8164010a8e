"""Lanes on the brokers' channels: who leads a partition, when a batch is sealed, what an answer means.

A *link* is a channel as the sender sees it: the lanes with work for it, and how many requests are under way. Whenever
there is room, `_pump` makes a request of one batch of each ready lane; no timer holds a batch back unless lingering
was asked for. Everything that has to be waited for (metadata, connections, an identity, a transaction's partitions) is
an errand in a task of its own, so that one broker never waits for another.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import anyio

from tpc_broker.client import requests
from tpc_broker.client.batches import ProducerIdentity
from tpc_broker.client.cluster import is_retriable
from tpc_broker.client.errors import ClientError, RefusedError, UnreachableError, UnsupportedError
from tpc_broker.client.producer.attempt import Attempt, Link
from tpc_broker.client.producer.batch import Failure
from tpc_broker.kafka import ApiKey, ErrorCode, messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from tpc_broker.client.net.channel import Channel
    from tpc_broker.client.net.fleet import Fleet
    from tpc_broker.client.net.tasks import Background
    from tpc_broker.client.producer.batch import Batch
    from tpc_broker.client.producer.lane import Lane
    from tpc_broker.client.producer.session import Session
    from tpc_broker.client.requests import TopicPartition

REQUESTS_MAX: Final = 5
"""Under way on one channel."""
FOLLOWERS_SHARE: Final = 0.8
"""Of the time that one answer may take, for a broker to have a batch acknowledged by its followers."""
SWEEP_SECONDS: Final = 0.5
METADATA_SECONDS: Final = 300.0
"""Topics that are written to are asked for anew so often: they may have got more partitions."""
GONE_SECONDS: Final = 10.0
"""After which a topic that was written to, and that every answer since says is not there, is taken for deleted. Longer
than a reader waits, as what fails here is lost; and one that is created again within that time has its records.
"""
_OTHER_LEADER: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
FOREVER: Final = float("inf")


class Sender:
    """``tasks`` runs its errands, and `run`. ``on_metadata`` is called when topics may have changed, ``on_gone`` when
    one was deleted.
    """

    def __init__(
        self,
        fleet: Fleet,
        tasks: Background,
        session: Session,
        on_metadata: Callable[[], Iterable[str]],
        on_gone: Callable[[str, Failure], None],
    ) -> None:
        self._fleet = fleet
        self._tasks = tasks
        self.session = session
        self._on_metadata = on_metadata
        self._on_gone = on_gone
        self._missing_since: dict[str, float] = {}
        self._links: dict[Channel, Link] = {}
        self._homes: dict[Lane, Link] = {}
        self._homeless: dict[Lane, None] = {}
        self._stale: set[Lane] = set()
        """Whose leader has to be asked for anew."""
        self._later: dict[Lane, float] = {}
        self._anonymous: dict[Lane, None] = {}
        self._unannounced: dict[Lane, None] = {}
        self._active: dict[Lane, None] = {}
        self._errands: set[object] = set()
        self._event = anyio.Event()
        self._is_timed = self._is_closed = False
        self._swept_at = 0.0
        self._metadata_at = time.monotonic()
        self._timeout_ms = round(FOLLOWERS_SHARE * 1000 * fleet.settings.request_seconds)
        self._lingers = session.settings.linger_seconds > 0
        self._sweep_seconds = min(SWEEP_SECONDS, session.settings.delivery_seconds / 10)
        self.requests_count = 0
        self._landed: anyio.Event | None = None
        """Of who waits for that."""
        self.flushes_count = 0
        """While somebody flushes, nothing lingers."""

    # -- from the front ------------------------------------------------------------------------------------------------

    def queue(self, lane: Lane) -> None:
        """A lane has something to send: as soon as the caller's task waits for anything."""
        self._place(lane)
        self._event.set()

    def send_now(self, lane: Lane, now: float) -> None:
        """The same, within this call when nothing is under way on its connection."""
        link = self._homes.get(lane)
        if link is None or link.requests_count or not self._is_timed:
            self._event.set()
        if (
            link is None or link.requests_count or link.ready or self._lingers
            or now < link.channel.silent_until or link.channel.is_closed
        ):  # fmt: skip
            self._place(lane)
            if link is not None and not link.requests_count:
                self._pump(link, now)
            return
        lane.is_queued = True
        self._active[lane] = None
        if self._may_send(lane, now):  # as `_pump` does it, for the only one
            batch = lane.next_batch()
            if lane.can_send(now):
                link.ready[lane] = None
            self._start(link, [(lane, batch)])
            if link.ready:
                self._pump(link, now)

    def close(self) -> None:
        """`run` ends."""
        self._is_closed = True
        self._event.set()

    async def landed(self) -> None:
        """Until no request is under way. The channels bound how long that takes."""
        while self.requests_count:
            if self._landed is None:
                self._landed = anyio.Event()
            await self._landed.wait()

    def hurry(self) -> None:
        """Nothing lingers from now on."""
        later, self._later = self._later, {}
        for lane in later:
            self._place(lane)
        self._event.set()

    def _place(self, lane: Lane) -> None:
        lane.is_queued = True
        self._active[lane] = None
        link = self._homes.get(lane)
        if self._lingers and not self.flushes_count and not lane.is_full:
            self._later.setdefault(lane, time.monotonic() + self.session.settings.linger_seconds)
        elif link is not None and link.is_usable:
            link.ready[lane] = None
        elif not lane.flying_count:
            self._homes.pop(lane, None)
            self._homeless[lane] = None

    # -- the loop ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until closed or cancelled."""
        while not self._is_closed:
            self._event = anyio.Event()
            now = time.monotonic()
            if now >= self._swept_at + self._sweep_seconds:
                self._swept_at = now
                self._is_timed = bool(self._active)
                self._sweep(now)
            elif self._active:
                self._is_timed = True
            for lane in [lane for lane, at in self._later.items() if at <= now]:
                del self._later[lane]
                self._place_due(lane)
            self._house(now)
            for link in list(self._links.values()):
                self._pump(link, now)
            self._send_errands(now)
            with anyio.move_on_after(self._pause(now)):
                await self._event.wait()

    def _pause(self, now: float) -> float:
        at = min(self._later.values(), default=FOREVER)
        if self._is_timed:
            at = min(at, self._swept_at + self._sweep_seconds)
        silent = [link.channel.silent_until for link in self._links.values()]
        at = min([at, *(until for until in silent if until > now)])
        return max(0.0, at - now)

    def _place_due(self, lane: Lane) -> None:
        """Its pause, or its lingering, is over."""
        link = self._homes.get(lane)
        if link is not None and link.is_usable:
            link.ready[lane] = None
        elif not lane.flying_count:
            self._homes.pop(lane, None)
            self._homeless[lane] = None

    def _sweep(self, now: float) -> None:
        for lane in list(self._active):
            if lane.next_deadline() <= now:
                lane.expire(now)
                self._after(lane, now)

    def _house(self, now: float) -> None:
        """Give lanes whose leader is known and connected a link."""
        for lane in list(self._homeless):
            if lane.flying_count or not lane.has_work:
                del self._homeless[lane]
                self._after(lane, now)
            elif lane.not_before > now:
                del self._homeless[lane]
                self._later[lane] = lane.not_before
            elif lane not in self._stale:
                channel = self._fleet.leader_nowait(lane.where)
                if channel is not None:
                    del self._homeless[lane]
                    self._move_in(lane, channel)

    def _move_in(self, lane: Lane, channel: Channel) -> None:
        link = self._links.get(channel)
        if link is None:
            try:
                link = self._links[channel] = Link(channel, self._request, self._answered)
            except ClientError as error:
                self._give_up(lane, error)
                return
        self._homes[lane] = link
        link.ready[lane] = None

    def _after(self, lane: Lane, now: float) -> None:
        """A lane has changed: does it have more to do?"""
        if not lane.has_work:
            lane.is_queued = False
            self._active.pop(lane, None)
        elif lane.not_before > now:
            self._later[lane] = lane.not_before
        else:
            self._place(lane)

    # -- requests and answers ------------------------------------------------------------------------------------------

    def _pump(self, link: Link, now: float) -> None:
        """Nothing is sealed for a broker that is to be left alone for a while (its quota): it may be filled and
        withdrawn meanwhile.
        """
        ready = link.ready
        bytes_max = self.session.settings.request_bytes
        while ready and link.requests_count < REQUESTS_MAX and now >= link.channel.silent_until:
            if not link.is_usable:
                self._lose(link)
                return
            taken: list[tuple[Lane, Batch]] = []
            again: list[Lane] = []
            size = 0
            while ready and size < bytes_max:
                lane, _none = ready.popitem(last=False)
                if not self._may_send(lane, now):
                    continue
                batch = lane.next_batch()
                size += batch.size if batch.data is None else len(batch.data)
                taken.append((lane, batch))
                if lane.can_send(now):
                    again.append(lane)
            for lane in again:
                ready[lane] = None
            if taken:
                self._start(link, taken)

    def _may_send(self, lane: Lane, now: float) -> bool:
        if not lane.can_send(now):
            if lane.not_before > now:
                self._later[lane] = lane.not_before
            elif not lane.has_work:
                self._after(lane, now)
            return False  # else it is placed again when an attempt has ended
        if lane.identity is None and not lane.identify():
            self._anonymous[lane] = None
            self._event.set()
            return False
        if self.session.transaction is not None and lane not in self.session.announced:
            self._unannounced[lane] = None
            self._event.set()
            return False
        return True

    def _start(self, link: Link, taken: list[tuple[Lane, Batch]]) -> None:
        if len(taken) == 1:
            around = link.around(taken[0][0], self.session.version_max)
            attempt = Attempt(link, around.version, taken, around)
        else:
            attempt = Attempt(link, min(link.version, self.session.version_max), taken, None)
            attempt.message = self._request({lane.where: batch.encoded() for lane, batch in taken})
        link.requests_count += 1
        self.requests_count += 1
        try:
            link.channel.ask(attempt)
        except ClientError as error:
            self._answered(attempt, error)

    def _request(self, batches: dict[TopicPartition, Any]) -> Any:
        session = self.session
        acks = session.settings.acks_number
        return requests.produce_request(batches, self._timeout_ms, session.transactional_id, acks)

    def _answered(self, attempt: Attempt, answer: Any) -> None:
        link = attempt.link
        link.requests_count -= 1
        self.requests_count -= 1
        if self._landed is not None and not self.requests_count:
            self._landed.set()
            self._landed = None
        now = link.channel.used_at
        if answer.__class__ is tuple:
            ((lane, batch),) = attempt.taken
            base_offset, log_append_time = answer
            lane.delivered(batch, base_offset, log_append_time, now)
            self._after(lane, now)
        elif isinstance(answer, ClientError):
            self._lose(link)
            now = time.monotonic()
            for lane, batch in attempt.taken:
                self._unanswered(lane, batch, answer, now)
            self._event.set()
            return
        else:
            self._take_rows(link, {lane.where: (lane, batch) for lane, batch in attempt.taken}, answer, now)
            if answer.throttle_time_ms:
                self._event.set()
        if link.ready:
            self._pump(link, now)
        if self._later or self._homeless:
            self._event.set()

    def _take_rows(
        self, link: Link, taken: dict[tuple[str, int], tuple[Lane, Batch]], answer: Any, now: float
    ) -> None:
        for topic in answer.responses:
            name = topic.name
            for row in topic.partition_responses:
                found = taken.pop((name, row.index), None)
                if found is None:
                    continue
                lane, batch = found
                if row.error_code:
                    self._refused(lane, batch, row, link, now)
                else:
                    lane.delivered(batch, row.base_offset, row.log_append_time_ms, now)
                self._after(lane, now)
        for lane, batch in taken.values():
            self._unanswered(lane, batch, UnreachableError(f"{lane.where}: the broker's answer lacks it"), now)

    def _unanswered(self, lane: Lane, batch: Batch, error: ClientError, now: float) -> None:
        lane.unanswered(batch, error, now)
        self._stale.add(lane)
        self._after(lane, now)

    def _refused(self, lane: Lane, batch: Batch, row: Any, link: Link, now: float) -> None:
        told = [row.error_message, *(one.batch_index_error_message for one in row.record_errors)]
        words = "; ".join(filter(None, told))
        error = link.channel.refusal(row.error_code, f"records for {lane.where}", words or None)
        lane.refused(batch, error, now)
        if row.error_code in _OTHER_LEADER:
            self._stale.add(lane)
            if self._homes.get(lane) is link:
                link.ready.pop(lane, None)
                del self._homes[lane]

    def _lose(self, link: Link) -> None:
        """Its channel is closed or will be soon: the lanes look for another one."""
        if self._links.get(link.channel) is link:
            del self._links[link.channel]
        for lane in link.ready:
            if not lane.flying_count:
                self._homes.pop(lane, None)
                self._homeless[lane] = None
        link.ready.clear()
        self._event.set()

    def _give_up(self, lane: Lane, error: ClientError) -> None:
        lane.give_up(Failure(str(error), error.code if isinstance(error, RefusedError) else None))
        self._after(lane, time.monotonic())

    # -- errands -------------------------------------------------------------------------------------------------------

    def _errand(self, name: object, work: Callable[[], Awaitable[None]]) -> None:
        """One of a name at a time."""
        if name in self._errands:
            return
        self._errands.add(name)

        async def carry_out() -> None:
            try:
                await work()
            finally:
                self._errands.discard(name)
                self._event.set()

        self._tasks.start_soon(carry_out)

    def _send_errands(self, now: float) -> None:
        unknown: set[str] = set()
        for lane in self._homeless:
            facts = self._fleet.topic_nowait(lane.where.topic)
            broker_id = -1 if facts is None else facts.leaders.get(lane.where.partition, -1)
            if lane in self._stale or broker_id < 0:
                unknown.add(lane.where.topic)
            else:
                self._open_errand(broker_id)
        if unknown:
            self._errand("metadata", lambda: self._locate(unknown))
        elif now > self._metadata_at + METADATA_SECONDS:
            self._metadata_at = now
            self._errand("metadata", lambda: self._locate(set(self._on_metadata())))
        if self._anonymous:
            self._errand("identity", self._get_identity)
        if self._unannounced:
            self._errand("announcement", self._announce)

    def _open_errand(self, broker_id: int) -> None:
        self._errand(broker_id, lambda: self._open(broker_id))

    def _failed(self, lanes: Collection[Lane], error: ClientError) -> None:
        """An errand for these lanes failed: they wait and try again, or fail when that is of no use."""
        now = time.monotonic()
        for lane in lanes:
            self._homeless.pop(lane, None)
            if is_retriable(error):
                lane.wait_out(str(error), now)
                self._stale.add(lane)
                self._after(lane, now)
            else:
                self._give_up(lane, error)

    async def _locate(self, topics: set[str]) -> None:
        for names in [sorted(topics)] if len(topics) == 1 else [sorted(topics), *([name] for name in sorted(topics))]:
            try:
                facts = await self._fleet.metadata_once(names)
            except ClientError as error:
                if len(names) == 1:
                    self._failed([lane for lane in self._homeless if lane.where.topic == names[0]], error)
            else:
                self._look_for_gone(names, facts.missing)
                self._located(names)
                if len(names) > 1:
                    break
        self._on_metadata()

    def _look_for_gone(self, names: Collection[str], missing: Collection[str]) -> None:
        now = time.monotonic()
        for name in names:
            if name not in missing:
                self._missing_since.pop(name, None)
            elif now > self._missing_since.setdefault(name, now) + GONE_SECONDS:
                del self._missing_since[name]
                text = f"there is no topic {name!r} any more, for {GONE_SECONDS:g} s"
                self._on_gone(name, Failure(text, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))

    def _located(self, names: Collection[str]) -> None:
        leaderless = []
        for lane in self._homeless:
            if lane.where.topic in names:
                self._stale.discard(lane)
                facts = self._fleet.topic_nowait(lane.where.topic)
                if facts is None or facts.leaders.get(lane.where.partition, -1) < 0:
                    leaderless.append(lane)
        for lane in leaderless:
            self._failed([lane], UnreachableError(f"{lane.where} has no leader now"))

    async def _open(self, broker_id: int) -> None:
        try:
            await self._fleet.channel(broker_id)
        except ClientError as error:
            self._failed([lane for lane in self._homeless if self._leader_of(lane) == broker_id], error)

    def _leader_of(self, lane: Lane) -> int:
        facts = self._fleet.topic_nowait(lane.where.topic)
        return -1 if facts is None else facts.leaders.get(lane.where.partition, -1)

    async def _get_identity(self) -> None:
        """An identity for those who wait for one."""
        session = self.session
        request = messages.InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
        )
        if session.identity is None and session.transaction is None:
            try:
                channel = await self._fleet.any_channel()
                answer = await channel.call(ApiKey.INIT_PRODUCER_ID, requests.in_any_version(request))
                if answer.error_code:
                    raise channel.refusal(answer.error_code, "a producer id")
            except ClientError as error:
                hint = "idempotent=False goes without producer ids" if isinstance(error, UnsupportedError) else ""
                lanes, self._anonymous = self._anonymous, {}
                self._failed(lanes, error.again(hint))
                return
            session.identity = ProducerIdentity(answer.producer_id, answer.producer_epoch)
        lanes, self._anonymous = self._anonymous, {}
        now = time.monotonic()
        for lane in lanes:
            self._after(lane, now)

    async def _announce(self) -> None:
        transaction = self.session.transaction
        assert transaction is not None
        lanes, self._unannounced = self._unannounced, {}
        try:
            await transaction.announce([lane.where for lane in lanes])
        except ClientError as error:
            if not is_retriable(error):
                self.session.spoil(Failure(str(error), error.code if isinstance(error, RefusedError) else None))
            self._failed(lanes, error)
            return
        self.session.announced.update(lanes)
        now = time.monotonic()
        for lane in lanes:
            self._after(lane, now)
