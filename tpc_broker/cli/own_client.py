"""The project's own client, with the settings that were given for librdkafka: for what librdkafka does not ask."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from tpc_broker.cli.connection import REQUEST_TIMEOUT_S, Exit, client_configuration, fail
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
_NOT_FOUND = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND)
_DENIED = (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


@contextlib.contextmanager
def own_client(bootstrap: str) -> Iterator[Cluster]:
    """What goes wrong with it ends the command with one line."""
    security = _security(client_configuration(bootstrap))
    settings = ClusterSettings(
        bootstrap, request_timeout_seconds=REQUEST_TIMEOUT_S, retry_seconds=REQUEST_TIMEOUT_S, security=security
    )
    try:
        with Cluster(settings) as cluster:
            yield cluster
    except RefusedError as error:
        code = Exit.NOT_FOUND if error.code in _NOT_FOUND else Exit.DENIED if error.code in _DENIED else Exit.FAILED
        fail(str(error), code)
    except UnknownTopicError as error:
        fail(str(error), Exit.NOT_FOUND)
    except AuthenticationError as error:
        fail(str(error), Exit.DENIED)
    except UnreachableError as error:
        fail(f"no broker answers at {bootstrap} ({error}); is it running?", Exit.UNREACHABLE)
    except ClientError as error:
        fail(str(error))


def _security(given: Mapping[str, str]) -> SecuritySettings:
    """The same safety as librdkafka would have; what this client does not have is refused by name."""
    protocol = given.get("security.protocol", "plaintext").lower()
    if protocol not in PROTOCOLS:
        fail(f"-X security.protocol={protocol}: expected one of {', '.join(PROTOCOLS)}", Exit.USAGE)
    tls = sasl = None
    if protocol.endswith("ssl"):
        checks = given.get("ssl.endpoint.identification.algorithm", "https").lower() != "none"
        if given.get("enable.ssl.certificate.verification", "true").lower() != "true":
            fail("-X enable.ssl.certificate.verification=false: this command always checks certificates", Exit.USAGE)
        tls = TlsSettings(
            trusted=_file(given, "ssl.ca.location"),
            certificates=_file(given, "ssl.certificate.location"),
            private_key=_file(given, "ssl.key.location"),
            key_password=given.get("ssl.key.password", ""),
            checks_host_name=checks,
        )
    if protocol.startswith("sasl"):
        name = given.get("sasl.mechanism", given.get("sasl.mechanisms", ""))
        if name.upper() not in list(Mechanism):
            fail(f"-X sasl.mechanism={name}: expected one of {', '.join(Mechanism)}", Exit.USAGE)
        sasl = SaslSettings(Mechanism(name.upper()), given.get("sasl.username", ""), given.get("sasl.password", ""))
    return SecuritySettings(tls, sasl)


def _file(given: Mapping[str, str], name: str) -> str:
    path = given.get(name, "")
    try:
        return Path(path).read_text(encoding="utf-8") if path else ""
    except (OSError, UnicodeDecodeError) as error:
        fail(f"-X {name}={path}: {error}", Exit.USAGE)
