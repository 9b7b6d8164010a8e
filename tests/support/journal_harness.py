"""A ring and a journal on a real file, driven turn by turn: what the tests of journal and partitions stand on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tests.support.backends import OURS_IN_C
from tests.support.journal_file import BLOCK_BYTES, NOTE, Commit, read_chain
from tests.support.waiting import PATIENCE_S
from tpc_broker._ring import ffi, lib
from tpc_broker.engine.ring import unavailable

ALL_HIDDEN = (1 << lib.TPC_FEATURES_COUNT) - 1
EVENTS_MAX = 256
JOURNAL_ID = bytes(range(16))
TOPIC = bytes(range(100, 116))


class Core:
    """One ring; `turn()` runs it once and returns the events as tuples (kind, token, a, b)."""

    def __init__(self, hidden: int = 0, backend: int = OURS_IN_C) -> None:
        out = ffi.new("tpc_ring **")
        if error := lib.tpc_ring_new(256, hidden, backend, out):
            raise unavailable(-error)
        self.ring = out[0]
        self.events: list[tuple[int, int, int, int]] = []
        self.on_event = None

    def turn(self, timeout_ms: int = 0) -> list[tuple[int, int, int, int]]:
        events = ffi.new("tpc_event[]", EVENTS_MAX)
        count = lib.tpc_ring_wait(self.ring, timeout_ms * 1_000_000, 1000, events, EVENTS_MAX)
        assert count >= 0 or count in (-errno.ETIME, -errno.EINTR), os.strerror(-count)
        seen = []
        for event in events[0 : max(count, 0)]:
            seen.append((event.kind, event.token, event.a, event.b))
            if self.on_event:
                self.on_event(event)
        self.events += seen
        return seen

    def run_until(self, condition, turns_max: int = 2000):
        for _ in range(turns_max):
            if condition():
                return
            self.turn(5)
        raise AssertionError("it never came to pass")

    def of_kind(self, kind: int) -> list[tuple[int, int, int, int]]:
        return [event for event in self.events if event[0] == kind]

    def close(self) -> None:
        assert lib.tpc_ring_close(self.ring, PATIENCE_S * 1_000_000_000) == 0


class JournalFile:
    """A journal of `region_blocks` blocks in a file that was written once, as the broker prepares it."""

    def __init__(self, path: Path, region_blocks: int = 64, mode: int = lib.TPC_JOURNAL_DIRECT_DSYNC) -> None:
        self.path, self.region_blocks, self.mode = path, region_blocks, mode
        if not path.exists():
            path.write_bytes(bytes((2 + region_blocks) * BLOCK_BYTES))
        self.descriptor = self.open_descriptor()

    def open_descriptor(self, flags: int = os.O_RDWR) -> int:
        return os.open(self.path, flags | (os.O_DIRECT if self.mode == lib.TPC_JOURNAL_DIRECT_DSYNC else 0))

    def params(self, **overrides):
        values = {
            "descriptor": self.descriptor,
            "mode": self.mode,
            "journal_id": JOURNAL_ID,
            "run_id": 1,
            "region_blocks": self.region_blocks,
            "sequence_next": 1,
            "block_next": 2,
            "block_first": 2,
        }
        return ffi.new("tpc_journal_params *", values | overrides)

    def chain(self, sequence: int = 1, block: int = 2, previous_crc: int = 0) -> list[Commit]:
        return read_chain(self.path.read_bytes(), block, sequence, previous_crc, self.region_blocks)


class Journal:
    """The C journal, with Python lists for what comes out."""

    def __init__(self, core: Core, file: JournalFile, **overrides) -> None:
        self.core, self.file = core, file
        out = ffi.new("tpc_journal **")
        assert lib.tpc_journal_open(core.ring, file.params(**overrides), out) == 0
        self.handle = out[0]

    def append(self, payload: bytes, kind: int = NOTE, **fields):
        """The commit's sequence, or -errno."""
        sequence = ffi.new("uint64_t *")
        result = lib.tpc_journal_append(
            self.handle,
            kind,
            fields.get("topic_id", TOPIC),
            fields.get("partition", 0),
            fields.get("offset", 0),
            fields.get("argument", 0),
            payload,
            len(payload),
            sequence,
        )
        if result < 0:
            return result
        lib.tpc_journal_watch(self.handle, sequence[0])
        return sequence[0]

    @property
    def statistics(self):
        result = ffi.new("tpc_journal_statistics *")
        lib.tpc_journal_get_statistics(self.handle, result)
        return result

    @property
    def durable(self) -> int:
        return self.statistics.durable_sequence

    def place(self):
        place = ffi.new("tpc_journal_cursor *")
        lib.tpc_journal_durable_cursor(self.handle, place)
        return place

    def wait_durable(self, sequence: int) -> None:
        self.core.run_until(lambda: self.durable >= sequence)

    def wait_failed(self) -> tuple[int, int, int, int]:
        self.core.run_until(lambda: self.core.of_kind(lib.TPC_EVENT_JOURNAL_FAILED))
        return self.core.of_kind(lib.TPC_EVENT_JOURNAL_FAILED)[-1]

    def close(self) -> None:
        self.core.run_until(lambda: self.statistics.commits_in_flight == 0)
        assert lib.tpc_journal_close(self.handle) == 0
