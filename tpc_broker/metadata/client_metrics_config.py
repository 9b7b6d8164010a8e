"""Subscriptions to metrics of clients (KIP-714): what an operator sets of one, under the name that they give it.

`metrics` are beginnings of names, or `*` for all; `match` says which clients are meant, as KEY=PATTERN; `interval.ms`
is how often they send them. Values and refusals are Kafka's. Patterns are RE2's: clients choose what is matched, and an
engine that backtracks can be made to hang by that. What Java's have besides, or write in another way, is refused, so
that none is taken that would match something else. RE2's time grows with the program that it makes of a pattern, as
with `(a|b){900}`, so that has a bound.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import re2

from tpc_broker.error_codes import ErrorCode
from tpc_broker.limits import (
    TELEMETRY_PATTERN_BYTES_MAX,
    TELEMETRY_PATTERN_INSTRUCTIONS_MAX,
    TELEMETRY_PATTERN_MEMORY_BYTES_MAX,
)
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.config_types import ConfigDefinition, ConfigError, ConfigType, ConfigValue, to_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

INTERVAL_MS_MIN: Final = 100
INTERVAL_MS_MAX: Final = 3_600_000
ALL_METRICS: Final = "*"
MATCH_KEYS: Final = (
    "client_instance_id", "client_id", "client_software_name", "client_software_version", "client_source_address",
    "client_source_port",
)  # fmt: skip
_SET_OF_JAVAS: Final = re.compile(r"(?<!\\)(?:\\\\)*\[\^?\]?(?:\\.|[^\]\\])*?(?:\[|&&)")
"""A set within a set, or cut with another one: elsewhere these are characters."""


def _check_words(definition: ConfigDefinition, value: ConfigValue) -> None:
    if isinstance(value, tuple) and "" in value:
        raise ConfigError(f"Configuration '{definition.name}' values must not be empty.")


CLIENT_METRICS_CONFIGS: Final[Mapping[str, ConfigDefinition]] = {
    row.name: row
    for row in (
        ConfigDefinition(
            name="interval.ms", type=ConfigType.INT, default=300_000, doc="Time between two pushes of a client."
        ),
        ConfigDefinition(
            name="match", type=ConfigType.LIST, default=(), doc="Which clients are asked.", check=_check_words
        ),
        ConfigDefinition(
            name="metrics", type=ConfigType.LIST, default=(), doc="Beginnings of the names of metrics.",
            check=_check_words,
        ),
    )
}  # fmt: skip


def validate_client_metrics(name: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """The canonical texts of all that would be set of a subscription; Refusal."""
    if not name:
        raise Refusal(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    for key in wanted:
        if key not in CLIENT_METRICS_CONFIGS:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {key}")
    try:
        values = {key: CLIENT_METRICS_CONFIGS[key].read(text) for key, text in wanted.items()}
    except ConfigError as error:
        raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from None
    interval = values.get("interval.ms")
    if isinstance(interval, int) and not INTERVAL_MS_MIN <= interval <= INTERVAL_MS_MAX:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval} for interval.ms, interval must be between {INTERVAL_MS_MIN} and "
            f"{INTERVAL_MS_MAX} (1 hour)",
        )
    match = values.get("match")
    if isinstance(match, tuple):
        try:
            match_patterns(match)
        except ConfigError as error:
            raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from None
    return {key: to_text(value) or "" for key, value in values.items()}


def match_patterns(texts: Iterable[str]) -> dict[str, Any]:
    """What each key of a client has to match as a whole, of a list of KEY=PATTERN: RE2's expressions. ConfigError."""
    patterns: dict[str, Any] = {}
    for text in texts:
        key, _, pattern = text.rstrip("=").partition("=")  # Java's split drops what is empty at the end
        if key.strip() not in MATCH_KEYS or not pattern or "=" in pattern:
            raise _illegal(text)
        patterns[key.strip()] = _compiled(text, pattern.strip())
    return patterns


def _compiled(text: str, pattern: str) -> Any:
    if len(pattern.encode()) > TELEMETRY_PATTERN_BYTES_MAX or _SET_OF_JAVAS.search(pattern):
        raise _illegal(text)
    options = re2.Options()
    options.max_mem, options.log_errors = TELEMETRY_PATTERN_MEMORY_BYTES_MAX, False
    try:
        found = re2.compile(pattern, options)
    except re2.error:
        raise _illegal(text) from None
    if found.programsize > TELEMETRY_PATTERN_INSTRUCTIONS_MAX:
        raise ConfigError(
            f"Illegal client matching pattern: {text}: it has more than {TELEMETRY_PATTERN_INSTRUCTIONS_MAX} "
            "instructions when it is compiled"
        )
    return found


def _illegal(text: str) -> ConfigError:
    return ConfigError(f"Illegal client matching pattern: {text}")
