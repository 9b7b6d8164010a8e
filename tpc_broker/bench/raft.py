"""How fast the replication machines are, without sockets and disks: ``python -m tpc_broker.bench.raft``.

Three cores in one process, one after the other on one CPU; frames are handed over as they are, and a journal is
durable at once. So what is measured is Python's work: the bound of everything that is not steady, and of all while C
does not carry it.

    entries     a group's leader is given batches by the hundred; counted when the leader has committed them
    elections   10,000 groups led by one node, which dies; CPU time of each survivor until all have a leader again
    idle        what a tick costs with 10,000 groups that have nothing to do
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections import deque
from typing import TYPE_CHECKING

from tpc_broker.model import CoreId, NodeId
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.items import Address, Proposal, Voter, simple
from tpc_broker.raft.messages import Reason
from tpc_broker.raft.output import Accepted

if TYPE_CHECKING:
    from tpc_broker.raft.messages import Frame

NODES = 3
STEP_MS = 10
GARBAGE_THRESHOLD = 50_000


class Cores:
    """Three cores on virtual time, with the CPU seconds that each has used."""

    def __init__(self, groups: int) -> None:
        self.now_ms = 0
        addresses = [Address(NodeId(number), CoreId(0)) for number in range(NODES)]
        self.cores = [RaftCore(address, 1_000 + number, 0) for number, address in enumerate(addresses)]
        self.alive = set(range(NODES))
        self.seconds = [0.0] * NODES
        self.entries = [0] * NODES
        self.wire: deque[Frame] = deque()
        for core in self.cores:
            for address in addresses:
                if address != core.address:
                    core.add_link(address, 0)
        voters = [Voter(NodeId(number), 0) for number in range(NODES)]
        for core, me in zip(self.cores, voters, strict=True):
            for group in range(groups):
                core.create_group(group, me, simple(voters), 0)

    def turn(self) -> bool:
        """Each core: what came, what became durable, what leaves."""
        busy = False
        arrived, self.wire = self.wire, deque()
        for number in sorted(self.alive):
            core = self.cores[number]
            began = time.process_time()
            for frame in arrived:
                if frame.target.node == number:
                    core.receive(frame, self.now_ms)
            ready = core.ready(self.now_ms)
            frames = ready.frames
            if ready.entries:
                core.persisted(ready.entries[-1][0], self.now_ms)
                frames = frames + core.ready(self.now_ms).frames
            self.seconds[number] += time.process_time() - began
            self.entries[number] += len(ready.entries)
            self.wire.extend(frame for frame in frames if frame.target.node in self.alive)
            busy = busy or bool(frames)
        return busy

    def step(self, milliseconds: int = STEP_MS) -> None:
        self.now_ms += milliseconds
        for number in sorted(self.alive):
            began = time.process_time()
            self.cores[number].tick(self.now_ms)
            self.seconds[number] += time.process_time() - began
        while self.turn():
            pass

    def elect(self, number: int) -> None:
        """Makes one node the leader of all groups."""
        self.step()
        for group in self.cores[number].groups.values():
            group.campaign(Reason.TIMEOUT, self.now_ms)
        while self.undecided():
            self.step()

    def undecided(self) -> int:
        """Groups without a leader whose marker is committed."""
        alive = [self.cores[number] for number in self.alive]
        led = {name for core in alive for name, group in core.groups.items() if group.is_leader and group.is_ready}
        return len(self.cores[0].groups) - len(led)


def measure_entries(seconds: float, together: int) -> float:
    """Batches per CPU second that are proposed `together` and committed, by a single group."""
    cores = Cores(1)
    cores.elect(0)
    leader = cores.cores[0]
    proposals = [Proposal(1, 1_024)] * together
    proposed = 0
    began = time.process_time()
    while time.process_time() - began < seconds:
        for _ in range(20):
            accepted = leader.propose(0, proposals, cores.now_ms)
            assert isinstance(accepted, Accepted), accepted
            proposed += together
            while cores.turn():
                pass
            assert leader.group(0).commit == accepted.position
        for number in range(NODES):
            core = cores.cores[number]
            core.release(0, core.group(0).commit)
        cores.step(1)
    return proposed / (time.process_time() - began)


def measure_elections(groups: int) -> dict[str, float]:
    """CPU seconds of the survivors from the death of the node that led all groups until all are led again."""
    cores = Cores(groups)
    cores.elect(0)
    for _ in range(400):
        cores.step()
    idle = measure_idle(cores)
    died_ms = cores.now_ms
    cores.alive.discard(0)
    cores.wire.clear()
    cores.seconds = [0.0] * NODES
    before = [core.statistics() for core in cores.cores]
    gc.freeze()  # duty 11 of a driver
    gc.set_threshold(GARBAGE_THRESHOLD)
    while cores.undecided():
        cores.step()
    gc.unfreeze()
    after = [core.statistics() for core in cores.cores]
    return {
        "groups": groups,
        "idle_tick_us": idle,
        "cpu_seconds_of_the_busier_node": max(cores.seconds),
        "cpu_seconds_of_the_other": min(cores.seconds[1:]),
        "decided_after_virtual_ms": cores.now_ms - died_ms,
        "frames": sum(a.frames_sent - b.frames_sent for a, b in zip(after, before, strict=True)),
        "messages": sum(a.messages_sent - b.messages_sent for a, b in zip(after, before, strict=True)),
        "led_by_the_busier": max(core.statistics().led for core in cores.cores[1:]),
    }


def measure_idle(cores: Cores) -> float:
    """Microseconds per node and step of 10 ms, heartbeats included, when nothing happens."""
    steps = 500
    cores.seconds = [0.0] * NODES
    for _ in range(steps):
        cores.step()
    return sum(cores.seconds) / NODES / steps * 1e6


def reference_call_ns() -> float:
    """What a call of an empty function costs here and now: 40-50 on a quiet machine; the rest scales with it."""

    def empty() -> None:
        pass

    calls = 1_000_000
    began = time.process_time()
    for _ in range(calls):
        empty()
    return (time.process_time() - began) / calls * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--groups", type=int, default=10_000)
    given = parser.parse_args()
    found: dict[str, object] = {
        "reference_call_ns": round(reference_call_ns(), 1),
        "entries_per_second_by_100": round(measure_entries(given.seconds, 100)),
        "entries_per_second_by_1": round(measure_entries(given.seconds, 1)),
        "no_groups_tick_us": round(measure_idle(Cores(0)), 1),
    }
    found |= {name: round(value, 3) for name, value in measure_elections(given.groups).items()}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
