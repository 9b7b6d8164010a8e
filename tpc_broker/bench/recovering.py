"""Rounds that kill a server with its data on the disk and wait until it serves again."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tpc_broker.bench.consuming import STORED, fill
from tpc_broker.bench.kafka_requests import list_end_offsets
from tpc_broker.bench.load import LoadFailed, run_load
from tpc_broker.bench.measured import CountsDiffer, Round, Stage, Workload, check_stored, figures_round

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpc_broker.bench.peers.kafka_like import Address, KafkaLikePeer

_DEADLINE_S: Final = 120.0
_PAUSE_S: Final = 0.005
_STARTS: Final = 5
"""With many partitions: what one start takes varies by a tenth and more."""
_WRITE_S_MAX: Final = 300.0


@dataclass(frozen=True)
class _Start:
    """Seconds from the start of the process."""

    listening_s: float
    serving_s: float


def recovery(workload: Workload, stage: Stage) -> Round:
    """`kill -9`, then seconds from the start of the process until every partition's leader tells its right end.

    A record is written afterwards, so that what serves takes writes as well.
    """
    del workload
    ends, peer = dict(fill(stage)), stage.kafka_like
    leaders = peer.leaders(STORED)
    peer.kill()
    found = _start_again(peer, STORED, ends, leaders)
    check_stored(peer, STORED, sum(ends.values()))
    return figures_round(
        stage,
        {
            "listening_s": round(found.listening_s, 3),
            "serving_s": round(found.serving_s, 3),
            "stored_gb": stage.extent.gigabytes,
            "cpu_s": stage.server.cpu_s(),
        },
    )


def recovery_of_partitions(workload: Workload, stage: Stage) -> Round:
    """The same behind the first writes of many partitions: the median of a few, each in a folder of its own.

    None of the folders is removed in between: ext4 looks through what was deleted within the last minutes for each file
    that is made, which is not the server's time.
    """
    shape, peer, topic, base = workload.shape, stage.kafka_like, f"load-{workload.key}", stage.peer.folder
    found: list[_Start] = []
    cpus_s = []
    for number in range(_STARTS):
        if number:
            peer.kill()
            peer.folder = base / f"start-{number}"
            peer.folder.mkdir()
            peer.start()
            stage.server.settle()
        leaders = peer.create_topic(topic, shape.partitions)
        plan = replace(peer.plan_to(leaders, topic, shape, (0.0, _WRITE_S_MAX)), passes_max=1)
        written = run_load(plan).requests_all
        peer.kill()
        found.append(_start_again(peer, topic, dict.fromkeys(leaders, 1), leaders))
        cpus_s.append(stage.server.cpu_s())
        check_stored(peer, topic, written)
    return figures_round(
        stage,
        {
            "serving_s": round(statistics.median(one.serving_s for one in found), 3),
            "serving_least_s": round(min(one.serving_s for one in found), 3),
            "serving_most_s": round(max(one.serving_s for one in found), 3),
            "listening_s": round(statistics.median(one.listening_s for one in found), 3),
            "cpu_s": round(statistics.median(cpus_s), 3),
            "partitions": shape.partitions,
        },
    )


def _start_again(peer: KafkaLikePeer, topic: str, ends: Mapping[int, int], leaders: Mapping[int, Address]) -> _Start:
    """Start a peer that was killed, and wait until the leaders tell these ends."""
    began = time.monotonic()
    peer.start()
    listening_s = time.monotonic() - began
    for address in sorted(set(leaders.values())):
        here = {partition: end for partition, end in ends.items() if leaders[partition] == address}
        while (found := list_end_offsets(address, topic, here)) != here:
            beyond = {partition: end for partition, end in found.items() if end > here[partition]}
            if beyond:
                raise CountsDiffer(f"{peer.label}: {len(beyond)} partitions of {topic} have records that nobody wrote")
            if time.monotonic() - began > _DEADLINE_S:
                short = [partition for partition, end in here.items() if found.get(partition) != end]
                raise LoadFailed(f"{peer.label}: {len(short)} partitions of {topic} do not end where they did")
            time.sleep(_PAUSE_S)
    return _Start(listening_s, time.monotonic() - began)
