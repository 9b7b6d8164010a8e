"""What is asked of a simulated core's partitions: appends of all kinds, transactions, retention, readers, deletions."""

from __future__ import annotations

import dataclasses
import uuid
from collections import Counter
from itertools import count

import trio

from tests.log.log_batches import batch
from tests.simulator.core_life import REFUSALS, WALL_MS
from tests.simulator.core_truth import STAMPED_BYTES, Batch, PartitionTruth, batches_of
from tpc_broker.broker.producers_port import EndMarker
from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import PartitionIndex, TopicId, TopicPartition

VALUE_BYTES = (10, 300, 3000, 7000, 12_000, 20_000, 40_000)
SEGMENT_BYTES = 300_000
BYTES_KEPT = 400_000
READ_BYTES = 30_000
REST_S = 0.002
AFTER_REFUSAL_S = 0.02
MAY_BE_TOLD = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE}
IDEMPOTENT, TRANSACTIONAL = 7, 8
ACTIONS = ((5, "append"), (6, "produce"), (2, "transact"), (2, "read"), (1, "trim"), (1, "retain"))


def config_of_topics():
    config = load_settings("", ("log.segment.bytes=1048576",)).topic_config({}, is_internal=False)
    for name, value in (("segment_bytes", SEGMENT_BYTES), ("index_interval_bytes", 500), ("file_delete_delay_ms", 50)):
        object.__setattr__(config, name, value)
    return config


class Load:
    """On one core, over all its lives."""

    def __init__(self, world, partitions):
        self.world, self.chance = world, world.stream("load")
        self._numbers = count(1000)
        self.config = config_of_topics()
        self.truths = [self._new(f"topic{number}") for number in range(partitions)]
        self.counts = Counter(acknowledged=0)
        self.is_stopping = False
        self.handles = {}

    def _new(self, topic):
        key = TopicPartition(TopicId(uuid.UUID(int=next(self._numbers))), PartitionIndex(0))
        return PartitionTruth(topic, key)

    def count(self, life):
        """What it has come to."""
        journal, kept = life.plane.journal_statistics(), life.storage.counters()
        self.counts["written in place"] += journal["in_place_bytes_written"]
        self.counts["commits"] += journal["commits_durable"]
        self.counts["commits failed"] += journal["commits_failed"]
        self.counts["refused for want of journal"] += journal["refused_full"]
        self.counts["checkpoints"] += kept["checkpoints"]
        self.counts["full"] += kept["disk_full_refusals"]
        self.counts["segments"] += sum(len(files.segments) for files in life.recovered.storages.values())

    # -- a life --------------------------------------------------------------------------------------------------------

    async def check(self, life):
        """What recovery has found."""
        recovered = life.recovered
        assert not recovered.offline, [one.reason for one in recovered.offline.values()]
        for truth in self.truths:
            storage = recovered.storages.get(truth.key)
            if storage is None:
                assert not truth.promised, f"{truth.topic} is gone"
                continue
            start = storage.log_start_offset
            data, offset = b"", max(start, storage.segments[0].base_offset)
            while offset < storage.written_end_offset:
                some = bytes(await storage.read(offset, 1 << 20))
                *_, (_base, offset, _lasting) = batches_of(some)
                data += some
            truth.check_recovered(data, start, storage.written_end_offset)
            truth.check_producers(storage.producers)

    async def open(self, life):
        """Every partition, and leave what was deleted."""
        storage = life.storage
        self.handles, self.files = {}, {}
        alive = {truth.key for truth in self.truths}
        for key in [key for key in life.recovered.storages if key not in alive]:
            await storage.delete_offline(key)
        for truth in self.truths:
            await self._open(life, truth)

    async def _open(self, life, truth):
        storage = life.storage
        while True:
            try:
                files = await storage.open(truth.key, truth.topic, self.config)
                await storage.begin_epoch(files)
            except REFUSALS:
                await trio.sleep(AFTER_REFUSAL_S)
            else:
                break
        self.files[truth.topic] = files
        self.handles[truth.topic] = storage.register(files, self.config, is_internal=False)

    async def act(self, life, number, truth):
        """One of those who work on a partition, as long as it lives."""
        names, weights = [name for _weight, name in ACTIONS], [weight for weight, _name in ACTIONS]
        while not self.is_stopping:
            name = self.chance.choices(names, weights)[0]
            try:
                await getattr(self, name)(life, number, truth)
            except REFUSALS:
                self.counts["refused"] += 1
                await trio.sleep(AFTER_REFUSAL_S)
            await trio.sleep(self.chance.uniform(0, REST_S))

    # -- what is asked -------------------------------------------------------------------------------------------------

    async def append(self, life, _number, truth):
        """Some batches of nobody's, in one go."""
        asked = []
        for _ in range(self.chance.randint(1, 3)):
            data = batch(0, [self._value(), b""], timestamp=WALL_MS)
            result = await self._until_taken(life, truth, data, life.plane.append)
            asked.append((result, Batch(result[0], result[1], data[STAMPED_BYTES:])))
            truth.ask(asked[-1][1])
        for result, one in asked:
            await self._wait(life, truth, result, one)

    def _value(self):
        return self.chance.randbytes(self.chance.choice(VALUE_BYTES))

    async def _until_taken(self, life, truth, data, append):
        while True:
            await life.storage.make_room(self.files[truth.topic], self.handles[truth.topic], len(data))
            result = append(self.handles[truth.topic], data)
            if result is not None:
                return result
            await trio.sleep(REST_S)

    async def _wait(self, life, truth, result, one):
        await life.plane.wait_committed(self.handles[truth.topic], result[1], result[2])
        truth.acknowledge(one)
        self.counts["acknowledged"] += 1

    async def produce(self, life, number, truth):
        """As an idempotent producer does: what it knows nothing of it sends again, until that is acknowledged."""
        producer_id = IDEMPOTENT + 10 * number
        sequence = truth.sequences.get(producer_id, 0)
        data = truth.unsure.get(producer_id)
        is_repeat = data is not None
        if data is None:
            data = batch(0, [self._value()], timestamp=WALL_MS, producer=(producer_id, 0, sequence))
            truth.unsure[producer_id] = data
        result = await self._until_taken(life, truth, data, life.produce)
        assert result[3] in MAY_BE_TOLD, f"{truth.topic}: {ErrorCode(result[3]).name} for sequence {sequence}"
        if result[3]:
            return
        one = Batch(result[0], result[1], data[STAMPED_BYTES:], producer_id, sequence)
        truth.ask(one)
        await self._wait(life, truth, result, one)
        self.counts["repeated"] += is_repeat
        truth.sequences[producer_id] = sequence + 1
        del truth.unsure[producer_id]

    async def transact(self, life, number, truth):
        """A batch of a transaction, or its end."""
        producer_id, plane = TRANSACTIONAL + 10 * number, life.plane
        handle = self.handles[truth.topic]
        if self.chance.random() < 0.5:
            data = batch(0, [self._value()], timestamp=WALL_MS, producer=(producer_id, 0, 0), transactional=True)
            result = await self._until_taken(life, truth, data, plane.append)
            one = Batch(result[0], result[1], data[STAMPED_BYTES:], producer_id, 0, "open")
        else:
            marker = EndMarker(producer_id, 0, 0, commits=self.chance.random() < 0.5, transaction_version=1)
            await life.storage.make_room(self.files[truth.topic], handle, 200)
            result = plane.append_marker(handle, marker)
            if result is None:
                return
            assert not result.error_code, ErrorCode(result.error_code)
            one = Batch(result[0], result[1], b"", producer_id, -1, "end")
        truth.ask(one)
        await self._wait(life, truth, result, one)

    async def read(self, life, _number, truth):
        """Somewhere in what a reader may see: from memory, or from the segments."""
        plane, handle = life.plane, self.handles[truth.topic]
        bounds = plane.bounds(handle)
        assert bounds.log_start_offset <= bounds.last_stable_offset <= bounds.high_watermark <= bounds.log_end_offset
        truth.visible_upto(bounds.high_watermark)
        if bounds.high_watermark == bounds.log_start_offset:
            return
        offset = self.chance.randrange(bounds.log_start_offset, bounds.high_watermark)
        found = plane.read(handle, offset, bounds.high_watermark, READ_BYTES, True)
        if found is not None:
            data = b"".join(map(bytes, found[0]))
        else:
            data = bytes(await self.files[truth.topic].read(offset, READ_BYTES, bounds.high_watermark))
            if offset < plane.bounds(handle).log_start_offset:
                return
        first = next(batches_of(data), None)
        is_there = first is not None and first[0] <= offset < first[1]
        assert is_there, f"{truth.topic}: nothing is read at {offset}"
        truth.shown(data)
        self.counts["read"] += 1

    async def trim(self, life, _number, truth):
        """As DeleteRecords does."""
        bounds = life.plane.bounds(self.handles[truth.topic])
        offset = self.chance.randint(bounds.log_start_offset, bounds.high_watermark)
        if offset > bounds.log_start_offset and self.chance.random() < 0.3:
            truth.log_start_asked = max(truth.log_start_asked, offset)
            await life.storage.set_log_start(self.handles[truth.topic], offset)
            truth.log_start = max(truth.log_start, offset)

    async def retain(self, life, _number, truth):
        """As the settings of a topic that keeps little."""
        files = self.files[truth.topic]
        if self.chance.random() < 0.3:
            truth.retaining += 1
            settings, files.settings = files.settings, dataclasses.replace(files.settings, retention_bytes=BYTES_KEPT)
            try:
                await life.storage.retain(files, self.handles[truth.topic], WALL_MS)
                bounds = life.plane.bounds(self.handles[truth.topic])
            finally:
                files.settings = settings
            truth.retaining -= 1
            truth.log_start_asked = max(truth.log_start_asked, bounds.high_watermark)
            truth.log_start = max(truth.log_start, bounds.log_start_offset)

    async def replace(self, life):
        """The topic that is made anew again and again."""
        while not self.is_stopping:
            await trio.sleep(self.chance.uniform(0.1, 0.4))
            old, self.truths[-1] = self.truths[-1], self._new(self.truths[-1].topic)
            old.is_deleted = True
            await life.storage.delete(self.files[old.topic], self.handles[old.topic])
            await self._open(life, self.truths[-1])
