"""``tpc acl`` against a broker with an authorizer, and Kafka's own tool beside it.

Examples of rules and of quotas too: others of a shared broker would obey them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Tpc
from tests.cli.test_examples_run import EXAMPLES
from tests.support.broker_process import TpcBroker
from tests.support.kafka_peer import KafkaPeer, run_tool
from tests.support.server_process import Broker
from tests.support.shared_servers import is_kafka_asked
from tests.support.waiting import eventually
from tpc_broker.cli import connection

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
ALICE = "User:alice"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("authorizing")
    made = KafkaPeer(folder, SETTINGS) if is_kafka_asked() else TpcBroker(folder, 1, SETTINGS)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def acl(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tpc:
    connection.leave_interrupts_alone()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return Tpc(broker)


def rows(acl: Tpc, *options: str) -> list[str]:
    """Without their head."""
    return acl("acl", "list", *options).splitlines()[1:]


def become(acl: Tpc, options: tuple[str, ...], wanted: list[str]) -> None:
    """Kafka answers before its broker knows it."""
    eventually(lambda: rows(acl, *options) == wanted, f"the rules are {wanted}")


def test_rules_come_and_go(acl: Tpc) -> None:
    on = ("--topic", "come", "--topic", "*")
    who = ("--allow-principal", ALICE, "--deny-principal", "User:*")
    acl("acl", "add", *on, *who, "--operation", "read", "--operation", "ALL", "--host", "10.0.0.1")
    wanted = [
        f"topic\t{name}\tliteral\t{who}\t10.0.0.1\t{operation}\t{permission}"
        for name in ("*", "come")
        for who, permission in (("User:*", "DENY"), (ALICE, "ALLOW"))
        for operation in ("ALL", "READ")
    ]
    become(acl, on, wanted)
    of_alice = [row for row in wanted if ALICE in row]
    assert rows(acl, "--topic", "come", "--pattern", "match", "--principal", ALICE) == of_alice
    told = json.loads(acl("acl", "list", "--topic", "come", "--principal", ALICE, "--json"))
    assert told[0] == {
        "resource": "topic", "name": "come", "pattern": "literal", "principal": ALICE, "host": "10.0.0.1",
        "operation": "ALL", "permission": "ALLOW",
    }  # fmt: skip
    said = acl("acl", "remove", "--topic", "come", "--allow-principal", ALICE, "--operation", "READ")
    assert said.splitlines()[1:] == [wanted[7]]
    become(acl, on, wanted[:7])
    out, said = acl.run("acl", "remove", "--topic", "come", code=2)
    assert out.splitlines()[1:] == wanted[4:7]
    assert said == "tpc: nothing was removed: 3 rules are meant; --yes removes them\n"
    acl("acl", "remove", *on, "--yes")
    become(acl, on, [])
    said = acl.error("acl", "remove", *on, "--yes", code=4)
    assert said == "tpc: there is no such rule; `tpc acl list` shows those that are"


def test_what_a_producer_and_a_consumer_need(acl: Tpc) -> None:
    acl("acl", "add", "--allow-principal", ALICE, "--producer", "--topic", "need", "--transactional-id", "need",
        "--pattern", "prefixed")  # fmt: skip
    prefixed = f"need\tprefixed\t{ALICE}\t*"
    become(acl, ("--topic", "need"), [f"topic\t{prefixed}\t{what}\tALLOW" for what in ("CREATE", "DESCRIBE", "WRITE")])
    become(acl, ("--transactional-id", "need"),
           [f"transactional-id\t{prefixed}\t{what}\tALLOW" for what in ("DESCRIBE", "WRITE")])  # fmt: skip
    acl("acl", "add", "--allow-principal", "User:bob", "--consumer", "--topic", "need-c", "--group", "need-c")
    become(acl, ("--group", "need-c"), ["group\tneed-c\tliteral\tUser:bob\t*\tREAD\tALLOW"])
    acl("acl", "remove", "--allow-principal", "User:bob", "--consumer", "--topic", "need-c", "--group", "need-c")
    become(acl, ("--group", "need-c", "--topic", "need-c"), [])


def test_rules_on_the_cluster(acl: Tpc) -> None:
    acl("acl", "add", "--allow-principal", ALICE, "--cluster", "--operation", "alter", "--pattern", "prefixed")
    become(acl, ("--cluster",), [f"cluster\tkafka-cluster\tliteral\t{ALICE}\t*\tALTER\tALLOW"])
    acl("acl", "remove", "--allow-principal", ALICE, "--cluster", "--operation", "alter")
    become(acl, ("--cluster",), [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--topic", "t", "--operation", "READ"), "a rule is for somebody"),
        (("--allow-principal", ALICE, "--operation", "READ"), "a rule is on something"),
        (("--allow-principal", ALICE, "--topic", "t"), "what on topic t?"),
        (("--allow-principal", "alice", "--topic", "t", "--operation", "READ"), "alice: expected a principal"),
        (("--allow-principal", "User:", "--topic", "t", "--operation", "READ"), "User:: expected a principal"),
        (("--allow-principal", ALICE, "--group", "g", "--operation", "WRITE"), "WRITE means nothing on a group"),
        (("--allow-principal", ALICE, "--group", "g", "--producer"), "--producer goes with --topic or"),
        (("--allow-principal", ALICE, "--cluster", "--consumer"), "--consumer goes with --topic or --group"),
    ],
)
def test_rules_that_mean_nothing(acl: Tpc, words: tuple[str, ...], said: str) -> None:
    assert said in acl.error("acl", "add", *words, code=2)


def test_a_broker_without_an_authorizer_says_so(command: Tpc) -> None:
    assert "No Authorizer is configured" in command.error("acl", "list")
    said = command.error("acl", "add", "--allow-principal", ALICE, "--topic", "t", "--operation", "READ")
    assert "No Authorizer is configured" in said


@pytest.mark.parametrize("line", [line for line in EXAMPLES if line.startswith("tpc acl ")])
def test_an_example_of_rules_does_what_it_says(acl: Tpc, line: str) -> None:
    on_orders = ("--topic", "orders", "--pattern", "literal")
    acl("acl", "add", *on_orders, "--allow-principal", ALICE, "--operation", "READ")
    eventually(lambda: rows(acl, *on_orders), "the rule is there")
    acl(*shlex.split(line)[1:])
    if line.startswith("tpc acl remove "):
        become(acl, on_orders, [])
    for each in (on_orders, ("--group", "billing"), ("--topic", "shop.", "--pattern", "prefixed")):
        if rows(acl, *each):
            acl("acl", "remove", *each, "--yes")


@pytest.mark.parametrize("line", [line for line in EXAMPLES if line.startswith("tpc quota ")])
def test_an_example_of_quotas_does_what_it_says(acl: Tpc, line: str) -> None:
    of_alice = ("quota", "list", "--user", "alice")
    acl("quota", "set", "--user", "alice", "consumer_byte_rate=1000000")
    eventually(lambda: "consumer_byte_rate" in acl(*of_alice), "the quota is there")
    acl(*shlex.split(line)[1:])
    if line.startswith("tpc quota remove "):
        eventually(lambda: "consumer_byte_rate" not in acl(*of_alice), "the quota is gone")
    for entity in (("--user", "alice"), ("--any-user", "--any-client-id"), ("--any-ip",)):
        if json.loads(acl("quota", "list", *entity, "--json")):
            acl("quota", "remove", *entity)


@pytest.mark.kafka
@pytest.mark.usefixtures("kafka_tools")
def test_kafkas_tool_and_ours_see_the_same(acl: Tpc) -> None:
    def tool(*words: str) -> str:
        done = run_tool("acls", "--bootstrap-server", acl.broker.bootstrap, *words)
        assert done.returncode == 0, done
        return done.stdout

    tool("--add", "--allow-principal", ALICE, "--operation", "Read", "--topic", "tool")
    tool("--add", "--deny-principal", "User:bob", "--deny-host", "10.1.1.1", "--operation", "Write", "--operation",
         "Create", "--topic", "tool", "--resource-pattern-type", "prefixed")  # fmt: skip
    become(acl, ("--topic", "tool", "--pattern", "literal"), [f"topic\ttool\tliteral\t{ALICE}\t*\tREAD\tALLOW"])
    denied = [f"topic\ttool\tprefixed\tUser:bob\t10.1.1.1\t{what}\tDENY" for what in ("CREATE", "WRITE")]
    become(acl, ("--topic", "tool", "--pattern", "prefixed"), denied)
    acl("acl", "add", "--allow-principal", "User:carol", "--operation", "DESCRIBE", "--topic", "tool")
    shown = tool("--list", "--topic", "tool", "--resource-pattern-type", "match")
    assert "principal=User:carol, host=*, operation=DESCRIBE, permissionType=ALLOW" in shown
    assert shown.count("permissionType=DENY") == len(denied)
    tool("--remove", "--force", "--topic", "tool", "--resource-pattern-type", "any")
    become(acl, ("--topic", "tool"), [])
