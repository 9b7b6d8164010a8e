"""Logins by token, message by message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.auth.exchange import Challenge, Done, Failed, Work
from tpc_broker.auth.oauthbearer import MESSAGE_BYTES_MAX, REFUSED, OAuthBearerExchange, read_message
from tpc_broker.auth.principals import Principal
from tpc_broker.auth.tokens import Believed

ALICE = Believed("alice", 1_000)
GIVEN_UP = b"\x01"


class Answers:
    """`auth.oauthbearer.Tokens` that says what it is told to, in this order."""

    def __init__(self, *answers):
        self.answers, self.seen, self.asked = list(answers), [], 0

    def check(self, token):
        self.seen.append(token)
        return self.answers.pop(0)

    async def ask_for_keys(self):
        self.asked += 1


def message(token=b"a.b.c", name=b"", more=b""):
    return b"n," + (b"a=" + name if name else b"") + b",\x01auth=Bearer " + token + b"\x01" + more + b"\x01"


def test_who_a_token_names_is_let_in_until_it_ends():
    for name in (b"", b"alice"):
        tokens = Answers(ALICE)
        assert OAuthBearerExchange(tokens).step(message(name=name)) == Done(Principal("User", "alice"), b"", 1_000)
        assert tokens.seen == [b"a.b.c"]


def test_a_name_with_signs_that_are_written_otherwise():
    exchange = OAuthBearerExchange(Answers(Believed("a,b=c", 1)))
    assert isinstance(exchange.step(message(name=b"a=2Cb=3Dc")), Done)


def test_nobody_acts_for_another():
    assert isinstance(OAuthBearerExchange(Answers(ALICE)).step(message(name=b"admin")), Failed)


def test_a_token_that_is_not_believed_is_answered_as_the_rfc_has_it_and_told_to_the_log_alone():
    exchange = OAuthBearerExchange(Answers("a token is not believed: its time is over"))
    assert exchange.step(message()) == Challenge(REFUSED)
    assert exchange.step(GIVEN_UP) == Failed("a token is not believed: its time is over", REFUSED.decode())


def test_another_token_after_one_that_was_refused_is_not_looked_at():
    tokens = Answers("why", ALICE)
    exchange = OAuthBearerExchange(tokens)
    exchange.step(message())
    assert isinstance(exchange.step(message()), Failed)
    assert len(tokens.seen) == 1


@pytest.mark.parametrize(
    ("second", "kind"), [(ALICE, Done), ("a token is not believed: x", Challenge), (None, Challenge)]
)
def test_a_key_that_is_not_known_is_asked_for_once(second, kind):
    exchange = OAuthBearerExchange(Answers(None, second))
    work = exchange.step(message())
    assert isinstance(work, Work)
    assert work.is_async
    assert isinstance(work.then(None), kind)
    if kind is Challenge:
        assert isinstance(exchange.step(GIVEN_UP), Failed)


@pytest.mark.parametrize(
    "given",
    [
        b"", b"\x01", b"n,,", b"n,,\x01\x01", b"n,,\x01auth=Bearer a.b.c\x01", b"y,,\x01auth=Bearer a\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer a\x01\x01", message() + b"x", b"x" + message(), message(b""),
        b"n,,\x01auth=Basic a.b.c\x01\x01", b"n,,\x01auth=Bearer\x01\x01", b"n,,\x01Auth=Bearer a\x01\x01",
        message(more=b"auth=Bearer other\x01"), message(b"a b"), message(b"a\x00b"), message(b"a\x01b"),
        message(b"\xff"), message(name=b"a=b"), message(name=b"a=2"), message(more=b"k1=x\x01"),
        message(more=b"key\x01"), message(more=b"key=\x00\x01"), message(name=b"\xff"),
        message(b"a" * MESSAGE_BYTES_MAX), b"n,a=,\x01auth=Bearer a\x01\x01",
    ],
)  # fmt: skip
def test_what_is_malformed_fails_at_once(given):
    tokens = Answers()
    found = OAuthBearerExchange(tokens).step(given)
    assert isinstance(found, Failed)
    assert tokens.seen == []
    assert b"Bearer" not in repr(found).encode()


def test_more_pairs_and_other_spellings_are_taken():
    assert read_message(message(more=b"traceId=12 3\x01empty=\x01")) == ("", b"a.b.c")
    assert read_message(b"n,,\x01auth=bEARER   a.b.c\x01\x01") == ("", b"a.b.c")
    assert read_message(b"n,,\x01host=h\x01port=1\x01auth=Bearer a\x01\x01") == ("", b"a")


@given(st.binary(max_size=100) | st.text("n,a=\x01uthBer .", max_size=60).map(str.encode))
def test_whatever_comes_is_read_or_fails(data):
    found = read_message(data)
    assert isinstance(found, Failed) or found[1]


def test_a_long_message_of_pairs_takes_no_long_time():
    assert isinstance(read_message(b"n,,\x01" + b"a=b\x01" * (MESSAGE_BYTES_MAX // 5)), Failed)
    assert isinstance(read_message(b"n,a=" + b"=2C" * (MESSAGE_BYTES_MAX // 4)), Failed)
