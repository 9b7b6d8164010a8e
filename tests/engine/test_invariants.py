"""A core whose state contradicts itself ends at once and says what was broken. Here others change its memory."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from native.build_ring import FOLDERS
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
POKING = """
import ctypes, sys
from pathlib import Path
from tests.support.plane_bench import PlaneBench, records_of
from tpc_broker import _ring
from tpc_broker._ring import ffi

folder, field, value = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
bench = PlaneBench(folder / "journal")

def poke(handle):
    find = ctypes.CDLL(_ring.__file__).tpc_partition_of
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_uint64]
    plane = int(ffi.cast("uintptr_t", bench.plane.pointer))
    change = ctypes.CDLL(str(folder / "poke.so")).poke
    change.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64]
    assert change(plane, find(plane, handle), field.encode(), value) == 0
"""
SCRIPT = """
handle = bench.lead("t", log_end_offset=9)
client = bench.connect()
assert bench.produce(client, ("t", 0, records_of(1))) == [(0, 9)]
poke(handle)
bench.produce(client, ("t", 0, records_of(1)))
print("survived")
"""
REPLICATED = """
from tests.support.steady_peers import *
from tpc_broker.engine.steady_plane import SteadyPeerState, SteadyPlane

class Face(SteadyPlane):
    _plane = bench.plane.pointer

steady = Face()
steady._begin_steady(bench.ring)
peer = Peer(steady, 1)
handle = bench.lead("t", is_led=False)
bench.plane.set_replicated(handle)
"""
LEADER = """
bench.plane.arm(handle, TERM)
rows = [SteadyPeerState(peer.link, INCARNATION, 0, 0, 0, votes=True)]
assert steady.steady_lead(handle, OWN, TERM, 0, 1 << 40, rows, votes=True)
bench.plane.append(handle, records_of(2))
bench.settle()
bench.until(peer.heard)
poke(handle)
peer.say(frame(ACK, entry(2, 0)))
bench.until(lambda: steady.steady_statistics()["frames_taken"])
assert bench.plane.state(handle).high_watermark == 2
print("survived")
"""
FOLLOWER = """
bench.plane.follow(handle, TERM)
assert steady.steady_follow(handle, OWN, TERM, 0, (1, INCARNATION), peer.link, NONE)
peer.say(frame(APPEND, entry(0, NONE, sent(0, 2))))
bench.until(lambda: (ACK, 2) in [one[:2] for one in peer.heard()])
poke(handle)
peer.say(frame(APPEND, entry(2, NONE, b"")))
bench.until(peer.heard)
print("survived")
"""
POKE = """
#include <string.h>
#include "journal_state.h"
#include "steady_state.h"
int poke(tpc_plane *plane, tpc_partition *partition, const char *field, int64_t value) {
    tpc_journal *journal = plane->journal;
    tpc_tail_batch *run = partition->tail;
    tpc_steady *steady = partition->steady;
#define FIELD(name) if (!strcmp(field, #name)) return name = value, 0
    FIELD(partition->log_start_offset);
    FIELD(partition->high_watermark);
    FIELD(partition->durable_offset);
    FIELD(partition->written_offset);
    FIELD(partition->dirty_bytes);
    FIELD(partition->dirty);
    FIELD(partition->leader_epoch);
    FIELD(run->next_offset);
    FIELD(run->sequence);
    FIELD(plane->undo_count);
    FIELD(journal->reported);
    FIELD(journal->durable.position);
    FIELD(journal->position_base);
    FIELD(steady->peers[0].match_offset);
    FIELD(steady->peers[0].sent_offset);
    if (!strcmp(field, "nothing")) return 0;
    return -1;
}
"""


def tell(folder, script, field, value, told):
    """A core that changes a field of its partition in the middle of a script says what is broken, and ends."""
    source = folder / "poke.c"
    source.write_text(POKE)
    include = [f"-I{each}" for each in FOLDERS]
    subprocess.run(["cc", "-shared", "-fPIC", *include, str(source), "-o", str(folder / "poke.so")], check=True)
    done = subprocess.run(
        [sys.executable, "-c", POKING + script, str(folder), field, str(value)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    if told == "survived":
        assert done.stdout == "survived\n", done.stderr
        return
    assert done.returncode == -signal.SIGABRT, done
    assert "broken invariant: " in done.stderr
    assert told in done.stderr


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("nothing", 0, "survived"),
        ("partition->log_start_offset", 11, "log_start_offset <= last_stable_offset; t-0 in leader epoch 0: log_start"),
        ("partition->high_watermark", 12, "partition->high_watermark <= partition->commit_offset; t-0 in leader epoch"),
        ("partition->durable_offset", 11, "durable_offset 11, log_end_offset 10"),
        ("partition->written_offset", 12, "partition->written_offset <= partition->durable_offset"),
        ("partition->dirty_bytes", 1 << 40, "of these durable 10995116277"),
        ("partition->dirty", 0, "partition->dirty == (partition->dirty_bytes > 0)"),
        ("run->next_offset", 12, "!newest || newest->next_offset == batch->base_offset; t-0"),
        ("run->sequence", 9, "!newest || newest->sequence <= batch->sequence; t-0"),
        ("plane->undo_count", 1, "!plane->undo_first == !plane->undo_count; in undo_link"),
        ("journal->reported", 1 << 40, "journal->reported < journal->sequence_first; journal: commits from 2"),
        ("journal->durable.position", 9, "sealed->position >= journal->durable.position; journal: commits from 2"),
        ("journal->position_base", 1 << 40, "position >= journal->position_base; journal: commits from 2"),
    ],
)
def test_what_is_broken_is_told_and_ends_the_core(tmp_path, field, value, told):
    tell(tmp_path, SCRIPT, field, value, told)


@pytest.mark.parametrize(
    ("script", "field", "value", "told"),
    [
        (LEADER, "nothing", 0, "survived"),
        (LEADER, "partition->leader_epoch", 4, "leader_epoch == it->term; t-0 in leader epoch 4"),
        (LEADER, "steady->peers[0].match_offset", 3, "match_offset <= peer->next_offset; t-0 in term 3"),
        (LEADER, "steady->peers[0].sent_offset", 3, "sent_offset <= it->partition->log_end_offset; t-0 in term 3"),
        (FOLLOWER, "nothing", 0, "survived"),
        (FOLLOWER, "partition->durable_offset", 1, "durable_offset >= of->acked_offset; t-0 in leader epoch 3"),
        (FOLLOWER, "partition->leader_epoch", 2, "leader_epoch == it->term; t-0 in leader epoch 2"),
    ],
)
def test_a_replica_that_contradicts_itself_acknowledges_and_commits_nothing(tmp_path, script, field, value, told):
    tell(tmp_path, REPLICATED + script, field, value, told)


KEPT = """
import sys
from pathlib import Path
from tests.support.plane_bench import PlaneBench, records_of
from tpc_broker.engine.produces import asked_produce

bench = PlaneBench(Path(sys.argv[1]) / "journal")
came = []
bench.on_request = came.append
client = bench.connect()
bench.send(client, [("t", 0, records_of(1))])
bench.until(lambda: came)
asked_produce(bench.plane.pointer, came[0])
came[0].pointer.body_bytes -= int(sys.argv[2])
print(asked_produce(bench.plane.pointer, came[0]).parts[0].topic)
"""


@pytest.mark.parametrize("fewer", [0, 1])
def test_what_is_kept_of_a_produce_is_of_its_very_bytes(tmp_path, fewer):
    done = subprocess.run(
        [sys.executable, "-c", KEPT, str(tmp_path), str(fewer)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    if not fewer:
        assert done.stdout == "t\n", done.stderr
        return
    assert done.returncode == -signal.SIGABRT, done
    assert "what is kept of a Produce was read from" in done.stderr
