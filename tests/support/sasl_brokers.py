"""Brokers with a listener whose clients log in beside a plain one, and what a client does to log in, byte by byte."""

from __future__ import annotations

import base64
import os
from typing import Any, Self

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tests.support.broker_process import TpcBroker
from tests.support.kafka_peer import KafkaPeer
from tests.support.ports import free_port_range
from tests.support.raw_client import RawConnection
from tests.support.waiting import PATIENCE_S
from tpc_broker.client.sasl import Scram, sasl_machine
from tpc_broker.client.security import Mechanism, SaslSettings

MODULE = "org.apache.kafka.common.security"
USERS = {"alice": "pass,word=1", "bob": "bob's own", "al=i,ce": "=,="}
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
HELLO = {"ClientSoftwareName": "referee", "ClientSoftwareVersion": "1"}
_SCRAMS = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)


class SaslBroker(TpcBroker):
    """Ours. `sasl_bootstrap`: the first core's address where clients log in."""

    sasl_port = 0

    def launch(self) -> None:
        self.sasl_port = self.sasl_port or free_port_range(self.cores_count)
        self.more_options = [
            f"--listen=LOGIN://{self.host}:{self.sasl_port}",
            "--override=listener.security.protocol.map=PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
            f"--override=sasl.enabled.mechanisms={','.join(MECHANISMS)}",
        ]
        super().launch()

    @property
    def sasl_bootstrap(self) -> str:
        return f"{self.host}:{self.sasl_port}"


class SaslKafka(KafkaPeer):
    """Kafka's."""

    sasl_port = 0

    def _properties(self) -> dict[str, str]:
        self.sasl_port = self.sasl_port or free_port_range(1)
        found = {**super()._properties()}
        place = f"{self.host}:{self.sasl_port}"
        found["listeners"] += f",LOGIN://{place}"
        found["advertised.listeners"] += f",LOGIN://{place}"
        found["listener.security.protocol.map"] += ",LOGIN:SASL_PLAINTEXT"
        scram = f"{MODULE}.scram.ScramLoginModule required;"
        users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items() if name.isalpha())
        return found | {
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.login.plain.sasl.jaas.config": f"{MODULE}.plain.PlainLoginModule required {users};",
            "listener.name.login.scram-sha-256.sasl.jaas.config": scram,
            "listener.name.login.scram-sha-512.sasl.jaas.config": scram,
        }

    @property
    def sasl_bootstrap(self) -> str:
        return f"{self.host}:{self.sasl_port}"


def make_users(bootstrap: str, users: dict[str, str] | None = None) -> None:
    """For both kinds of SCRAM, by stock requests."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for mechanism in _SCRAMS:
        info = ScramCredentialInfo(mechanism, 4096)
        changes = [
            UserScramCredentialUpsertion(name, info, password.encode())
            for name, password in (USERS if users is None else users).items()
        ]
        for done in admin.alter_user_scram_credentials(changes).values():
            done.result(PATIENCE_S)


class LoginLine:
    """A connection to a SASL listener, for what a client may send in whichever order."""

    def __init__(self, peer: Any, core: int = 0, source: str = "") -> None:
        self.raw = RawConnection(peer.host, peer.sasl_port + core, source=source)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def hello(self, version: int = 3) -> dict[str, Any]:
        return self.raw.ask("ApiVersions", version, HELLO)

    def shake_hands(self, mechanism: str, version: int = 1) -> dict[str, Any]:
        return self.raw.ask("SaslHandshake", version, {"Mechanism": mechanism})

    def authenticate(self, message: bytes, version: int = 2) -> dict[str, Any]:
        return self.raw.ask("SaslAuthenticate", version, {"AuthBytes": message})

    def log_in(self, user: str, password: str | None = None, mechanism: str = "SCRAM-SHA-256") -> dict[str, Any]:
        """All of it; the last answer."""
        assert self.shake_hands(mechanism)["ErrorCode"] == 0
        return self.prove(user, password, mechanism)

    def prove(self, user: str, password: str | None = None, mechanism: str = "SCRAM-SHA-256") -> dict[str, Any]:
        machine = machine_of(user, password, mechanism)
        message: bytes | None = machine.first()
        while message is not None:
            answer = self.authenticate(message)
            if answer["ErrorCode"]:
                return answer
            message = machine.next(answer["AuthBytes"])
        return answer

    def token(self, message: bytes) -> bytes:
        """As a frame of its own, and the answer to it."""
        self.raw.send_frame(message)
        return self.raw.receive_frame()


def machine_of(user: str, password: str | None = None, mechanism: str = "SCRAM-SHA-256") -> Any:
    settings = SaslSettings(Mechanism(mechanism), user, USERS.get(user, "") if password is None else password)
    return sasl_machine(settings, base64.b64encode(os.urandom(18)).decode())


def scram_of(user: str, nonce: str = "abcdefgh", mechanism: str = "SCRAM-SHA-256") -> Scram:
    return Scram(SaslSettings(Mechanism(mechanism), user, USERS[user]), nonce)
