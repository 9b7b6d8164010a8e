"""Small scripted clusters, each for one promise of the membership protocol; InvariantError where it is broken.

The tests run them as they are, and with planted mutants, which must be caught.
"""

from __future__ import annotations

from tests.simulator.network import Faults
from tests.simulator.swim_cluster import InvariantError, SwimCluster, cluster_of
from tpc_broker.model import NodeId
from tpc_broker.swim.model import Change, Settings, State, Update

NO_EXCHANGE = 10**9


def _promise(kept: bool, what: str) -> None:
    if not kept:
        raise InvariantError(what)


def _told(cluster: SwimCluster, change: Change, since_us: int = 0) -> list[tuple[NodeId, NodeId]]:
    seen = [one for one in cluster.seen if one.event.change is change and one.at_us >= since_us]
    return [(one.observer, one.event.node) for one in seen]


def bad_path(seed: int = 1) -> None:
    """Two members cannot reach each other; all others reach both: nobody is suspected."""
    cluster = cluster_of(6, seed, is_strict=True)
    cluster.network.partition([cluster.nodes[NodeId(0)].address], [cluster.nodes[NodeId(1)].address])
    cluster.run_for(40_000)
    _promise(not _told(cluster, Change.SUSPECTED), f"suspected over a bad path: {_told(cluster, Change.SUSPECTED)}")


def crash(seed: int = 1) -> None:
    """A member dies: all others agree on it, by rumour alone, and their rumours end."""
    cluster = cluster_of(8, seed, settings=Settings(exchange_interval_ms=NO_EXCHANGE), is_strict=True)
    cluster.run_for(3_000)
    cluster.nodes[NodeId(3)].stop()
    cluster.wait_agreement(60_000)
    died = _told(cluster, Change.DIED)
    _promise(sorted(died) == [(n, 3) for n in range(8) if n != 3], f"not everybody buried it once: {died}")


def many_crashes(seed: int = 1) -> None:
    """Each of n - 1 members finds a death by itself within 2n - 1 periods, whatever rumours do."""
    nodes_count = 10
    cluster = cluster_of(nodes_count, seed, settings=Settings(exchange_interval_ms=NO_EXCHANGE, local_health_max=0))
    for node in cluster.nodes.values():
        node.machine._rumours.take = lambda _room, _times: []
    cluster.nodes[NodeId(3)].stop()
    cluster.run_for((2 * nodes_count + 1) * 1_000)
    found = {observer for observer, node in _told(cluster, Change.SUSPECTED) if node == 3}
    _promise(len(found) == nodes_count - 1, f"only {sorted(found)} probed it within 2n - 1 periods")


def pair(seed: int = 1) -> None:
    """Two members do not hear each other for eight seconds: neither is buried for it, but who stays silent is."""
    cluster = cluster_of(2, seed, is_strict=True, settings=Settings(exchange_interval_ms=NO_EXCHANGE))
    cluster.run_for(3_000)
    one, other = (cluster.nodes[NodeId(number)] for number in (0, 1))
    cluster.network.partition([one.address], [other.address])
    cluster.run_for(8_000)
    suspected = {node for _observer, node in _told(cluster, Change.SUSPECTED)}
    _promise(suspected == {0, 1}, f"only {suspected} suspected in eight seconds")
    cluster.network.heal()
    cluster.wait_agreement(30_000)
    _promise(not _told(cluster, Change.DIED), f"buried in a pair: {_told(cluster, Change.DIED)}")
    other.stop()
    cluster.run_for(30_000)
    _promise(cluster.held(one, NodeId(1)) is State.DEAD, "not buried in half a minute")


def restart(seed: int = 1) -> None:
    """A member starts again before anybody missed it: all see the new boot, and nobody buries anybody."""
    cluster = cluster_of(6, seed, is_strict=True)
    node = cluster.nodes[NodeId(2)]
    for incarnation in range(3):
        node.machine.merge([Update(NodeId(2), incarnation, State.SUSPECT, NodeId(1))], node.clock.now_ms())
        node._serve()
        cluster.run_for(3_000)
    began_us = cluster.world.now_us
    node.stop()
    node.start([cluster.nodes[NodeId(0)].address])
    cluster.wait_agreement(30_000)
    restarted = _told(cluster, Change.RESTARTED, began_us)
    _promise(len({observer for observer, _node in restarted}) == 5, f"the new boot was seen by {restarted} only")
    _promise(not _told(cluster, Change.DIED), "somebody was buried for a restart")


def partition(seed: int = 1) -> None:
    """Both halves bury each other, find each other again, and nobody is buried by the own half on the way."""
    cluster = cluster_of(10, seed, is_strict=True)
    one = [node.address for node in cluster.nodes.values() if node.node < 5]
    other = [node.address for node in cluster.nodes.values() if node.node >= 5]
    cluster.network.partition(one, other)
    cluster.run_for(90_000)
    buried = set(_told(cluster, Change.DIED))
    across = {(a, b) for a in range(10) for b in range(10) if (a < 5) != (b < 5)}
    _promise(buried == across, f"buried by the wrong side: {sorted(buried ^ across)}")
    cluster.network.heal()
    began_us = cluster.world.now_us
    cluster.wait_agreement(60_000)
    again = _told(cluster, Change.DIED, began_us)
    _promise(not again, f"buried by a healed partition: {again}")


def pause(seed: int = 1) -> None:
    """A member stands still for half a minute, deaf, with a suspicion open that is refuted meanwhile.

    It may be suspected itself, but when it goes on it buries nobody whose answer it could not hear.
    """
    cluster = cluster_of(8, seed, is_strict=True, settings=Settings(exchange_interval_ms=NO_EXCHANGE))
    node = cluster.nodes[NodeId(4)]
    cluster.run_for(3_000)
    node.datagrams_kept = 0
    node.machine.merge([Update(NodeId(2), 0, State.SUSPECT, NodeId(1))], node.clock.now_ms())
    node._serve()
    node.process.pause()
    cluster.run_for(35_000)
    node.process.resume()
    cluster.wait_agreement(60_000)
    buried = [(a, b) for a, b in _told(cluster, Change.DIED) if b != 4]
    _promise(not buried, f"the paused member buried {buried}")


def quiet(seed: int = 1) -> None:
    """After a time of heavy loss without deaths: everybody is alive again, healthy, and nothing is told any more."""
    cluster = cluster_of(8, seed, faults=Faults(loss=0.3), is_strict=True)
    cluster.run_for(60_000)
    _promise(not _told(cluster, Change.DIED), f"buried under loss: {_told(cluster, Change.DIED)}")
    cluster.set_faults(loss=0.0)
    cluster.wait_agreement(60_000)
    cluster.run_for(60_000)
    unwell = [node.node for node in cluster.nodes.values() if node.machine.health.score]
    _promise(not unwell, f"still in bad health after a quiet minute: {unwell}")


def farewell(seed: int = 1) -> None:
    """A member leaves: all hold it to have left, nobody that it died; and it can come back."""
    cluster = cluster_of(8, seed, is_strict=True)
    cluster.run_for(2_000)
    node = cluster.nodes[NodeId(5)]
    node.machine.leave(node.clock.now_ms())
    node._serve()
    cluster.run_for(1_000)
    _promise(node.machine.has_left, "its farewell is not over within a period")
    node.stop()
    cluster.run_for(40_000)
    held = {cluster.held(other, NodeId(5)) for other in cluster.running()}
    _promise(held == {State.LEFT}, f"held to be {held}")
    _promise(not _told(cluster, Change.DIED), "taken for dead")
    node.start([cluster.nodes[NodeId(0)].address])
    cluster.wait_agreement(30_000)


def join(seed: int = 1) -> None:
    """Ten nodes start at once, with two seeds; a newcomer is known to all in O(log n) periods."""
    cluster = SwimCluster(seed, is_strict=True, is_encoded=True)
    for node in range(11):
        cluster.add(node)
    seeds = [cluster.nodes[NodeId(node)].address for node in (0, 1)]
    for node in range(10):
        cluster.nodes[NodeId(node)].start(seeds)
    cluster.wait_agreement(20_000)
    began_us = cluster.world.now_us
    cluster.nodes[NodeId(10)].start(seeds)
    cluster.run_for(8_000)
    heard = cluster.seen_of(10, Change.JOINED, began_us)
    _promise(len(heard) == 10, f"only {[one.observer for one in heard]} heard of the newcomer")


def forgotten(seed: int = 1) -> None:
    """A death is forgotten by all in its time, though members that were told of it later start again all the while."""
    settings = Settings(dead_retention_ms=60_000, exchange_interval_ms=10_000)
    cluster = cluster_of(5, seed, settings=settings, is_strict=True)
    cluster.nodes[NodeId(4)].stop()
    cluster.wait_agreement(60_000)
    for again in range(6):
        cluster.run_for(20_000)
        node = cluster.nodes[NodeId(again % 4)]
        node.stop()
        node.start([cluster.nodes[NodeId((again + 1) % 4)].address])
        if again >= 3:  # 80 s after the last one has buried it
            _promise(not cluster.remembered(), f"not forgotten: {cluster.remembered()}")


SCENARIOS = (bad_path, crash, many_crashes, pair, restart, partition, pause, quiet, farewell, join, forgotten)
