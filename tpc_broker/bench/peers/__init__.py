"""The servers that are measured, one adapter per file; `kinds()` lists them.

A new peer is one module with one subclass of `Peer` and one line in `kinds()`.
"""

from __future__ import annotations

from tpc_broker.bench.peers.bare import BareClusterPeer, BarePeer
from tpc_broker.bench.peers.clusters import KafkaClusterPeer, NatsClusterPeer, TpcClusterPeer, TpcHostsPeer
from tpc_broker.bench.peers.kafka import KafkaPeer
from tpc_broker.bench.peers.nats import NatsPeer
from tpc_broker.bench.peers.peer import Peer, Shape
from tpc_broker.bench.peers.redis import RedisPeer
from tpc_broker.bench.peers.tpc import TpcPeer

__all__ = ["Peer", "Shape", "kinds"]


def kinds() -> dict[str, type[Peer]]:
    alone = (BarePeer, TpcPeer, KafkaPeer, RedisPeer, NatsPeer)
    clusters = (BareClusterPeer, TpcClusterPeer, TpcHostsPeer, KafkaClusterPeer, NatsClusterPeer)
    return {kind.name: kind for kind in (*alone, *clusters)}
