"""Groups: who is in them, where they are, and their offsets from outside. Requests and answers first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.client import groups
from tpc_broker.client.admin.asking import gathered, raise_worst
from tpc_broker.client.admin.topics import to_list_offsets
from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.coordinators import CoordinatorKind
from tpc_broker.client.errors import ClientError, RefusedError, UnknownTopicError, UnreachableError, refusal_of
from tpc_broker.client.exchange import Exchange
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.requests import EARLIEST, LATEST, TopicPartition, in_any_version
from tpc_broker.kafka import ApiKey, ErrorCode, messages

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable, Mapping, Sequence

    from tpc_broker.client.admin.asking import Asker
    from tpc_broker.client.groups import DescribedGroup, ListedGroup
    from tpc_broker.client.net.channel import Channel

_MANY_VERSION: Final = 8
"""Of OffsetFetch: from it on, several groups at once."""
_STABLE_VERSION: Final = 7
"""Of OffsetFetch: from it on, offsets that a transaction is about to change can be waited for."""
_NOBODY_IN_IT: Final = -1
_WHY: Final = {
    ErrorCode.UNKNOWN_MEMBER_ID: "the group has members; offsets can be set from outside while it has none",
    ErrorCode.NON_EMPTY_GROUP: "the group has members; that needs a group that has none",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "a member reads the topic; that needs a topic that no member reads",
}


class Lag(NamedTuple):
    """Of one partition. ``committed`` None: the group has no offset there, and ``records`` counts all there are.
    ``records`` counts offsets, of which transactions and compaction leave some empty.
    """

    committed: int | None
    end: int
    records: int


# -- What is asked, and what the answers mean --------------------------------------------------------------------------


def _refusal(code: int, what: str) -> RefusedError:
    why = _WHY.get(ErrorCode(code)) if code in ErrorCode._value2member_map_ else None
    return RefusedError(code, f"{what}: {why}" if why else what)


def to_delete(group: str) -> Exchange[None]:
    """Of the group's coordinator."""

    def read(answer: messages.DeleteGroupsResponse) -> None:
        for row in answer.results:
            if row.error_code:
                what = f"deleting the group {group}"
                raise refusal_of(row, what) if row.error_message else _refusal(row.error_code, what)

    return Exchange(ApiKey.DELETE_GROUPS, in_any_version(messages.DeleteGroupsRequest(groups_names=[group])), read)


def to_fetch_offsets(
    group: str, places: Sequence[TopicPartition] | None, *, require_stable: bool
) -> Exchange[dict[TopicPartition, Position]]:
    """Of the group's coordinator; without partitions of which it has none. ``places`` None: all that it has."""
    kind = messages.OffsetFetchRequest
    topics: dict[str, list[int]] = {}
    for topic, partition in places or ():
        topics.setdefault(topic, []).append(partition)

    def make(version: int) -> Any:
        is_stable = require_stable and version >= _STABLE_VERSION
        if version < _MANY_VERSION:
            old = [kind.OffsetFetchRequestTopic(name=name, partition_indexes=asked) for name, asked in topics.items()]
            return kind(group_id=group, topics=None if places is None else old, require_stable=is_stable)
        new = [kind.OffsetFetchRequestTopics(name=name, partition_indexes=asked) for name, asked in topics.items()]
        asked = kind.OffsetFetchRequestGroup(group_id=group, topics=None if places is None else new)
        return kind(groups=[asked], require_stable=is_stable)

    def read(answer: messages.OffsetFetchResponse) -> dict[TopicPartition, Position]:
        told = answer.groups[0] if answer.groups else answer
        if told.error_code:
            raise RefusedError(told.error_code, f"offsets of the group {group}")
        found: dict[TopicPartition, Position] = {}
        for topic in told.topics:
            for row in topic.partitions:
                where = TopicPartition(topic.name, row.partition_index)
                if row.error_code:
                    raise RefusedError(row.error_code, f"the offset of the group {group} in {where}")
                if row.committed_offset >= 0:
                    found[where] = Position(row.committed_offset, row.committed_leader_epoch, row.metadata or "")
        return found

    return Exchange(ApiKey.OFFSET_FETCH, make, read)


def to_set_offsets(group: str, positions: Mapping[TopicPartition, Position]) -> Exchange[None]:
    """Of the group's coordinator, as nobody who is in it."""
    kind = messages.OffsetCommitRequest
    topics: dict[str, messages.OffsetCommitRequest.OffsetCommitRequestTopic] = {}
    for (topic, partition), position in positions.items():
        topics.setdefault(topic, kind.OffsetCommitRequestTopic(name=topic)).partitions.append(
            kind.OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=position.offset,
                committed_leader_epoch=position.leader_epoch, committed_metadata=position.metadata,
            )
        )  # fmt: skip
    message = kind(
        group_id=group, generation_id_or_member_epoch=_NOBODY_IN_IT, member_id="", topics=list(topics.values())
    )

    def read(answer: messages.OffsetCommitResponse) -> None:
        errors = []
        for topic in answer.topics:
            for row in topic.partitions:
                if row.error_code:
                    where = TopicPartition(topic.name, row.partition_index)
                    what = f"the offset {positions[where].offset} of the group {group} in {where}"
                    errors.append(_refusal(row.error_code, what))
        raise_worst(errors)

    return Exchange(ApiKey.OFFSET_COMMIT, in_any_version(message), read)


def to_delete_offsets(group: str, places: Iterable[TopicPartition]) -> Exchange[None]:
    """Of the group's coordinator."""
    kind = messages.OffsetDeleteRequest
    topics: dict[str, messages.OffsetDeleteRequest.OffsetDeleteRequestTopic] = {}
    for topic, partition in places:
        row = topics.setdefault(topic, kind.OffsetDeleteRequestTopic(name=topic))
        row.partitions.append(kind.OffsetDeleteRequestPartition(partition_index=partition))
    message = kind(group_id=group, topics=list(topics.values()))

    def read(answer: messages.OffsetDeleteResponse) -> None:
        if answer.error_code:
            raise _refusal(answer.error_code, f"deleting offsets of the group {group}")
        raise_worst(
            _refusal(row.error_code, f"deleting the offset of the group {group} in {topic.name}-{row.partition_index}")
            for topic in answer.topics
            for row in topic.partitions
            if row.error_code
        )

    return Exchange(ApiKey.OFFSET_DELETE, in_any_version(message), read)


# -- Who asks ----------------------------------------------------------------------------------------------------------


class Groups:
    """`client.admin.groups`."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def list(self, *, states: Iterable[str] = (), kinds: Iterable[str] = ()) -> builtins.list[ListedGroup]:
        """Of all brokers, by name. ``states`` as Kafka names them ("Stable", "Empty" …), ``kinds`` "classic",
        "consumer", "share"; without them, all.
        """
        asked = tuple(states), tuple(kinds)
        told = await self._asker.all_brokers(lambda _broker_id: groups.to_list(*asked))
        found = {one.group: one for part in told for one in part}
        return [found[name] for name in sorted(found)]

    async def describe(self, group: str) -> DescribedGroup:
        """Classic groups and those of KIP-848, as the coordinator tells them. One that is not there is "Dead"."""

        async def ask(channel: Channel) -> DescribedGroup:
            name = f"{channel.broker_id} ({channel.node.host}:{channel.node.port})"
            if channel.has(ApiKey.CONSUMER_GROUP_DESCRIBE):
                found = await groups.to_describe_consumer(group, name).through(channel)
                if found is not None:
                    return found
            return await groups.to_describe_classic(group, name).through(channel)

        return await self._asker.with_coordinator(CoordinatorKind.GROUP, group, ask)

    async def delete(self, *names: str, missing_ok: bool = False) -> None:
        """With their offsets. `RefusedError`: NON_EMPTY_GROUP while somebody is in it, GROUP_ID_NOT_FOUND when there is
        none, unless ``missing_ok``.
        """

        async def one(group: str) -> None:
            is_unanswered = False

            async def ask(channel: Channel) -> None:
                nonlocal is_unanswered
                try:
                    await to_delete(group).through(channel)
                except UnreachableError:
                    is_unanswered = True
                    raise
                except RefusedError as error:
                    if error.code != ErrorCode.GROUP_ID_NOT_FOUND or not (missing_ok or is_unanswered):
                        raise

            await self._asker.with_coordinator(CoordinatorKind.GROUP, group, ask)

        asked = [lambda group=group: one(group) for group in names]
        raise_worst(each for each in await gathered(asked) if isinstance(each, ClientError))

    async def offsets(
        self, group: str, places: Iterable[TopicPartition] | None = None, *, require_stable: bool = False
    ) -> dict[TopicPartition, Position]:
        """What the group has committed, of these partitions or of all. ``require_stable``: wait for transactions that
        are about to change it; name the partitions, as brokers leave out of "all" those that have no offset yet.
        """
        asked = None if places is None else list(places)
        exchange = to_fetch_offsets(group, asked, require_stable=require_stable)
        found = await self._asker.coordinator(CoordinatorKind.GROUP, group, exchange)
        return dict(sorted(found.items()))

    async def set_offsets(self, group: str, offsets: Mapping[TopicPartition, int | Position]) -> None:
        """Commit these for the group, which nobody may be in; it is made when there is none.
        `RefusedError` names the partition: the others may be set.
        """
        positions = {where: Position(one) if isinstance(one, int) else one for where, one in offsets.items()}
        if positions:
            exchange = to_set_offsets(group, positions)
            await self._asker.coordinator(CoordinatorKind.GROUP, group, exchange)

    async def delete_offsets(self, group: str, places: Iterable[TopicPartition]) -> None:
        """Of topics that no member reads."""
        exchange = to_delete_offsets(group, places)
        await self._asker.coordinator(CoordinatorKind.GROUP, group, exchange)

    async def lag(
        self,
        group: str,
        places: Iterable[TopicPartition] | None = None,
        *,
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> dict[TopicPartition, Lag]:
        """How far the group is behind the end, of these partitions or of all that it has offsets of. Topics that are
        gone are left out.
        """
        asked = None if places is None else list(places)
        committed = await self.offsets(group, asked)
        wanted = await self._existing(sorted(committed) if asked is None else asked)
        ends = await self._bounds(wanted, LATEST, isolation)
        begins = await self._bounds([where for where in wanted if where not in committed], EARLIEST, isolation)
        found: dict[TopicPartition, Lag] = {}
        for where in wanted:
            position, end = committed.get(where), ends[where]
            first = begins[where] if position is None else position.offset
            found[where] = Lag(None if position is None else position.offset, end, max(0, end - first))
        return found

    async def _existing(self, places: builtins.list[TopicPartition]) -> builtins.list[TopicPartition]:
        there: dict[str, bool] = {}
        for name in dict.fromkeys(where.topic for where in places):
            try:
                await self._asker.fleet.topic(name)
            except UnknownTopicError:
                there[name] = False
        return [where for where in places if there.get(where.topic, True)]

    async def _bounds(
        self, places: builtins.list[TopicPartition], bound: int, isolation: Isolation
    ) -> dict[TopicPartition, int]:
        return await self._asker.leaders(
            places, lambda part: to_list_offsets(dict.fromkeys(part, bound), isolation)
        )
