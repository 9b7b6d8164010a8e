"""Rules of access on a cluster: made at any node, they decide on all of them, over a failover too, and not below the
level that keeps them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster_nodes import Cluster, Node, cluster, create_topic, eventually, run_tpc
from tests.support.raw_client import RawConnection
from tpc_broker.error_codes import ErrorCode
from tpc_broker.feature_levels import FIRST_OF_CLUSTERS, FIRST_WITH_SECURITY, kept_from
from tpc_broker.metadata.access_settings import STANDARD_AUTHORIZER

TOPIC = "guarded"
RULE = ("--allow-principal", "User:nobody", "--operation", "READ", "--topic", TOPIC)
pytestmark = pytest.mark.cluster


def guard(made: Cluster, folder: Path) -> Cluster:
    """Everybody may do everything with what no rule is on: so the first rule for somebody else shuts others out."""
    secret = folder / "cluster.key"
    secret.write_text("5e" * 32)
    secret.chmod(0o600)
    for node in made.nodes:
        node.secret = secret
        node.overrides |= {"authorizer.class.name": STANDARD_AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    return made


def error_of(node: Node, topic: str = TOPIC) -> ErrorCode:
    asked = {"Topics": [{"Name": topic}], "AllowAutoTopicCreation": False}
    with RawConnection(node.host, node.ports[0]) as connection:
        [found] = connection.ask("Metadata", 12, asked)["Topics"]
    return ErrorCode(found["ErrorCode"])


def acl(node: Node, what: str, *words: str, code: int = 0) -> str:
    found, said = run_tpc("acl", what, *words, "--bootstrap", node.bootstrap)
    assert found == code, said
    return said


def test_rules_decide_on_every_node(tmp_path: Path) -> None:
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with cluster(tmp_path) as made:
        guard(made, tmp_path).start()
        create_topic(made.bootstrap, TOPIC, 1, replicas=3)
        create_topic(made.bootstrap, "open", 1, replicas=3)
        for node in made.nodes:
            assert error_of(node) is ErrorCode.NONE
        acl(made[2], "add", *RULE)
        assert error_of(made[2]) is refused
        for node in made.nodes:
            eventually(lambda node=node: error_of(node) is refused, "each node knows the rule")
            assert error_of(node, "open") is ErrorCode.NONE
        made.kill(made.controller())
        left = [node for node in made.nodes if node.process.is_running]
        assert [error_of(node) for node in left] == [refused] * 2
        eventually(lambda: run_tpc("acl", "remove", *RULE, "--bootstrap", left[0].bootstrap)[0] == 0, "it is removed")
        for node in left:
            eventually(lambda node=node: error_of(node) is ErrorCode.NONE, "each node knows that it is gone")
        made.kill_all()
        made.start()
        assert [error_of(node) for node in made.nodes] == [ErrorCode.NONE] * 3


def test_below_the_level_no_rule_is_made(tmp_path: Path) -> None:
    with cluster(tmp_path) as made:
        made[3].environment["TPC_TEST_FEATURE_LEVELS"] = f"{FIRST_OF_CLUSTERS}-{FIRST_WITH_SECURITY - 1}"
        guard(made, tmp_path).start()
        said = acl(made[1], "add", *RULE, code=1)
        assert kept_from("Rules of access", FIRST_WITH_SECURITY, FIRST_WITH_SECURITY - 1) in said
        assert acl(made[1], "list", "--json") == "[]\n"
        made.kill(3)
        del made[3].environment["TPC_TEST_FEATURE_LEVELS"]
        made.start(3)
        raise_it = ("cluster", "level", "--raise", str(FIRST_WITH_SECURITY), "--bootstrap", made[1].bootstrap)
        eventually(lambda: run_tpc(*raise_it)[0] == 0, "the level is raised")
        eventually(lambda: run_tpc("acl", "add", *RULE, "--bootstrap", made[1].bootstrap)[0] == 0, "a rule is made")
