"""Whom a subscription is for, and what a client is asked for by all that match it."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.limits import (
    TELEMETRY_MATCHED_BYTES_MAX,
    TELEMETRY_PATTERN_BYTES_MAX,
    TELEMETRY_PATTERN_INSTRUCTIONS_MAX,
)
from tpc_broker.metadata.client_metrics_config import match_patterns
from tpc_broker.metadata.config_types import ConfigError
from tpc_broker.telemetry.pushed import subscriptions
from tpc_broker.telemetry.pushed.subscriptions import Asked, Subscriptions, client_of, compiled, subscription_id_of

ID = uuid.UUID("0f3e2d1c-4b5a-6978-8796-a5b4c3d2e1f0")
JAVA = ("apache-kafka-java", "4.3.1")


def client(client_id="a-client", software=JAVA, peer="10.0.0.7:4711"):
    return client_of(ID, client_id, software, peer)


def matches(match, found):
    return Subscriptions({"s": {"metrics": "m", "match": match}}).asked_of(found).metrics == ("m",)


def test_a_client_is_described_in_kafkas_words():
    assert client() == ("Dz4tHEtaaXiHlqW0w9Lh8A", "a-client", *JAVA, "10.0.0.7", "4711")
    assert client_of(ID, None, None, "unix")[1:] == (None,) * 5


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("127.0.0.1:4711", "127.0.0.1"),
        ("[::1]:4711", "0:0:0:0:0:0:0:1"),
        ("[2001:db8::ff00:42]:4711", "2001:db8:0:0:0:0:ff00:42"),
        ("[::ffff:10.0.0.7]:4711", "10.0.0.7"),
    ],
)
def test_an_address_is_written_as_java_writes_it(peer, address):
    assert client(peer=peer)[-2:] == (address, "4711")


@pytest.mark.parametrize(
    ("match", "is_matched"),
    [
        ("", True),
        ("client_id=a-client", True),
        ("client_id=a-clien", False),
        ("client_id=client", False),
        ("client_id=a.*", True),
        ("client_id=b|a-client", True),
        ("client_id=b|a", False),
        (" client_software_name = apache.* , client_software_version = 4\\..* ", True),
        ("client_software_name=apache.*,client_software_version=3.*", False),
        ("client_source_address=10\\.0\\.0\\..*", True),
        ("client_source_port=47[0-9]{2}", True),
        ("client_instance_id=Dz4tHEtaaXiHlqW0w9Lh8A", True),
        ("client_id=no,client_id=a.*", True),
    ],
)
def test_all_that_it_names_has_to_match_as_a_whole(match, is_matched):
    assert matches(match, client()) == is_matched


def test_what_is_not_known_of_a_client_matches_nothing():
    for field in ("client_id", "client_software_name", "client_source_address"):
        assert not matches(f"{field}=.*", client_of(ID, None, None, "unix"))


def test_who_matches_several_is_asked_for_all_of_it_in_the_shortest_time():
    found = Subscriptions({
        "a": {"metrics": "x, y", "interval.ms": "20000"},
        "b": {"metrics": "y,z", "interval.ms": "10000", "match": "client_id=a.*"},
        "c": {"metrics": "*", "interval.ms": "100", "match": "client_id=b.*"},
    })  # fmt: skip
    assert found.asked_of(client("a")) == Asked(("x", "y", "z"), 10_000)
    assert found.asked_of(client("b")) == Asked(("*",), 100)
    assert found.asked_of(client("c")) == Asked(("x", "y"), 20_000)


def test_who_matches_none_is_asked_for_nothing_and_an_interval_is_never_above_the_default():
    assert Subscriptions({}).asked_of(client()) == Asked((), 300_000)
    assert Subscriptions({"s": {"interval.ms": "3600000"}}).asked_of(client()) == Asked((), 300_000)


@pytest.mark.parametrize(
    "values",
    [
        {"match": "client_id"},
        {"match": "client_id="},
        {"match": "rack=a"},
        {"match": "client_id=("},
        {"match": "client_id=(?=a)"},
        {"match": "client_id=(a)\\1"},
        {"match": "client_id=" + "a" * (TELEMETRY_PATTERN_BYTES_MAX + 1)},
        {"match": "client_id=((a{1000}){1000}){9}"},
        {"interval.ms": "soon"},
    ],
    ids=str,
)
def test_what_cannot_be_used_is_named_and_matches_nobody(values):
    found = Subscriptions({"bad": {"metrics": "m", **values}, "good": {"metrics": "n"}})
    assert list(found.faults) == ["bad"]
    assert found.asked_of(client()).metrics == ("n",)
    assert len(found) == 1


def test_only_what_has_changed_is_compiled_again(monkeypatch):
    counted = []
    monkeypatch.setattr(subscriptions, "compiled", lambda values: counted.append(dict(values)) or compiled(values))
    configs = {"a": {"metrics": "x"}, "b": {"metrics": "y"}, "bad": {"match": "client_id=("}}
    first = Subscriptions(configs)
    assert len(counted) == 3
    after = {**configs, "b": {"metrics": "z"}, "c": {"metrics": "x"}}
    later = Subscriptions(after, first)
    assert counted[3:] == [after["b"], after["c"]]
    assert later.asked_of(client()).metrics == ("x", "z")
    assert later.faults == first.faults
    assert len(Subscriptions({"b": after["b"]}, later)) == 1
    assert len(counted) == 5


def test_an_expression_that_backtracks_elsewhere_takes_no_time_here():
    """Python's own engine would be at it for years."""
    assert not matches("client_id=(a+)+b", client("a" * TELEMETRY_MATCHED_BYTES_MAX))


@pytest.mark.parametrize("letter", ["a", "ä", "\N{GRINNING FACE}"])
def test_what_is_longer_than_a_name_has_to_be_matches_nothing(letter):
    """The longest times the largest program is what a match may take."""
    most = TELEMETRY_MATCHED_BYTES_MAX // len(letter.encode())
    for count, is_matched in ((most, True), (most + 1, False)):
        assert matches("client_id=.*", client(letter * count)) == is_matched
        assert matches("client_software_name=.*", client(software=(letter * count, "1"))) == is_matched
        assert matches("client_software_version=.*", client(software=("a", letter * count))) == is_matched


def test_no_program_is_larger_than_its_bound():
    for count in range(1, 1_001, 37):
        for pattern in ("(a|b)*a(a|b){%d}", ".*[ab].{%d}c.*", "(a?b?){%d}", "(.*a){%d}"):
            try:
                (found,) = match_patterns([f"client_id={pattern % count}"]).values()
            except ConfigError:
                assert count > 50, pattern
            else:
                assert found.programsize <= TELEMETRY_PATTERN_INSTRUCTIONS_MAX


def test_a_subscription_id_is_the_number_that_kafka_makes():
    """Of its own classes `Crc32C` and `Uuid`, with up to one prefix: the order of more is Java's hash table's."""
    assert subscription_id_of(Asked((), 300_000), uuid.UUID(int=0)) == -725132322
    assert subscription_id_of(Asked(("*",), 1_000), ID) == 850113177


@given(st.lists(st.tuples(st.sets(st.sampled_from("abc")), st.integers(100, 300_000)), min_size=2, max_size=2))
def test_a_subscription_id_changes_with_what_is_asked(two):
    one, other = (Asked(tuple(sorted(metrics)), interval_ms) for metrics, interval_ms in two)
    ids = [subscription_id_of(asked, ID) for asked in (one, other)]
    assert all(-(2**31) <= each < 2**31 for each in ids)
    assert (ids[0] == ids[1]) == (one == other)
