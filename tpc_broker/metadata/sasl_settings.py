"""Settings of listeners whose clients log in (SASL), for all of them or for one.

    listener.name.NAME.sasl.enabled.mechanisms=SCRAM-SHA-512,…
    listener.name.NAME.connections.max.reauth.ms=…

`check_logins` says what cannot be, or had better not be, of the listeners and these settings together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpc_broker import limits
from tpc_broker.auth.exchange import Mechanism
from tpc_broker.host_port import is_loopback
from tpc_broker.metadata.config_types import ConfigError, ConfigType, setting
from tpc_broker.metadata.oauth_settings import OAuthSettings, check_oauth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.metadata.listeners import Listener

MECHANISMS: Final = (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512, Mechanism.PLAIN, Mechanism.OAUTHBEARER)
"""That can be switched on."""
ENABLED: Final = "sasl.enabled.mechanisms"
PLAIN_WITHOUT_TLS: Final = "sasl.plain.without.tls"


_IN_CLEAR: Final = {Mechanism.PLAIN: "passwords", Mechanism.OAUTHBEARER: "tokens"}
"""What clients send as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings(OAuthSettings):
    """Kafka's, but for the last one, and for the mechanisms that are on by themselves: there is no GSSAPI here."""

    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        ENABLED,
        ConfigType.LIST,
        (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512),
        "How clients log in to a SASL listener; PLAIN and SCRAM know the same users and passwords. A listener's own: "
        "listener.name.NAME.sasl.enabled.mechanisms. The default is ours.",
        valid=MECHANISMS,
    )
    connections_max_reauth_ms: int = setting(
        "connections.max.reauth.ms",
        ConfigType.LONG,
        0,
        "Time after which a client has to log in again on its connection, or is cut off; 0: never. A listener's own: "
        "listener.name.NAME.connections.max.reauth.ms.",
    )
    connection_failed_authentication_delay_ms: int = setting(
        "connection.failed.authentication.delay.ms",
        ConfigType.INT,
        100,
        "A client that may not log in is told so, and its connection closed, so long after it tried.",
        minimum=0,
    )
    sasl_server_max_receive_size: int = setting(
        "sasl.server.max.receive.size",
        ConfigType.INT,
        limits.AUTHENTICATION_BYTES_MAX,
        "Largest request of a client that has not logged in yet, in bytes after its length field.",
        minimum=1,
    )
    sasl_plain_without_tls: bool = setting(
        PLAIN_WITHOUT_TLS,
        ConfigType.BOOLEAN,
        default=False,
        doc="Ours. Take passwords and tokens as they are (PLAIN, OAUTHBEARER) on a listener without TLS that is not on "
        "loopback alone: whoever sees the network reads them.",
    )


def mechanisms_of(listener: Listener, settings: SaslSettings) -> tuple[Mechanism, ...]:
    """How clients may log in there; none where nobody has to."""
    if not listener.security.authenticates:
        return ()
    names = settings.sasl_enabled_mechanisms if listener.mechanisms is None else listener.mechanisms
    return tuple(map(Mechanism, names))


def session_ms_max_of(listener: Listener, settings: SaslSettings) -> int:
    """0: for ever."""
    given = settings.connections_max_reauth_ms if listener.session_ms_max is None else listener.session_ms_max
    return max(0, given)


def check_logins(listeners: Sequence[Listener], settings: SaslSettings) -> list[str]:
    """Lines about what had better be otherwise; ConfigError for what cannot be."""
    warnings = []
    for listener in listeners:
        is_local = all(is_loopback(address.host) for address in listener.addresses)
        if not listener.security.authenticates:
            if not is_local and not listener.security.encrypts:
                warnings.append(
                    f"listener {listener.name} ({listener.summary()}) takes everybody who reaches it: "
                    f"its security protocol {listener.security} knows no users"
                )
            continue
        mechanisms = mechanisms_of(listener, settings)
        where = f"listener.name.{listener.name.lower()}.{ENABLED}"
        if not mechanisms:
            raise ConfigError(f"listener {listener.name}: nobody could log in; give {ENABLED} or {where}")
        if Mechanism.OAUTHBEARER in mechanisms:
            check_oauth(settings)
        for mechanism in [] if listener.security.encrypts else sorted(_IN_CLEAR.keys() & set(mechanisms)):
            sent = _IN_CLEAR[mechanism]
            if not is_local and not settings.sasl_plain_without_tls:
                raise ConfigError(
                    f"listener {listener.name}: {mechanism} would send {sent} as they are over a network; "
                    f"take {mechanism} out of {where}, or say {PLAIN_WITHOUT_TLS}=true"
                )
            who = f"listener {listener.name}: clients that use {mechanism}"
            warnings.append(f"{who} send {sent} as they are, without TLS")
    return warnings
