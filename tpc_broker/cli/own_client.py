"""The project's own client, with the settings that were given for librdkafka: for what librdkafka does not ask."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from tpc_broker.cli.connection import REQUEST_TIMEOUT_S, Exit, client_configuration, fail, given_configuration
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.errors import (
    AuthenticationError,
    ClientError,
    RefusedError,
    UnknownTopicError,
    UnreachableError,
)
from tpc_broker.client.security import Mechanism, SaslSettings, SecuritySettings, TlsSettings
from tpc_broker.kafka import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
SSL_SETTINGS = {
    f"ssl.{name}"
    for name in (
        "ca.location", "ca.pem", "certificate.location", "certificate.pem", "key.location", "key.pem", "key.password",
        "endpoint.identification.algorithm",
    )
}  # fmt: skip
SASL_SETTINGS = {f"sasl.{name}" for name in ("mechanism", "mechanisms", "username", "password")}
_NOT_FOUND = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND)
_DENIED = (
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)  # fmt: skip
_EXITS: dict[int, Exit] = {
    **dict.fromkeys(_NOT_FOUND, Exit.NOT_FOUND),
    **dict.fromkeys(_DENIED, Exit.DENIED),
    ErrorCode.REQUEST_TIMED_OUT: Exit.UNREACHABLE,
}


@contextlib.contextmanager
def own_client(bootstrap: str, *, topic: str = "") -> Iterator[Cluster]:
    """What goes wrong with it ends the command with one line. `topic`: one that has to be there."""
    settings = _settings(bootstrap, client_configuration(bootstrap))
    try:
        with Cluster(settings) as cluster:
            if topic:
                cluster.topic(topic)
            yield cluster
    except RefusedError as error:
        fail(str(error), _EXITS.get(error.code, Exit.FAILED))
    except UnknownTopicError as error:
        fail(f"{error}; `tpc topic list` shows those that are", Exit.NOT_FOUND)
    except AuthenticationError as error:
        fail(str(error), Exit.DENIED)
    except UnreachableError as error:
        fail(f"no broker answers at {bootstrap} ({error}); is it running?", Exit.UNREACHABLE)
    except ClientError as error:
        fail(str(error))


@contextlib.contextmanager
def patient_client(bootstrap: str) -> Iterator[Cluster]:
    """For who asks again: nobody has to listen yet, and what goes wrong is raised."""
    with Cluster(_settings(bootstrap, given_configuration(bootstrap))) as cluster:
        yield cluster


def _settings(bootstrap: str, given: Mapping[str, str]) -> ClusterSettings:
    return ClusterSettings(
        bootstrap, request_timeout_seconds=REQUEST_TIMEOUT_S, retry_seconds=REQUEST_TIMEOUT_S,
        security=security_settings(given),
    )  # fmt: skip


def security_settings(given: Mapping[str, str]) -> SecuritySettings:
    """The same safety as librdkafka would have; what this client does not have is refused by name."""
    protocol = given.get("security.protocol", "plaintext").lower()
    if protocol not in PROTOCOLS:
        fail(f"-X security.protocol={protocol}: expected one of {', '.join(PROTOCOLS)}", Exit.USAGE)
    tls = sasl = None
    if protocol.endswith("ssl"):
        _refuse_others(given, "ssl.", SSL_SETTINGS)
        checks = given.get("ssl.endpoint.identification.algorithm", "https").lower() != "none"
        if given.get("enable.ssl.certificate.verification", "true").lower() != "true":
            fail("-X enable.ssl.certificate.verification=false: this command always checks certificates", Exit.USAGE)
        tls = TlsSettings(
            trusted=_pem(given, "ssl.ca"),
            certificates=_pem(given, "ssl.certificate"),
            private_key=_pem(given, "ssl.key"),
            key_password=given.get("ssl.key.password", ""),
            checks_host_name=checks,
        )
    if protocol.startswith("sasl"):
        _refuse_others(given, "sasl.", SASL_SETTINGS)
        name = given.get("sasl.mechanism", given.get("sasl.mechanisms", ""))
        if name.upper() not in list(Mechanism):
            fail(f"-X sasl.mechanism={name}: expected one of {', '.join(Mechanism)}", Exit.USAGE)
        sasl = SaslSettings(Mechanism(name.upper()), given.get("sasl.username", ""), given.get("sasl.password", ""))
    return SecuritySettings(tls, sasl)


def _refuse_others(given: Mapping[str, str], prefix: str, known: set[str]) -> None:
    """A restriction that was asked for must not be dropped. Values are not told: they may be secret."""
    for name in given:
        if name.lower().startswith(prefix) and name not in known:
            fail(f"-X {name}: this command does not have it; it has {', '.join(sorted(known))}", Exit.USAGE)


def _pem(given: Mapping[str, str], name: str) -> str:
    """The text itself or that of a file; "": neither was given."""
    text, location = f"{name}.pem", f"{name}.location"
    if text in given and location in given:
        fail(f"-X {text} and -X {location} exclude each other", Exit.USAGE)
    for one in (text, location):
        if one in given and not given[one]:
            fail(f"-X {one}: it is empty", Exit.USAGE)
    if text in given:
        return given[text]
    path = given.get(location, "")
    try:
        return Path(path).read_text(encoding="utf-8") if path else ""
    except (OSError, UnicodeDecodeError) as error:
        fail(f"-X {location}={path}: {error}", Exit.USAGE)
