"""Reading the broker's settings: file, overrides, and what was altered while running.

The file is what Kafka's `server.properties` is: `name=value` lines, `#` and `!` begin comments, a backslash at the end
of a line joins the next one. Every error names the setting, where it stands, what was given and what is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from tpc_broker.metadata.broker_config import BROKER_CONFIGS, Settings, broker_definition
from tpc_broker.metadata.cleaner_settings import altered_cleaner_fault, threads_fault
from tpc_broker.metadata.config_types import ConfigError, ConfigStatus, ConfigValue, python_name, to_text
from tpc_broker.metadata.group_config import altered_group_fault, group_fault
from tpc_broker.metadata.listener_settings import is_listener_setting
from tpc_broker.metadata.settings_of_one import GivenText
from tpc_broker.metadata.topic_config import TopicConfig, effective_topic_config

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BrokerConfiguration:
    """What the broker runs with, and where each value comes from.

    `settings` are the effective values. `given` are the texts of the file and the overrides (static). Altered while
    running, and winning over them in this order: `altered_default` for all nodes, `altered_here` for this one.
    """

    settings: Settings
    given: Mapping[str, str] = field(default_factory=dict)
    altered_default: Mapping[str, str] = field(default_factory=dict)
    altered_here: Mapping[str, str] = field(default_factory=dict)

    def is_given(self, name: str) -> bool:
        """Whether somebody has said what a setting is to be."""
        return any(name in texts for texts in (self.given, self.altered_default, self.altered_here))

    def altered(self, default: Mapping[str, str], here: Mapping[str, str]) -> BrokerConfiguration:
        """The same broker after its dynamic settings have become these."""
        settings = _settings_of({**self.given, **default, **here})
        return BrokerConfiguration(settings, self.given, dict(default), dict(here))

    def check_altered(self, default: Mapping[str, str], here: Mapping[str, str], asked: Collection[str]) -> None:
        """ConfigError when its dynamic settings may not become these, of which somebody asks for some by name."""
        settings = self.altered(default, here).settings
        _check_alterable(settings, asked)
        if (fault := threads_fault(self.settings, settings, asked)) is not None:
            raise ConfigError(fault)

    def topic_config(self, overrides: Mapping[str, str], *, is_internal: bool = False) -> TopicConfig:
        """Effective settings of a topic with these overrides; an internal one is durable whatever the default says."""
        texts = {**self.given, **self.altered_default, **self.altered_here}
        server: dict[str, ConfigValue] = {name: BROKER_CONFIGS[name].read(text) for name, text in texts.items()}
        if is_internal:
            server.pop("durability.default", None)
        return effective_topic_config(overrides, server)


def load_settings(
    file_text: str = "", overrides: Sequence[str] = (), *, shown: Mapping[str, str] = _NOTHING, file_name: str = ""
) -> BrokerConfiguration:
    """Settings from a file's text and from `NAME=VALUE` overrides, which win; ConfigError for what cannot be taken.

    `shown` are the listeners: their settings depend on each other, on the command line and on the number of cores, and
    are read by `tpc_broker.metadata.listener_settings`. `file_name` stands before the line in the error.
    """
    given: dict[str, str] = {}
    for where, name, text in _entries(file_text, overrides, file_name):
        if is_listener_setting(name):
            continue
        try:
            given[name] = to_text(broker_definition(name).parse(text)) or ""
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    given.update(shown)
    settings = _settings_of(given)
    _check_alterable(settings, given)
    return BrokerConfiguration(settings, given)


def listener_settings(file_text: str, overrides: Sequence[str], *, file_name: str = "") -> dict[str, GivenText]:
    """Those settings that are about listeners, by name; ConfigError for a line that is no setting at all."""
    return {
        name: GivenText(f"--override {name}" if where.startswith("--override ") else f"{where}: {name}", text)
        for where, name, text in _entries(file_text, overrides, file_name)
        if is_listener_setting(name)
    }


def without_effect(given: Iterable[str]) -> list[str]:
    """Of these broker settings, those that are only kept and shown."""
    return sorted(name for name in given if BROKER_CONFIGS[name].status is ConfigStatus.STORED_ONLY)


def validate_dynamic(name: str, text: str) -> str:
    """The canonical text of a setting to be altered on a running broker; ConfigError when it may not be."""
    definition = broker_definition(name)
    if not definition.dynamic:
        raise ConfigError(f"Cannot update these configs dynamically: [{name}]")
    canonical = to_text(definition.parse_altered(text))
    assert canonical is not None, name
    return canonical


def check_relations(settings: Settings) -> None:
    """What no single setting can be wrong about alone."""
    if settings.group_min_session_timeout_ms > settings.group_max_session_timeout_ms:
        raise ConfigError(
            f"group.min.session.timeout.ms ({settings.group_min_session_timeout_ms}) must not be above "
            f"group.max.session.timeout.ms ({settings.group_max_session_timeout_ms})"
        )
    fault = group_fault(settings)
    if fault is not None:
        raise ConfigError(fault)
    if settings.message_max_bytes > settings.socket_request_max_bytes:
        raise ConfigError(
            f"message.max.bytes ({settings.message_max_bytes}) must not be above "
            f"socket.request.max.bytes ({settings.socket_request_max_bytes}): such a batch could never arrive"
        )


def _check_alterable(settings: Settings, asked: Collection[str]) -> None:
    """What is a mistake where it is said, and is lived with where it was stored under other settings. ConfigError."""
    fault = altered_group_fault(settings, asked) or altered_cleaner_fault(settings, asked)
    if fault is not None:
        raise ConfigError(fault)


def _settings_of(texts: Mapping[str, str]) -> Settings:
    values = {python_name(name): BROKER_CONFIGS[name].read(text) for name, text in texts.items()}
    settings = replace(Settings(), **values)  # type: ignore[arg-type]  # each value was parsed by its own definition
    check_relations(settings)
    return settings


def without_comments(file_text: str) -> str:
    """The same settings, for a command line: a file may be all explanation."""
    return "\n".join(line for _number, line in _logical_lines(file_text))


def _entries(file_text: str, overrides: Sequence[str], file_name: str) -> Iterator[tuple[str, str, str]]:
    """Where, name and text of every setting that was given, the later winning."""
    for number, line in _logical_lines(file_text):
        yield _split(f"{file_name}, line {number}" if file_name else f"line {number}", line)
    for override in overrides:
        yield _split(f"--override {override}", override)


def _split(where: str, line: str) -> tuple[str, str, str]:
    name, separator, text = line.partition("=")
    if not separator or not name.strip():
        raise ConfigError(f"{where}: expected NAME=VALUE, got {line!r}")
    return where, name.strip(), text.strip()


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with continuations joined, without comments and blank ones, with the number of their first line."""
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not joined and (not stripped or stripped[0] in "#!"):
            continue
        first = first if joined else number
        if stripped.endswith("\\"):
            joined += stripped[:-1]
            continue
        yield first, joined + stripped
        joined = ""
    if joined:
        yield first, joined
