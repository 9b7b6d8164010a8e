"""What every option that takes HOST:PORT refuses, before a host is looked up or a port is bound."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

PORT_MAX: Final = 65_535
NO_HOST: Final = "no host has such a name: between dots there are 1 to 63 characters that names may have"


def may_name_a_host(host: str) -> bool:
    """Whether a resolver can be asked for it. For what is no name Python raises UnicodeError, which is no OSError."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return not {"\0", "/"} & set(host)  # a slash is that of an address on the web


def is_loopback(host: str) -> bool:
    """An address, or the name that is one: nobody is asked."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def read_port(text: str) -> int | None:
    """A port from 1 to `PORT_MAX` in decimal digits; None: it is none."""
    digits = text.lstrip("0")
    if not text.isascii() or not digits.isdecimal() or len(digits) > len(str(PORT_MAX)) or int(digits) > PORT_MAX:
        return None
    return int(digits)


def split_host_port(text: str) -> tuple[str, int | None]:
    """Of HOST:PORT, without brackets around the host; "" and None: what is there is none."""
    host, _, port_text = text.rpartition(":")
    return host.strip("[]"), read_port(port_text)
