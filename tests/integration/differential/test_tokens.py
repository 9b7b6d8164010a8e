"""Logins by token: what Kafka 4.3.1 answers, and ours, to the same messages and the same issuer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.auth.token_maker import ATTACKER, ISSUER_OF_TESTS, encoded
from tests.support.oauth_brokers import OAuthBroker, OAuthKafka
from tests.support.raw_client import Closed
from tests.support.sasl_brokers import LoginLine

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]

EARLY_S, LATE_S = 1_700_000_000, 4_000_000_000
MAKER = ISSUER_OF_TESTS
KIDS = ("rsa", "ec")
"""Kafka knows no keys of Ed25519."""


def token(maker: Any = MAKER, kid: str = "rsa", **changes: Any) -> bytes:
    return maker.token(kid, **{"exp": LATE_S, "iat": EARLY_S, **changes})


def said(token: bytes, name: bytes = b"", more: bytes = b"") -> bytes:
    return b"n," + (b"a=" + name if name else b"") + b",\x01auth=Bearer " + token + b"\x01" + more + b"\x01"


UNSIGNED = encoded({"alg": "none", "kid": "rsa"}) + b"." + encoded(MAKER.claims(exp=LATE_S)) + b"."
MESSAGES = {
    "good": said(token()),
    "another key": said(token(kid="ec")),
    "another algorithm": said(token(header={"alg": "RS512"}, algorithm="RS512")),
    "one of several audiences": said(token(aud=["x", "other"])),
    "its own name": said(token(), b"alice"),
    "more pairs": said(token(), more=b"traceId=1\x01"),
    "a time with a fraction": said(token(exp=LATE_S + 0.5, iat=EARLY_S + 0.5)),
    "other claims": said(token(scope=["a"], azp="x")),
    "another's signature": said(token(ATTACKER)),
    "an unknown key": said(token(header={"kid": "x"})),
    "over": said(token(exp=EARLY_S + 1)),
    "not begun": said(token(nbf=LATE_S - 1)),
    "for others": said(token(aud="x")),
    "for nobody": said(token(aud=None)),
    "of another issuer": said(token(iss="x")),
    "of no issuer": said(token(iss=None)),
    "without an end": said(token(exp=None)),
    "without a name": said(token(sub=None)),
    "unsigned": said(UNSIGNED),
    "no token": said(b"a.b.c"),
    "for another": said(token(), b"admin"),
    "empty": b"",
    "given up": b"\x01",
    "a bad pair": said(token(), more=b"k1=v\x01"),
    "with a bound channel": b"y" + said(token())[1:],
}
STRICTER = {
    "which key is not said": (said(token(header={"kid": None})), True),
    "two tokens": (said(token(), more=b"auth=Bearer x\x01"), False),
    "another scheme": (b"n,,\x01auth=Basic abc\x01\x01", False),
}
"""What ours does not take, and whether Kafka does."""


@pytest.fixture(scope="module")
def peers(kafka_tools: Any, module_tmp_path: Any) -> Iterator[tuple[OAuthKafka, OAuthBroker]]:
    kafka, ours = OAuthKafka(module_tmp_path / "kafka"), OAuthBroker(module_tmp_path / "ours", 1)
    for peer in (kafka, ours):
        peer.folder.mkdir()
        (peer.folder / "keys.json").write_bytes(MAKER.key_set(*KIDS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", kafka.java_options)
        kafka.start()
    ours.start()
    yield kafka, ours
    kafka.stop()
    ours.stop()


def story(peer: Any, message: bytes) -> list[Any]:
    """What a login comes to: each answer, and whether the connection stays."""
    told: list[Any] = []
    with LoginLine(peer) as line:
        line.shake_hands("OAUTHBEARER")
        try:
            answer = line.authenticate(message)
            told.append((answer["ErrorCode"], answer["ErrorMessage"], answer["AuthBytes"]))
            if answer["AuthBytes"]:
                answer = line.authenticate(b"\x01")
                told.append((answer["ErrorCode"], answer["ErrorMessage"]))
            line.raw.ask("Metadata", 12, {"Topics": [], "AllowAutoTopicCreation": False})
            told.append("served")
        except Closed:
            told.append("closed")
    return told


@pytest.mark.parametrize("name", MESSAGES)
def test_the_same_answers(peers: tuple[OAuthKafka, OAuthBroker], name: str) -> None:
    kafka, ours = peers
    expected = story(kafka, MESSAGES[name])
    assert story(ours, MESSAGES[name]) == expected
    good = list(MESSAGES).index("other claims") >= list(MESSAGES).index(name)
    assert (expected[-1] == "served") is good, expected


@pytest.mark.parametrize("name", STRICTER)
def test_where_ours_is_stricter(peers: tuple[OAuthKafka, OAuthBroker], name: str) -> None:
    kafka, ours = peers
    message, is_taken = STRICTER[name]
    assert (story(kafka, message)[-1] == "served") is is_taken
    assert story(ours, message)[-1] == "closed"
