"""What a topic may be called: Kafka's rules."""

from __future__ import annotations

import re
from typing import Final

TOPIC_NAME_LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_fault(name: str) -> str | None:
    """What is wrong with a name, in Kafka's words; None when it may be used."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in {".", ".."}:
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        limit = TOPIC_NAME_LENGTH_MAX
        return f"Topic name is invalid: the length of '{name}' is longer than the max allowed length {limit}"
    if not _LEGAL.fullmatch(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    return None


def folded(name: str) -> str:
    """A name as metrics spell it: two topics may not have the same one, so "a.b" and "a_b" collide."""
    return name.replace(".", "_")
