"""From what the command line and the settings say to the broker's listeners; whatever cannot work is refused here.

    --listen [NAME://]HOST:PORT     listeners=NAME://HOST:PORT,…              stronger: --listen
    --advertise [NAME://]HOST[:PORT]  advertised.listeners=NAME://HOST:PORT,…   stronger: --advertise
    listener.NAME.mode=per-core-port (default), per-core-address, shared
    listener.NAME.placement=load (default), cpu, source-port; of a shared one
    listener.security.protocol.map=NAME:PROTOCOL,…
    listener.name.NAME.sasl.enabled.mechanisms, listener.name.NAME.connections.max.reauth.ms; where clients log in
    listener.name.NAME.ssl.…; of one with TLS (`tpc_broker.metadata.ssl_settings`)

Names are taken in upper case, as Kafka does; one that is left out is PLAINTEXT. In mode per-core-address HOST is the
first core's IP address, and the others count up from it, or all cores' addresses joined by `+`.

Every error is one `ConfigError` line that says where the text stands, what was given and what is allowed.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tpc_broker import limits
from tpc_broker.host_port import NO_HOST, PORT_MAX, may_name_a_host, read_port
from tpc_broker.metadata.config_types import ConfigError, definitions_of
from tpc_broker.metadata.listeners import Address, Listener, ListenerMode, Placement, SecurityProtocol
from tpc_broker.metadata.sasl_settings import ENABLED, SaslSettings
from tpc_broker.metadata.settings_of_one import GivenText, SettingsOfOne
from tpc_broker.metadata.ssl_settings import SSL_OF_ONE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WILDCARDS: Final = frozenset({"0.0.0.0", "::", "", "*"})  # noqa: S104  (named here to be refused where clients are told)
DEFAULT_LISTEN: Final = "127.0.0.1:9092"

_SETTING: Final = re.compile(
    r"listeners|advertised\.listeners|listener\.security\.protocol\.map|listener\.[^.]+\.(mode|placement)"
)
_OF_ONE: Final = re.compile(r"listener\.([^.]+)\.(mode|placement)")
_NAME: Final = re.compile(r"[A-Z][A-Z0-9_-]*")


_LOGIN_FIELDS: Final = {ENABLED: "mechanisms", "connections.max.reauth.ms": "session_ms_max"}


def _has_no_logins(listener: str, protocol: SecurityProtocol) -> str | None:
    if protocol.authenticates:
        return None
    return f"nobody logs in to listener {listener}: its security protocol is {protocol}"


_LOGINS_OF_ONE: Final = SettingsOfOne(
    {name: row for name, row in definitions_of(SaslSettings).items() if name in _LOGIN_FIELDS}, _has_no_logins
)

_Choice = TypeVar("_Choice", ListenerMode, Placement)


class _Place(NamedTuple):
    """`NAME://HOST+HOST:PORT` in its parts."""

    given: GivenText
    name: str | None
    hosts: tuple[str, ...]
    port: int

    def refused(self, reason: str) -> ConfigError:
        return ConfigError(f"{self.given.where} {self.given.text} {reason}")


def is_listener_setting(name: str) -> bool:
    return _SETTING.fullmatch(name) is not None or _LOGINS_OF_ONE.has(name) or SSL_OF_ONE.has(name)


def plan_listeners(
    listen: Sequence[str], advertise: Sequence[str], settings: Mapping[str, GivenText], cores: int
) -> tuple[Listener, ...]:
    """The listeners in the order in which they are given. `listen` and `advertise` are the options, `settings` those of
    the settings for which `is_listener_setting` is true.
    """
    places = {}
    for given in _given("--listen", listen, settings.get("listeners")) or [GivenText("--listen", DEFAULT_LISTEN)]:
        place = _read_place(given)
        name = place.name or SecurityProtocol.PLAINTEXT
        if name in places:
            raise place.refused(f"is a second listener {name}; give each a name, as in NAME://HOST:PORT")
        places[name] = place
    if len(places) > limits.LISTENERS_MAX:
        raise ConfigError(f"{len(places)} listeners are too many; at most {limits.LISTENERS_MAX} are allowed")
    setting = settings.get("advertised.listeners")
    advertised = _advertised(_given("--advertise", advertise, setting if setting and setting.text else None), places)
    modes = _choices("mode", ListenerMode, settings, places)
    placements = _placements(settings, places, modes)
    protocols = _protocols(settings.get("listener.security.protocol.map"), places)
    logins = _LOGINS_OF_ONE.given_in(settings, protocols)
    listeners = []
    for name, place in places.items():
        spread = _SPREADS[modes.get(name, ListenerMode.PER_CORE_PORT)]
        told = advertised.get(name)
        if told is None and not WILDCARDS.isdisjoint(place.hosts):
            how = "advertised.listeners" if "listeners" in place.given.where else "--advertise HOST[:PORT]"
            raise place.refused(
                f"takes connections on every address, and clients must be told one that they can reach: give {how}"
            )
        addresses = spread(name, place, cores)
        listeners.append(
            Listener(
                name,
                modes.get(name, ListenerMode.PER_CORE_PORT),
                addresses,
                spread(name, told, cores) if told else addresses,
                protocols[name],
                placements.get(name, Placement.LOAD),
                **{_LOGIN_FIELDS[setting]: value for setting, value in logins[name].items()},
            )
        )
    _check_overlap(listeners)
    return tuple(listeners)


def _given(option: str, texts: Sequence[str], setting: GivenText | None) -> list[GivenText]:
    """The option's texts, or the setting's where there are none."""
    if texts or setting is None:
        return [GivenText(option, text) for text in texts]
    return [GivenText(setting.where, text.strip()) for text in setting.text.split(",")]


# -- one address -------------------------------------------------------------------------------------------------------


def _read_place(given: GivenText, default_ports: Mapping[str, int] | None = None) -> _Place:
    """`default_ports`: by listener's name, for one that leaves its port out."""
    name_text, separator, address = given.text.rpartition("://")
    name = name_text.upper() if separator else None
    if name is not None and not _NAME.fullmatch(name):
        raise ConfigError(
            f"{given.where} {given.text}: {name_text!r} is not a name; a letter is, then letters, digits, _ and -"
        )
    default_port = None
    if default_ports is not None:  # who gives them refuses unknown names afterwards
        default_port = default_ports.get(name or SecurityProtocol.PLAINTEXT, PORT_MAX)
    host, port = split_address(address, given.where, default_port=default_port)
    hosts = tuple(each.strip("[]") for each in host.split("+"))
    if not all(map(may_name_a_host, hosts)):
        raise ConfigError(f"{given.where} {given.text}: {NO_HOST}")
    return _Place(given, name, hosts, port)


def split_address(text: str, where: str, *, default_port: int | None = None) -> tuple[str, int]:
    """``HOST:PORT`` (``[v6]:PORT``) to its parts; the port may be left out where there is a default."""
    host, separator, port_text = text.rpartition(":")
    bare_v6 = any(":" in each and not each.startswith("[") for each in host.split("+"))
    if not separator or bare_v6 or text.endswith("]"):
        if default_port is None:
            raise ConfigError(f"{where}: {text!r} is not HOST:PORT, for example 127.0.0.1:9092")
        return text, default_port
    port = read_port(port_text)
    if port is None:
        raise ConfigError(f"{where}: port {port_text!r} is not a number from 1 to {PORT_MAX}")
    return host, port


# -- what belongs to a listener ----------------------------------------------------------------------------------------


def _advertised(given: Sequence[GivenText], places: Mapping[str, _Place]) -> dict[str, _Place]:
    default_ports = {name: place.port for name, place in places.items()}
    if len(places) == 1:
        default_ports[SecurityProtocol.PLAINTEXT] = next(iter(places.values())).port
    found: dict[str, _Place] = {}
    for each in given:
        place = _read_place(each, default_ports)
        if place.name is None and len(places) > 1:
            raise place.refused(f"does not say which listener is meant: give NAME://HOST[:PORT], {_among(places)}")
        name = place.name or next(iter(places))
        if name not in places:
            raise place.refused(f"belongs to no listener: {_among(places)}")
        if name in found:
            raise place.refused(f"is the second that listener {name} is to advertise")
        if not WILDCARDS.isdisjoint(place.hosts):
            raise ConfigError(f"{each.where} {each.text}: a wildcard is not an address that a client can reach")
        found[name] = place
    return found


def _choices(
    what: str, kind: type[_Choice], settings: Mapping[str, GivenText], places: Mapping[str, _Place]
) -> dict[str, _Choice]:
    """`listener.NAME.what=`, by listener, of those that have it."""
    chosen: dict[str, _Choice] = {}
    for setting, (where, text) in settings.items():
        match = _OF_ONE.fullmatch(setting)
        if match is None or match[2] != what:
            continue
        name = match[1].upper()
        if name not in places:
            raise ConfigError(f"{where}: there is no listener {name}: {_among(places)}")
        if text not in tuple(kind):
            raise ConfigError(f"{where}: {what} {text!r} is unknown; allowed are {', '.join(kind)}")
        chosen[name] = kind(text)
    return chosen


def _placements(
    settings: Mapping[str, GivenText], places: Mapping[str, _Place], modes: Mapping[str, ListenerMode]
) -> dict[str, Placement]:
    placements = _choices("placement", Placement, settings, places)
    for setting, (where, _text) in settings.items():
        match = _OF_ONE.fullmatch(setting)
        if match and match[2] == "placement" and modes.get(match[1].upper()) is not ListenerMode.SHARED:
            raise ConfigError(f"{where}: has a meaning with listener.{match[1]}.mode=shared only")
    return placements


def _protocols(given: GivenText | None, places: Mapping[str, _Place]) -> dict[str, SecurityProtocol]:
    """Without a map a listener that is called as a protocol has that one, and any other PLAINTEXT."""
    named = {name: name if name in tuple(SecurityProtocol) else SecurityProtocol.PLAINTEXT for name in places}
    where = {name: f"{place.given.where} {place.given.text}" for name, place in places.items()}
    if given is not None:
        entries = [entry.partition(":") for entry in given.text.split(",") if entry.strip()]
        mapped = {name.strip().upper(): protocol.strip().upper() for name, _colon, protocol in entries}
        for name in places:
            if name not in mapped:
                raise ConfigError(f"{given.where}: listener {name} is not in it; name each, as in {name}:PLAINTEXT")
            named[name], where[name] = mapped[name], given.where
    for name, protocol in named.items():
        if protocol not in tuple(SecurityProtocol):
            allowed = ", ".join(SecurityProtocol)
            raise ConfigError(
                f"{where[name]}: listener {name}: security protocol {protocol} is unknown; allowed is {allowed}"
            )
    return {name: SecurityProtocol(protocol) for name, protocol in named.items()}


def _among(places: Mapping[str, _Place]) -> str:
    return f"the listener is {next(iter(places))}" if len(places) == 1 else f"the listeners are {', '.join(places)}"


# -- one address for each core -----------------------------------------------------------------------------------------


def _spread_ports(name: str, place: _Place, cores: int) -> tuple[Address, ...]:
    if len(place.hosts) > 1:
        raise place.refused(f"names {len(place.hosts)} addresses, which needs listener.{name}.mode=per-core-address")
    if place.port + cores - 1 > PORT_MAX:
        core = PORT_MAX + 1 - place.port
        raise place.refused(
            f"leaves too few ports: port {PORT_MAX + 1} is over {PORT_MAX} (core {core} of {cores} answers on port "
            f"{PORT_MAX + 1}); choose a lower port or fewer --cores"
        )
    return tuple(Address(place.hosts[0], place.port + core) for core in range(cores))


def _spread_nothing(name: str, place: _Place, cores: int) -> tuple[Address, ...]:
    if len(place.hosts) > 1:
        raise place.refused(f"names {len(place.hosts)} addresses, which needs listener.{name}.mode=per-core-address")
    return (Address(place.hosts[0], place.port),) * cores


def _spread_addresses(name: str, place: _Place, cores: int) -> tuple[Address, ...]:
    needs = f"listener {name} has mode per-core-address and needs an address for each core"
    if not WILDCARDS.isdisjoint(place.hosts):
        raise place.refused(f"takes connections on every address, but {needs}")
    hosts = place.hosts
    if len(hosts) == 1 and cores > 1:
        try:
            first = ip_address(hosts[0])
            hosts = tuple(str(first + core) for core in range(cores))
        except ValueError:  # no IP address, or there are not so many behind it
            raise place.refused(
                f"cannot be counted up from for {cores} cores: {needs}, the first one's IP address, or all joined by +"
            ) from None
    if len(hosts) != cores:
        raise place.refused(f"names {len(hosts)} addresses for {cores} core{'s' if cores > 1 else ''}: {needs}")
    if len(set(hosts)) != cores:
        raise place.refused(f"names an address twice: {needs}")
    return tuple(Address(host, place.port) for host in hosts)


_SPREADS: Final = {
    ListenerMode.PER_CORE_PORT: _spread_ports,
    ListenerMode.PER_CORE_ADDRESS: _spread_addresses,
    ListenerMode.SHARED: _spread_nothing,
}


def _check_overlap(listeners: Sequence[Listener]) -> None:
    """No two sockets at one place; a wildcard has every address of its port. What is advertised may be the same, as in
    Kafka: one listener may send its clients to another.
    """
    taken: dict[int, list[tuple[str, Listener, int]]] = {}
    for listener in listeners:
        for core, (host, port) in enumerate(listener.addresses):
            for other_host, other, other_core in taken.get(port, ()):
                if other is not listener and (host == other_host or WILDCARDS & {host, other_host}):
                    raise ConfigError(
                        f"listeners {other.name} and {listener.name} overlap: port {port} is that of core {other_core} "
                        f"of {other.name} ({_range(other)}) and of core {core} of {listener.name} ({_range(listener)})"
                    )
            taken.setdefault(port, []).append((host, listener, core))


def _range(listener: Listener) -> str:
    first, last = listener.addresses[0], listener.addresses[-1]
    return f"{first} to {last}" if first != last else str(first)
