"""Options as a user gave them: names in any case, values as text, and what is wrong with them said by name."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

_DURATION: Final = re.compile(r"(\d+)\s*([a-z]*)")
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class OptionError(ValueError):
    """An option that is unknown, missing, or says something impossible; the message names it."""


class Given:
    """The options as the user gave them, names in any case."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str], ignored: Iterable[str] = ()) -> None:
        """``ignored`` may be given and say nothing."""
        names = {name.lower(): name for name in known}
        passed_over = {name.lower() for name in ignored}
        unknown = sorted(name for name in options if name.lower() not in names and name.lower() not in passed_over)
        if unknown:
            raise OptionError(f"unknown option {', '.join(unknown)}; {_known_like(unknown[0], names)}")
        self._values = {
            names[name.lower()]: str(value) for name, value in options.items() if name.lower() in names
        }  # fmt: skip

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name, default).strip()

    def either(self, name: str, other: str, default: str = "") -> str:
        """The value of an option that has two names."""
        first, second = self.text(name), self.text(other)
        if first and second and first != second:
            raise OptionError(f"{name} is {first!r} and {other} is {second!r}; they mean the same, so give one")
        return first or second or default

    def has(self, name: str) -> bool:
        """Whether it was given at all, if only as an empty text."""
        return name in self._values

    def file_bytes(self, name: str) -> bytes:
        """What is in the file that an option names. Read on the driver: tasks may be on other machines."""
        try:
            return Path(self.text(name)).read_bytes()
        except OSError as error:
            raise OptionError(f"{name}: {error}") from None

    def file_text(self, name: str) -> str:
        return self.file_bytes(name).decode(errors="replace")

    def number(self, name: str, default: int, minimum: int = 1) -> int:
        text = self.text(name)
        try:
            value = int(text) if text else default
        except ValueError:
            raise OptionError(f"{name} is {text!r}, not a number") from None
        if text and value < minimum:
            raise OptionError(f"{name} is {value}; it has to be at least {minimum}")
        return value

    def seconds(self, name: str, default: str) -> float:
        """A time as Spark writes it: `15m`, `30s`, `500ms`; a number alone is milliseconds."""
        text = self.text(name, default).lower()
        parsed = _DURATION.fullmatch(text)
        if parsed is None or (parsed[2] or "ms") not in _SECONDS:
            raise OptionError(f"{name} is {text!r}, not a time; allowed are a number and one of {', '.join(_SECONDS)}")
        return int(parsed[1]) * _SECONDS[parsed[2] or "ms"]

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            raise OptionError(f"{name} is {text!r}, not true or false")
        return default if not text else text == "true"

    def choice(self, name: str, allowed: Iterable[str], default: str) -> str:
        text = self.text(name, default).lower()
        if text not in (choices := tuple(allowed)):
            raise OptionError(f"{name} is {text!r}; allowed are {', '.join(choices)}")
        return text


def _known_like(name: str, known: Mapping[str, str]) -> str:
    """What may have been meant; all that there is, where nothing looks like it. ``known`` is by names in lower case."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a mistake needs it

    near = get_close_matches(name.lower(), known)
    if near:
        return f"did you mean {' or '.join(known[found] for found in near)}?"
    return f"known are {', '.join(sorted(known.values()))}"
