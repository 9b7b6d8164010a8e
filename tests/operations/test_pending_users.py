"""Users that are made while no broker runs: the file in which they wait, and the command that writes it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.support.broker_process import run_here
from tpc_broker.auth.credentials import ScramMechanism, credential_of_password
from tpc_broker.engine.data_directory import PENDING_USERS_FILE, DataDirectory
from tpc_broker.feature_levels import Levels
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import credential_changed
from tpc_broker.model import MetadataVersion
from tpc_broker.operations import pending_users
from tpc_broker.operations.backup import backup
from tpc_broker.operations.pending_users import PendingUsers, missing_users, read_before_start
from tpc_broker.options import StartError

SHA_256, SHA_512 = ScramMechanism


def record(user="anna", mechanism=SHA_256, password="secret"):
    return credential_changed(user, mechanism, credential_of_password(mechanism, password, b"salt", 4096))


def add(data: Path, *arguments: str, password: bytes | str = "pencil\n"):
    file = data.parent / "password"
    file.write_bytes(password if isinstance(password, bytes) else password.encode())
    return run_here("user", "add", *arguments, "--data", str(data), "--password-file", str(file))


def test_the_last_of_a_user_and_mechanism_counts_and_nobody_else_may_read_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        users = PendingUsers(tmp_path)
        assert users.read() == []
        (tmp_path / "users.tmp").write_text("of one that was killed")
        users.add([record(), record("bert")])
        users.add([record(password="other"), record(mechanism=SHA_512)])
    finally:
        os.umask(before)
    assert users.read() == [record(password="other"), record("bert"), record(mechanism=SHA_512)]
    assert stat.S_IMODE((tmp_path / PENDING_USERS_FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [PENDING_USERS_FILE]
    users.forget()
    users.forget()
    assert users.read() == []


@pytest.mark.parametrize("content", [b"x\n", b'{"type":"cores_changed","v":1,"cores_count":7}\n', b"\n"])
def test_what_is_no_user_is_refused_without_being_told(tmp_path: Path, content: bytes) -> None:
    PendingUsers(tmp_path).add([record()])
    with (tmp_path / PENDING_USERS_FILE).open("ab") as file:
        file.write(content)
    with pytest.raises(StartError, match="line 2: not a user; remove the file") as raised:
        PendingUsers(tmp_path).read()
    assert record().stored_key not in str(raised.value)


def test_it_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_users, "FILE_BYTES_MAX", 500)
    PendingUsers(tmp_path).add([record()])
    with pytest.raises(StartError, match="would have more than 500 bytes"):
        PendingUsers(tmp_path).add([record("bert"), record("carla")])
    assert PendingUsers(tmp_path).read() == [record()]
    (tmp_path / PENDING_USERS_FILE).write_bytes(b"x" * 501)
    with pytest.raises(StartError, match="has more than 500 bytes"):
        PendingUsers(tmp_path).read()


def test_a_release_that_keeps_no_users_does_not_start_with_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PendingUsers(tmp_path).add([record()])
    assert read_before_start(tmp_path, in_cluster=True) == [record()]
    monkeypatch.setattr(pending_users, "SPOKEN", Levels(2, 5))
    with pytest.raises(StartError, match="keeps no users below level 6"):
        read_before_start(tmp_path, in_cluster=False)


def test_a_cluster_that_did_not_take_them_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    image = ClusterImage().apply([record("bert")], MetadataVersion(1))
    assert missing_users([record("bert")], image) == ""
    said = missing_users([record("anna"), record("bert"), record("anna", SHA_512)], image)
    assert said.startswith("users 'anna' are not there: the cluster has what another founder has brought; make them ")
    monkeypatch.setattr("tpc_broker.metadata.image.SPOKEN", Levels(2, 5))
    said = missing_users([record("anna")], image)
    assert said.startswith("users 'anna' are not there: the cluster's feature level is 5, and users are from 6 on; ")


def test_the_command_makes_a_directory_and_both_credentials(tmp_path: Path) -> None:
    done = add(tmp_path / "data", "anna")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("User anna is there from the next start on: tpc-broker serve --data ")
    found = PendingUsers(tmp_path / "data").read()
    assert [(one.user, one.mechanism, one.iterations) for one in found] == [("anna", 1, 8192), ("anna", 2, 8192)]
    for one in found:
        mechanism, credential = ScramMechanism(one.mechanism), one.credential
        assert credential is not None
        assert len(credential.salt) == 16
        assert credential == credential_of_password(mechanism, "pencil", credential.salt, 8192)
    assert b"pencil" not in (tmp_path / "data" / PENDING_USERS_FILE).read_bytes()
    assert add(tmp_path / "data", "bert", "--mechanism", "scram-sha-512", "--iterations", "4096").returncode == 0
    last = PendingUsers(tmp_path / "data").read()[-1]
    assert (last.user, last.mechanism, last.iterations) == ("bert", 2, 4096)


def test_it_is_refused_while_a_broker_runs_and_for_odd_names_and_passwords(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with DataDirectory.open(data):
        done = add(data, "anna")
        assert done.returncode == 2
        assert "is locked by another broker" in done.stderr
    assert add(data, "a\nb").stderr == "tpc-broker: Username must not hold control characters\n"
    assert add(data, "anna", password=b"").stderr == "tpc-broker: the password is empty\n"
    assert add(data, "anna", password="a\nb").returncode == 2
    assert not (data / PENDING_USERS_FILE).exists()


def test_a_backup_does_not_leave_them_out(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path / "data") as data:
        data.write_cores(1)
    PendingUsers(tmp_path / "data").add([record()])
    with pytest.raises(StartError, match="has users that no start has taken yet"):
        backup(tmp_path / "data", tmp_path / "copy", lambda _done, _total: None, with_links=False)
    assert not (tmp_path / "copy").exists()
