"""What a client is told when it is made, checked at once: what is wrong is named, and what would be right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tpc_broker.client.cluster import parse_bootstrap
from tpc_broker.client.security import TLS_VERSIONS, Mechanism, OAuthSettings, SaslSettings, TlsSettings

if TYPE_CHECKING:
    from tpc_broker.client.requests import Node

AuthSettings: TypeAlias = SaslSettings | OAuthSettings
CLIENT_ID_BYTES_MAX: Final = 0x7FFF


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Times in seconds: for one connection to be made (with TLS and login), for one answer, for a whole operation with
    repetitions, and until metadata that were not proved wrong are asked for again. `ValueError` says what is wrong.
    """

    bootstrap: str
    client_id: str = "tpc"
    connect_seconds: float = 10.0
    request_seconds: float = 30.0
    retry_seconds: float = 120.0
    rack: str = ""
    tls: TlsSettings | None = None
    auth: AuthSettings | None = None
    metadata_seconds: float = 300.0

    def __post_init__(self) -> None:
        if not isinstance(self.bootstrap, str) or not self.bootstrap.strip():
            raise ValueError(f"bootstrap={self.bootstrap!r}: expected host:port, several with commas")
        self.nodes  # noqa: B018 - it is parsed
        for name in ("client_id", "rack"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name}={getattr(self, name)!r}: expected a text")  # noqa: TRY004 - all are ValueErrors
        if len(self.client_id.encode()) > CLIENT_ID_BYTES_MAX:
            raise ValueError(f"client_id: {len(self.client_id.encode())} bytes; at most {CLIENT_ID_BYTES_MAX}")
        for name in ("connect_seconds", "request_seconds", "retry_seconds", "metadata_seconds"):
            _check_seconds(name, getattr(self, name))
        _check_tls(self.tls)
        _check_auth(self.auth)

    @property
    def nodes(self) -> list[Node]:
        """Where to begin."""
        try:
            return parse_bootstrap(self.bootstrap)
        except ValueError as error:
            raise ValueError(f"bootstrap={self.bootstrap!r}: {error}") from None


def fleet_settings(bootstrap: str, *, tls: TlsSettings | bool | None = None, **given: Any) -> FleetSettings:
    """Of `connect`'s arguments. True for ``tls``: with the certificates that the system trusts."""
    chosen = TlsSettings() if tls is True else None if tls is False else tls
    return FleetSettings(bootstrap, tls=chosen, **given)


def _check_seconds(name: str, given: Any) -> None:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not given > 0 or math.isnan(given):
        raise ValueError(f"{name}={given!r}: expected a number of seconds above 0")


def _check_tls(given: Any) -> None:
    if given is None:
        return
    if not isinstance(given, TlsSettings):
        raise ValueError(f"tls={given!r}: expected None, True or TlsSettings")  # noqa: TRY004 - all are ValueErrors
    names = list(TLS_VERSIONS)
    for name in ("version_min", "version_max"):
        if getattr(given, name) not in TLS_VERSIONS:
            raise ValueError(f"tls: {name}={getattr(given, name)!r}: expected one of {', '.join(names)}")
    if names.index(given.version_min) > names.index(given.version_max):
        raise ValueError(f"tls: version_min={given.version_min!r} is above version_max={given.version_max!r}")
    if given.private_key and not given.certificates:
        raise ValueError("tls: a private_key without certificates")


def _check_auth(given: Any) -> None:
    if given is None:
        return
    if isinstance(given, OAuthSettings):
        if not callable(given.token):
            raise ValueError("auth: token: expected an async function that gives a text")  # noqa: TRY004 - likewise
        return
    if not isinstance(given, SaslSettings):
        raise ValueError("auth: expected None, SaslSettings or OAuthSettings")  # noqa: TRY004 - all are ValueErrors
    if given.mechanism not in list(Mechanism):
        raise ValueError(f"auth: mechanism={given.mechanism!r}: expected one of {', '.join(Mechanism)}")
    for name in ("username", "password"):
        if not isinstance(getattr(given, name), str) or not getattr(given, name):
            raise ValueError(f"auth: {name}: expected a text that is not empty")
        if given.mechanism == Mechanism.PLAIN and "\0" in getattr(given, name):
            raise ValueError(f"auth: {name}: PLAIN cannot send NUL")
