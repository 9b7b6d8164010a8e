"""Drives a `Stock`: finds leaders and positions, and keeps one fetch in flight to each broker.

Tasks of `Fetcher.run`
    1. `_arrange` asks for what partitions lack: a leader, an offset to begin at, whether the log was cut off
    2. `_serve`, two for each broker, fetch: the next request leaves while the records of the last one are handed out

A long fetch would hold up everything behind it, so that each broker is fetched from on a connection of its own. What is
wanted while a long fetch is under way (there is room again, or somebody seeks) is asked for on another one.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio

from tpc_broker.client import requests
from tpc_broker.client.cluster import BACKOFF_SECONDS_FIRST, BACKOFF_SECONDS_MAX, MISSING_TOPIC_SECONDS, is_retriable
from tpc_broker.client.consumer.bells import Bell
from tpc_broker.client.consumer.decoding import Part
from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.consumer.sessions import FetchSession, FetchTerms, uses_names
from tpc_broker.client.consumer.starts import Start
from tpc_broker.client.consumer.stock import Fetched, Limits
from tpc_broker.client.errors import (
    ClientError,
    DamagedDataError,
    OffsetsMissingError,
    RefusedError,
    TopicReplacedError,
    UnknownTopicError,
    UnreachableError,
)
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.reading import whole_batches
from tpc_broker.client.requests import EARLIEST, FETCH_WITH_IDS_VERSION, LATEST, NO_TOPIC_ID
from tpc_broker.kafka import ApiKey, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from anyio.abc import TaskGroup

    from tpc_broker.client.consumer.partitions import Partition
    from tpc_broker.client.consumer.stock import Stock, Wanted
    from tpc_broker.client.net.channel import Channel
    from tpc_broker.client.net.fleet import Fleet
    from tpc_broker.client.requests import OffsetAnswer, TopicFacts, TopicPartition

BESIDE_SECONDS: Final = 0.005
"""How long a fetch may take before what else is wanted is asked for beside it."""
GOODBYE_SECONDS: Final = 1.0
"""How long a broker is told that a session is over: a courtesy."""
REPLICA_SECONDS: Final = 300.0
"""How long another replica than the leader is read from before the leader is asked again."""
logger = logging.getLogger("tpc.client")


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """``wait_seconds``: how long a broker holds a fetch that finds nothing. ``on_missing``: what is done when the
    offset to read at is not in the log any more.
    """

    isolation: Isolation = Isolation.READ_COMMITTED
    wait_seconds: float = 0.5
    on_missing: Literal["raise", "earliest", "latest"] = "raise"
    rack: str = ""
    limits: Limits = Limits()  # noqa: RUF009 - it is a tuple


class Fetcher:
    """``stock`` is told what was found; `look` when its partitions are others, `room` when more fits."""

    def __init__(self, fleet: Fleet, settings: FetchSettings) -> None:
        self.stock: Stock
        self._fleet = fleet
        self._settings = settings
        self._tasks: TaskGroup
        self._changed = Bell()
        self._brokers: dict[int, tuple[Bell, Bell]] = {}
        self._lines: list[_Line] = []

    def look(self) -> None:
        """What partitions there are, or where they are read, is something else."""
        self._changed.ring()

    def room(self) -> None:
        """More could be fetched than before."""
        for bell in itertools.chain.from_iterable(self._brokers.values()):
            bell.ring()

    async def run(self) -> None:
        """Until cancelled."""
        async with anyio.create_task_group() as self._tasks:
            await self._arrange()

    async def leave(self) -> None:
        """When `run` has ended: tell brokers that there will be no more fetches. The caller bounds the time."""
        async with anyio.create_task_group() as tasks:
            for line in self._lines:
                tasks.start_soon(line.end_session)

    # ---- 1. what partitions lack

    async def _arrange(self) -> None:
        while True:
            now = time.monotonic()
            due = [found for found in self.stock.partitions.values() if found.retry_at <= now]
            self._ask_for_leaders([found for found in due if found.is_lost])
            for leader, unplaced in _by_leader(found for found in due if found.is_unplaced).items():
                self._ask(unplaced, self._look_up, leader)
            for leader, unchecked in _by_leader(found for found in due if found.is_unchecked).items():
                self._ask(unchecked, self._check, leader)
            for found in due:
                if found.is_fetchable:
                    self._serve_from(found.source)
            later = [found.retry_at for found in self.stock.partitions.values() if found.retry_at > now]
            with anyio.move_on_after(min(later) - now if later else None):
                await self._changed.wait()

    def _serve_from(self, broker_id: int) -> None:
        bells = self._brokers.get(broker_id)
        if bells is None:
            bells = self._brokers[broker_id] = (Bell(), Bell())
            for bell, pause_seconds in zip(bells, (0.0, BESIDE_SECONDS), strict=True):
                line = _Line(self._fleet, broker_id)
                self._lines.append(line)
                self._tasks.start_soon(self._serve, line, bell, pause_seconds)
        for bell in bells:
            bell.ring()

    def _ask(self, partitions: list[Partition], ask: Any, *arguments: Any) -> None:
        for found in partitions:
            found.is_asking = True
        self._tasks.start_soon(self._asked, partitions, ask, arguments)

    async def _asked(self, partitions: list[Partition], ask: Any, arguments: tuple[Any, ...]) -> None:
        versions = {found: found.version for found in partitions}

        def still(found: Partition) -> bool:
            return self.stock.partitions.get(found.where) is found and found.version == versions[found]

        try:
            await ask(partitions, still, *arguments)
        except ClientError as error:
            for found in filter(still, partitions):
                self._failing(found, error)
        finally:
            for found in partitions:
                found.is_asking = False
            self.look()

    def _ask_for_leaders(self, partitions: list[Partition]) -> None:
        if partitions:
            self._ask(partitions, self._find_leaders)

    async def _find_leaders(self, partitions: list[Partition], still: Callable[[Partition], bool]) -> None:
        topics = list(dict.fromkeys(found.where.topic for found in partitions))
        try:
            facts = await self._fleet.metadata_once(topics)
        except RefusedError:
            if len(topics) == 1:
                raise
            for topic in topics:  # one of them was refused: which, the answer for all does not say
                await self._find_leaders_of(topic, partitions, still)
            return
        for found in filter(still, partitions):
            topic = found.where.topic
            if topic in facts.topics:
                self._place(found, facts.topics[topic])
            else:
                self._failing(found, UnknownTopicError(f"there is no topic {topic!r}"))

    async def _find_leaders_of(
        self, topic: str, partitions: list[Partition], still: Callable[[Partition], bool]
    ) -> None:
        its = [found for found in partitions if found.where.topic == topic]
        try:
            await self._find_leaders(its, still)
        except ClientError as error:
            for found in filter(still, its):
                self._failing(found, error)

    def _place(self, found: Partition, facts: TopicFacts) -> None:
        where = found.where
        if where.partition not in facts.leaders:
            text = f"{where.topic} has no partition {where.partition}; it has {len(facts.leaders)}"
            self._failing(found, UnknownTopicError(text))
            return
        leader, epoch = facts.leaders[where.partition], facts.epochs[where.partition]
        if found.topic_id not in (b"", NO_TOPIC_ID, facts.topic_id):
            found.topic_id, found.leader_epoch = facts.topic_id, -1
            self._lack(found, TopicReplacedError(f"{where}: the topic was deleted and created again"))
            return
        is_old = epoch < found.leader_epoch and facts.topic_id != NO_TOPIC_ID
        if leader < 0 or is_old:
            self._failing(found, UnreachableError(f"{where} has no leader now"))
            return
        found.topic_id = facts.topic_id
        if found.leader_epoch >= 0 and epoch != found.leader_epoch and found.last_epoch >= 0:
            found.needs_check = True
        found.leader, found.leader_epoch = leader, epoch

    async def _look_up(self, partitions: list[Partition], still: Callable[[Partition], bool], leader: int) -> None:
        wanted = {found.where: found.start.time_ms for found in partitions}
        answer = await self._offsets(leader, wanted, {found.where: found.leader_epoch for found in partitions})
        late = set()
        for found in filter(still, partitions):
            told = answer.get(found.where)
            if told is None or told.error_code:
                code = ErrorCode.UNKNOWN_SERVER_ERROR if told is None else told.error_code
                self._failing(found, RefusedError(code, f"offsets of {found.where} at broker {leader}"))
            elif told.offset < 0:
                late.add(found)
            else:
                found.is_well()
                self.stock.seek(found, Position(told.offset, told.leader_epoch))
        for found in late:
            self.stock.restart(found, Start(time_ms=LATEST))

    async def _offsets(
        self, leader: int, wanted: dict[TopicPartition, int], leader_epochs: dict[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAnswer]:
        channel = await self._fleet.channel(leader)
        request = requests.offsets_request(wanted, self._settings.isolation, leader_epochs)
        return requests.offsets_answer(await channel.call(ApiKey.LIST_OFFSETS, requests.in_any_version(request)))

    async def _offset(self, leader: int, where: TopicPartition, time_ms: int) -> int:
        told = (await self._offsets(leader, {where: time_ms}, {})).get(where)
        if told is None or told.error_code:
            code = ErrorCode.UNKNOWN_SERVER_ERROR if told is None else told.error_code
            raise RefusedError(code, f"offsets of {where} at broker {leader}")
        return told.offset

    async def _check(self, partitions: list[Partition], still: Callable[[Partition], bool], leader: int) -> None:
        """Whether the leader's log has the records up to where is fetched (KIP-320)."""
        channel = await self._fleet.channel(leader)
        if not channel.has(ApiKey.OFFSET_FOR_LEADER_EPOCH):
            for found in filter(still, partitions):
                found.needs_check = False
            return
        request = requests.epochs_request({found.where: (found.last_epoch, found.leader_epoch) for found in partitions})
        answer = await channel.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, requests.in_any_version(request))
        told = requests.epochs_answer(answer)
        for found in filter(still, partitions):
            end = told.get(found.where)
            if end is None or end.error_code:
                code = ErrorCode.UNKNOWN_SERVER_ERROR if end is None else end.error_code
                self._failing(found, RefusedError(code, f"epochs of {found.where} at broker {leader}"))
                continue
            found.needs_check = False
            found.is_well()
            if end.end_offset < found.fetch_offset:
                self._cut_off(found, end.end_offset)

    def _cut_off(self, found: Partition, end_offset: int) -> None:
        if found.position <= end_offset:
            self.stock.let_go(found)  # only what nobody has seen is not there any more
            return
        first = max(end_offset, 0)
        text = f"{found.where}: offsets [{first}, {found.position}) were read and are not in the log any more"
        self._lack(found, OffsetsMissingError(f"{text}: it was cut off when its leader changed"), end_offset)

    def _lack(self, found: Partition, error: ClientError, end_offset: int = -1) -> None:
        """What was to be read is not there. ``end_offset``: up to there the log is the one that was read."""
        policy = self._settings.on_missing
        if policy == "raise":
            self.stock.fail(found, error)
            return
        logger.warning("%s; reading goes on at on_missing=%r", error, policy)
        if end_offset >= 0:
            self.stock.seek(found, Position(end_offset))
        else:
            self.stock.restart(found, Start(time_ms=EARLIEST if policy == "earliest" else LATEST))
        self.look()

    async def _explain_missing(
        self, partitions: list[Partition], still: Callable[[Partition], bool], leader: int
    ) -> None:
        """`OFFSET_OUT_OF_RANGE`: in words."""
        [found] = partitions
        where, offset = found.where, found.fetch_offset
        begin = await self._offset(leader, where, EARLIEST)
        end = await self._offset(leader, where, LATEST)
        if still(found) and not begin <= offset <= end:  # it may have been behind a leader that was behind
            text = f"{where}: offset {offset} is not in the log, which holds [{begin}, {end})"
            self._lack(found, OffsetsMissingError(f"{text}; on_missing= says where to go on"))
        elif still(found):
            self._failing(found, RefusedError(ErrorCode.OFFSET_NOT_AVAILABLE, f"fetch of {where}, offset {offset}"))

    def _failing(self, found: Partition, error: ClientError) -> None:
        """Try again, or give up when it cannot be mended or has gone on for too long."""
        now = time.monotonic()
        found.failing_since = found.failing_since or now
        is_missing = isinstance(error, UnknownTopicError)
        found.missing_since = (found.missing_since or now) if is_missing else None
        is_mendable = is_missing or is_retriable(error) or _is_vague(error)
        seconds = self._fleet.settings.retry_seconds
        is_over = now - found.failing_since > seconds
        is_gone = is_missing and now - (found.missing_since or now) > MISSING_TOPIC_SECONDS
        if not is_mendable or is_gone:
            self.stock.fail(found, error)
            return
        if is_over:
            what = f"reading {found.where} at offset {found.fetch_offset}"
            self.stock.fail(found, error.again(f"{what} was given up after {seconds:g} s (retry_seconds)"))
            return
        pause = min(BACKOFF_SECONDS_FIRST * 2**found.failures_count, BACKOFF_SECONDS_MAX)
        found.failures_count = min(found.failures_count + 1, 10)
        found.retry_at = now + pause
        found.leader = found.replica = -1
        self.look()

    # ---- 2. fetching

    async def _serve(self, line: _Line, bell: Bell, pause_seconds: float) -> None:
        try:
            while True:
                wanted, bytes_max = self.stock.wanted(line.broker_id, time.monotonic())
                if wanted and pause_seconds:
                    await anyio.sleep(pause_seconds)
                    wanted, bytes_max = self.stock.wanted(line.broker_id, time.monotonic())
                if wanted:
                    await self._fetch(line, wanted, bytes_max)
                    continue
                if not self.stock.uses(line.broker_id):
                    line.hang_up()
                    await line.end_session()
                await bell.wait()
        finally:
            line.hang_up()

    async def _fetch(self, line: _Line, wanted: list[Wanted], bytes_max: int) -> None:
        settings = self._settings
        terms = FetchTerms(settings.isolation, round(settings.wait_seconds * 1000), bytes_max, rack=settings.rack)
        self.stock.sent(line, wanted, bytes_max)
        try:
            response, told = await line.fetch(wanted, terms)
        except ClientError as error:
            for row in wanted:
                found = self.stock.is_current(row)
                if found is not None:
                    self._failing(found, error)
            return
        finally:
            self.stock.answered(line, wanted)
        if response.error_code:
            await self._refused_whole(line, wanted, response.error_code)
            return
        self.stock.take_in(filter(None, [self._fetched(row, answer) for row, answer in told]))

    async def _refused_whole(self, line: _Line, wanted: list[Wanted], code: int) -> None:
        if FetchSession.is_lost(code):
            line.lost_count += 1
            if line.lost_count > 1:
                await anyio.sleep(BACKOFF_SECONDS_FIRST)
            return
        for row in wanted:
            found = self.stock.is_current(row)
            if found is not None:
                self._failing(found, RefusedError(code, f"fetch from broker {line.broker_id}"))

    def _fetched(self, wanted: Wanted, row: Any) -> Fetched | None:
        found = self.stock.is_current(wanted)
        if found is None:
            return None
        if row.error_code:
            self._refused(found, row.error_code)
            return None
        found.is_well()
        if row.high_watermark < 0:
            return None  # above the client's quota nothing is said
        found.high_watermark, found.last_stable_offset = row.high_watermark, row.last_stable_offset
        found.log_start_offset = row.log_start_offset
        records = memoryview(row.records if row.records is not None else b"")
        if row.preferred_read_replica >= 0 and not records.nbytes:
            found.replica, found.replica_until = row.preferred_read_replica, time.monotonic() + REPLICA_SECONDS
            self._serve_from(found.replica)
            return None
        if found.replica >= 0 and time.monotonic() > found.replica_until:
            found.replica = -1
            self.look()
        return self._part(found, wanted, records, row.aborted_transactions or ()) if records.nbytes else None

    def _part(self, found: Partition, wanted: Wanted, records: memoryview, aborted: Iterable[Any]) -> Fetched | None:
        whole, behind = whole_batches(records)
        if behind <= wanted.offset:
            text = f"the answer of {records.nbytes} bytes holds no whole record batch"
            self.stock.fail(found, DamagedDataError(f"{wanted.where}, offset {wanted.offset}: {text}"))
            return None
        transactions = [(entry.producer_id, entry.first_offset) for entry in aborted]
        part = Part(wanted.where, wanted.offset, records[:whole], transactions, self._settings.isolation)
        return Fetched(wanted, part, behind)

    def _refused(self, found: Partition, code: int) -> None:
        source = found.source
        if code != ErrorCode.OFFSET_OUT_OF_RANGE:
            what = f"fetch of {found.where}, offset {found.fetch_offset}, from broker {source}"
            self._failing(found, RefusedError(code, what))
        elif found.replica >= 0:
            found.replica = -1  # it may lag behind: the leader says whether that is so
            self.look()
        else:
            self._ask([found], self._explain_missing, source)


class _Line:
    """The connection to one broker that is fetched on, and its session."""

    def __init__(self, fleet: Fleet, broker_id: int) -> None:
        self.broker_id = broker_id
        self.lost_count = 0
        """Sessions in a row that the broker did not know."""
        self._fleet = fleet
        self._channel: Channel | None = None
        self._session = FetchSession()

    async def fetch(self, wanted: list[Wanted], terms: FetchTerms) -> tuple[Any, list[tuple[Wanted, Any]]]:
        """The answer, and what it tells of each partition. `ClientError`: none came, and the connection is over."""
        version_max = FETCH_WITH_IDS_VERSION - 1 if uses_names(wanted) else None
        try:
            channel = await self._open()
            response = await channel.call(
                ApiKey.FETCH,
                lambda version: self._session.request(version, wanted, terms),
                version_max,
                wait_seconds=terms.wait_ms / 1000,
            )
        except ClientError:
            self.close()
            raise
        except BaseException:
            self.hang_up()
            raise
        told = self._session.took(response)
        if not response.error_code:
            self.lost_count = 0
        return response, told

    async def _open(self) -> Channel:
        channel = self._channel
        if channel is None or channel.is_closed:
            self.close()
            channel = self._channel = await self._fleet.own_channel(self.broker_id)
        return channel

    def close(self) -> None:
        self.hang_up()
        self._session.end()

    def hang_up(self) -> None:
        """What was asked last is not waited for. The session goes on, or is ended."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def end_session(self) -> None:
        """Say that it is over, where it goes on: by a connection that no long fetch holds up."""
        message = self._session.final()
        if message is None:
            return
        with contextlib.suppress(ClientError), anyio.move_on_after(GOODBYE_SECONDS):
            channel = await self._fleet.channel(self.broker_id)
            await channel.call(ApiKey.FETCH, requests.in_any_version(message))


def _is_vague(error: ClientError) -> bool:
    return isinstance(error, RefusedError) and error.code == ErrorCode.UNKNOWN_SERVER_ERROR


def _by_leader(partitions: Iterable[Partition]) -> dict[int, list[Partition]]:
    found: dict[int, list[Partition]] = {}
    for partition in partitions:
        found.setdefault(partition.leader, []).append(partition)
    return found
