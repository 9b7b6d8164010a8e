"""Settings of OAUTHBEARER: whose tokens are believed, and where the keys for that are (Kafka's names, but for one).

Without keys, an issuer and an audience nothing would be checked that counts, so with OAUTHBEARER all three are asked
for at the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from tpc_broker.host_port import is_loopback
from tpc_broker.metadata.config_types import ConfigError, ConfigType, setting
from tpc_broker.metadata.transaction_settings import TransactionSettings

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
KEYS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
ISSUER: Final = "sasl.oauthbearer.expected.issuer"
AUDIENCE: Final = "sasl.oauthbearer.expected.audience"
URL_CHARACTERS_MAX: Final = 2048
_PORTS: Final = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthSettings(TransactionSettings):
    """Of all listeners that offer OAUTHBEARER."""

    sasl_oauthbearer_jwks_endpoint_url: str = setting(
        KEYS_URL,
        ConfigType.STRING,
        "",
        "Where the public keys are by which tokens are signed, as a JWK set: https://…, file:///…, or http://… on "
        "loopback. Redirects are not followed.",
    )
    sasl_oauthbearer_expected_issuer: str = setting(
        ISSUER, ConfigType.STRING, "", "The issuer (iss) that a token must name."
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        AUDIENCE, ConfigType.LIST, (), "Audiences, one of which a token must name (aud)."
    )
    sasl_oauthbearer_sub_claim_name: str = setting(
        "sasl.oauthbearer.sub.claim.name", ConfigType.STRING, "sub", "The claim of a token that is the user's name."
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        "sasl.oauthbearer.clock.skew.seconds",
        ConfigType.INT,
        30,
        "By which the clock of a token's issuer may differ from the broker's.",
        minimum=0,
        maximum=3600,
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        ConfigType.LONG,
        3_600_000,
        "Time after which the keys are asked for again. They are also when a token names one that is not known, every "
        "30 seconds at most.",
        minimum=1000,
    )
    sasl_oauthbearer_algorithms: tuple[str, ...] = setting(
        "sasl.oauthbearer.algorithms",
        ConfigType.LIST,
        ALGORITHMS,
        "Ours. Algorithms by which tokens may be signed.",
        valid=ALGORITHMS,
    )


class KeysPlace(NamedTuple):
    """Where keys are: `path` of a file, or with its query of what is asked of a host."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def is_file(self) -> bool:
        return self.scheme == "file"

    def __str__(self) -> str:
        """Without the path's query, which may hold a secret."""
        return f"file {self.path}" if self.is_file else f"{self.scheme}://{self.host}:{self.port}"


def check_oauth(settings: OAuthSettings) -> KeysPlace:
    """ConfigError: tokens could not be checked by what is set."""
    for name, given in (
        (KEYS_URL, settings.sasl_oauthbearer_jwks_endpoint_url),
        (ISSUER, settings.sasl_oauthbearer_expected_issuer),
        (AUDIENCE, any(settings.sasl_oauthbearer_expected_audience)),
    ):
        if not given:
            raise ConfigError(f"{name}: OAUTHBEARER is enabled, and needs it; without it any token would do")
    if not settings.sasl_oauthbearer_algorithms:
        raise ConfigError("sasl.oauthbearer.algorithms: it is empty, so no token could be checked")
    if not settings.sasl_oauthbearer_sub_claim_name:
        raise ConfigError("sasl.oauthbearer.sub.claim.name: it is empty, so no token would name anybody")
    return keys_place(settings.sasl_oauthbearer_jwks_endpoint_url)


def keys_place(url: str) -> KeysPlace:
    """Of a URL. ConfigError: nothing is asked there."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"{KEYS_URL}: it is no URL") from None
    if len(url) > URL_CHARACTERS_MAX or not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"{KEYS_URL}: a URL has at most {URL_CHARACTERS_MAX} printable ASCII characters")
    if parts.scheme == "file":
        path = unquote(parts.path)
        if parts.netloc not in {"", "localhost"} or not path.startswith("/") or "\0" in path:
            raise ConfigError(f"{KEYS_URL}: a file is given as file:///PATH")
        return KeysPlace("file", "", 0, path)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ConfigError(f"{KEYS_URL}: expected https://HOST/…, file:///PATH, or http://… on loopback")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{KEYS_URL}: a name or a password in it is not sent")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ConfigError(f"{KEYS_URL}: http is taken on loopback only; keys that come over a network need https")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return KeysPlace(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], path)
