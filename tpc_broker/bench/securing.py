"""What security costs: TLS beside plain text, rights beside none, logins by SCRAM; and what a quota holds.

A minute of this machine is not like the next one, so what is compared runs in turn, and ratios are of medians. One
server has a listener with TLS and one without; of brokers with and without an authorizer each run has one of its own.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, ClassVar, Final

from tpc_broker.bench.bars import BYSTANDER_RATIO, LOGINS_OF_CPU, OF_QUOTA, RIGHTS_RATIO, TLS_CPU, TLS_RATIO
from tpc_broker.bench.kafka_requests import produce_request, record_batch
from tpc_broker.bench.load import KAFKA_PRODUCE, Connection, LoadFailed, Plan, RunningLoad, run_load
from tpc_broker.bench.measured import Round, check_stored, make_round
from tpc_broker.bench.peers.kafka import KafkaPeer
from tpc_broker.bench.peers.tpc import TpcPeer
from tpc_broker.bench.server import PeerUnavailable, free_ports
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.quotas import CLIENT_ID, alter_quotas
from tpc_broker.client.sasl import SaslMachine, sasl_machine
from tpc_broker.client.security import Mechanism, SaslSettings
from tpc_broker.client.users import NewCredential, set_credential
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.kafka.protocol import decode_response_frame, encode_request_frame
from tpc_broker.metadata.access_settings import STANDARD_AUTHORIZER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any, BinaryIO

    from tpc_broker.bench.measured import Stage, Workload
    from tpc_broker.bench.server import Server

_PAIRS: Final = 2
_PROTOCOLS: Final = "PLAINTEXT:PLAINTEXT,TLS:SSL,LOGIN:SASL_PLAINTEXT"
_CURVE: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
LOGINS_AT_ONCE: Final = 8
ITERATIONS: Final = 4096
_USER, _PASSWORD = "bench", "a password of the bench"
QUOTA: Final = 1_000_000
"""Bytes a second."""
HELD_S, WARM_S = 33.0, 16.0
"""Three times the windows over which a quota counts. The first eleven seconds' worth comes at once, and again eleven
seconds later: measured is from between two such.
"""
_HEAVY_BYTES: Final = 50_000
_BYSTANDER_PER_S: Final = 200.0


def _key_store(folder: Path) -> Path:
    """A key and a certificate that signs itself, in one file."""
    if shutil.which("openssl") is None:
        raise PeerUnavailable("the command openssl, which makes a certificate, is not there")
    key, certificate, store = (folder / name for name in ("key.pem", "certificate.pem", "store.pem"))
    folder.mkdir(parents=True, exist_ok=True)
    command = ["openssl", "req", "-x509", *_CURVE, "-nodes", "-days", "30", "-subj", "/CN=127.0.0.1",
               "-keyout", str(key), "-out", str(certificate)]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    store.touch(mode=0o600)
    store.write_text(key.read_text() + certificate.read_text())
    return store


class TlsTpc(TpcPeer):
    """`tls_port`: of a second listener."""

    tls_port = 0

    def node(self, folder: Path, port: int, *more: str, host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> Server:
        self.tls_port = self.tls_port or free_ports(1)
        told = ["--listen", f"TLS://{host}:{self.tls_port}",
                "--override", f"listener.security.protocol.map={_PROTOCOLS}",
                "--override", f"ssl.keystore.location={_key_store(folder)}"]  # fmt: skip
        return super().node(folder, port, *told, *more, host=host, prefix=prefix)


class _TlsKafka(KafkaPeer):
    tls_port = 0

    def _properties(self) -> dict[str, str]:
        self.tls_port = self.tls_port or free_ports(1)
        found, place = super()._properties(), f",TLS://127.0.0.1:{self.tls_port}"
        found |= {name: found[name] + place for name in ("listeners", "advertised.listeners")}
        found["listener.security.protocol.map"] += ",TLS:SSL"
        return found | {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(_key_store(self.folder))}


def over_tls(workload: Workload, stage: Stage) -> Round:
    """The load over a listener with TLS and over one without, of the same server, in turn. Figures are those of TLS."""
    kind = _TlsKafka if isinstance(stage.peer, KafkaPeer) else TlsTpc
    stage.peer = peer = kind(stage.peer.folder / "tls", stage.peer.mode)
    peer.folder.mkdir(parents=True, exist_ok=True)
    peer.start()
    seconds = max(stage.extent.warm_up, peer.warm_up_s_min), stage.extent.measured
    rounds: dict[str, list[Round]] = {"plain": [], "TLS": []}
    for pair in range(_PAIRS):
        for name, found in rounds.items():
            topic = f"load-{workload.key}-{name}-{pair}"
            plan = peer.produce_plan(topic, workload.shape, seconds)
            if name == "TLS":
                safe: list[Connection] = [replace(one, port=peer.tls_port, is_tls=True) for one in plan.connections]
                plan = replace(plan, connections=safe)
            found.append(_loaded(workload, stage, topic, plan))
    made = rounds["TLS"][-1]
    middle = {name: median(one.requests_per_s for one in found) for name, found in rounds.items()}
    cpu = {name: median(one.cpu_s_per_gb for one in found) for name, found in rounds.items()}
    made.extra = {
        "requests/s plain": middle["plain"],
        "requests/s TLS": middle["TLS"],
        TLS_RATIO: round(middle["TLS"] / middle["plain"], 3),
        "CPU s/GB plain": cpu["plain"],
        TLS_CPU: round(cpu["TLS"] - cpu["plain"], 3),
    }
    return made


def _loaded(workload: Workload, stage: Stage, topic: str, plan: Plan) -> Round:
    shape = workload.shape
    before_s = stage.server.cpu_s()
    found = run_load(plan)
    used_s = stage.server.cpu_s() - before_s
    check_stored(stage.peer, topic, found.requests_all * shape.records_per_request)
    return make_round(
        found, stage, records=shape.records_per_request, value_bytes=shape.records_per_request * shape.value_bytes,
        used_cpu_s=used_s,
    )  # fmt: skip


class _RuledTpc(TpcPeer):
    """With an authorizer, and its clients as super users: what they may do is asked for all the same."""

    rules: ClassVar = (f"authorizer.class.name={STANDARD_AUTHORIZER}", "super.users=User:ANONYMOUS")

    def node(self, folder: Path, port: int, *more: str, host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> Server:
        told = [text for rule in self.rules for text in ("--override", rule)]
        return super().node(folder, port, *told, *more, host=host, prefix=prefix)


def with_rights(workload: Workload, stage: Stage) -> Round:
    """Brokers with and without an authorizer, in turn. Figures are those with one."""
    folder, kinds = stage.peer.folder, {"without": TpcPeer, "with": _RuledTpc}
    rounds: dict[str, list[Round]] = {name: [] for name in kinds}
    for pair in range(_PAIRS):
        for name, kind in kinds.items():
            stage.peer = peer = kind(folder / f"{name}-{pair}", "durable")
            peer.folder.mkdir(parents=True, exist_ok=True)
            try:
                peer.start()
                topic = f"load-{workload.key}"
                plan = peer.produce_plan(topic, workload.shape, (stage.extent.warm_up, stage.extent.measured))
                rounds[name].append(_loaded(workload, stage, topic, plan))
            finally:
                peer.kill()
    made = rounds["with"][-1]
    cpu = {name: median(one.cpu_us_per_request for one in found) for name, found in rounds.items()}
    rates = {name: median(one.requests_per_s for one in found) for name, found in rounds.items()}
    made.extra = {
        "CPU us/request without rights": cpu["without"],
        "CPU us/request with": cpu["with"],
        RIGHTS_RATIO: round(cpu["with"] / cpu["without"], 3),
        "requests/s with / without": round(rates["with"] / rates["without"], 3),
    }
    return made


class LoginTpc(TpcPeer):
    """`login_port`: of a listener where clients log in."""

    login_port = 0

    def node(self, folder: Path, port: int, *more: str, host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> Server:
        self.login_port = self.login_port or free_ports(1)
        told = ["--listen", f"LOGIN://{host}:{self.login_port}",
                "--override", f"listener.security.protocol.map={_PROTOCOLS}"]  # fmt: skip
        return super().node(folder, port, *told, *more, host=host, prefix=prefix)


def logins(workload: Workload, stage: Stage) -> Round:
    """Connections that log in by SCRAM-SHA-256 and are closed. Clients share the machine with the broker and hash as
    much as it does, so beside the logins a second stands how many a second of the broker's CPU is enough for.
    """
    stage.peer = peer = LoginTpc(stage.peer.folder / "logins", stage.peer.mode)
    peer.folder.mkdir(parents=True, exist_ok=True)
    peer.start()
    make_user(peer)
    _log_in(peer.login_port, 0)
    until_s = time.monotonic() + stage.extent.measured
    began_s, before_s = time.monotonic(), stage.server.cpu_s()
    with ThreadPoolExecutor(workload.count) as clients:
        running = [clients.submit(_log_in_until, peer.login_port, number, until_s) for number in range(workload.count)]
        made = sum(one.result() for one in running)
    elapsed_s, used_s = time.monotonic() - began_s, stage.server.cpu_s() - before_s
    extra = {
        "logins/s": round(made / elapsed_s, 1),
        LOGINS_OF_CPU: round(made / used_s, 1) if used_s else 0.0,
        "CPU us a login": round(used_s / max(1, made) * 1e6, 1),
    }
    return Round(resident_mib=round(stage.server.resident_bytes() / 2**20, 1), extra=extra)


def make_user(peer: TpcPeer) -> None:
    """Whom `scram_machine` logs in."""
    with Cluster(ClusterSettings(peer.bootstrap)) as cluster:
        salt = bytes(range(16))
        set_credential(cluster, NewCredential(_USER, str(Mechanism.SCRAM_SHA_256), _PASSWORD, salt, ITERATIONS))


def scram_machine(number: int) -> SaslMachine:
    """A client's; `number` is not used twice."""
    return sasl_machine(SaslSettings(Mechanism.SCRAM_SHA_256, _USER, _PASSWORD), f"nonce{number:024x}")


def _log_in_until(port: int, client: int, until_s: float) -> int:
    made = 0
    while time.monotonic() < until_s:
        _log_in(port, client << 32 | made)
        made += 1
    return made


def _log_in(port: int, number: int) -> None:
    machine = scram_machine(number)
    with socket.create_connection(("127.0.0.1", port)) as client, client.makefile("rb") as answers:
        asked = messages.SaslHandshakeRequest(mechanism=Mechanism.SCRAM_SHA_256.value)
        _ask(client, answers, ApiKey.SASL_HANDSHAKE, 1, asked)
        message: bytes | None = machine.first()
        while message is not None:
            answer = _ask(
                client, answers, ApiKey.SASL_AUTHENTICATE, 2, messages.SaslAuthenticateRequest(auth_bytes=message)
            )
            message = machine.next(bytes(answer.auth_bytes))


def _ask(client: socket.socket, answers: BinaryIO, key: ApiKey, version: int, message: Any) -> Any:
    """LoadFailed: it was refused."""
    client.sendall(b"".join(encode_request_frame(key, version, 1, None, message)))
    length = int.from_bytes(answers.read(4))
    _correlation_id, answer = decode_response_frame(key, version, answers.read(length))
    if answer.error_code:
        raise LoadFailed(f"a login was refused with error {answer.error_code}")
    return answer


def held_by_a_quota(workload: Workload, stage: Stage) -> Round:
    """One client sends as much as it is let, above a quota of its own, beside one that sends a little at a time."""
    peer = stage.kafka_like
    light = _plan(peer.create_topic("light", 1)[0], "light", workload.shape.value_bytes, _BYSTANDER_PER_S)
    alone = run_load(light)
    with Cluster(ClusterSettings(peer.bootstrap)) as cluster:
        alter_quotas(cluster, {CLIENT_ID: "heavy"}, {"producer_byte_rate": float(QUOTA)})
    heavy = _plan(peer.create_topic("heavy", 1)[0], "heavy", _HEAVY_BYTES, 0.0)
    with RunningLoad(heavy) as running:
        beside = run_load(light)
        found = running.result()
    sent = found.requests_per_s * len(heavy.connections[0].requests[0])
    p99_us = {name: one.histogram.percentiles_us()["99"] for name, one in (("alone", alone), ("beside", beside))}
    extra = {
        OF_QUOTA: round(100 * sent / QUOTA, 2),
        "bystander p99 us alone": p99_us["alone"],
        "bystander p99 us beside": p99_us["beside"],
        BYSTANDER_RATIO: round(p99_us["beside"] / p99_us["alone"], 3),
    }
    return Round(resident_mib=round(stage.server.resident_bytes() / 2**20, 1), extra=extra)


def _plan(address: tuple[str, int], topic: str, value_bytes: int, rate: float) -> Plan:
    """Of one client, called as its topic."""
    request = produce_request(topic, 0, record_batch(1, value_bytes), client_id=topic)
    connections = [Connection(*address, [request])]
    return Plan(KAFKA_PRODUCE, connections, depth=8, rate=rate, warm_up_s=WARM_S, measure_s=HELD_S)
