"""Every example of the help, which the manual has too, and of the documentation, run in a cluster as it stands there.

What an example stands on is there before: topics with records, a group with offsets, files. Addresses and folders are
replaced by those of the test, and what would not come to an end by itself is told to.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from tests.cli.test_examples import ALL_EXAMPLES
from tests.support.broker_process import run_command
from tests.support.cluster_nodes import Cluster, cluster, create_topic, produce, run_tpc
from tests.support.tls_brokers import store_of
from tests.support.tls_proxy import make_certificates
from tests.support.waiting import PATIENCE_S
from tpc_broker.cli import connection
from tpc_broker.cli.main import main as tpc
from tpc_broker.feature_levels import SPOKEN

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINE: Final = re.compile(r"^ *(?:[^#|]*\| *)?(?:\.venv/bin/)?(tpc(?:-broker)? [a-z].*)$")

ELSEWHERE: Final = {
    "tpc bench": "minutes, and servers of others: tests/bench",
    "tpc pipeline": "jobs on Spark: tests/spark/test_pipelines.py runs each",
    "tpc cluster start": "until Ctrl-C: tests/cli/test_tpc.py",
    "tpc config get broker 0": "of a broker alone: tests/cli/test_configs.py",
    "tpc send": "to a broker with --datagram: tests/cli/test_send.py",
    "tpc completion": "it prints a shell's script: tests/cli/test_tpc.py",
    "tpc info --bootstrap broker.example": "the address is not ours; `tpc info` is run",
    "tpc acl": "of a broker with an authorizer: tests/cli/test_acls.py",
    "tpc quota": "others of this cluster would obey them: tests/cli/test_acls.py",
    "tpc profile": "they are run in their order, with a folder of their own: tests/cli/test_profiles.py",
    "tpc topic list --profile": "the same",
    "tpc node remove": "a node that is gone for good: tests/cluster/test_leaving.py",
    "tpc-broker restore": "tests/durability/test_backup.py",
    "tpc-broker repair": "of a stopped broker: tests/durability/test_repair.py",
    "tpc-broker serve --data ./data --config": "in their order: tests/integration/test_security_page.py",
    "tpc produce orders -X security.protocol": "the same",
}
"""What another test runs, by the beginning."""
MORE: Final = {
    "tpc consume orders --from earliest --format": "--count 1",
    "tpc consume orders --count": "--from earliest",
    "tpc node drain 3 --wait": f"--timeout {PATIENCE_S}",
    "tpc cluster health": f"--wait {PATIENCE_S}",
}
"""What ends an example that would go on; one that watches looks once."""


def documented() -> set[str]:
    found = set()
    for page in PAGES:
        blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        text = re.sub(r" \\\n *", " ", "\n".join(blocks))
        found |= {match[1] for line in text.splitlines() if (match := LINE.match(line))}
    return {re.split(r"  +#|  +| #|&$", line)[0].strip() for line in found if "…" not in line}


READS: Final = (
    "tpc cluster", "tpc config get", "tpc consume", "tpc group describe", "tpc group list", "tpc info",
    "tpc partition list", "tpc partition moves", "tpc topic describe", "tpc topic list", "tpc-broker",
)  # fmt: skip
EXITS: Final = {
    "tpc cluster moves cancel orders-0": (4,),  # nothing of it is on its way, which is said
    "tpc cluster moves cancel orders-0 orders-1": (4,),
    "tpc txn abort --partition orders-0 --from-offset 4711": (5,),  # its coordinator has it, which is said
    "tpc-broker doctor --data /var/lib/tpc-broker": (0, 1),  # by what the host is
}
EXAMPLES: Final = sorted({*ALL_EXAMPLES, *documented()})
HERE: Final = [line for line in EXAMPLES if not line.startswith(tuple(ELSEWHERE))]


def test_examples_are_found_in_the_help_and_in_the_documents() -> None:
    assert len(documented()) > 30
    assert all(any(line.startswith(start) for line in EXAMPLES) for start in ELSEWHERE)


def test_examples_raise_the_feature_level_to_the_newest_one() -> None:
    """A new cluster is there already, and refuses to go to an earlier one."""
    raised = {line for line in EXAMPLES if " --raise " in line}
    assert raised == {f"tpc cluster level --raise {SPOKEN.highest}"}


CREATED: Final = [line for line in EXAMPLES if line.startswith("tpc topic create ")]


@pytest.mark.parametrize("line", CREATED)
def test_a_topic_can_be_made_as_the_examples_make_it(shared_cluster: Any, line: str) -> None:
    words = shlex.split(line)[1:]
    words[2] = f"example-{CREATED.index(line)}"
    assert run_tpc(*words, "--bootstrap", shared_cluster.bootstrap) == (0, f"Created topic {words[2]}.\n")
    assert run_tpc("topic", "delete", words[2], "--bootstrap", shared_cluster.bootstrap)[0] == 0


class Place:
    """Three nodes of two cores, and what the examples name."""

    def __init__(self, made: Cluster, folder: Path) -> None:
        self.bootstrap, self.data, self.folder = made.bootstrap, made[1].data_folder, folder
        self.is_as_it_was = False
        self.open_transaction: tuple[Producer, int] | None = None
        """Of `mover-1`, with the offset of its record in partition 0."""
        for name in ("alice.txt", "admin.txt"):
            (folder / name).write_text("a password\n")
            (folder / name).chmod(0o600)
        (folder / "broker.properties").write_text("num.partitions=2\n")
        (folder / "events.txt").write_text("one:1\ntwo:2\n")
        (folder / "cluster.key").write_text("0123456789abcdef" * 4 + "\n")
        (folder / "cluster.key").chmod(0o600)

    def tpc(self, *words: str) -> tuple[int, str]:
        return run_tpc(*words, "--bootstrap", self.bootstrap)

    def prepare(self, line: str) -> None:
        """As it was before, whatever the last example has done."""
        if self.is_as_it_was:
            self.is_as_it_was = line.startswith(READS)
            return
        for line_before in ("node drain 3 --cancel", "cluster moves resume", "group delete readers",
                            "topic delete orders", "topic delete logs"):  # fmt: skip
            self.tpc(*line_before.split())
        self.is_as_it_was = line.startswith(READS)
        if line.startswith("tpc topic create"):
            return
        create_topic(self.bootstrap, "orders", 6, replicas=3)
        produce(self.bootstrap, "orders", [f"{number}" for number in range(6_600)], 6)
        code, said = self.tpc("consume", "orders", "--group", "readers", "--count", "6600", "--from", "earliest")
        assert code == 0, said
        assert self.tpc("cluster", "health", "--wait", str(PATIENCE_S)) == (0, "healthy\n")

    def prepare_who_is_named(self, line: str) -> None:
        """A user, or a transaction that is open."""
        if line.startswith("tpc user"):
            self.tpc("user", "delete", "alice")
            if not line.startswith("tpc user add"):
                code, said = self.tpc("user", "add", "alice", "--password-file", str(self.folder / "alice.txt"))
                assert code == 0, said
        if line.startswith(("tpc txn abort", "tpc txn describe")):
            producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": "mover-1", "log_level": 0})
            producer.init_transactions(PATIENCE_S)
            producer.begin_transaction()
            offsets: list[int] = []
            producer.produce("orders", b"moved", partition=0, on_delivery=lambda _, done: offsets.append(done.offset()))
            assert producer.flush(PATIENCE_S) == 0
            self.open_transaction = producer, offsets[0]

    def command(self, line: str) -> list[str]:
        number = EXAMPLES.index(line)
        (self.folder / f"backup{number}").mkdir(exist_ok=True)
        line += next((f" {more}" for start, more in MORE.items() if line.startswith(start)), "")
        line += " --count 1" if " --watch" in line else ""
        if re.search(r" user (add|password) ", line) and " --password-file " not in line:
            line += " --password-file admin.txt"  # whoever has a terminal is asked
        if line.startswith("tpc-broker user add"):  # before the first start
            line = re.sub(r" --data \S+", f" --data {self.folder}/new{number}", line)
        if self.open_transaction is not None:
            line = line.replace("--from-offset 4711", f"--from-offset {self.open_transaction[1]}")
        line = line.replace("/etc/tpc-broker/server.pem", f"{self.folder}/server-store.pem")
        line = line.replace("/var/lib/tpc-broker", str(self.data)).replace("/backup", f"{self.folder}/backup{number}")
        line = line.replace("/etc/tpc/cluster.secret", "cluster.key")
        for name in ("broker.properties", "bundle.tar.gz", "events.txt", "cluster.key", "alice.txt", "admin.txt"):
            line = line.replace(name, str(self.folder / name))
        program, *words = shlex.split(line)
        if words[0] == "serve":  # whether it would be taken: its addresses are another machine's
            words[0] = "check-config"
            words = [word for at, word in enumerate(words) if "--data" not in words[max(0, at - 1) : at + 1]]
        more = ["--bootstrap", self.bootstrap] if program == "tpc" else []
        return [program, *words, *more]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("examples")
    store_of(make_certificates(folder))
    with cluster(folder, count=3, cores=2) as made:
        made.start()
        yield Place(made, folder)


@pytest.mark.cluster
@pytest.mark.parametrize("line", HERE)
def test_an_example_does_what_it_says(place: Place, line: str) -> None:
    place.prepare(line)
    place.prepare_who_is_named(line)
    program, *words = place.command(line)
    if program == "tpc-broker":
        done = run_command(*words)
        code, said = done.returncode, done.stdout + done.stderr
    else:
        connection.leave_interrupts_alone()
        given = "00ff\n" if "--hex" in words else "key:value\n"
        found = CliRunner().invoke(tpc, words, input=given, catch_exceptions=False)
        code, said = found.exit_code, found.output
    assert code in EXITS.get(line, (0,)), said
    assert "Traceback" not in said
