"""The partitions that this core owns: opened, altered and deleted as the image says.

A partition is opened in this order: its files (recovered, or made), a new leader epoch durable in the journal, its
place in the data plane. Only then do the other cores hear of its epoch, and clients of its leader.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import trio

from tpc_broker.broker.lacking_partitions import LackingPartitions
from tpc_broker.broker.partition import Partition
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import JournalStoppedError, MetadataUnreadableError, PartitionNotMadeError, PartitionOfflineError
from tpc_broker.metadata.image import ClusterImage, TopicImage, changed_indexes, changed_topics
from tpc_broker.model import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    CoreId,
    LeaderEpoch,
    PartitionIndex,
    Replica,
    TopicId,
    TopicPartition,
)
from tpc_broker.routing import Assignment

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Iterator

    from tpc_broker.broker.ports import CoreStorage
    from tpc_broker.broker.replicated import CoreWithPartitions
    from tpc_broker.broker.replication_port import Replication
    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.metadata.settings import BrokerConfiguration
    from tpc_broker.metadata.topic_config import TopicConfig
    from tpc_broker.storage.replicas.installation import Judge
    from tpc_broker.storage.segments.partition_storage import PartitionStorage

log = logging.getLogger(__name__)

OPEN_AT_ONCE_MAX = 128
"""Each waits for its epoch to be durable, and those that wait together share a commit: a start with thousands of
partitions waits for a few of them. All of these are begun in one turn, so they are not more.
"""
OPEN_TOGETHER = 512
"""Of those that a start finds sound: no task for each, and one wait for the epochs of all of these."""
MOVE_WAIT_S = 1.0
DAMAGED = "its files were damaged, and it began anew from another replica"
_ON_CORE_0 = Assignment((CoreId(0),))
METADATA_PARTITION = TopicPartition(METADATA_TOPIC_ID, PartitionIndex(0))


class Partitions:
    def __init__(self, core: CoreWithPartitions, storage: CoreStorage) -> None:
        self._core = core
        self._storage = storage
        self._open: dict[TopicPartition, Partition] = {}
        self._offline: dict[TopicPartition, str] = {}
        self._not_made = LackingPartitions()
        self._ending: set[TopicPartition] = set()
        """Replicas before those that come back, whose end has begun."""
        self._config_read: tuple[TopicImage, BrokerConfiguration, TopicConfig] | None = None
        self._going: dict[TopicPartition, tuple[LeaderEpoch, trio.Event]] = {}
        """On their way to another core, with their epochs here; set when all is known of them again."""
        self._here = Replica(core.view.node, core.core_id)
        storage.on_given_up(self._given_up)
        storage.on_epochs_begun(self._epochs_begun)

    @property
    def offline_count(self) -> int:
        """How many have no leader."""
        return len(self._offline)

    def is_offline(self, key: TopicPartition) -> bool:
        """It could not be opened or made here, or was given up."""
        return key in self._offline

    def __len__(self) -> int:
        return len(self._open)

    def opened(self) -> Iterator[Partition]:
        """Partitions of clients and of groups; the metadata log is not among them."""
        return (partition for key, partition in self._open.items() if key != METADATA_PARTITION)

    def get(self, key: TopicPartition) -> Partition | None:
        return self._open.get(key)

    def find(self, topic_key: str | uuid.UUID, index: int, *, with_followers: bool = False) -> Partition | ErrorCode:
        """The partition, or why it cannot be served here. `with_followers`: for a reader that knows of such."""
        topic = self._core.view.topic(topic_key)
        if topic is None:
            named = isinstance(topic_key, str)
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if named else ErrorCode.UNKNOWN_TOPIC_ID
        if not 0 <= index < topic.partitions_count:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        key = TopicPartition(topic.topic_id, PartitionIndex(index))
        partition = self._open.get(key)
        if partition is not None and (partition.is_readable if with_followers else partition.is_led):
            return partition
        if key in self._offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        self._core.note_asked(topic.owner_on(self._core.view.node, key.partition))
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def find_written(self, topic_key: str | uuid.UUID, index: int) -> Partition | None:
        """A replicated partition that takes records here, though clients may not be told its epoch yet."""
        partition = self._replicated(topic_key, index)
        return partition if partition is not None and partition.takes_records else None

    def waiting_for_leader(self, topic_key: str | uuid.UUID, index: int) -> Partition | None:
        """A partition of which this core has a replica: nobody is known to lead it, or who leads it hands it over."""
        partition, replicated = self._replicated(topic_key, index), self._core.replicated
        if partition is None or replicated is None or not replicated.is_between_leaders(partition, to_write=True):
            return None
        return partition

    def _replicated(self, topic_key: str | uuid.UUID, index: int) -> Partition | None:
        topic = self._core.view.topic(topic_key)
        if topic is None or self._core.replicated is None or not topic.is_replicated(index):
            return None
        return self._open.get(TopicPartition(topic.topic_id, PartitionIndex(index)))

    # -- following the image -----------------------------------------------------------------------------------------

    async def open_metadata_log(self) -> Partition:
        """Core 0's metadata log, which no image knows. MetadataUnreadableError when it is damaged."""
        topic = TopicImage(METADATA_TOPIC, METADATA_TOPIC_ID, _ON_CORE_0, 0)
        try:
            files = await self._storage.open(METADATA_PARTITION, topic.name, self._config_of(topic))
        except PartitionOfflineError as error:
            if isinstance(error.__cause__, OSError):  # it is merely not to be made now
                raise
            raise MetadataUnreadableError(str(error)) from error
        return await self._lead(topic, METADATA_PARTITION, files)

    async def follow(self, before: ClusterImage, after: ClusterImage) -> list[tuple[TopicPartition, LeaderEpoch]]:
        """Open, alter and delete what changed; returns what was opened and its epochs."""
        self._storage.follow_level(after)
        opened: list[tuple[TopicPartition, LeaderEpoch]] = []
        limiter = trio.CapacityLimiter(OPEN_AT_ONCE_MAX)
        changed = list(changed_topics(before, after))
        indexes = {new.topic_id: changed_indexes(old, new) for old, new in changed if new is not None}
        owned = {new.topic_id: self._owned(new, indexes[new.topic_id]) for _old, new in changed if new is not None}
        async with trio.open_nursery() as nursery:  # first what goes: a topic may have been made again under its name
            for old, new in changed:
                if new is None:
                    assert old is not None
                    self._core.view.forget_leaders(old)
                    nursery.start_soon(self._delete_topic, old)
        if not before.version:
            await self._storage.forget_unclaimed(after)
        await self._give_up_unclaimed(new for _old, new in changed if new is not None)
        keys_here = ((key, new) for _old, new in changed if new is not None for key in owned[new.topic_id])
        await self._storage.prepare([(key, new.name) for key, new in keys_here if not self._came_back(new, key)])
        recovered = set(self._storage.unclaimed())
        async with trio.open_nursery() as nursery:
            for old, new in changed:
                if new is None:
                    continue
                nursery.start_soon(self._give_up_left_out, new, indexes[new.topic_id])
                keys = owned[new.topic_id]
                await self._begin_new_lives(new, keys)
                await self._release_grouped(new, keys)
                self._forget_others(new)
                opened += self._alter_open(old, new, keys)
                wanted = [key for key in keys if key not in self._open and not self._is_away(key)]
                wanted = await self._end_earlier_lives(new, wanted)
                sound = [key for key in wanted if key in recovered and not new.is_replicated(key.partition)]
                if sound:
                    nursery.start_soon(self._open_together, new, sound, opened)
                for key in wanted:
                    if key not in recovered or new.is_replicated(key.partition):
                        nursery.start_soon(self._open_into, new, key, opened, limiter)
        self._settle_releases(after)
        if before.broker_configs != after.broker_configs:
            self._refresh_configs(after)
        return opened

    async def _begin_new_lives(self, topic: TopicImage, owned: list[TopicPartition]) -> None:
        """Replicas here that were damaged, and are other ones from now on: they are opened anew, empty."""
        replicated = self._core.replicated
        if replicated is None or not topic.lives:
            return
        for key in owned:
            partition = self._open.get(key)
            if partition is not None and partition.is_replicated and replicated.replication.has_other_life(topic, key):
                log.warning("%s-%d is another replica from now on; removing the files", topic.name, key.partition)
                self._close(partition)
                self._storage.keep_aside(key, DAMAGED)
                await self._storage.delete(partition.files, partition.handle)

    async def _release_grouped(self, topic: TopicImage, owned: list[TopicPartition]) -> None:
        """Partitions that are led here alone, and have got a group: they are taken back as replicas."""
        for key in owned if topic.voters else ():
            if self._lacks_group(topic, key):
                await self._release_for_group(key)

    def _lacks_group(self, topic: TopicImage, key: TopicPartition) -> bool:
        partition = self._open.get(key)
        return partition is not None and not partition.is_replicated and topic.is_replicated(key.partition)

    async def _release_for_group(self, key: TopicPartition) -> None:
        """Let it go as for a move to another core. One that cannot be let go is led as before, and is tried again."""
        partition = self._open[key]
        self._core.coordinators.end(key)
        try:
            await self._storage.release(partition.handle, self._here.core, 0, partial(self._close, partition))
        except PartitionOfflineError as error:
            log.warning("%s gets no group yet: %s", partition.label, error)
            self._not_made.add(key)
            self._core.coordinators.begin_if_coordinates(key)

    def damaged(self) -> list[TopicPartition]:
        """Replicas here that could not be opened, or were given up."""
        image = self._core.view.image
        found = []
        for key in self._storage.damaged():
            topic = image.topic_by_id(key.topic_id)
            if topic is not None and topic.is_replicated(key.partition) and topic.is_on(self._here, key.partition):
                found.append(key)
        return found

    async def _give_up_left_out(self, topic: TopicImage, indexes: Iterable[int]) -> None:
        """Replicas here that their group goes on without."""
        replicated = self._core.replicated
        if replicated is None or not topic.lives:
            return
        for index in indexes:
            key = TopicPartition(topic.topic_id, PartitionIndex(index))
            partition = self._open.get(key)
            term = None if partition is None else replicated.replication.leaderships.term_of(key)
            if partition is not None and term is not None and replicated.is_left_out(topic, key, term):
                log.info("%s-%d has no replica here any more; removing its files", topic.name, index)
                self._close(partition)
                await self._storage.delete(partition.files, partition.handle)

    async def _give_up_unclaimed(self, changed: Iterable[TopicImage]) -> None:
        """The same, of what the last run of this core had."""
        replicated = self._core.replicated
        topics = {topic.topic_id: topic for topic in changed if topic.lives}
        if replicated is None or not topics:
            return
        for key, term in self._storage.unclaimed_terms():
            topic = topics.get(key.topic_id)
            if topic is not None and replicated.is_left_out(topic, key, term):
                log.info("%s-%d has no replica here any more; removing its files", topic.name, key.partition)
                await self._storage.delete_offline(key)

    def staying(self) -> list[tuple[TopicPartition, int]]:
        """Replicas here that were left out in an earlier term than the newest that they have heard of, and that one."""
        replicated = self._core.replicated
        if replicated is None:
            return []
        terms: dict[TopicPartition, int | None] = dict(self._storage.unclaimed_terms())
        found = []
        for topic in self._core.view.image.topics.values():
            for index in [index for index, node in topic.lives if node == self._here.node]:
                key = TopicPartition(topic.topic_id, index)
                partition = self._open.get(key)
                is_open = partition is not None and partition.is_replicated
                term = replicated.replication.leaderships.term_of(key) if is_open else terms.get(key)
                since = None if term is None else replicated.left_out_in(topic, key)
                if term is not None and since is not None and term > since:
                    found.append((key, term))
        return found

    async def make_what_could_not_be_made(self, *, due_only: bool = False) -> list[tuple[TopicPartition, LeaderEpoch]]:
        """Try again to make partitions, or what is due; returns which are open now. Not while the image changes."""
        opened: list[tuple[TopicPartition, LeaderEpoch]] = []
        again: dict[TopicId, list[TopicPartition]] = {}
        for key in self._not_made.due(due_only=due_only):
            self._not_made.tried(key)
            topic = self._core.view.image.topic_by_id(key.topic_id)
            if topic is None or not topic.is_on(self._here, key.partition) or self._is_away(key):
                continue
            if self._lacks_group(topic, key):
                await self._release_for_group(key)
            if key not in self._open:
                again.setdefault(key.topic_id, []).append(key)
        for topic_id, keys in again.items():
            topic = self._core.view.image.topics[topic_id]
            for key in await self._end_earlier_lives(topic, keys):
                await self._open_into(topic, key, opened, trio.CapacityLimiter(1))
        return opened

    async def wait_lacking(self) -> None:
        """Until `make_what_could_not_be_made` has anything to try that is due."""
        await self._not_made.wait_due()

    # -- moves between cores -----------------------------------------------------------------------------------------

    def is_led(self, key: TopicPartition) -> bool:
        return key in self._open

    async def release(self, key: TopicPartition, target: CoreId, move_id: int) -> PartitionCheckpoint:
        """Let a partition that is open go to another core; what goes over. Not while the image changes.

        PartitionOfflineError: it cannot be moved now, and is here as before.
        """
        partition, closing = self._open[key], partial(self._close, self._open[key])
        replication = self._replication(partition)
        if replication is not None:
            self._going[key] = LeaderEpoch(replication.leaderships.term_of(key) or 0), trio.Event()
            self.look_at_moves()
            try:
                leave = partial(replication.leaving.leave, key)
                return await self._storage.release(partition.handle, target, move_id, closing, leave)
            except JournalStoppedError:
                raise
            except PartitionOfflineError:
                self._has_gone(key)
                replication.leaving.stay(key)
                raise
        self._core.coordinators.end(key)
        self._going[key] = partition.leader_epoch, trio.Event()
        try:
            return await self._storage.release(partition.handle, target, move_id, closing)
        except PartitionOfflineError:
            self._has_gone(key)
            await self._core.coordinators.follow(self._core.view.image, self._core.view.image)
            raise

    def _replication(self, partition: Partition) -> Replication | None:
        """Of a replica."""
        replicated = self._core.replicated
        return replicated.replication if partition.is_replicated and replicated is not None else None

    async def step_aside(self, key: TopicPartition) -> None:
        """Before it is released: another replica leads it, if there is one that can; for as long as that may take."""
        partition = self._open.get(key)
        replication = None if partition is None else self._replication(partition)
        if replication is not None:
            await replication.leaving.step_aside(key)

    @property
    def is_any_moving(self) -> bool:
        return bool(self._going)

    async def wait_moved(self, topic_key: str | uuid.UUID, index: int) -> bool:
        """While a partition goes to another core: until it is known who leads it since, or for a while. Then clients
        can be sent there at once, and need not come back to ask. Whether there was something to wait for.
        """
        topic = self._core.view.topic(topic_key) if self._going else None
        going = None if topic is None else self._going.get(TopicPartition(topic.topic_id, PartitionIndex(index)))
        if going is not None:
            with trio.move_on_after(MOVE_WAIT_S):
                await going[1].wait()
        return going is not None

    def look_at_moves(self) -> None:
        """Something that Metadata tells is another."""
        for key, (epoch, _is_there) in list(self._going.items()):
            topic = self._core.view.image.topics.get(key.topic_id)
            if topic is None or self._core.view.is_led_since(topic, key.partition, epoch):
                self._has_gone(key)

    def _has_gone(self, key: TopicPartition) -> None:
        if key in self._going:
            self._going.pop(key)[1].set()

    async def adopt(self, key: TopicPartition, released: PartitionCheckpoint) -> None:
        """Take a partition over that another core let go. PartitionOfflineError: its files cannot be used."""
        topic = self._core.view.image.topics[key.topic_id]
        if topic.is_replicated(key.partition):
            await self._keep_life(topic, key)
        await self._storage.adopt(released, self._config_of(topic))

    async def _keep_life(self, topic: TopicImage, key: TopicPartition) -> None:
        """A replica that moves is the voter that it was: this is durable before the core has it."""
        replicated = self._core.replicated
        assert replicated is not None, "only a cluster has such partitions"
        try:
            if replicated.replication.has_other_life(topic, key):
                await replicated.replication.begin_lives(topic, [key])
        except OSError as error:
            raise PartitionNotMadeError(f"what replica this is cannot be written: {error}") from error

    async def open_adopted(self, key: TopicPartition) -> None:
        """Lead what was adopted, or have its replica take part; clients hear of it when the image says whose it is, or
        its group has elected it. Errors of `CoreStorage.open`.
        """
        image = self._core.view.image
        if key not in self._open:
            topic = image.topics[key.topic_id]
            if topic.is_replicated(key.partition) and key in self._storage.damaged():
                return  # as its owner this core has it begin anew
            files = await self._storage.open(key, topic.name, self._config_of(topic))
            if topic.is_replicated(key.partition):
                await self._begin_group(topic, key, files)
                self._join(topic, key, files)
            else:
                await self._lead(topic, key, files)
        await self._core.coordinators.follow(image, image)

    async def install(self, key: TopicPartition, judge: Judge) -> bool:
        """Replace a replica's files by those of a filled folder, and open it with them; whether that was done. Not
        while the image changes. PartitionOfflineError: the journal fails; or it could not be opened again.
        """
        topic, partition = self._core.view.image.topic_by_id(key.topic_id), self._open.get(key)
        if topic is None or not topic.is_on(self._here, key.partition):
            return False

        def then() -> None:
            if partition is not None:
                self._close(partition)

        if not await self._storage.install(key, self._config_of(topic), judge, then):
            return False
        for each in await self._end_earlier_lives(topic, [key]):
            await self._open_into(topic, each, [], trio.CapacityLimiter(1))
        return True

    def _close(self, partition: Partition) -> None:
        """It is served here no more: who waits for it is told so."""
        self._open.pop(partition.key, None)
        partition.is_open = False
        if partition.followed_epoch is not None:
            partition.followed_epoch = None
            self._core.plane.serve_reads(partition.handle, None)
        if partition.is_replicated and self._core.replicated is not None:
            self._core.replicated.remove(partition.key)
        self._core.purgatory.advanced(partition.handle)

    def _is_away(self, key: TopicPartition) -> bool:
        """Whether it was released here for a move that is under way."""
        checkpoint, move = self._storage.released(key), self._core.view.image.moving.get(key)
        released = None if checkpoint is None else checkpoint.released
        return released is not None and move is not None and released.move_id == move.move_id

    def _settle_releases(self, image: ClusterImage) -> None:
        """What was released and is another core's now is forgotten; what is this one's again is to be taken back."""
        for key in self._storage.all_released():
            topic = image.topics.get(key.topic_id)
            if topic is None or self._is_away(key):
                continue
            if not 0 <= key.partition < topic.partitions_count or not topic.is_on(self._here, key.partition):
                self._storage.forget_release(key)
            else:
                self._not_made.add(key)

    # -- opening and closing -----------------------------------------------------------------------------------------

    def _owned(self, topic: TopicImage, indexes: Iterable[int]) -> list[TopicPartition]:
        """Of these."""
        return [
            TopicPartition(topic.topic_id, PartitionIndex(index)) for index in indexes if topic.is_on(self._here, index)
        ]

    def _forget_others(self, topic: TopicImage) -> None:
        """What another core has now is not offline here."""
        for index in range(topic.partitions_count if self._offline else 0):
            if not topic.is_on(self._here, index):
                self._offline.pop(TopicPartition(topic.topic_id, PartitionIndex(index)), None)

    async def _open_into(
        self,
        topic: TopicImage,
        key: TopicPartition,
        opened: list[tuple[TopicPartition, LeaderEpoch]],
        limiter: trio.CapacityLimiter,
    ) -> None:
        async with limiter:
            try:
                partition = await self._open_one(topic, key)
            except JournalStoppedError as error:
                log.info("%s-%d is not opened any more: %s", topic.name, key.partition, error)
                return
            except PartitionOfflineError as error:
                self._could_not_open(topic, key, error)
                return
        self._is_open_now(partition, opened)

    async def _open_together(
        self, topic: TopicImage, keys: list[TopicPartition], opened: list[tuple[TopicPartition, LeaderEpoch]]
    ) -> None:
        """Recovered ones that have no replicas elsewhere."""
        for first in range(0, len(keys), OPEN_TOGETHER):
            files_of: dict[TopicPartition, PartitionStorage] = {}
            for key in keys[first : first + OPEN_TOGETHER]:
                try:
                    files_of[key] = await self._storage.open(key, topic.name, self._config_of(topic))
                except PartitionOfflineError as error:
                    self._could_not_open(topic, key, error)
            if not files_of:
                continue
            try:
                await self._storage.begin_epochs(list(files_of.values()))
            except JournalStoppedError as error:
                log.info("%s: %d partitions are not opened any more: %s", topic.name, len(keys) - first, error)
                return
            except PartitionOfflineError as error:
                for key in files_of:
                    self._could_not_open(topic, key, error)
                continue
            for key, files in files_of.items():
                self._is_open_now(self._register(topic, key, files, is_replicated=False), opened)

    def _could_not_open(self, topic: TopicImage, key: TopicPartition, error: PartitionOfflineError) -> None:
        if self._offline.get(key) != str(error):
            log.error("%s-%d is offline: %s", topic.name, key.partition, error)
        self._offline[key] = str(error)
        if isinstance(error, PartitionNotMadeError):
            self._not_made.add(key)

    def _is_open_now(self, partition: Partition, opened: list[tuple[TopicPartition, LeaderEpoch]]) -> None:
        if self._offline.pop(partition.key, None) is not None:
            log.warning("%s is open now", partition.label)
        if not partition.is_replicated:
            opened.append((partition.key, partition.leader_epoch))

    async def _open_one(self, topic: TopicImage, key: TopicPartition) -> Partition:
        if await self._storage.is_left_over(key, topic.name):
            await self._core.holders.ask_others(key)
        files = await self._storage.open(key, topic.name, self._config_of(topic))
        if topic.is_replicated(key.partition):
            await self._begin_group(topic, key, files)
            return self._join(topic, key, files)
        return await self._lead(topic, key, files)

    async def _end_earlier_lives(self, topic: TopicImage, keys: list[TopicPartition]) -> list[TopicPartition]:
        """Replicas that came back to this node begin with nothing: what is here of them is other voters'. Which of all
        may be opened now.
        """
        back = [key for key in keys if self._came_back(topic, key)]
        try:
            if back:
                await self._begin_again(topic, back)
                await self._storage.prepare([(key, topic.name) for key in back])
        except JournalStoppedError as error:
            log.info("%s: %d partitions are not opened any more: %s", topic.name, len(back), error)
        except PartitionOfflineError as error:
            for key in back:
                self._could_not_open(topic, key, error)
        return [key for key in keys if key not in back or not self._came_back(topic, key)]

    def _came_back(self, topic: TopicImage, key: TopicPartition) -> bool:
        """It is to be another replica than the last one of this node. Until it is, its folder's name is that one's."""
        replicated = self._core.replicated
        if replicated is None or not topic.is_replicated(key.partition):
            return False
        return replicated.replication.has_other_life(topic, key)

    async def _begin_again(self, topic: TopicImage, keys: list[TopicPartition]) -> None:
        """PartitionOfflineError."""
        replicated = self._core.replicated
        assert replicated is not None, "only a cluster has such partitions"
        for key in keys:
            if self._storage.has(key):
                if key not in self._ending:
                    self._ending.add(key)
                    log.info("%s-%d is another replica by now; removing its old files", topic.name, key.partition)
                if key in self._storage.damaged():
                    self._storage.keep_aside(key, DAMAGED)
                await self._storage.delete_offline(key)
            else:
                await self._storage.forget_mark(key)
        if self._storage.remembers(keys) and not await self._storage.checkpoint():
            # The ends of the ones before are not to be replayed over what comes now.
            raise PartitionNotMadeError("there is no checkpoint yet behind the end of the replica before")
        if any(self._storage.has(key) and self._storage.remembers([key]) for key in keys):
            raise PartitionNotMadeError("the replica before is not deleted yet")
        self._ending.difference_update(keys)
        await self._core.holders.others_forget(keys)
        try:
            await replicated.replication.begin_lives(topic, keys)
        except OSError as error:
            raise PartitionNotMadeError(f"what replica this is cannot be written: {error}") from error

    async def _begin_group(self, topic: TopicImage, key: TopicPartition, files: PartitionStorage) -> None:
        """Of a partition that this node has had alone: its group begins behind the records that are there."""
        assert self._core.replicated is not None, "only a cluster has such partitions"
        note = self._core.replicated.replication.first_note(topic, key, files)
        if note:
            await self._storage.begin_epoch(files, note)

    def _join(self, topic: TopicImage, key: TopicPartition, files: PartitionStorage) -> Partition:
        """One of several replicas: its group decides who leads."""
        replicated = self._core.replicated
        assert replicated is not None, "only a cluster has such partitions"
        partition = self._register(topic, key, files, is_replicated=True)
        replicated.add(topic, partition)
        return partition

    async def _lead(self, topic: TopicImage, key: TopicPartition, files: PartitionStorage) -> Partition:
        await self._storage.begin_epoch(files)
        return self._register(topic, key, files, is_replicated=False)

    def _register(
        self, topic: TopicImage, key: TopicPartition, files: PartitionStorage, *, is_replicated: bool
    ) -> Partition:
        config = self._config_of(topic)
        is_internal = topic.is_internal or key == METADATA_PARTITION
        handle = self._storage.register(files, config, is_internal=is_internal, is_replicated=is_replicated)
        partition = Partition(
            topic.topic_id, topic.name, key.partition, config, plane=self._core.plane, storage=self._storage,
            files=files, handle=handle, is_internal=is_internal, is_replicated=is_replicated,
        )  # fmt: skip
        self._open[key] = partition
        if not is_replicated:  # a replica that moved has a leader when its group says so
            self._has_gone(key)
        return partition

    def _config_of(self, topic: TopicImage) -> TopicConfig:
        """Read once for all partitions of a topic that are opened together."""
        configuration, read = self._core.configuration, self._config_read
        if read is None or read[0] is not topic or read[1] is not configuration:
            is_internal = topic.is_internal or topic.topic_id == METADATA_TOPIC_ID
            config = configuration.topic_config(topic.configs, is_internal=is_internal)
            read = self._config_read = topic, configuration, config
        return read[2]

    def _alter_open(
        self, old: TopicImage | None, new: TopicImage, owned: list[TopicPartition]
    ) -> list[tuple[TopicPartition, LeaderEpoch]]:
        """Partitions of a changed topic that are led here; returns those that came from another core, as all may know
        from now on.
        """
        here, came = (self._core.view.node, self._core.core_id), []
        for key in owned:
            partition = self._open.get(key)
            if partition is not None:
                self._alter(partition, new)
                if partition.is_replicated or old is None or old.owner_on(here[0], key.partition) == here[1]:
                    continue
                came.append((key, partition.leader_epoch))
        return came

    def _alter(self, partition: Partition, topic: TopicImage) -> None:
        config = self._config_of(topic)
        if config != partition.config:
            partition.config = config
            self._storage.alter(
                partition.files, partition.handle, config,
                is_internal=partition.is_internal, is_replicated=partition.is_replicated,
            )  # fmt: skip

    def _refresh_configs(self, image: ClusterImage) -> None:
        for key, partition in self._open.items():
            topic = image.topic_by_id(key.topic_id)
            if topic is not None:
                self._alter(partition, topic)

    async def _delete_topic(self, topic: TopicImage) -> None:
        for index in range(topic.partitions_count):
            key = TopicPartition(TopicId(topic.topic_id), PartitionIndex(index))
            partition = self._open.pop(key, None)
            if partition is None:
                if self._offline.pop(key, None) is not None or self._storage.released(key) is not None:
                    await self._storage.delete_offline(key)
                continue
            self._close(partition)
            await self._storage.delete(partition.files, partition.handle)

    def _epochs_begun(self, epochs: list[tuple[TopicPartition, LeaderEpoch]]) -> None:
        """The storage has begun them by itself: clients are to hear of those that are still open."""
        self._core.leads_in_new_epochs([(key, epoch) for key, epoch in epochs if key in self._open])

    def _given_up(self, key: TopicPartition, reason: str) -> None:
        partition = self._open.get(key)
        if partition is None:
            return
        self._offline[key] = reason
        self._close(partition)
        if not partition.is_replicated:
            self._core.has_no_leader(key)

    async def make_room(self, partition: Partition, size: int) -> None:
        """Segment space for so many bytes of records; OSError or PartitionOfflineError when there is none."""
        await self._storage.make_room(partition.files, partition.handle, size)

    async def wait_journal_room(self) -> None:
        """For whoever was told that the journal is full: until it is worth trying again."""
        await self._storage.wait_journal_room()

    # -- retention ---------------------------------------------------------------------------------------------------

    async def retain_all(self) -> int:
        """One round of retention over all partitions; how many segments went."""
        gone = 0
        for partition in list(self._open.values()):
            if partition.key == METADATA_PARTITION or not partition.is_open:
                continue
            try:
                gone += await self._storage.retain(partition.files, partition.handle, self._core.clock.wall_ms())
            except PartitionOfflineError as error:
                log.warning("retention of %s: %s", partition.label, error)
        await self._storage.purge_folders()
        return gone

    # -- drain -------------------------------------------------------------------------------------------------------

    async def drain(self) -> bool:
        """`CoreStorage.drain`."""
        return await self._storage.drain()
