"""Users of a real broker: made before its first start, kept over restarts and crashes, in no text that leaves it."""

from __future__ import annotations

import base64
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import TpcBroker, run_here
from tests.support.cluster_nodes import run_tpc
from tests.support.ports import free_port_range
from tests.support.raw_client import RawConnection
from tests.support.sasl_brokers import SaslBroker
from tests.support.server_process import ServerFailed
from tests.support.waiting import PATIENCE_S
from tpc_broker.engine.data_directory import PENDING_USERS_FILE
from tpc_broker.kafka.records import read_records
from tpc_broker.log.files import partition_folder_name
from tpc_broker.metadata.records import ScramCredentialChanged, decode_record
from tpc_broker.model import METADATA_TOPIC, PartitionIndex

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[TpcBroker]:
    made = TpcBroker(tmp_path / "broker", 2)
    yield made
    made.kill()


def add(broker: TpcBroker, name: str, *more: str) -> str:
    secret = broker.folder.parent / "password"
    secret.write_text("pencil")
    done = run_here("user", "add", name, "--data", str(broker.data_folder), "--password-file", str(secret), *more)
    return done.stderr


def described(broker: TpcBroker, core: int = 0) -> dict[str, list[tuple[int, int]]]:
    with RawConnection("127.0.0.1", broker.ports[core]) as connection:
        found = connection.ask("DescribeUserScramCredentials", 0, {"Users": None})
    return {
        one["User"]: [(each["Mechanism"], each["Iterations"]) for each in one["CredentialInfos"]]
        for one in found["Results"]
    }


def altered(broker: TpcBroker, **request: object) -> None:
    with RawConnection("127.0.0.1", broker.ports[0]) as connection:
        answer = connection.ask("AlterUserScramCredentials", 0, request)
    assert [one["ErrorCode"] for one in answer["Results"]] == [0]


def test_a_user_made_before_the_first_start_is_there_and_stays_as_it_is_changed(stopped: TpcBroker) -> None:
    assert add(stopped, "admin") == ""
    pending = stopped.data_folder / PENDING_USERS_FILE
    left_over = pending.read_bytes()
    stopped.start()
    assert not pending.exists()
    assert [described(stopped, core) for core in (0, 1)] == [{"admin": [(1, 8192), (2, 8192)]}] * 2
    assert "is locked by another broker" in add(stopped, "bert")
    altered(stopped, Deletions=[{"Name": "admin", "Mechanism": 1}])
    stopped.kill()
    assert add(stopped, "bert", "--mechanism", "SCRAM-SHA-256") == ""
    stopped.start()
    assert described(stopped) == {"admin": [(2, 8192)], "bert": [(1, 8192)]}
    stopped.stop()
    # As if it had been killed between the record and the removal of the file: the same once more.
    pending.write_bytes(left_over)
    stopped.start()
    assert described(stopped, 1) == {"admin": [(1, 8192), (2, 8192)], "bert": [(1, 8192)]}


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[SaslBroker]:
    """With rules, of which nobody but `admin` may make any; not started yet."""
    made = SaslBroker(tmp_path / "broker", 2)
    made.overrides = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
    }
    yield made
    made.kill()


def test_the_first_user_logs_in_and_makes_the_others(guarded: SaslBroker, tmp_path: Path) -> None:
    """The story of a new broker."""

    def tpc(user: str, *words: str) -> tuple[int, str]:
        login = (
            "security.protocol=sasl_plaintext", "sasl.mechanism=SCRAM-SHA-512", f"sasl.username={user}",
            "sasl.password=pencil",
        )  # fmt: skip
        options = [option for each in login for option in ("-X", each)]
        return run_tpc("user", *words, "--bootstrap", guarded.sasl_bootstrap, *options)

    assert add(guarded, "admin") == ""
    guarded.start()
    secret = ("--password-file", str(tmp_path / "password"))
    assert tpc("admin", "add", "alice", *secret) == (0, "Added user alice.\n")
    rows = [f"{name}\tSCRAM-SHA-{size}\t8192\n" for name in ("admin", "alice") for size in (256, 512)]
    assert tpc("admin", "list") == (0, "".join(["User\tMechanism\tIterations\n", *rows]))
    for words in (("list",), ("add", "mallory", *secret), ("password", "admin", *secret), ("delete", "admin")):
        code, said = tpc("alice", *words)
        assert code == 6, said
        assert "CLUSTER_AUTHORIZATION_FAILED" in said
    assert tpc("nobody", "list")[0] == 6
    assert tpc("admin", "delete", "alice") == (0, "Deleted user alice.\n")
    assert tpc("alice", "list")[0] == 6


def test_a_file_that_cannot_be_used_ends_the_start(stopped: TpcBroker) -> None:
    add(stopped, "admin")
    with (stopped.data_folder / PENDING_USERS_FILE).open("a") as file:
        file.write("planted-secret\n")
    with pytest.raises(ServerFailed, match="before it was ready"):
        stopped.start()
    said = stopped.log_text()
    assert "users.pending, line 3: not a user; remove the file and see: tpc-broker user add" in said
    assert "planted-secret" not in said


# Attempt 105 of the plan: what leaves the machine, or is looked at by many, holds no secret.
def test_log_status_metrics_and_bundle_hold_no_credential(stopped: TpcBroker, tmp_path: Path) -> None:
    add(stopped, "admin")
    admin = free_port_range(1)
    stopped.more_options = ["--log-level", "DEBUG", "--admin", str(admin)]
    stopped.start()
    user = {"Name": "anna", "Mechanism": 1, "Iterations": 4096}
    altered(stopped, Upsertions=[{**user, "Salt": b"planted-salt", "SaltedPassword": b"planted-salted-password-----"}])
    bundle = tmp_path / "bundle.tar.gz"
    log = stopped.process.log_path
    done = run_here("bundle", "--data", str(stopped.data_folder), "--log", str(log), "--out", str(bundle))
    assert done.returncode == 0, done.stderr
    shown = [log.read_bytes(), run_here("status", "--data", str(stopped.data_folder), "--json").stdout.encode()]
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=PATIENCE_S) as metrics:
        shown.append(metrics.read())
    with tarfile.open(bundle) as archive:
        shown += [archive.extractfile(member).read() for member in archive.getmembers()]
    stopped.stop()
    secrets = {b"planted-salt", b"planted-salted-password", b"pencil"}
    for kept in kept_credentials(stopped):
        assert kept.salt is not None
        for text in (kept.salt, kept.stored_key, kept.server_key):
            secrets |= {text.encode(), base64.b64decode(text), base64.b64decode(text).hex().encode()}
    assert len(secrets) == 2 + 3 * 3 * 3, "one salt is known already"
    for path in segments(stopped):
        dumped = run_here("dump", "--records", str(path)).stdout
        assert dumped.count('"user":"admin"') == 2
        shown += [dumped.encode(), run_here("dump", "--records", "--json", str(path)).stdout.encode()]
    assert [secret for secret in secrets for text in shown if secret in text] == []


def kept_credentials(broker: TpcBroker) -> list[ScramCredentialChanged]:
    """As they are in the segments, which is all of them after an orderly stop."""
    records = [
        decode_record(record.value) for path in segments(broker) for batch in batches_of(path)
        for record in read_records(batch)
    ]  # fmt: skip
    return [record for record in records if isinstance(record, ScramCredentialChanged)]


def segments(broker: TpcBroker) -> list[Path]:
    folder = broker.data_folder / "topics" / partition_folder_name(METADATA_TOPIC, PartitionIndex(0))
    return sorted(folder.glob("*.log"))


def batches_of(path: Path) -> Iterator[bytes]:
    data, position = path.read_bytes(), 0
    while any(data[position : position + 12]):
        length = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        yield data[position : position + length]
        position += length
