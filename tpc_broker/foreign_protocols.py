"""What speaks another protocol to a port of this broker, known by its first bytes."""

from __future__ import annotations

from typing import Final

FIRST_BYTES: Final = 4
"""So many are enough; of a Kafka request they are its length."""
HTTP_BEGINNINGS: Final = frozenset(
    {b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI "}
)
PROXY_BEGINNINGS: Final = frozenset({b"PROX", b"\r\n\r\n"})


def foreign_protocol(first: bytes) -> str | None:
    """Its name, None for what no one of these begins with. As lengths of Kafka's they are 218 MB and more."""
    assert len(first) >= FIRST_BYTES
    if first[:2] == b"\x16\x03":
        return "TLS"
    if first[:FIRST_BYTES] in HTTP_BEGINNINGS:
        return "HTTP"
    if first[:FIRST_BYTES] in PROXY_BEGINNINGS:
        return "PROXY"
    return "SSH" if first[:FIRST_BYTES] == b"SSH-" else None
