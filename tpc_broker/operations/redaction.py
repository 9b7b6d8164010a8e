"""What must not leave the machine in a bundle: values of settings that are secret or unknown, and what looks like one.

It fails closed. A setting's value is shown only when the broker knows the setting and its name speaks of nothing
secret. Of other text (logs, errors) every value that was held back is taken out wherever it occurs, and so is what has
the form of a secret: private keys, passwords in settings and in addresses, tokens of HTTP.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from tpc_broker.metadata.broker_config import BROKER_CONFIGS
from tpc_broker.metadata.listener_settings import is_listener_setting

if TYPE_CHECKING:
    from collections.abc import Iterable

LEFT_OUT: Final = "(left out)"
_SECRET_WORDS: Final = (
    r"passw(?:or)?d|passphrase|secret|credential|token|jaas|private|keystore|truststore|"  # noqa: S105 (no password)
    r"\.key\b|api[-_.]?key"
)
_SECRET_NAME: Final = re.compile(_SECRET_WORDS, re.IGNORECASE)
_FORMS: Final = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(
        rf"(?<=[\w.\-\"'])*((?:[\w.\-]*(?:{_SECRET_WORDS})[\w.\-]*)[\"']?\s*[=:]\s*)"
        r"(\"(?:[^\"\\\n]|\\.)*\"?|'[^'\n]*'?|[^\s,;}\]]+)",
        re.IGNORECASE,
    ),
    re.compile(r"(\b[a-z][a-z0-9+.\-]*://[^\s/:@]*:)[^\s/@]+(?=@)", re.IGNORECASE),
    re.compile(r"(\bauthorization\b\W{1,4}(?:basic|bearer)?\s*)[^\s,\"']+", re.IGNORECASE),
    re.compile(r"(\b(?:basic|bearer)\s+)[A-Za-z0-9+/_=.\-]{8,}", re.IGNORECASE),
)
_SHORTEST_TAKEN_OUT: Final = 4
"""Of held-back values: `on` or `1` would take half of a log with it."""


class Redaction:
    """Of the settings of one broker: lines of a file and overrides, as they were given."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.settings: dict[str, str] = {}
        held_back: set[str] = set()
        for line in lines:
            name, equals, value = (part.strip() for part in line.partition("="))
            if not name or name.startswith(("#", "!")):
                continue
            if not equals or not is_shown(name):
                self.settings[name if equals and not _SECRET_NAME.search(name) else _plain_name(name)] = LEFT_OUT
                held_back |= {value, *value.split("\\n")} if equals else {name}
            else:
                self.settings[name] = self._without_forms(value)
        self._held_back = sorted(
            (value for value in held_back if len(value) >= _SHORTEST_TAKEN_OUT), key=len, reverse=True
        )

    def of_text(self, text: str) -> str:
        """The same without what was held back, and without what has the form of a secret."""
        for value in self._held_back:
            text = text.replace(value, LEFT_OUT)
        return self._without_forms(text)

    def of_json(self, text: str) -> str:
        """Of counters and the like, which were made here: only what was held back can be in them, in a name."""
        for value in self._held_back:
            text = text.replace(json.dumps(value)[1:-1], LEFT_OUT)
        return text

    @staticmethod
    def _without_forms(text: str) -> str:
        for form in _FORMS:
            text = form.sub(_left_out, text)
        return text


def is_shown(name: str) -> bool:
    """Whether a setting's value may be seen by whoever gets a bundle."""
    if _SECRET_NAME.search(name):
        return False
    return name in BROKER_CONFIGS or is_listener_setting(name)


def _plain_name(name: str) -> str:
    """A name that has the form of one; a line that is none is not shown at all."""
    return name if re.fullmatch(r"[\w.\-]{1,100}", name) else LEFT_OUT


def _left_out(found: re.Match[str]) -> str:
    """With the quotes that stood around it."""
    value = found[2] if found.re.groups > 1 else ""
    quote = value[0] if value[:1] in {"'", '"'} else ""
    return f"{found[1] if found.re.groups else ''}{quote}{LEFT_OUT}{quote}"
