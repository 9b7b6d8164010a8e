"""TLS of listeners in C (`native/tls`, `native/net/connection_tls.c`): from PEM to a context.

A listener gets a context, and connections that it accepts afterwards have it for as long as they live: to renew a
certificate is to give the listener another context.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from tpc_broker._ring import ffi, lib

if TYPE_CHECKING:
    from tpc_broker.engine.connections import Connections

_WHY_BYTES: Final = 256
NAME_BYTES_MAX: Final = 4096


class ClientAuth(IntEnum):
    """Whether clients show certificates; one that they show has to be good in any case but `NONE`."""

    NONE = lib.TPC_TLS_CLIENT_NONE
    REQUESTED = lib.TPC_TLS_CLIENT_REQUESTED
    REQUIRED = lib.TPC_TLS_CLIENT_REQUIRED


class NameSource(IntEnum):
    """Where a client's name stands in its certificate."""

    SUBJECT = lib.TPC_TLS_NAME_SUBJECT
    URI_SAN = lib.TPC_TLS_NAME_URI
    DNS_SAN = lib.TPC_TLS_NAME_DNS


class TlsPart(IntEnum):
    """What of the material cannot be used."""

    CHAIN = lib.TPC_TLS_PART_CHAIN
    KEY = lib.TPC_TLS_PART_KEY
    TRUSTED = lib.TPC_TLS_PART_TRUSTED
    CIPHERS = lib.TPC_TLS_PART_CIPHERS
    LIBRARY = lib.TPC_TLS_PART_LIBRARY
    REVOKED = lib.TPC_TLS_PART_REVOKED


class TlsRefusedError(Exception):
    """No context can be made of the material. The text says what is wrong with the part."""

    def __init__(self, part: TlsPart, reason: str) -> None:
        super().__init__(reason)
        self.part = part


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsMaterial:
    """All texts are PEM. `ciphers` (TLS 1.2) and `suites` (TLS 1.3) are lists with `:`, in IANA's names."""

    chain: str
    """The server's certificate first."""
    key: str
    password: str | None = None
    trusted: str | None = None
    """Certificates of authorities; lists of revoked certificates among them are obeyed."""
    revoked: str | None = None
    """Lists of revoked certificates, at least one, and nothing else; with it, each certificate is looked for in one."""
    client_auth: ClientAuth = ClientAuth.NONE
    has_1_2: bool = True
    has_1_3: bool = True
    ciphers: str | None = None
    suites: str | None = None

    def __repr__(self) -> str:
        return f"<TlsMaterial, clients' certificates {self.client_auth.name}>"


def is_built() -> bool:
    """Whether this broker was built with OpenSSL."""
    return bool(lib.tpc_tls_is_built())


def make_context(material: TlsMaterial) -> Any:
    """A `tpc_tls_context *` that is to be freed; TlsRefusedError."""
    versions = (lib.TPC_TLS_1_2 if material.has_1_2 else 0) | (lib.TPC_TLS_1_3 if material.has_1_3 else 0)
    texts = {name: _text(getattr(material, name)) for name in _TEXTS}
    settings = ffi.new(
        "tpc_tls_settings *", {**texts, "client_auth": int(material.client_auth), "versions": versions}
    )
    part, why = ffi.new("int *"), ffi.new("char[]", _WHY_BYTES)
    context = lib.tpc_tls_context_new(settings, part, why, _WHY_BYTES)
    if context == ffi.NULL:
        raise TlsRefusedError(TlsPart(part[0]), ffi.string(why).decode())
    return context


def days_left(material: TlsMaterial) -> int:
    """Until the server's certificate expires; TlsRefusedError where the material cannot be used."""
    context = make_context(material)
    seconds: int = lib.tpc_tls_context_expires_s(context)
    lib.tpc_tls_context_free(context)
    return seconds // 86_400


def secure(connections: Connections, listener: int, material: TlsMaterial) -> None:
    """Who comes to the listener from now on, which may be one that is yet to come, speaks TLS. TlsRefusedError, and
    then nothing has changed.
    """
    context = make_context(material)
    result = lib.tpc_connections_secure(connections.pointer, listener, context)
    lib.tpc_tls_context_free(context)
    if result < 0:
        raise OSError(-result, f"secure: {os.strerror(-result)}")


def peer_name(connections: Connections, connection: int, source: NameSource) -> str | None:
    """What its verified certificate says; None: it has given none.

    LookupError: there is no such name in it, or one that is no name, or the connection is gone.
    """
    into = ffi.new("char[]", NAME_BYTES_MAX)
    length = lib.tpc_connection_peer_name(connections.pointer, connection, source, into, NAME_BYTES_MAX)
    if length == 0:
        return None
    if length < 0:
        raise LookupError(os.strerror(-length))
    try:
        return bytes(ffi.buffer(into, length)).decode()
    except UnicodeDecodeError as error:
        raise LookupError("it is not UTF-8") from error


def let_speak(connections: Connections, connection: int) -> None:
    """It is known who it is: what it says is served from now on."""
    lib.tpc_connection_named(connections.pointer, connection)


def error_text(error: int) -> str:
    """What the detail of a connection that was closed with `CloseReason.TLS` means."""
    text = ffi.new("char[]", _WHY_BYTES)
    lib.tpc_tls_error_text(error, text, _WHY_BYTES)
    return ffi.string(text).decode()


def _text(given: str | None) -> Any:
    return ffi.NULL if given is None else ffi.new("char[]", given.encode())


_TEXTS: Final = ("chain", "key", "password", "trusted", "revoked", "ciphers", "suites")
