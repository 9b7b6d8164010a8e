"""One setting of a topic or a broker: its type, what it may be, what it does; text to value and back.

Parsing, ranges and the wording of refusals follow Kafka's `ConfigDef`, because administrators and tools read them:
numbers are trimmed, booleans are `true` or `false` in any case, lists are split at commas. A table of settings is a
frozen dataclass whose fields are declared with `setting`, so that the table and the typed record that the broker reads
are one.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields
from decimal import Decimal
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

ConfigValue = bool | int | float | str | tuple[str, ...] | None
"""A parsed value; None where nothing is set and there is no default."""

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

_SUGGESTIONS_MAX: Final = 3


class ConfigError(ValueError):
    """A setting that cannot be taken. The text names the setting, what was given and what is allowed."""


class ConfigType(IntEnum):
    """Types as DescribeConfigs numbers them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """Where a value comes from, as DescribeConfigs numbers it; of 1 to 5 the smaller wins over the larger."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class ConfigStatus(Enum):
    """What becomes of a setting that is accepted."""

    ACTS = "acts"
    STORED_ONLY = "stored only"
    """Kept and shown, without effect; its documentation says so."""
    REFUSED = "refused"
    """Shown with its default; another value is refused, because storing it would promise something."""


@dataclass(frozen=True, slots=True)
class ServerSynonym:
    """A broker setting that a topic setting falls back to; `scale` converts its unit to ours."""

    name: str
    scale: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDefinition:
    """One row of a table. `minimum` and `maximum` are inclusive, as Kafka prints them."""

    name: str
    type: ConfigType
    default: ConfigValue
    doc: str
    status: ConfigStatus = ConfigStatus.ACTS
    minimum: float | None = None
    maximum: float | None = None
    settable_from: int | None = None
    """Less is refused when it is altered. What is stored or given at the start may be less, as it was while it had no
    effect: who obeys it has a bound of its own.
    """
    exception: int | None = None
    """A number allowed although it is outside of the range, such as -1."""
    valid: tuple[str, ...] = ()
    """The strings (or list elements) that are allowed; empty means any."""
    any_case: bool = False
    """Its words are taken in capital letters too."""
    synonyms: tuple[ServerSynonym, ...] = ()
    sensitive: bool = False
    dynamic: bool = False
    """A broker setting that can be altered while the broker runs."""
    check: Callable[[ConfigDefinition, ConfigValue], None] | None = None
    """A further check, raising ConfigError."""

    def parse(self, text: str | None) -> ConfigValue:
        """The value `text` stands for, which is given at the start; ConfigError says what is wrong with it."""
        value = self.read(text)
        if self.status is ConfigStatus.REFUSED and value != self.default:
            raise self.refusal(to_text(value), f"Only {to_text(self.default)} is supported: {self.doc}")
        return value

    def parse_altered(self, text: str | None) -> ConfigValue:
        """The same of a text that a client asks for: a refusal reaches it, and ends no start."""
        value = self.parse(text)
        if self.settable_from is not None and isinstance(value, int) and value < self.settable_from:
            raise self.refusal(value, f"Value must be at least {self.settable_from}")
        return value

    def read(self, text: str | None) -> ConfigValue:
        """The same of a text that is stored: what is refused by now had no effect when it was not."""
        value = None if text is None else _PARSERS[self.type](self, text.strip())
        if value is None:
            if self.default is not None:
                raise self.refusal("null", "a value is needed")
            return None
        if self.any_case and isinstance(value, str):
            value = value.lower()
        self._check_range(value)
        self._check_words(value)
        if self.check is not None:
            self.check(self, value)
        return value

    def refusal(self, given: object, reason: str) -> ConfigError:
        """The error for a value that is not allowed, in Kafka's wording."""
        return ConfigError(f"Invalid value {given} for configuration {self.name}: {reason}")

    def documentation(self) -> str:
        """What DescribeConfigs answers: the text and, where the setting does not act, that it does not."""
        if self.status is ConfigStatus.STORED_ONLY:
            return f"{self.doc} Stored only: this broker keeps and shows the value, and it has no effect."
        if self.status is ConfigStatus.REFUSED:
            return f"{self.doc} Only the default is accepted."
        return self.doc

    def _check_range(self, value: ConfigValue) -> None:
        if isinstance(value, (bool, str, tuple)) or value is None or value == self.exception:
            return
        low, high = self.minimum, self.maximum
        if (low is None or value >= low) and (high is None or value <= high):
            return
        if self.exception is not None and low is not None and high is not None:
            raise self.refusal(value, f"Value must be between {low:g} and {high:g} or equal to {self.exception}")
        if low is not None and value < low:
            raise self.refusal(value, f"Value must be at least {low:.0f}")
        raise self.refusal(value, f"Value must be no more than {high:.0f}")

    def _check_words(self, value: ConfigValue) -> None:
        words = value if isinstance(value, tuple) else (value,) if isinstance(value, str) else ()
        for word in words:
            if self.valid and word not in self.valid:
                raise self.refusal(word, f"String must be one of: {', '.join(self.valid)}")


def _parse_boolean(definition: ConfigDefinition, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise definition.refusal(text, "Expected value to be either true or false")
    return text.lower() == "true"


def _parse_integer(definition: ConfigDefinition, text: str) -> int:
    bits = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}[definition.type]
    digits = text[1:] if text[:1] in {"+", "-"} else text
    if digits.isascii() and digits.isdecimal() and len(digits) <= len(str(LONG_MAX)):
        value = int(text)
        if -(1 << bits - 1) <= value < 1 << bits - 1:
            return value
    raise definition.refusal(text, f"Not a number of type {definition.type.name}")


def _parse_double(definition: ConfigDefinition, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value != value:  # noqa: PLR0124 - the one value that differs from itself
        raise definition.refusal(text, "Not a number of type DOUBLE")
    return value


def _parse_list(_definition: ConfigDefinition, text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(","))) if text else ()


_PARSERS: Final[Mapping[ConfigType, Callable[[ConfigDefinition, str], ConfigValue]]] = {
    ConfigType.BOOLEAN: _parse_boolean,
    ConfigType.STRING: lambda _definition, text: text,
    ConfigType.SHORT: _parse_integer,
    ConfigType.INT: _parse_integer,
    ConfigType.LONG: _parse_integer,
    ConfigType.DOUBLE: _parse_double,
    ConfigType.LIST: _parse_list,
}


def to_text(value: ConfigValue) -> str | None:
    """The canonical text of a value, which `parse` reads back as the same value."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return _double_text(value) if isinstance(value, float) else str(value)


def _double_text(value: float) -> str:
    """As Java writes it, and so Kafka: `1.0E7`, `1.0E-4`."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return str(value)
    mantissa, exponent = f"{Decimal(repr(value)).normalize():E}".split("E")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"


def setting(name: str, kind: ConfigType, default: ConfigValue, doc: str, **details: Any) -> Any:
    """A dataclass field that is also a row of the table; `details` are further fields of ConfigDefinition."""
    definition = ConfigDefinition(name=name, type=kind, default=default, doc=doc, **details)
    return field(default=default, metadata={"definition": definition})


def definitions_of(table: type[Any]) -> dict[str, ConfigDefinition]:
    """The rows of a table, by the setting's name, sorted by it."""
    rows: list[ConfigDefinition] = [f.metadata["definition"] for f in fields(table) if "definition" in f.metadata]
    return {row.name: row for row in sorted(rows, key=lambda row: row.name)}


def python_name(name: str) -> str:
    """Attribute under which a setting's value is read: `retention.ms` → `retention_ms`."""
    return name.replace(".", "_")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConfigError:
    """The refusal of a name that is not in a table, with the names it may have been meant for."""
    close = difflib.get_close_matches(name, list(known), n=_SUGGESTIONS_MAX, cutoff=0.6)
    hint = f" (did you mean {' or '.join(close)}?)" if close else ""
    return ConfigError(f"Unknown {kind} config name: {name}{hint}")
