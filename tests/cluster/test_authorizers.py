"""Nodes with an authorizer and nodes without one have nothing to do with each other."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from tests.cluster.test_encrypted_links import OLD, give_secret
from tests.support.cluster_nodes import cluster, create_topic, eventually
from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.cluster.link_codec import Hello, Reason
from tpc_broker.engine.tls import is_built
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.model import CoreId, NodeId
from tpc_broker.node.links.greeting import refusal_of, refusal_of_node
from tpc_broker.node.node import FINAL_REASONS
from tpc_broker.options import ClusterOptions

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


def hello(node: int, *, has_authorizer: bool) -> Hello:
    port = 9000 + node
    return Hello("c", NodeId(node), node, 1, CoreId(0), "127.0.0.1", port, "0", has_authorizer=has_authorizer)


@pytest.mark.parametrize("is_ours", [True, False])
def test_one_that_has_none_is_refused_by_one_that_has_and_the_other_way_round(is_ours: bool) -> None:
    other, own = hello(2, has_authorizer=not is_ours), hello(1, has_authorizer=is_ours)
    for refused in (refusal_of(other, own, (), ClusterImage()), refusal_of_node(other, own, ClusterImage())):
        assert refused is not None
        assert refused.reason is Reason.AUTHORIZER
        has, lacks = (1, 2) if is_ours else (2, 1)
        assert str(refused).startswith(
            f"authorizer.class.name is set at node {has} at 127.0.0.1:{9000 + has}, and not at node {lacks} at "
        )
        assert refused.reason not in FINAL_REASONS, "it waits until the others are like it"


@pytest.mark.parametrize("has", [True, False])
def test_those_that_are_alike_are_not_refused(has: bool) -> None:
    assert refusal_of(hello(2, has_authorizer=has), hello(1, has_authorizer=has), (), ClusterImage()) is None


def test_every_core_of_a_node_says_it() -> None:
    options = ClusterOptions(1, SeedAddress("::1", 9), (), "", "", has_authorizer=True)
    assert ClusterOptions.from_fields(json.loads(json.dumps(asdict(options)))) == options


@pytest.mark.cluster
@pytest.mark.skipif(not is_built(), reason="built without OpenSSL")
def test_a_node_that_comes_back_with_an_authorizer_waits_until_the_others_have_it(tmp_path) -> None:
    with cluster(tmp_path) as made:
        give_secret(made, OLD)
        made.start()
        create_topic(made.bootstrap, "t", 1, replicas=3)
        made[3].stop()
        made[3].overrides |= AUTHORIZER
        made.launch(3)
        said = "authorizer.class.name is set at node 3 at "
        for node in made.nodes:
            eventually(lambda node=node: any(said in line for line in node.log_messages()), f"{node.number} says so")
        assert made[3].process.is_running
        for node in made.nodes[:2]:
            node.stop()
            node.overrides |= AUTHORIZER
        made.launch(1, 2)
        for node in made.nodes:
            node.wait_ready()
        create_topic(made.bootstrap, "u", 1, replicas=3)
