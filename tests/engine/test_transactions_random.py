"""Random logs with transactions, in C and in their twin (`log.state`): alone, led with a majority elsewhere, followed.

After each step both have the same producers, transactions and last stable offset, at the log's end and as far as it is
durable. The twin goes back, when appends are lost or cut, to what it was when they came; C undoes, or finds out anew.

`--seed` replays a failure.
"""

import uuid
from random import Random

import pytest

from tests.support.plane_bench import NOW_MS, PlaneBench, settings_with, topic_id_of
from tests.support.record_batches import CONTROL, TRANSACTIONAL, Record, batch
from tpc_broker._ring import lib
from tpc_broker.engine.told_producers import told_producers
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka.records import ControlType, control_batch
from tpc_broker.log.batch import walk_headers
from tpc_broker.log.checkpoint import PartitionCheckpoint, decode_entry
from tpc_broker.log.producer_state import ProducerState
from tpc_broker.log.state import LogState, encode_ended, encode_producers

STEPS = 700
PRODUCERS = 6
EXPIRY_MS = 86_400_000
NAMES = ("alone", "leader", "follower")
MARKER_KEYS = (b"\x08\0\0\0\0", b"\x08\0\0\0\1")


def copy_of(state):
    return LogState((), state.producers.copy(), state.ended)


class Log:
    """A partition, and what it ought to be: `states[offset]` is the twin's where a batch ends."""

    def __init__(self, world, name):
        self.world, self.name, self.random, self.plane = world, name, world.random, world.bench.plane
        self.is_replicated = name != "alone"
        self.term = self.start = self.end = self.durable = self.seen = self.written = 0
        self.batches, self.states, self.is_stale = [], {0: LogState()}, False
        self.aborted, self.aborted_from, self.stale_from = [], 0, 0
        self.register()

    def register(self):
        self.handle = self.plane.register(
            self.name, topic_id_of(self.name), 0, log_start_offset=self.start, log_end_offset=self.end,
            high_watermark=self.seen, settings=settings_with(leader_epoch=self.term), is_led=False,
        )  # fmt: skip
        self.aborted_from = self.end
        if self.is_replicated:
            self.plane.set_replicated(self.handle)
        self.begin_term()

    def begin_term(self):
        self.term = self.plane.state(self.handle).leader_epoch + 1
        begin = self.plane.follow if self.name == "follower" else self.plane.arm
        begin(self.handle, self.term)

    @property
    def state(self):
        return self.states[self.end]

    # -- appends -----------------------------------------------------------------------------------------------------

    def some_batch(self, offset):
        random, producer_id = self.random, self.random.randrange(-1, PRODUCERS)
        known = self.state.producers.producers.get(producer_id)
        epoch = max(0, (known.epoch if known else 0) + random.choice([0, 0, 0, 0, 1, 2]))
        records = [Record(b"x" * random.choice([1, 50, 9_000]))] * random.choice([1, 1, 3])
        where = {"base_offset": offset, "leader_epoch": self.term, "base_timestamp_ms": self.world.now_ms}
        if producer_id < 0:
            return batch(records, **where)
        kind = random.random()
        if kind < 0.35 and self.name == "follower":  # where no judge is
            return self.marker(offset, producer_id, epoch, random.randrange(3))
        if kind < 0.4:  # none that ends anything
            key = random.choice([b"\0\0\0\2", b"\0\0", None])
            control = [Record(b"\0\0\0\0\0\1", key)] * random.randrange(2)
            return batch(
                control, attributes=TRANSACTIONAL | CONTROL, producer=(producer_id, epoch + 3, -1), last_offset_delta=0,
                **where,
            )  # fmt: skip
        attributes = random.choice([0, TRANSACTIONAL, TRANSACTIONAL])
        return batch(records, attributes=attributes, producer=(producer_id, epoch, random.randrange(9)), **where)

    def marker(self, offset, producer_id, epoch, coordinator_epoch, *, commits=None):
        commits = self.random.random() < 0.5 if commits is None else commits
        return control_batch(
            ControlType.COMMIT if commits else ControlType.ABORT, producer_id=producer_id, producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch, timestamp_ms=self.world.now_ms, base_offset=offset,
            partition_leader_epoch=self.term,
        )  # fmt: skip

    def append(self):
        data, offset = b"", self.end
        for _ in range(self.random.choice([1, 1, 2, 3])):
            one = self.some_batch(offset)
            self.take(one)
            data, offset = data + one, self.end
        if self.name == "follower":
            appended = self.plane.append_replica(self.handle, self.term, data)
        else:
            appended = self.plane.append(self.handle, data)
        assert (appended.error_code, appended.next_offset) == (ErrorCode.NONE, self.end)

    def take(self, data):
        ((header, place),) = walk_headers(data)
        state = copy_of(self.state)
        says_nothing = header.is_control and (not header.records_count or data[65:70] not in MARKER_KEYS)
        if not says_nothing:
            aborted = state.take(header, data, place)
            if aborted is not None:
                self.aborted.append((aborted.producer_id, aborted.first_offset, aborted.last_offset))
            self.hear(state, header.producer_id)
        self.batches.append((header.base_offset, data))
        self.end = header.next_offset
        self.states[self.end] = state

    def hear(self, state, producer_id):
        known = state.producers.producers.get(producer_id)
        if known:
            known.last_timestamp = known.silent_since_ms = self.world.now_ms

    def end_one(self):
        """A marker, if the judge lets it in."""
        if self.name == "follower":
            self.append()
            return
        random, producer_id = self.random, self.random.randrange(PRODUCERS)
        known = self.state.producers.producers.get(producer_id)
        epoch = max(0, (known.epoch if known else 0) + random.choice([-1, 0, 0, 1, 1, 1]))
        coordinator_epoch = max(0, (known.coordinator_epoch if known else 0) + random.choice([-1, 0, 0, 0, 1]))
        version, commits, expected = random.choice([1, 2]), random.random() < 0.5, ErrorCode.NONE
        if known:
            is_open = known.transaction_first_offset >= 0
            if coordinator_epoch < known.coordinator_epoch:
                expected = ErrorCode.TRANSACTION_COORDINATOR_FENCED
            elif epoch < known.epoch or (version == 2 and is_open and epoch == known.epoch):
                expected = ErrorCode.INVALID_PRODUCER_EPOCH
        appended = self.plane.append_marker(
            self.handle, (producer_id, epoch), coordinator_epoch, commits=commits, version=version
        )
        assert appended.error_code == expected
        if expected is ErrorCode.NONE:
            self.take(self.marker(self.end, producer_id, epoch, coordinator_epoch, commits=commits))

    # -- what becomes of them ----------------------------------------------------------------------------------------

    def settled(self):
        self.durable = self.end
        if not self.is_replicated:
            self.seen = self.durable

    def commit(self):
        ends = [offset for offset in self.states if self.seen <= offset <= self.durable]
        if self.is_replicated and ends:
            self.seen = self.random.choice(ends)
            self.plane.commit(self.handle, self.term, self.seen)

    def cut_to(self, offset):
        self.batches = [one for one in self.batches if one[0] < offset]
        self.states = {end: state for end, state in self.states.items() if end <= offset}
        self.aborted = [one for one in self.aborted if one[2] < offset]
        self.end = self.durable = offset

    def lose(self):
        self.cut_to(self.durable)

    def cut(self):
        """As a follower whose leader has another log; producers are found out anew, perhaps later."""
        if self.name != "follower" or self.durable != self.end or self.is_stale:
            return
        offset = self.random.choice([end for end in self.states if end >= self.seen])
        self.plane.truncate(self.handle, offset, self.term)
        self.written = min(self.written, offset)
        self.cut_to(offset)
        self.aborted_from = min(self.aborted_from, offset)
        self.is_stale, self.stale_from = True, offset
        self.begin_term()

    def find_out(self):
        if not self.is_stale or self.durable != self.end:
            return
        at = self.states[self.written]
        self.plane.reset_producers(self.handle, encode_producers(at.producers, at.ended))
        self.is_stale = False
        if self.stale_from < self.written:
            self.aborted_from = max(self.aborted_from, self.written)
        for known in at.producers:  # so silent that they would be forgotten at once: as of now
            if known.last_timestamp <= self.world.now_ms - EXPIRY_MS:
                self.hear(at, known.producer_id)
        batches = self.batches
        self.cut_to(self.written)
        for _offset, data in [one for one in batches if one[0] >= self.written]:  # in memory: heard now
            self.take(data)
        self.durable = self.end

    def write_behind(self):
        taken = self.plane.write_behind_take(self.handle, self.random.choice([1, 500, 20_000]))
        if taken:
            self.written = taken[-1].next_offset
            self.plane.write_behind_done(self.handle, self.written)

    def open_again(self):
        """From what a checkpoint would say, all of the log being in segments."""
        if self.is_stale or self.durable != self.end:
            return
        self.plane.withdraw(self.handle)
        self.written, state = self.end, copy_of(self.state)
        state.settle(self.seen)
        entry = PartitionCheckpoint(
            uuid.UUID(int=7), 0, self.name, log_end_offset=self.end, producers=state.producers,
            commit_offset=self.seen, ended=tuple(state.ended),
        )  # fmt: skip
        read = decode_entry(entry.encode()).log_state()
        self.batches, self.states = [], {self.end: copy_of(state)}
        self.register()
        self.plane.load_producers(self.handle, encode_producers(read.producers, read.ended))

    def move_start(self):
        self.start = self.random.randrange(self.start, self.seen + 1)
        self.plane.set_log_start(self.handle, self.start)
        gone = [last + 1 for _id, _first, last in self.aborted if last < min(self.start, self.written)]
        self.aborted_from = max([self.aborted_from, *gone])

    def expire(self):
        if self.is_stale or self.durable != self.end:
            return
        now_ms = self.world.now_ms
        before = set(self.state.producers.producers)
        expired = self.state.producers.expire(now_ms, now_ms, EXPIRY_MS)
        gone = before - set(self.state.producers.producers)
        assert lib.tpc_partition_expire_producers(self.plane.pointer, self.handle) == expired
        for state in self.states.values():
            for producer_id in gone:
                state.producers.producers.pop(producer_id, None)

    # -- both ----------------------------------------------------------------------------------------------------------

    def compare(self):
        found = self.plane.state(self.handle)
        assert (found.high_watermark, found.durable_offset, found.log_end_offset) == (self.seen, self.durable, self.end)
        expected = max(self.state.last_stable_offset(self.seen), self.start)
        if self.is_stale:
            assert found.last_stable_offset <= expected
            return
        assert found.last_stable_offset == expected
        told = told_producers(self.plane.pointer, self.handle, 100)
        assert [tuple(one)[2:] for one in told] == [
            (
                one.transaction_first_offset, one.batches[-1].last_sequence if one.batches else -1,
                one.coordinator_epoch, one.epoch,
            )
            for _id, one in sorted(self.state.producers.producers.items())
        ]  # fmt: skip
        data = self.plane.dump_encoded(self.handle)
        known, end = ProducerState.decode_full(data, 0)
        durable = copy_of(self.states[self.durable])
        durable.settle(self.seen)
        for one in (*known, *durable.producers):
            one.last_timestamp = 0
        assert known == durable.producers
        assert data[end:] == encode_ended(durable.ended)
        told, from_offset, _room = self.plane.known_aborted(self.handle)
        assert from_offset == self.aborted_from <= self.written
        assert [one[:3] for one in told] == [one for one in self.aborted if one[2] >= from_offset]
        for place, (_id, _first, _last, stable) in enumerate(told):
            assert all(first >= stable for _id, first, *_ in told[place + 1 :])


class World:
    def __init__(self, path, seed):
        self.random, self.now_ms, self.runs = Random(seed), NOW_MS, 1
        self.bench = PlaneBench(path, region_blocks=16_384)
        self.logs = [Log(self, name) for name in NAMES]

    def settle(self):
        self.bench.settle()
        for log in self.logs:
            log.settled()

    def fail(self):
        """What is on its way to the journal is lost."""
        self.bench.settle()
        for log in self.logs:
            log.settled()
        self.bench.break_disk()
        failures = len(self.bench.failures)
        for log in self.logs * 2:
            self.random.choice([log.append, log.end_one])()
        self.bench.until(lambda: len(self.bench.failures) > failures)
        for log in self.logs:
            log.lose()
            log.compare()
        self.bench.mend_disk()
        self.runs += 1
        self.bench.plane.reopen_journal(self.bench.descriptor, self.bench.mode, self.runs)
        self.bench.settle()
        for log in self.logs:
            if log.is_replicated:
                log.begin_term()
            else:
                log.term = log.plane.state(log.handle).leader_epoch

    def let_time_pass(self):
        self.now_ms += self.random.choice([1, 1_000, EXPIRY_MS // 3, EXPIRY_MS])
        lib.tpc_plane_set_clock(self.bench.plane.pointer, self.now_ms)
        lib.tpc_plane_set_monotonic(self.bench.plane.pointer, self.now_ms)
        self.settle()
        for log in self.logs:
            log.find_out()
            log.expire()

    def step(self):
        roll = self.random.random()
        if roll < 0.02:
            self.fail()
        elif roll < 0.04:
            self.let_time_pass()
        elif roll < 0.2:
            self.settle()
        else:
            log = self.random.choice(self.logs)
            usual = [log.append] * 6 + [log.end_one] * 6 + [log.commit] * 4 + [log.write_behind] * 2
            self.random.choice([*usual, log.cut, log.find_out, log.find_out, log.open_again, log.move_start])()
        for log in self.logs:
            log.compare()


@pytest.mark.parametrize("number", range(4))
def test_c_and_the_twin_know_the_same_of_transactions(tmp_path, seed, number):
    world = World(tmp_path / "journal", seed + number)
    try:
        for _step in range(STEPS):
            world.step()
    finally:
        world.bench.shut()
