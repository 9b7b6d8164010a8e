"""How a connection is made safe: TLS and SASL settings, plain values that can be pickled to tasks.

Everything fails closed: certificates are always checked against a trust store, a host name unless that is switched off
by name, and nothing falls back to less than what was asked for. Secrets are not in the settings' ``repr``.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tpc_broker.client.errors import AuthenticationError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Mapping

TLS_VERSIONS: Final = {"TLSv1.2": "TLSv1_2", "TLSv1.3": "TLSv1_3"}
"""By Kafka's name that of `ssl.TLSVersion`."""


class Mechanism(StrEnum):
    """SASL mechanisms there are."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM texts. Without ``trusted`` the system's certificates are trusted.

    ``certificates`` is the client's own chain; its ``private_key`` may stand in there as well.
    """

    trusted: str = ""
    certificates: str = ""
    private_key: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    checks_host_name: bool = True
    version_min: str = "TLSv1.2"
    version_max: str = "TLSv1.3"


@dataclass(frozen=True, slots=True)
class SaslSettings:
    mechanism: Mechanism
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OAuthSettings:
    """OAUTHBEARER (RFC 7628), in the asynchronous client only. ``token`` gives a token that is valid now (a JWT): it is
    asked for each connection, and again before the session ends. What it raises is an `AuthenticationError`.

    ``extensions`` are sent beside the token (KIP-342): names of letters, values of printable ASCII.
    """

    token: "Callable[[], Awaitable[str]]" = field(repr=False)
    extensions: "Mapping[str, str]" = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """None: without."""

    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None


# Rule: The client trusts no certificate, name or password that it cannot check, and never falls back. See also
# tpc_broker/client/sasl.py, tpc_broker/client/connection.py. Held by tests/client/test_security.py,
# tests/client/test_security_kafka.py.
@lru_cache(maxsize=16)
def tls_context(settings: TlsSettings) -> "ssl.SSLContext":
    """A context for clients. `AuthenticationError` when the certificates or the key cannot be used."""
    import ssl  # noqa: PLC0415 - who connects without it starts sooner

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_host_name
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion[TLS_VERSIONS[settings.version_min]]
    context.maximum_version = ssl.TLSVersion[TLS_VERSIONS[settings.version_max]]
    try:
        if settings.trusted:
            context.load_verify_locations(cadata=settings.trusted)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if settings.certificates:
            with _as_file(settings.certificates + "\n" + settings.private_key) as path:
                context.load_cert_chain(path, password=lambda: settings.key_password)
    except (ssl.SSLError, ValueError) as error:
        raise AuthenticationError(f"the certificates or the key for TLS cannot be used: {error}") from None
    return context


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """OpenSSL's way to a chain and its key is a file: one that only we can read, and that goes at once."""
    import tempfile  # noqa: PLC0415 - likewise; it brings four modules for archives along

    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        yield path
    finally:
        os.unlink(path)  # noqa: PTH108 - as it was made
