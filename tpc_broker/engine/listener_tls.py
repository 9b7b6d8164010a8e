"""What a listener's `ssl.*` settings come to: files read, checked, and watched for renewed certificates.

A file that changes is read again within `WATCH_S`, all of them at once on SIGHUP to the supervisor. Who connects then
gets the new certificate, and who is there keeps what it has. A change that cannot be used is told in the log, and
the listener goes on with what it had; the files are tried again at each look, since what was wrong need not have been
in them.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from tpc_broker.auth.principal_mapping import PrincipalMapping
from tpc_broker.engine.tls import (
    ClientAuth,
    NameSource,
    TlsMaterial,
    TlsPart,
    TlsRefusedError,
    days_left,
    is_built,
)
from tpc_broker.options import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpc_broker.metadata.ssl_settings import ListenerSsl

log = logging.getLogger(__name__)

WATCH_S: Final = 10.0
SAID_AGAIN_LOOKS: Final = 360
"""A failure that stays the same is told again after so many looks: an hour."""
EXPIRES_SOON_DAYS: Final = 30
PEM_BYTES_MAX: Final = 1 << 20
_SOURCES: Final = {"subject": NameSource.SUBJECT, "uri-san": NameSource.URI_SAN, "dns-san": NameSource.DNS_SAN}
_FILES: Final = ("keystore.location", "truststore.location", "crl.location")
_OF_1_3: Final = ("TLS_AES_", "TLS_CHACHA20_")


class Naming(NamedTuple):
    """How a listener's clients get their names from their certificates."""

    source: NameSource
    mapping: PrincipalMapping


class ListenerTls(NamedTuple):
    """One listener, ready to be given to C."""

    material: TlsMaterial
    naming: Naming | None
    """None: its clients are not asked for certificates."""


def read_listener(ssl: ListenerSsl) -> ListenerTls:
    """StartError, which names the listener and the file or the setting."""
    if not is_built():
        raise StartError(
            f"listener {ssl.listener}: this broker was built without OpenSSL; install libssl-dev and build it again"
        )
    client_auth = ClientAuth[ssl["client.auth"].upper()]
    suites, ciphers = _suites_of(ssl)
    has_1_2 = "TLSv1.2" in ssl["enabled.protocols"] and ciphers != ""
    has_1_3 = "TLSv1.3" in ssl["enabled.protocols"] and suites != ""
    if not (has_1_2 or has_1_3):
        raise StartError(f"listener {ssl.listener}: none of ssl.cipher.suites is of one of ssl.enabled.protocols")
    keystore = _read(ssl, "keystore.location")
    material = TlsMaterial(
        chain=keystore if keystore is not None else _unfolded(ssl["keystore.certificate.chain"]),
        key=keystore if keystore is not None else _unfolded(ssl["keystore.key"]),
        password=ssl["key.password"],
        trusted=None if client_auth is ClientAuth.NONE else _trusted_of(ssl),
        revoked=None if client_auth is ClientAuth.NONE else _read(ssl, "crl.location"),
        client_auth=client_auth,
        has_1_2=has_1_2,
        has_1_3=has_1_3,
        ciphers=ciphers or None,
        suites=suites or None,
    )
    try:
        days_left(material)
    except TlsRefusedError as error:
        raise StartError(f"listener {ssl.listener}: {_place_of(ssl, error.part)}: {error}") from None
    naming = Naming(_SOURCES[ssl["principal.source"]], PrincipalMapping(ssl["principal.mapping.rules"]))
    return ListenerTls(material, None if client_auth is ClientAuth.NONE else naming)


def warnings_of(ssl: ListenerSsl) -> list[str]:
    """Lines about what had better be otherwise; the settings are good (`read_listener`)."""
    found = []
    days = days_left(read_listener(ssl).material)
    if days < EXPIRES_SOON_DAYS:
        place = _place_of(ssl, TlsPart.CHAIN)
        found.append(f"listener {ssl.listener}: its certificate ({place}) expires in {days} days")
    path = ssl["keystore.location"]
    if path is not None and Path(path).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        found.append(f"listener {ssl.listener}: others may read the private key in {path}; mend it: chmod 600 {path}")
    return found


def _trusted_of(ssl: ListenerSsl) -> str:
    in_file = _read(ssl, "truststore.location")
    return in_file if in_file is not None else _unfolded(ssl["truststore.certificates"])


def _read(ssl: ListenerSsl, name: str) -> str | None:
    path = ssl[name]
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            text = file.read(PEM_BYTES_MAX + 1)
        if len(text) <= PEM_BYTES_MAX:
            return text.decode()
        reason = os.strerror(errno.EFBIG)
    except UnicodeDecodeError:
        raise StartError(
            f"listener {ssl.listener}: ssl.{name}={path} is no text, so it is not PEM; if it is PKCS #12: "
            f"openssl pkcs12 -in {path} -nodes -out {path}.pem"
        ) from None
    except OSError as error:
        reason = error.strerror or ""
    raise StartError(f"listener {ssl.listener}: ssl.{name}={path}: {reason}")


def _unfolded(text: str) -> str:
    """A settings file has it on one line."""
    return text.replace("\\n", "\n")


def _suites_of(ssl: ListenerSsl) -> tuple[str | None, str | None]:
    """Of TLS 1.3, and of TLS 1.2; "": none of them is wanted, None: nothing is said."""
    names = ssl["cipher.suites"]
    if not names:
        return None, None
    newer = [name for name in names if name.startswith(_OF_1_3)]
    return ":".join(newer), ":".join(name for name in names if name not in newer)


def _place_of(ssl: ListenerSsl, part: TlsPart) -> str:
    """The file, or the setting."""
    if part in {TlsPart.CHAIN, TlsPart.KEY}:
        if ssl["keystore.location"] is not None:
            return str(ssl["keystore.location"])
        return "ssl.keystore.certificate.chain" if part is TlsPart.CHAIN else "ssl.keystore.key"
    if part is TlsPart.TRUSTED:
        return str(ssl["truststore.location"] or "ssl.truststore.certificates")
    if part is TlsPart.REVOKED:
        return str(ssl["crl.location"])
    return "ssl.cipher.suites" if part is TlsPart.CIPHERS else "OpenSSL"


# -- renewal -----------------------------------------------------------------------------------------------------------

_Seen = tuple[tuple[int, int, int, int] | None, ...]


class _Failure(NamedTuple):
    reason: str
    looks: int
    """Since it was told."""


class TlsFiles:
    """Of all listeners with TLS. `secure(number, listener)` gives a listener what it has from now on."""

    def __init__(self, listeners: Mapping[int, ListenerSsl], secure: Callable[[int, ListenerTls], None]) -> None:
        self._listeners = listeners
        self._secure = secure
        self._seen: dict[int, _Seen] = {}
        """What was there before the last reading that succeeded."""
        self._failures: dict[int, _Failure] = {}

    def begin(self) -> None:
        """StartError."""
        for number, ssl in self._listeners.items():
            self._seen[number] = _look(ssl)
            self._secure(number, read_listener(ssl))

    async def watch(self) -> None:
        while self._listeners:
            await trio.sleep(WATCH_S)
            self.look()

    def look(self, *, at_all: bool = False) -> None:
        """What has changed is read again, and what could not be used the last time; or all of it, which is told."""
        for number, ssl in self._listeners.items():
            seen = _look(ssl)
            if at_all:
                self._failures.pop(number, None)
            elif seen == self._seen[number] and number not in self._failures:
                continue
            try:
                self._secure(number, read_listener(ssl))
            except StartError as error:
                self._failed(number, str(error))
            except (TlsRefusedError, OSError) as error:
                self._failed(number, f"listener {ssl.listener}: {error}")
            else:
                self._seen[number] = seen
                self._failures.pop(number, None)
                log.info("listener %s: who connects from now on gets the certificates that are there now", ssl.listener)

    def _failed(self, number: int, reason: str) -> None:
        last = self._failures.get(number)
        is_told = last is not None and last.reason == reason and last.looks < SAID_AGAIN_LOOKS
        self._failures[number] = _Failure(reason, last.looks + 1 if last is not None and is_told else 0)
        if not is_told:
            log.error("%s; the listener goes on with what it had", reason)


def _look(ssl: ListenerSsl) -> _Seen:
    return tuple(_seen(ssl[name]) for name in _FILES)


def _seen(path: str | None) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path) if path is not None else None  # noqa: PTH116 (of a path that may be none)
    except OSError:
        return None
    return None if found is None else (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
