"""Settings of listeners with TLS, by Kafka's names: `ssl.*` for all of them, `listener.name.NAME.ssl.*` for one.

Certificates and keys are PEM, in files or in the settings themselves. A listener's own settings win one by one, as in
Kafka. `ssl_of_listeners` says what each listener has of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.auth.principal_mapping import DEFAULT, MappingRuleError, PrincipalMapping
from tpc_broker.metadata.config_types import (
    ConfigDefinition,
    ConfigError,
    ConfigType,
    ConfigValue,
    definitions_of,
    python_name,
    setting,
)
from tpc_broker.metadata.sasl_settings import SaslSettings
from tpc_broker.metadata.settings_of_one import SettingsOfOne

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpc_broker.metadata.listeners import Listener, SecurityProtocol
    from tpc_broker.metadata.settings_of_one import GivenText

PEM: Final = "PEM"
PROTOCOLS: Final = ("TLSv1.3", "TLSv1.2")
CLIENT_AUTH: Final = ("none", "requested", "required")
SOURCES: Final = ("subject", "uri-san", "dns-san")
_TO_PEM: Final = {
    "PKCS12": "openssl pkcs12 -in FILE -nodes -out FILE.pem",
    "JKS": "keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12, then "
    "openssl pkcs12 -in FILE.p12 -nodes -out FILE.pem",
}


def _check_type(definition: ConfigDefinition, value: ConfigValue) -> None:
    if value == PEM:
        return
    how = _TO_PEM.get(str(value).upper())
    raise definition.refusal(value, f"Only {PEM} is read" + (f"; to make it: {how}" if how else ""))


def _check_rules(definition: ConfigDefinition, value: ConfigValue) -> None:
    try:
        PrincipalMapping(str(value))
    except MappingRuleError as error:
        raise definition.refusal(value, str(error)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SslSettings(SaslSettings):
    """Kafka's, but for the last two, and for PEM, which is the only type."""

    ssl_keystore_type: str = setting(
        "ssl.keystore.type",
        ConfigType.STRING,
        PEM,
        "What the server's key and certificates are written in: PEM.",
        check=_check_type,
    )
    ssl_keystore_location: str | None = setting(
        "ssl.keystore.location",
        ConfigType.STRING,
        None,
        "File with the server's private key and its certificates, the server's own first.",
    )
    ssl_keystore_certificate_chain: str | None = setting(
        "ssl.keystore.certificate.chain",
        ConfigType.STRING,
        None,
        "The server's certificates themselves, instead of a file; line ends as \\n.",
    )
    ssl_keystore_key: str | None = setting(
        "ssl.keystore.key", ConfigType.STRING, None, "The server's private key itself, PKCS #8.", sensitive=True
    )
    ssl_key_password: str | None = setting(
        "ssl.key.password", ConfigType.STRING, None, "Of the server's private key.", sensitive=True
    )
    ssl_truststore_type: str = setting(
        "ssl.truststore.type",
        ConfigType.STRING,
        PEM,
        "What the certificates that clients' ones are checked by are written in: PEM.",
        check=_check_type,
    )
    ssl_truststore_location: str | None = setting(
        "ssl.truststore.location",
        ConfigType.STRING,
        None,
        "File with the certificates of the authorities by which clients' certificates are checked.",
    )
    ssl_truststore_certificates: str | None = setting(
        "ssl.truststore.certificates",
        ConfigType.STRING,
        None,
        "These certificates themselves, instead of a file; line ends as \\n.",
    )
    ssl_client_auth: str = setting(
        "ssl.client.auth",
        ConfigType.STRING,
        "none",
        "Whether clients show certificates: none, requested (who shows none is User:ANONYMOUS), required.",
        valid=CLIENT_AUTH,
        any_case=True,
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        "ssl.enabled.protocols", ConfigType.LIST, ("TLSv1.2", "TLSv1.3"), "Versions of TLS.", valid=PROTOCOLS
    )
    ssl_cipher_suites: tuple[str, ...] | None = setting(
        "ssl.cipher.suites",
        ConfigType.LIST,
        None,
        "Cipher suites, by their IANA names such as TLS_AES_256_GCM_SHA384, the best first. Without it: AES-GCM and "
        "ChaCha20-Poly1305, with ephemeral keys.",
    )
    ssl_principal_mapping_rules: str = setting(
        "ssl.principal.mapping.rules",
        ConfigType.STRING,
        DEFAULT,
        "From the name in a client's certificate to that of its principal: RULE:pattern/replacement/[LU] or DEFAULT.",
        check=_check_rules,
    )
    ssl_crl_location: str | None = setting(
        "ssl.crl.location",
        ConfigType.STRING,
        None,
        "Ours. File with the authorities' lists of revoked certificates (PEM), at least one, and nothing else. Then a "
        "client's certificate is refused for whose authority there is none.",
    )
    ssl_principal_source: str = setting(
        "ssl.principal.source",
        ConfigType.STRING,
        "subject",
        "Ours. Where a client's name stands in its certificate: subject (RFC 2253), uri-san, dns-san (the first one).",
        valid=SOURCES,
    )


def _has_no_tls(listener: str, protocol: SecurityProtocol) -> str | None:
    return None if protocol.encrypts else f"listener {listener} has no TLS: its security protocol is {protocol}"


_ROWS: Final = {name: row for name, row in definitions_of(SslSettings).items() if name.startswith("ssl.")}
SSL_OF_ONE: Final = SettingsOfOne(_ROWS, _has_no_tls)


@dataclass(frozen=True, slots=True)
class ListenerSsl:
    """What one listener has of these settings; fields as those of `SslSettings`, without `ssl_`."""

    listener: str
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        """Of `ssl.name`."""
        return self.values[name]

    def __repr__(self) -> str:
        return f"<ListenerSsl {self.listener}>"  # what is in it may be secret

    def setting_of(self, name: str) -> str:
        """How somebody would write it: for messages."""
        return f"ssl.{name} (or listener.name.{self.listener.lower()}.ssl.{name})"


def ssl_of_listeners(
    listeners: Sequence[Listener], settings: SslSettings, given: Mapping[str, GivenText]
) -> dict[int, ListenerSsl]:
    """By number, of those with TLS; ConfigError for what cannot be read or contradicts itself. `given`: the settings
    for which `is_listener_setting` is true.
    """
    own = SSL_OF_ONE.given_in(given, {listener.name: listener.security for listener in listeners})
    found = {}
    for number, each in enumerate(listeners):
        if each.security.encrypts:
            values = {name: own[each.name].get(name, getattr(settings, python_name(name))) for name in _ROWS}
            found[number] = ListenerSsl(each.name, {name.removeprefix("ssl."): values[name] for name in values})
            _check(found[number])
    return found


def _check(ssl: ListenerSsl) -> None:
    listener = f"listener {ssl.listener}"
    has_file, has_chain, has_key = (
        ssl[name] is not None for name in ("keystore.location", "keystore.certificate.chain", "keystore.key")
    )
    if has_file and (has_chain or has_key):
        raise ConfigError(f"{listener}: ssl.keystore.location and the certificate or key itself: give one of both")
    if not has_file and not (has_chain and has_key):
        raise ConfigError(
            f"{listener}: TLS needs a certificate and its key: give {ssl.setting_of('keystore.location')}, a file with "
            "both in PEM, or ssl.keystore.certificate.chain and ssl.keystore.key"
        )
    if ssl["truststore.location"] is not None and ssl["truststore.certificates"] is not None:
        raise ConfigError(f"{listener}: ssl.truststore.location and ssl.truststore.certificates: give one of both")
    has_trusted = ssl["truststore.location"] is not None or ssl["truststore.certificates"] is not None
    if ssl["client.auth"] != "none" and not has_trusted:
        raise ConfigError(
            f"{listener}: ssl.client.auth={ssl['client.auth']} needs the authorities of clients' certificates: give "
            f"{ssl.setting_of('truststore.location')}"
        )
    if not ssl["enabled.protocols"]:
        raise ConfigError(f"{listener}: ssl.enabled.protocols is empty; allowed are {', '.join(PROTOCOLS)}")
