"""The data plane's twin for replicated partitions: the promises of `ReplicationPort`, without C, over a `Journal`.

What is appended stands in memory, in the journal and, when that is durable, in what the disk keeps; readers see what
was told to be committed. The rules are those of `docs/decisions/2026-11-23-replicated-partitions.md`; a call that
breaks them fails the run. The steady state is not carried: machines drive all groups.
"""

from __future__ import annotations

import errno
from dataclasses import replace

import trio

from tests.simulator.nodes_disk import HungWatch, NoShipments, begin_term
from tests.simulator.nodes_logs import TwinFiles
from tests.support.memory_core import MemoryStorage
from tests.support.memory_plane import MemoryPlane
from tpc_broker.broker.ports import AppendedRange, AppendResult, ProduceFallback, ReplicaAppend
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import LeadershipLostError, PartitionOfflineError
from tpc_broker.log.batch import decode_header, walk_headers
from tpc_broker.log.checkpoint import VOTE_NOTE, PartitionCheckpoint, Release
from tpc_broker.log.epochs import NO_EPOCH_KEPT
from tpc_broker.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tpc_broker.storage.ports import PartitionState
from tpc_broker.storage.segment_space import Lack
from tpc_broker.testing.storage import CoreFiles

LEADER, FOLLOWER = "leader", "follower"
PLENTY = 1 << 40
OWN_TOPICS = frozenset({CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})
"""They may take what clients' records leave."""


class TwinPlane(MemoryPlane):
    def __init__(self, connections, clock, journal):
        super().__init__(connections, clock)
        self.holds = True
        self.journal = journal
        journal.on_commit, journal.on_failed = self._committed_to_disk, self._journal_failed
        self._tell_failed = lambda _error: None
        self.bytes_admitted = lambda _handle: PLENTY
        self._appended: dict[int, int] = {}
        """The newest sequence of leaders that have appended since the last `take_appended`."""
        self._on_appended = self._on_durable = lambda *_: None
        self._watches_durable = False

    def register(self, files, *, is_replicated=False):
        handle = super().register(files)
        log = files.log
        log.is_replicated = is_replicated
        if is_replicated:
            log.high_watermark = min(files.kept.committed_end_offset, log.log_end_offset)
        return handle

    def withdraw(self, handle):
        self._appended.pop(handle, None)
        super().withdraw(handle)

    def _committed_to_disk(self):
        for handle, log in list(self.logs.items()):
            if not log.is_replicated and log.high_watermark < log.durable_offset:
                self._advance(handle, log, log.durable_offset)
        self._durable.set()
        self._durable = trio.Event()
        self._answer()
        if self._watches_durable:
            self._watches_durable = False
            self._on_durable(self.journal.durable_sequence)

    def _advance(self, handle, log, offset):
        log.high_watermark = offset
        log.log_state.settle(offset)
        if handle in self._watched:
            self._watched.remove(handle)
            self._tell_advanced(handle)

    def put_appended(self, log, batches):
        """The journal's sequence of batches that are in memory."""
        end_offset = log.log_end_offset
        log.undurable += 1

        def change():
            log.kept.append(batches)
            log.durable_offset = end_offset
            log.undurable -= 1

        return self.journal.put(change)

    # -- appends of leaders --------------------------------------------------------------------------------------------

    def _append_led(self, handle, log, data):
        first = len(log.batches)
        term = log.term if log.is_replicated else self._files[handle].leader_epoch
        base_offset = log.append(data, term)
        for header, _place in walk_headers(data):
            self.guards.end(handle, header)
        sequence = self.put_appended(log, log.batches[first:])
        if log.is_replicated:
            had = bool(self._appended)
            self._appended[handle] = sequence
            if not had:
                self._on_appended()
        return base_offset

    def produce_with(self, request, verdicts, endpoints):
        """As `native/requests/produce.c`: what a quorum is to be asked about is left, and what is held back."""
        asked = self.asked(request).parts
        if any(self._is_held_back(part, verdict) for part, verdict in zip(asked, verdicts, strict=True)):
            return ProduceFallback.UNCOMMITTED
        if self._lacks_word(request.api_version, asked, bytes(request.body), verdicts):
            return ProduceFallback.VERIFY
        if self._lacks_verdict(asked, bytes(request.body), verdicts):
            return ProduceFallback.GAP
        return super().produce_with(request, verdicts, endpoints)

    def _is_held_back(self, part, verdict):
        log = None if verdict.error_code else self.logs.get(self._handle_of(part.topic, part.partition))
        return log is not None and log.is_replicated and log.role == LEADER and log.refuses_all and log.refusal

    def _lacks_word(self, version, parts, body, verdicts):
        """Of the coordinator of a transaction."""
        return any(
            self._lacks_verification(
                version, self._handle_of(part.topic, part.partition),
                body[part.records_place : part.records_place + part.records_bytes], verdict,
            )
            for part, verdict in zip(parts, verdicts, strict=True)
        )  # fmt: skip

    def _lacks_verification(self, version, handle, records, verdict):
        if handle in self.logs and self._refusal_of(self.logs[handle]):
            return False
        return super()._lacks_verification(version, handle, records, verdict)

    def _lacks_verdict(self, parts, body, verdicts):
        for part, verdict in zip(parts, verdicts, strict=True):
            handle = None if verdict.error_code else self._handle_of(part.topic, part.partition)
            log = self.logs.get(handle)
            if log is None or verdict.gap or not log.is_replicated or self._refusal_of(log):
                continue
            ((header, _place),) = walk_headers(body[part.records_place : part.records_place + part.records_bytes])
            if log.judge(header)[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                return True
        return False

    def _take(self, part, version, pending):
        key, asked, verdict, ends, parts = part.key, part.asked, part.verdict, pending.ends, pending.parts
        handle = None if verdict.error_code else self._handle_of(key, asked.index)
        if handle is None:
            return super()._take(part, version, pending)
        log, answer = self.logs[handle], type(self)._part(asked.index)
        refusal = ErrorCode.KAFKA_STORAGE_ERROR if self.journal.has_failed else self._refusal_of(log)
        if refusal:
            answer.error_code = int(refusal)
            return answer
        data = bytes(asked.records)
        ((header, _place),) = walk_headers(data)
        error, repeated = log.judge(header)
        if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and verdict.gap:
            error = verdict.gap
        if not error and repeated is None:
            error = self.guards.refusal(handle, self._producer(handle, header.producer_id), header, verdict.guard)
        answer.error_code = int(error)
        if error:
            return answer
        if repeated is None:
            answer.base_offset = self._append_led(handle, log, data)
            ends[handle] = log.log_end_offset
        else:
            answer.base_offset, ends[handle] = repeated, repeated + header.last_offset_delta + 1
        answer.log_start_offset, parts[handle] = log.log_start_offset, answer
        return answer

    @staticmethod
    def _part(index):
        from tpc_broker.kafka import messages  # noqa: PLC0415

        return messages.ProduceResponse.PartitionProduceResponse(index=index, error_code=0, base_offset=-1)

    @staticmethod
    def _refusal_of(log):
        if log.is_replicated and log.role != LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return log.refusal

    def append(self, handle, data):
        log = self._log(handle)
        self._check_journal()
        refusal = self._refusal_of(log)
        if refusal:
            return AppendResult(-1, -1, log.term, int(refusal))
        base_offset = self._append_led(handle, log, data)
        term = log.term if log.is_replicated else self._files[handle].leader_epoch
        return AppendResult(base_offset, log.log_end_offset, term, 0)

    def append_marker(self, handle, marker):
        log = self._log(handle)
        self._check_journal()
        refusal = self._refusal_of(log)
        return AppendResult(-1, -1, log.term, int(refusal)) if refusal else super().append_marker(handle, marker)

    def begin_verification(self, handle, producer_id, producer_epoch, sequence, *, begins_anew):
        if handle in self.logs and self.logs[handle].is_replicated and self.logs[handle].role != LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return super().begin_verification(handle, producer_id, producer_epoch, sequence, begins_anew=begins_anew)

    def make_durable(self):
        raise AssertionError("the journal does it")

    async def wait_committed(self, handle, end_offset, leader_epoch):
        await trio.lowlevel.checkpoint()
        log = self._log(handle)
        generation = log.generation
        if log.is_replicated and log.term != leader_epoch:
            raise LeadershipLostError("its epoch has ended")
        while self._log(handle).high_watermark < end_offset:
            if log.generation != generation:
                raise LeadershipLostError("its epoch has ended")
            await self._durable.wait()

    # -- ReplicationPort -----------------------------------------------------------------------------------------------

    def on_appended(self, callback):
        self._on_appended = callback

    def take_appended(self):
        found = []
        for handle, sequence in self._appended.items():
            log = self.logs[handle]
            found.append(AppendedRange(handle, log.told_offset, log.log_end_offset, log.term, sequence))
            log.told_offset = log.log_end_offset
        self._appended.clear()
        return found

    def on_durable(self, callback):
        self._on_durable = callback

    def watch_durable(self, sequence):
        if sequence <= self.journal.durable_sequence:
            return True
        self._watches_durable = True
        return False

    def durable_sequence(self):
        return self.journal.durable_sequence

    def on_journal_failed(self, callback):
        self._tell_failed = callback

    def journal_error(self):
        return errno.EIO if self.journal.has_failed else 0

    def _check_journal(self):
        if self.journal.has_failed:
            raise PartitionOfflineError("the journal refuses")

    def _journal_failed(self):
        """Appends that were not durable are undone, and each replicated partition that lost any has no role."""
        for handle, log in list(self.logs.items()):
            if not log.undurable:
                continue
            log.undo()
            self._appended.pop(handle, None)
            log.role = None if log.is_replicated else log.role
            self.guards.forget(handle)
            self._end_waits(handle, log, ErrorCode.KAFKA_STORAGE_ERROR)
        self._tell_failed(errno.EIO)

    def _role(self, handle, role, term):
        log = self._log(handle)
        assert term >= log.term, f"a term never falls: {term} after {log.term}"
        log.role, log.term = role, term
        return log

    def lead(self, handle, term):
        log = self._role(handle, LEADER, term)
        assert handle not in self._appended
        log.told_offset = log.log_end_offset

    def leads(self, handle):
        return self._log(handle).role == LEADER

    def has_role(self, handle):
        return self._log(handle).role is not None

    def follow(self, handle, term):
        self.guards.forget(handle)
        self._end_waits(handle, self._role(handle, FOLLOWER, term))

    def disarm(self, handle, *, keep_waits=False):
        log = self._log(handle)
        log.role = None
        self.guards.forget(handle)
        if not keep_waits:
            self._end_waits(handle, log)

    def _end_waits(self, handle, log, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER):
        log.generation += 1
        self._durable.set()
        self._durable = trio.Event()
        for one in self._pending:
            if handle in one.ends and one.ends[handle] > log.high_watermark:
                one.parts[handle].error_code = int(error_code)
                del one.ends[handle]
        self._answer()

    def refuse(self, handle, error_code, *, all_acks=False):
        log = self._log(handle)
        log.refusal, log.refuses_all = error_code, all_acks

    def commit(self, handle, term, end_offset):
        log = self._log(handle)
        if log.role is None or log.term != term:
            raise LeadershipLostError(f"{log.role} of term {log.term}, not of {term}")
        assert end_offset <= log.durable_offset, "not above what is durable here"
        if end_offset <= log.high_watermark:
            return False
        self._advance(handle, log, end_offset)
        self._durable.set()
        self._durable = trio.Event()
        self._answer()
        return True

    def append_replica(self, handle, term, batches):
        log = self._log(handle)
        if log.role != FOLLOWER or log.term != term:
            raise LeadershipLostError(f"{log.role} of term {log.term}, not of {term}")
        self._check_journal()
        new, end_offset = [], log.log_end_offset
        for header, place in walk_headers(batches):
            assert header.base_offset == end_offset, "batches follow each other"
            assert header.partition_leader_epoch <= term
            new.append(bytes(batches[place : place + header.size_bytes]))
            log.take(new[-1])
            end_offset = header.next_offset
        log.batches += new
        log.log_end_offset = log.told_offset = end_offset
        return ReplicaAppend(end_offset, self.put_appended(log, new), 0)

    def read_log(self, handle, offset, upto, bytes_max=1 << 30):
        log = self._log(handle)
        return b"".join(self._batches(log, offset, upto, bytes_max, at_least_one=True))

    @staticmethod
    def _batches(log, offset, upto, bytes_max, *, at_least_one):
        found, size = [], 0
        for batch in log.batches[log.place_of(offset) :]:
            too_much = size + len(batch) > bytes_max and not (at_least_one and not found)
            if too_much or decode_header(batch).base_offset >= upto:
                break
            found.append(batch)
            size += len(batch)
        return found

    def read(self, handle, offset, upto, bytes_max, at_least_one):
        found = self._batches(self._log(handle), offset, upto, bytes_max, at_least_one=at_least_one)
        return found, sum(map(len, found))

    def serve_reads(self, _handle, _term):
        pass

    def set_racks(self, _names):
        pass

    set_near_racks = serve_reads

    def state(self, handle):
        log = self._log(handle)
        admitted = self.bytes_admitted(handle)
        return PartitionState(log.high_watermark, log.durable_offset, log.durable_offset, 0, 0, admitted, -1, log.term)

    # -- the steady state is not carried -------------------------------------------------------------------------------

    def on_steady(self, _messages, _link_lost):
        pass

    def steady_messages(self, *_when):
        return []

    steady_wants = steady_stalled = steady_ask_again = steady_messages

    def journal_progress(self):
        return 0, False

    def steady_statistics(self):
        return {}

    def steady_late_ms(self, _machine):
        return 0

    def steady_state(self, _handle=None):
        return None

    steady_disarm = steady_busy_ms = steady_state

    def steady_lead(self, *_state, votes):
        """Asked of a leader that hears nobody, and so lacks no link."""
        return False


class TwinStorage(MemoryStorage):
    """`CoreStorage`, on what a node's disk keeps of one of its cores."""

    def __init__(self, plane, disk, own):
        super().__init__(plane, CoreFiles())
        self._disk, self._own, self._kept = disk, own, own.partitions
        self.away = dict(own.away)
        self._leaving = trio.Lock()
        self.life_of = lambda _key: 0
        """Of a replica, as its core has noted it (`runtime.cluster.replica_lives`)."""
        self._journal = plane.journal
        self._opened: dict[object, TwinFiles] = {}
        self.shipments = NoShipments()
        self._lacks: dict[int, Lack] = {}
        plane.bytes_admitted = self._bytes_admitted
        self.disk_watch = HungWatch(disk)
        self.files, self.remove_later = disk, None  # where segments would be filled; none are

    def has(self, key):
        return key in self._kept

    def unclaimed(self):
        return [key for key in self._kept if key not in self._opened]

    def unclaimed_terms(self):
        return [(key, self._kept[key].leader_epoch) for key in self.unclaimed()]

    async def is_left_over(self, key, _topic):
        await trio.lowlevel.checkpoint()
        return key in self._disk.folders and not self.has(key) and key not in self.away

    async def open(self, key, topic, _config):
        await self._disk.sync()
        if key in self.away:  # taken back
            await self._adopt(replace(self.away[key], moves=self.away[key].moves + 1))
        if key not in self._kept:
            self._kept[key] = self._disk.begin(key, self.life_of(key), topic)
        files = self._opened[key] = TwinFiles(key, self._kept[key])
        return files

    # -- moves between cores -------------------------------------------------------------------------------------------

    def forget_release(self, key):
        del self.away[key]
        if not self._journal.has_failed:  # else the next life forgets it
            self._journal.put(lambda: self._own.away.pop(key, None), is_kept=True)

    async def release(self, handle, target, move_id, then, leave=None):
        async with self._leaving:
            files = self._writable(handle)
            if leave is not None:
                await leave()
                self._writable(handle)
            self.plane.disarm(handle, keep_waits=leave is None)
            while files.log.undurable:
                await trio.sleep(0.001)
                self._writable(handle)
            key, kept = files.key, files.kept
            if kept.log_end_offset != files.log.log_end_offset:
                raise PartitionOfflineError("not all of it could be brought to its segments")
            released = PartitionCheckpoint(
                *key, kept.topic, log_start_offset=kept.log_start_offset, log_end_offset=kept.log_end_offset,
                leader_epoch=files.leader_epoch, epochs=files.epochs.entries, notes=tuple(files.notes.items()),
                commit_offset=min(files.log.high_watermark, kept.log_end_offset), moves=kept.moves + 1,
                released=Release(target, move_id),
            )  # fmt: skip

            def change():
                self._own.away[key] = released
                self._kept.pop(key, None)

            await self._journal.put_at_last(change)
            self.away[key] = released
            if self.handles.pop(handle, None) is not None:
                self._opened.pop(key, None)
                self.plane.withdraw(handle)
                then()
            return released

    async def adopt(self, released, _config):
        async with self._leaving:
            if not self.has(released.key):
                if released.key not in self._disk.folders:
                    raise PartitionOfflineError("its files are gone")
                await self._adopt(released)

    async def _adopt(self, released):
        key = released.key

        def change():
            self._own.away.pop(key, None)
            self._kept[key] = self._disk.folders[key]
            self._kept[key].take(released)

        await self._journal.put_at_last(change)
        self.away.pop(key, None)

    async def begin_epoch(self, files, note=b""):
        files.leader_epoch += 1
        term, offset = files.leader_epoch, files.log.log_end_offset
        files.epochs.assign(term, offset)
        if note:
            files.notes[term] = note
        await self._journal.wait(self._journal.put(lambda: begin_term(files.kept, term, offset, note)))

    async def begin_epochs(self, opened):
        for files in opened:
            await self.begin_epoch(files)

    def register(self, files, _config, *, is_internal, is_replicated=False):
        handle = self.plane.register(files, is_replicated=is_replicated)
        self.handles[handle] = files
        return handle

    def _writable(self, handle):
        if handle not in self.handles:
            raise PartitionOfflineError("it is closed")
        return self.handles[handle]

    def begin_term(self, handle, term, note=b""):
        files, offset = self._writable(handle), self.plane.bounds(handle).log_end_offset
        assert term > files.epochs.latest, f"term {term} cannot begin behind {files.epochs.latest}"
        sequence = self._journal.put(lambda: begin_term(files.kept, term, offset, note))
        begin_term(files, term, offset, note)
        return sequence

    def note_term(self, handle, term, note=b""):
        files = self._writable(handle)
        assert term >= files.leader_epoch, f"term {term} is below {files.leader_epoch}"

        def change(of):
            of.leader_epoch, of.notes[VOTE_NOTE] = term, note

        sequence = self._journal.put(lambda: change(files.kept))
        change(files)
        return sequence

    async def cut(self, handle, offset, last_epoch_kept):
        files, kept_epoch = self._writable(handle), last_epoch_kept or NO_EPOCH_KEPT
        self.plane.disarm(handle)
        log = files.log
        while log.undurable:
            await trio.sleep(0.001)
        self._writable(handle)
        if self._journal.has_failed:
            raise PartitionOfflineError("the journal refuses")
        assert log.high_watermark <= offset <= log.log_end_offset, "what is committed is never cut"
        log.batches = [batch for batch in log.batches if decode_header(batch).next_offset <= offset]
        assert (decode_header(log.batches[-1]).next_offset if log.batches else log.log_start_offset) == offset
        log.log_end_offset = log.durable_offset = log.told_offset = offset
        files.epochs.truncate_end(offset, kept_epoch)
        files.notes = {term: note for term, note in files.notes.items() if term <= kept_epoch or term == VOTE_NOTE}
        notes = dict(files.notes)

        def change():
            files.kept.cut(offset, kept_epoch)
            files.kept.notes = {**{t: n for t, n in notes.items() if t != VOTE_NOTE}, **_vote(files.kept)}

        await self._journal.wait(self._journal.put(change, is_kept=True), is_kept=True)
        log.find_state()

    def alter(self, _files, _handle, _config, *, is_internal, is_replicated=False):
        pass

    async def delete(self, files, handle):
        self.plane.withdraw(handle)
        self.handles.pop(handle, None)
        await self.delete_offline(files.key)

    async def delete_offline(self, key):
        self._opened.pop(key, None)
        self.away.pop(key, None)
        gone = self._kept.get(key)

        def change():
            self._own.away.pop(key, None)
            if gone is not None and self._kept.get(key) is gone:
                del self._kept[key], self._disk.folders[key]

        while True:
            try:
                await self._journal.wait(self._journal.put(change))
            except PartitionOfflineError:  # it is deleted when the journal works again
                await trio.sleep(0.05)
            else:
                return

    def keep_aside(self, _key, _reason):
        pass

    async def set_log_start(self, handle, offset):
        files = self._writable(handle)

        def change():
            files.kept.log_start_offset = max(files.kept.log_start_offset, offset)

        await self._journal.wait(self._journal.put(change))
        files.log.log_start_offset = max(files.log.log_start_offset, offset)

    def follow_level(self, _image):
        """Nothing is written here."""

    async def forget_unclaimed(self, image):
        for key in self.unclaimed():
            if image.is_deleted(key.topic_id):
                await self.delete_offline(key)

    async def make_room(self, files, handle, size):
        await trio.lowlevel.checkpoint()
        while self._waits_for_space(handle):
            self.disk_watch.reserve(files.key)
            await trio.sleep(0.05)
            self._writable(handle)
        if not self._bytes_admitted(handle):
            self._lacks.setdefault(handle, Lack(trio.current_time(), size, is_of_disk=True))
            raise OSError(errno.ENOSPC, f"no space for {files.topic}-{files.key.partition}")

    make_replica_room = make_room

    def leads_no_more(self, _handle):
        """Who waits in `make_room` looks by itself."""

    def _bytes_admitted(self, handle):
        is_client_s = handle in self.handles and self.handles[handle].topic not in OWN_TOPICS
        return 0 if (self._disk.is_full and is_client_s) or self._waits_for_space(handle) else PLENTY

    def _waits_for_space(self, handle):
        return self._disk.is_hung and handle in self.handles and not self.handles[handle].log.log_end_offset

    @property
    def lacking(self):
        self._lacks = {handle: lack for handle, lack in self._lacks.items() if not self._bytes_admitted(handle)}
        return self._lacks

    async def checkpoint(self):
        await trio.lowlevel.checkpoint()
        self.note_commits()
        return True

    def note_commits(self):
        """What a checkpoint says besides: how far each log is committed, as far as it is durable."""
        for files in self.handles.values():
            if files.log.is_replicated:
                files.kept.committed_end_offset = min(files.log.high_watermark, files.kept.log_end_offset)


def _vote(kept):
    return {VOTE_NOTE: kept.notes[VOTE_NOTE]} if VOTE_NOTE in kept.notes else {}
