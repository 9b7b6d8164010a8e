"""Records as text: hex and base64, format strings (kcat's), headers, and how many a second."""

from __future__ import annotations

import base64
import binascii
import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from tpc_broker.cli.connection import Exit, fail

if TYPE_CHECKING:
    from collections.abc import Callable

PACE_BURST_S = 0.1
"""Records may come so much together: waiting for each of many a second would be slower than asked for."""


class Shown(NamedTuple):
    """One record as a format string sees it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def _headers_text(one: Shown) -> bytes:
    return b",".join(name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in one.headers)


def _size(data: bytes | None) -> bytes:
    return b"-1" if data is None else str(len(data)).encode()


TOKENS: dict[str, Callable[[Shown], bytes]] = {
    "s": lambda one: one.value or b"",
    "S": lambda one: _size(one.value),
    "k": lambda one: one.key or b"",
    "K": lambda one: _size(one.key),
    "t": lambda one: one.topic.encode(),
    "p": lambda one: str(one.partition).encode(),
    "o": lambda one: str(one.offset).encode(),
    "T": lambda one: str(one.timestamp_ms).encode(),
    "h": _headers_text,
    "%": lambda _one: b"%",
}
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PART = re.compile(r"%(.?)|\\x([0-9a-fA-F]{2})|\\(.?)|[^%\\]+", re.DOTALL)


def parse_format(text: str) -> Callable[[Shown], bytes]:
    """What a format string makes of a record; a token that there is not ends the command."""
    parts: list[Callable[[Shown], bytes]] = []
    for found in _PART.finditer(text):
        token, hexadecimal, escape = found.groups()
        if token is not None:
            if token not in TOKENS:
                allowed = " ".join(f"%{name}" for name in TOKENS)
                fail(f"--format: there is no %{token}; there are {allowed}", Exit.USAGE)
            parts.append(TOKENS[token])
            continue
        if escape is not None and escape not in ESCAPES:
            fail(f"--format: there is no \\{escape}; there are \\n \\t \\r \\0 \\\\ and \\x41", Exit.USAGE)
        fixed = bytes.fromhex(hexadecimal) if hexadecimal else ESCAPES[escape] if escape else found[0].encode()
        parts.append(lambda _one, fixed=fixed: fixed)  # type: ignore[misc]
    return lambda one: b"".join(part(one) for part in parts)


class Coding(NamedTuple):
    """How bytes are written in text."""

    decode: Callable[[bytes], bytes]
    """ValueError for what is none."""
    encode: Callable[[bytes], bytes]


CODINGS = {
    "": Coding(bytes, bytes),
    "hex": Coding(lambda text: bytes.fromhex(text.decode("ascii")), binascii.hexlify),
    "base64": Coding(lambda text: base64.b64decode(text, validate=True), base64.b64encode),
}


def chosen_coding(*, as_hex: bool, as_base64: bool) -> str:
    if as_hex and as_base64:
        fail("--hex and --base64 are two ways to write bytes; give one", Exit.USAGE)
    return "hex" if as_hex else "base64" if as_base64 else ""


def parse_headers(given: tuple[str, ...]) -> list[tuple[str, str | bytes | None]]:
    """NAME=VALUE, in the order given; a name may come several times."""
    headers: list[tuple[str, str | bytes | None]] = []
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            fail(f"--header {text}: expected NAME=VALUE", Exit.USAGE)
        headers.append((name, value.encode()))
    return headers


class Pace:
    """So many records a second, and no more; None: as fast as it goes."""

    def __init__(self, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._began_s = clock()
        self._count = 0

    def wait(self, meanwhile: Callable[[float], Any] = time.sleep) -> None:
        """Before each record. `meanwhile` is given the seconds that are left."""
        if self._rate is None:
            return
        due_s = self._began_s + self._count / self._rate
        self._count += 1
        ahead_s = due_s - self._clock()
        if ahead_s > PACE_BURST_S:
            meanwhile(ahead_s)
