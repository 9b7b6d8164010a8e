"""What `tpc-broker serve` refuses: one clear line on standard error, exit code 2, and nothing left behind."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.broker_process import TpcBroker, run_command, serve_refusing
from tests.support.ports import free_port_range


def refused(tmp_path: Path, *arguments: str) -> str:
    """The one line that it says."""
    done = run_command("serve", "--data", str(tmp_path / "data"), *arguments)
    return the_line(done)


def misconfigured(tmp_path: Path, *arguments: str) -> str:
    """The same of what is refused before anything of this host is looked at."""
    line = the_line(serve_refusing("--data", str(tmp_path / "data"), *arguments))
    assert not (tmp_path / "data").exists()
    return line


def the_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("Usage:", "Try ")) and line]
    assert len(lines) == 1, done.stderr
    assert done.stdout == ""
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--listen", "0.0.0.0:9092"], ["--listen 0.0.0.0:9092", "give --advertise HOST[:PORT]"]),
        (["--listen", "[::]:9092"], ["--listen [::]:9092", "give --advertise HOST[:PORT]"]),
        (["--listen", "127.0.0.1"], ["--listen", "'127.0.0.1' is not HOST:PORT"]),
        (["--listen", "127.0.0.1:99999"], ["--listen", "'99999'", "1 to 65535"]),
        (
            ["--listen", "127.0.0.1:65535", "--cores", "2", "--oversubscribe"],
            ["port 65536", "core 1 of 2", "fewer --cores"],
        ),
        (["--advertise", "0.0.0.0:1"], ["--advertise 0.0.0.0:1", "wildcard"]),
        (["--backend", "epoll"], ["--backend", "'epoll'", "'auto', 'io_uring', 'plain'"]),
        (["--override", "ring.backend=epoll"], ["ring.backend", "epoll", "plain"]),
        (["--cores", "0"], ["--cores 0", "1 to 1024"]),
        (["--cores", "two"], ["--cores", "'two'"]),
        (["--cores", "500"], ["--cores 500", "CPU", "add --oversubscribe (then up to 1024)"]),
        (["--cores", "1025", "--oversubscribe"], ["--cores 1025", "1 to 1024"]),
        (["--override", "num.partition=3"], ["num.partition", "did you mean num.partitions"]),
        (["--override", "no.such.thing=3"], ["no.such.thing"]),
        (["--override", "num.partitions=many"], ["num.partitions", "many"]),
        (["--override", "num.partitions"], ["num.partitions", "NAME=VALUE"]),
        (["--override", "message.max.bytes=200000000"], ["message.max.bytes (200000000)", "socket.request.max.bytes"]),
        (["--override", "listeners=PLAINTEXT://:1"], ["PLAINTEXT://:1", "advertised.listeners"]),
        (["--override", "listeners=SSL://h:1"], ["TLS needs a certificate and its key", "ssl.keystore.location"]),
        (["--override", "listener.PLAINTEXT.mode=round"], ["listener.PLAINTEXT.mode", "'round' is unknown"]),
        (["--listen", "127.0.0.1:9092", "--listen", "127.0.0.1:9192"], ["--listen 127.0.0.1:9192", "PLAINTEXT"]),
        (["--config", "/no/such/file"], ["--config /no/such/file", "No such file"]),
        (["--colour"], ["--colour"]),
    ],
)
def test_a_wrong_configuration_is_named(tmp_path: Path, arguments: list[str], parts: list[str]) -> None:
    line = misconfigured(tmp_path, *arguments)
    for part in parts:
        assert part in line, line


def test_a_shared_listener_without_ebpf_is_refused_with_what_mends_it(tmp_path: Path) -> None:
    line = refused(tmp_path, "--override=listener.PLAINTEXT.mode=shared", "--override=ebpf.loader=off", "--cores=1")
    for part in ("listener PLAINTEXT has mode shared", "needs eBPF", "mend: "):
        assert part in line, line


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"# fine\n\nnum.partitions=3\nlog.retention.msec=1\n", ["line 4", "log.retention.msec", "log.retention.ms"]),
        (b"num.partitions=3\nauto.create.topics.enable=perhaps\n", ["line 2", "auto.create.topics.enable", "perhaps"]),
        (b"num.partitions\n", ["line 1", "NAME=VALUE"]),
        (b"\xff\xfe", ["not UTF-8 text"]),
    ],
)
def test_a_line_of_the_file_is_named(tmp_path: Path, content: bytes, parts: list[str]) -> None:
    (tmp_path / "file").write_bytes(content)
    line = misconfigured(tmp_path, "--config", str(tmp_path / "file"))
    assert line.startswith(f"tpc-broker: --config {tmp_path / 'file'}")
    for part in parts:
        assert part in line, line


@pytest.mark.parametrize("position", [0, 1])
def test_a_port_of_the_range_in_use_is_named(tmp_path: Path, position: int) -> None:
    first = free_port_range(2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + position))
        taken.listen()
        line = refused(tmp_path, "--listen", f"127.0.0.1:{first}", "--cores", "2", "--oversubscribe")
    assert f"port {first + position} on 127.0.0.1 is in use (core {position} of 2" in line


def test_a_data_directory_that_another_broker_has_is_refused(tmp_path: Path) -> None:
    broker = TpcBroker(tmp_path, cores_count=1)
    broker.start()
    try:
        line = refused(tmp_path, "--listen", f"127.0.0.1:{free_port_range(1)}", "--cores", "1")
        assert f"data directory {tmp_path / 'data'} is locked by another broker" in line
        broker.stop()
    finally:
        broker.kill()


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    assert f"data directory {tmp_path / 'data'} cannot be used: " in refused(tmp_path)


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    line = refused(tmp_path, "--listen", "192.0.2.1:9092")
    assert "cannot listen on 192.0.2.1:9092" in line


@pytest.mark.parametrize(
    ("name", "allowed"), [("TPC_HIDE_FEATURES", "send_zc"), ("TPC_BACKEND", "auto, io_uring, plain")]
)
def test_a_variable_that_names_what_does_not_exist_is_refused(
    name: str, allowed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TPC_BACKEND", raising=False)
    monkeypatch.setenv(name, "warp_drive")
    line = refused(tmp_path)
    assert f"{name}: 'warp_drive'" in line
    assert allowed in line


def test_a_core_that_cannot_run_ends_the_broker_with_its_reason(tmp_path: Path) -> None:
    broker = TpcBroker(tmp_path, cores_count=1)
    broker.start()
    broker.stop()
    (journal,) = (tmp_path / "data" / "journals").glob("*.journal")
    with journal.open("r+b") as file:
        file.write(b"\xee" * 8192)  # both superblocks
    place = ["--listen", broker.bootstrap, "--cores", "1"]
    done = run_command("serve", "--data", str(tmp_path / "data"), *place, "--log-style", "readable")
    assert done.returncode == 2
    reasons = [line for line in done.stderr.splitlines() if "core 0 cannot run here" in line]
    assert len(reasons) == 1, done.stderr
    assert f"journal or checkpoint of core 0 in {tmp_path / 'data'}: superblock" in reasons[0]
    assert "Traceback" not in done.stderr
