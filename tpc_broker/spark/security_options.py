"""Spark's ``kafka.security.protocol``, ``kafka.ssl.*`` and ``kafka.sasl.*`` as settings of the client.

What is not supported is refused by name, and so is an option that would have no effect under the protocol chosen: who
names a trust store and forgets the protocol must not get plain text. Key and trust stores are PEM, as text or as files;
files are read on the driver and travel to the tasks with the other options.
"""

import re
from typing import Final

from tpc_broker.client.errors import AuthenticationError
from tpc_broker.client.security import (
    TLS_VERSIONS,
    Mechanism,
    SaslSettings,
    SecuritySettings,
    TlsSettings,
    tls_context,
)
from tpc_broker.spark.given import Given, OptionError

PROTOCOLS: Final = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
SSL_OPTIONS: Final = {
    "kafka.ssl.truststore.type", "kafka.ssl.truststore.location", "kafka.ssl.truststore.certificates",
    "kafka.ssl.keystore.type", "kafka.ssl.keystore.location", "kafka.ssl.keystore.certificate.chain",
    "kafka.ssl.keystore.key", "kafka.ssl.key.password", "kafka.ssl.endpoint.identification.algorithm",
    "kafka.ssl.protocol", "kafka.ssl.enabled.protocols",
}  # fmt: skip
SASL_OPTIONS: Final = {"kafka.sasl.mechanism", "kafka.sasl.jaas.config"}
SECURITY_OPTIONS: Final = {"kafka.security.protocol"} | SSL_OPTIONS | SASL_OPTIONS
_MODULES: Final = {
    Mechanism.PLAIN: "org.apache.kafka.common.security.plain.PlainLoginModule",
    Mechanism.SCRAM_SHA_256: "org.apache.kafka.common.security.scram.ScramLoginModule",
    Mechanism.SCRAM_SHA_512: "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_JAAS: Final = re.compile(r"\s*([\w.]+)\s+required\s+(.*?)\s*;\s*", re.DOTALL)
_JAAS_ENTRY: Final = re.compile(r"""\s*([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';]+))""")


def security_of(given: Given) -> SecuritySettings:
    """`OptionError` names the option that cannot be, and what may stand there."""
    protocol = given.choice("kafka.security.protocol", PROTOCOLS, "plaintext")
    has_tls, has_sasl = protocol.endswith("ssl"), protocol.startswith("sasl")
    for options, is_used, wanted in ((SSL_OPTIONS, has_tls, "SSL or SASL_SSL"), (SASL_OPTIONS, has_sasl, "SASL_SSL")):
        idle = sorted(name for name in options if given.has(name))
        if idle and not is_used:
            raise OptionError(f"{idle[0]} needs kafka.security.protocol to be {wanted}; it is {protocol.upper()}")
    return SecuritySettings(_tls(given) if has_tls else None, _sasl(given) if has_sasl else None)


def _tls(given: Given) -> TlsSettings:
    _store_is_pem(given, "kafka.ssl.truststore.type", "kafka.ssl.truststore.location")
    _store_is_pem(given, "kafka.ssl.keystore.type", "kafka.ssl.keystore.location")
    verification = given.text("kafka.ssl.endpoint.identification.algorithm", "https").lower()
    if verification not in ("", "https"):
        raise OptionError(
            f"kafka.ssl.endpoint.identification.algorithm is {verification!r}; allowed are https, or empty for none"
        )
    versions = _versions(given)
    settings = TlsSettings(
        trusted=_pem(given, "kafka.ssl.truststore.certificates", "kafka.ssl.truststore.location"),
        certificates=_pem(given, "kafka.ssl.keystore.certificate.chain", "kafka.ssl.keystore.location"),
        private_key=given.text("kafka.ssl.keystore.key"),
        key_password=given.text("kafka.ssl.key.password"),
        checks_host_name=verification == "https",
        version_min=versions[0],
        version_max=versions[-1],
    )
    if settings.private_key and not settings.certificates:
        raise OptionError("kafka.ssl.keystore.key needs kafka.ssl.keystore.certificate.chain")
    try:
        tls_context(settings)
    except AuthenticationError as error:
        raise OptionError(f"kafka.ssl: {error}") from None
    return settings


def _versions(given: Given) -> list[str]:
    """The versions that are allowed, the oldest first. ``kafka.ssl.protocol`` is the newest."""
    listed = given.text("kafka.ssl.enabled.protocols") or ",".join(TLS_VERSIONS)
    versions = [name.strip() for name in listed.split(",")]
    newest = given.text("kafka.ssl.protocol") or "TLSv1.3"
    for option, name in (("kafka.ssl.protocol", newest), *(("kafka.ssl.enabled.protocols", name) for name in versions)):
        if name not in TLS_VERSIONS:
            raise OptionError(f"{option} has {name!r}; allowed are {', '.join(TLS_VERSIONS)}")
    allowed = sorted(name for name in set(versions) if name <= newest)
    if not allowed:
        raise OptionError(f"kafka.ssl.protocol {newest} is older than all of kafka.ssl.enabled.protocols")
    return allowed


def _store_is_pem(given: Given, type_option: str, location_option: str) -> None:
    kind = given.text(type_option, "PEM").upper()
    if kind != "PEM":
        raise OptionError(f"{type_option} is {kind}; only PEM is supported (keytool and openssl convert to it)")
    location = given.text(location_option)
    if location and "-----BEGIN" not in given.file_text(location_option):
        raise OptionError(f"{location_option}: {location} is no PEM file (keytool and openssl convert to it)")


def _pem(given: Given, text_option: str, location_option: str) -> str:
    text, location = given.text(text_option), given.text(location_option)
    if text and location:
        raise OptionError(f"{text_option} and {location_option} say the same thing; give one of them")
    return text or (given.file_text(location_option) if location else "")


def _sasl(given: Given) -> SaslSettings:
    name = given.text("kafka.sasl.mechanism")
    if name.upper() not in list(Mechanism):
        allowed = ", ".join(Mechanism)
        raise OptionError(f"kafka.sasl.mechanism is {name or 'not given'}; allowed are {allowed}")
    mechanism = Mechanism(name.upper())
    username, password = _jaas(given.text("kafka.sasl.jaas.config"), _MODULES[mechanism])
    return SaslSettings(mechanism, username, password)


def _jaas(text: str, module: str) -> tuple[str, str]:
    """Name and password out of a JAAS line. The text is in no message, as the password is in it."""
    form = f'kafka.sasl.jaas.config has to be: {module} required username="…" password="…";'
    match = _JAAS.fullmatch(text)
    if match is None or not (match[1] == module or match[1].endswith("." + module)):
        raise OptionError(form)
    values: dict[str, str] = {}
    position = 0
    while position < len(match[2]):
        entry = _JAAS_ENTRY.match(match[2], position)
        if entry is None or entry[1] not in ("username", "password"):
            raise OptionError(form)
        quoted = entry[2] if entry[2] is not None else entry[3]
        values[entry[1]] = entry[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        position = entry.end()
    if values.keys() != {"username", "password"}:
        raise OptionError(form)
    return values["username"], values["password"]

