"""Listeners as they are given on the command line and in the settings, and what is refused, in one clear line."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from tpc_broker.metadata.config_types import ConfigError
from tpc_broker.metadata.listener_settings import plan_listeners
from tpc_broker.metadata.listeners import Listener, ListenerMode, shown_listeners
from tpc_broker.metadata.settings import listener_settings, load_settings


def planned(*listen: str, advertise: tuple[str, ...] = (), file: str = "", cores: int = 2) -> tuple[Listener, ...]:
    return plan_listeners(listen, advertise, listener_settings(file, (), file_name="--config f"), cores)


def refusal(*listen: str, advertise: tuple[str, ...] = (), file: str = "", cores: int = 2) -> str:
    with pytest.raises(ConfigError) as caught:
        planned(*listen, advertise=advertise, file=file, cores=cores)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_without_a_word_there_is_one_on_loopback() -> None:
    (listener,) = planned()
    assert (listener.name, listener.mode, listener.security) == ("PLAINTEXT", "per-core-port", "PLAINTEXT")
    assert listener.addresses == listener.advertised == (("127.0.0.1", 9092), ("127.0.0.1", 9093))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("broker.example:1", ("broker.example", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("outside://[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address_is_split(text: str, parts: tuple[str, int]) -> None:
    (listener,) = planned(text, cores=1)
    assert listener.addresses == (parts,)


@pytest.mark.parametrize(
    "text", ["127.0.0.1", "", "h:", "h:0", "h:65536", "h:-1", "h:9092x", "::1", "h:²", f"h:{'9' * 5000}"]
)
def test_what_is_no_address_is_refused_by_the_option_s_name(text: str) -> None:
    assert refusal(text).startswith("--listen: ")
    assert refusal(f"A://{text}").startswith("--listen: ")
    assert refusal(file=f"\nlisteners=A://{text}").startswith("--config f, line 2: listeners: ")


@pytest.mark.parametrize("host", ["a..b", f"{'b' * 64}.example", ".example", "h+a..b", "br\udc80ker"])
def test_a_name_that_no_host_can_have_is_refused_by_the_option_s_name(host: str) -> None:
    for name in ("", "A://"):
        text = f"{name}{host}:9092"
        assert refusal(text).startswith(f"--listen {text}: no host has such a name: between dots there are 1 to 63 ")
        assert refusal(f"{name}127.0.0.1:1", advertise=(f"{name}{host}",)).startswith(f"--advertise {name}{host}: no ")
    assert refusal(file=f"listeners=A://{host}:1").startswith(f"--config f, line 1: listeners A://{host}:1: no host ")
    assert planned(f"{'b' * 63}.example.:9092", cores=1)[0].addresses == ((f"{'b' * 63}.example.", 9092),)


@pytest.mark.parametrize(
    ("text", "host"), [("broker.example", "broker.example"), ("[::1]", "::1"), ("::1", "::1"), ("NEAR://h", "h")]
)
def test_the_port_may_be_left_out_of_what_is_advertised(text: str, host: str) -> None:
    (listener,) = planned("NEAR://127.0.0.1:7000", advertise=(text,))
    assert listener.advertised == ((host, 7000), (host, 7001))


@pytest.mark.parametrize("listen", ["0.0.0.0:9092", "[::]:9092", ":9092", "*:9092"])
def test_a_wildcard_needs_an_address_that_clients_can_reach(listen: str) -> None:
    assert "give --advertise HOST[:PORT]" in refusal(listen)
    assert "give advertised.listeners" in refusal(file=f"listeners=A://{listen}")
    assert "a wildcard is not an address" in refusal(listen, advertise=("0.0.0.0",))
    (listener,) = planned(listen, advertise=("broker.example:19092",))
    assert listener.advertised == (("broker.example", 19092), ("broker.example", 19093))


def test_a_file_says_all_of_it() -> None:
    file = (
        "listeners=INSIDE://10.0.0.1:9092, cores://127.0.0.1:9192\n"
        "advertised.listeners=inside://broker.example:19092\n"
        "listener.Cores.mode=per-core-address\n"
        "listener.security.protocol.map=INSIDE:PLAINTEXT,CORES:plaintext\n"
    )
    inside, cores = planned(file=file, cores=3)
    assert (inside.name, inside.mode) == ("INSIDE", ListenerMode.PER_CORE_PORT)
    assert inside.addresses == tuple(("10.0.0.1", 9092 + core) for core in range(3))
    assert inside.advertised == tuple(("broker.example", 19092 + core) for core in range(3))
    assert (cores.name, cores.mode) == ("CORES", ListenerMode.PER_CORE_ADDRESS)
    assert cores.addresses == cores.advertised == tuple((f"127.0.0.{core + 1}", 9192) for core in range(3))
    assert shown_listeners((inside, cores), 1) == {
        "listeners": "INSIDE://10.0.0.1:9093,CORES://127.0.0.2:9192",
        "advertised.listeners": "INSIDE://broker.example:19093,CORES://127.0.0.2:9192",
    }
    load_settings(file)  # which takes them for settings, though the others are not here


def test_the_command_line_is_stronger_than_the_file_and_the_last_override_than_those_before() -> None:
    file = "listeners=A://127.0.0.1:1000\nadvertised.listeners=A://far:1000"
    assert planned("A://127.0.0.1:2000", file=file)[0].addresses[0].port == 2000
    assert planned("A://127.0.0.1:2000", file=file)[0].advertised[0] == ("far", 1000)
    assert planned(advertise=("A://near",), file=file)[0].advertised[0] == ("near", 1000)
    overrides = ("listeners=A://127.0.0.1:3000", "listeners=A://127.0.0.1:4000")
    (listener,) = plan_listeners((), (), listener_settings(file, overrides), 1)
    assert listener.addresses[0].port == 4000
    with pytest.raises(ConfigError, match=r"^--override listeners A://:1 takes connections"):
        plan_listeners((), (), listener_settings(file, ("listeners=A://:1", "advertised.listeners=")), 1)
    assert refusal(file="listeners=").startswith("--config f, line 1: listeners: '' is not HOST:PORT")


def test_each_core_s_address_may_be_given() -> None:
    mode = "listener.A.mode=per-core-address"
    (listener,) = planned("A://10.0.0.7+[fd00::7]:9092", advertise=("one.example+two.example:80",), file=mode)
    assert listener.addresses == (("10.0.0.7", 9092), ("fd00::7", 9092))
    assert listener.advertised == (("one.example", 80), ("two.example", 80))
    assert planned("A://localhost:9092", file=mode, cores=1)[0].addresses == (("localhost", 9092),)
    assert [str(address) for address in planned("A://[::1]:9092", file=mode)[0].addresses] == [
        "[::1]:9092",
        "[::2]:9092",
    ]


@pytest.mark.parametrize(
    ("listen", "parts"),
    [
        (("h:1000", "h:2000"), ["--listen h:2000", "second listener PLAINTEXT", "NAME://HOST:PORT"]),
        (("A://h:1000", "a://h:2000"), ["--listen a://h:2000", "second listener A"]),
        (("A://h:1000", "B://h:1000"), ["A and B overlap", "port 1000", "core 0 of A", "core 0 of B"]),
        (("A://h:1000", "B://h:1001"), ["port 1001 is that of core 1 of A (h:1000 to h:1001)", "core 0 of B"]),
        (("A://h:1001", "B://h:1000"), ["port 1001 is that of core 0 of A", "core 1 of B"]),
        (("A b://h:1000",), ["'A b' is not a name"]),
        (("://h:1000",), ["'' is not a name"]),
        (("A://h:1000,B://h:2000",), ["is not a name"]),
        (("h:65535",), ["--listen h:65535", "port 65536 is over 65535 (core 1 of 2", "fewer --cores"]),
        (("127.0.0.1+127.0.0.2:1000",), ["names 2 addresses", "listener.PLAINTEXT.mode=per-core-address"]),
        (tuple(f"A{number}://h:{number * 10 + 1}" for number in range(17)), ["17 listeners", "at most 16"]),
    ],
)
def test_what_cannot_be_a_listener_is_refused(listen: tuple[str, ...], parts: list[str]) -> None:
    line = refusal(*listen)
    for part in parts:
        assert part in line


def test_a_wildcard_overlaps_every_address_of_its_ports() -> None:
    told = ("A://near", "B://near")
    assert "port 1001" in refusal("A://0.0.0.0:1000", "B://127.0.0.1:1001", advertise=told)
    assert "port 1001" in refusal("A://127.0.0.1:1000", "B://[::]:1001", advertise=told)
    assert len(planned("A://127.0.0.1:1000", "B://127.0.0.9:1001")) == 2
    file = "listener.B.mode=per-core-address"
    assert "port 1001" in refusal("A://127.0.0.2:1000", "B://127.0.0.1:1001", file=file)
    assert len(planned("A://127.0.0.1:1000", "B://127.0.0.1:1002", file=file)) == 2


def test_two_listeners_may_advertise_the_same() -> None:
    first, second = planned("A://h:1000", "B://h:2000", advertise=("B://h:1000",))
    assert first.advertised == second.advertised


@pytest.mark.parametrize(
    ("advertise", "parts"),
    [
        (("far",), ["--advertise far", "does not say which listener", "the listeners are A, B"]),
        (("C://far",), ["--advertise C://far", "belongs to no listener", "A, B"]),
        (("A://far", "A://near"), ["--advertise A://near", "is the second", "listener A"]),
        (("A://far:65535",), ["--advertise A://far:65535", "port 65536 is over 65535"]),
        (("A://one+two",), ["listener.A.mode=per-core-address"]),
    ],
)
def test_what_cannot_be_advertised_is_refused(advertise: tuple[str, ...], parts: list[str]) -> None:
    line = refusal("A://h:1000", "B://h:2000", advertise=advertise)
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("file", "parts"),
    [
        ("listener.A.placement=cpu", ["line 1: listener.A.placement", "with listener.A.mode=shared only"]),
        ("listener.A.mode=shared\nlistener.A.placement=hash", ["line 2: ", "'hash' is unknown", "load, cpu, source-"]),
        ("listener.A.mode=round-robin", ["'round-robin' is unknown", "per-core-port, per-core-address"]),
        ("listener.B.mode=shared", ["there is no listener B", "the listener is A"]),
        (
            "listener.security.protocol.map=A:TLS",
            ["line 1: listener.security", "listener A", "security protocol TLS is unknown", "SASL_SSL"],
        ),
        ("listener.security.protocol.map=A", ["security protocol  is unknown"]),
        ("listener.security.protocol.map=B:PLAINTEXT", ["listener A is not in it", "A:PLAINTEXT"]),
    ],
)
def test_modes_and_protocols_that_are_not_there_are_refused_by_name(file: str, parts: list[str]) -> None:
    line = refusal("A://h:1000", file=file)
    for part in parts:
        assert part in line


def test_a_shared_listener_has_one_address_for_all_cores() -> None:
    file = "listener.A.mode=shared\nlistener.A.placement=source-port"
    (listener,) = planned("A://h:65535", file=file, cores=3)
    assert listener.addresses == listener.advertised == (("h", 65535),) * 3
    assert (listener.mode, listener.placement, listener.summary()) == ("shared", "source-port", "h:65535")
    assert Listener.from_fields(json.loads(json.dumps(asdict(listener)))) == listener
    assert "per-core-address" in refusal("A://127.0.0.1+127.0.0.2:1", file="listener.A.mode=shared", cores=2)


def test_a_map_decides_what_a_name_means() -> None:
    file = "listener.security.protocol.map=SSL:PLAINTEXT"
    assert planned("SSL://h:1000", file=file)[0].security == "PLAINTEXT"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("A://localhost:1000", ["cannot be counted up from for 3 cores", "IP address", "joined by +"]),
        ("A://255.255.255.254:1000", ["cannot be counted up from for 3 cores"]),
        ("A://10.0.0.1+10.0.0.2:1000", ["names 2 addresses for 3 cores"]),
        ("A://10.0.0.1+10.0.0.2+10.0.0.1:1000", ["names an address twice"]),
        ("A://0.0.0.0:1000", ["takes connections on every address"]),
        ("A://10.0.0.1+0.0.0.0+10.0.0.2:1000", ["takes connections on every address"]),
    ],
)
def test_a_core_without_an_address_of_its_own_is_refused(text: str, parts: list[str]) -> None:
    file = "listener.A.mode=per-core-address"
    line = refusal(text, advertise=("A://127.0.0.1",), file=file, cores=3)
    for part in [f"--listen {text}", *parts]:
        assert part in line
    if "0.0.0.0" not in text:
        line = refusal("A://127.0.0.1:9092", advertise=(text,), file=file, cores=3)
        for part in [f"--advertise {text}", *parts]:
            assert part in line
