"""What clients of a listener call the nodes of a cluster, some of whose cores share it."""

from __future__ import annotations

import pytest

from tpc_broker.broker.view import ClusterView
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.listeners import Address, Listener, ListenerMode
from tpc_broker.metadata.records import NodeAddress, NodeRegistered
from tpc_broker.model import CoreId, MetadataVersion, NodeId, Replica


def listener(name: str, mode: ListenerMode, ports: list[int]) -> Listener:
    addresses = tuple(Address("h", port) for port in ports)
    return Listener(name, mode, addresses, addresses)


def registered(node: int, cores: int, **listeners: list[int]) -> NodeRegistered:
    told = tuple(
        (name, tuple(NodeAddress(f"node{node}", port) for port in ports)) for name, ports in listeners.items()
    )
    return NodeRegistered(NodeId(node), node, cores, "", "0", NodeAddress("c", 1), told)


@pytest.fixture
def view() -> ClusterView:
    """Node 1, two cores: ONE is shared there and on node 2, and has a port a core on node 3."""
    mine = [listener("EACH", ListenerMode.PER_CORE_PORT, [10, 11]), listener("ONE", ListenerMode.SHARED, [20, 20])]
    made = ClusterView(NodeId(1), 2, mine, None, in_cluster=True)
    nodes = [
        registered(1, 2, EACH=[10, 11], ONE=[20, 20]),
        registered(2, 2, EACH=[10, 11], ONE=[20, 20]),
        registered(3, 2, EACH=[10, 11], ONE=[20, 21]),
    ]
    made.image = ClusterImage().apply(nodes, MetadataVersion(1))
    return made


EACH, ONE = 0, 1


def test_nodes_whose_cores_share_a_listener_are_one_broker_and_the_others_several(view):
    told = [(each.broker_id, each.port) for each in view.endpoints(ONE)]
    assert told == [(1024, 20), (2048, 20), (3072, 20), (3073, 21)]
    assert [each.broker_id for each in view.endpoints(EACH)] == [1024, 1025, 2048, 2049, 3072, 3073]


@pytest.mark.parametrize(
    ("number", "place", "broker"),
    [(ONE, (1, 1), 1024), (ONE, (2, 1), 2048), (ONE, (3, 1), 3073), (EACH, (1, 1), 1025), (EACH, (2, 1), 2049)],
)
def test_a_core_is_called_what_its_endpoint_is(view, number, place, broker):
    place = Replica(NodeId(place[0]), CoreId(place[1]))
    assert view.broker_id(view.listener_name(number), place) == broker
    assert view.endpoint_at(number, place).broker_id == broker


@pytest.mark.parametrize(
    ("name", "broker", "places"),
    [
        ("ONE", 1024, [(1, 0), (1, 1)]), ("ONE", 2048, [(2, 0), (2, 1)]), ("ONE", 2049, [(2, 1)]),
        ("ONE", 3072, [(3, 0)]), ("EACH", 1024, [(1, 0)]), ("EACH", 2049, [(2, 1)]),
        ("ONE", 2050, []), ("ONE", 4096, []), ("ONE", -1, []), ("EACH", 7, []),
        ("of an earlier release", 2048, [(2, 0)]),
    ],
)  # fmt: skip
def test_an_id_names_all_cores_of_a_node_only_where_they_share_the_listener(view, name, broker, places):
    assert list(view.places_of_broker(name, broker)) == places


def test_a_broker_alone_has_its_nodes_id_where_its_cores_share_the_listener():
    one = listener("ONE", ListenerMode.SHARED, [20, 20])
    view = ClusterView(NodeId(5), 2, [one], None)
    assert [each.broker_id for each in view.endpoints(0)] == [5]
    assert list(view.places_of_broker("ONE", 5)) == [(5, 0), (5, 1)]
    assert view.places_of_broker("ONE", 5 * 1024) == ()


@pytest.mark.parametrize(
    ("number", "core", "meant", "others"),
    [
        (EACH, 0, [1024], [1025, 1026, 2048, 1, 0, -1, -2, 2**31 - 1]),
        (EACH, 1, [1025], [1024, 2049]),
        (ONE, 0, [1024, 1025], [2048, 3073, 1, -1]),
        (ONE, 1, [1024, 1025], [2048, 3073]),
    ],
)
def test_who_means_a_broker_is_right_at_its_core_and_at_any_that_shares_its_address(view, number, core, meant, others):
    for image in (view.image, ClusterImage()):  # before it is known which nodes there are as after
        view.image = image
        found = [each for each in [*meant, *others] if view.is_meant(number, CoreId(core), each)]
        assert found == meant


def test_the_one_broker_of_a_node_alone_is_meant_by_the_nodes_number():
    view = ClusterView(NodeId(5), 2, [listener("ONE", ListenerMode.SHARED, [20, 20])], None)
    assert [each for each in (5, 0, 6, 1024, -1) if view.is_meant(0, CoreId(1), each)] == [5]
