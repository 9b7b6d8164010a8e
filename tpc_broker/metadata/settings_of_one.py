"""Settings that one listener has of its own: `listener.name.NAME.SETTING=…`, by Kafka's names. They win one by one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.metadata.config_types import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpc_broker.metadata.config_types import ConfigDefinition
    from tpc_broker.metadata.listeners import SecurityProtocol

_OF_ONE: Final = re.compile(r"listener\.name\.([^.]+)\.(.+)")


class GivenText(NamedTuple):
    where: str
    """The option, or the file with the line: for messages."""
    text: str


class SettingsOfOne(NamedTuple):
    """Which settings: `rows`, by name. `fault`: why a listener of that name and protocol can have none of them."""

    rows: Mapping[str, ConfigDefinition]
    fault: Callable[[str, SecurityProtocol], str | None]

    def has(self, name: str) -> bool:
        match = _OF_ONE.fullmatch(name)
        return match is not None and match[2] in self.rows

    def given_in(
        self, given: Mapping[str, GivenText], protocols: Mapping[str, SecurityProtocol]
    ) -> dict[str, dict[str, Any]]:
        """Their values, by listener and by name of the setting; ConfigError for what cannot be read, or has no
        listener. `protocols`: by listener, of all listeners.
        """
        found: dict[str, dict[str, Any]] = {name: {} for name in protocols}
        for setting, (where, text) in given.items():
            match = _OF_ONE.fullmatch(setting)
            if match is None or match[2] not in self.rows:
                continue
            name = match[1].upper()
            if name not in protocols:
                raise ConfigError(f"{where}: there is no listener {name}")
            fault = self.fault(name, protocols[name])
            if fault is not None:
                raise ConfigError(f"{where}: {fault}")
            try:
                found[name][match[2]] = self.rows[match[2]].parse(text)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from None
        return found
