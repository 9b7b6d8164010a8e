"""The order of a login and of its renewals, against a list of what may follow what; nobody gets in another way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.auth.exchange import Challenge, Done, Failed, Mechanism
from tpc_broker.auth.principals import USER, Principal
from tpc_broker.auth.session import RENEWAL_PAUSE_MS, Asked, SaslSession, Stage, Verdict
from tpc_broker.error_codes import ErrorCode

PLAIN, SCRAM = Mechanism.PLAIN, Mechanism.SCRAM_SHA_256
ALICE, BOB = Principal(USER, "alice"), Principal(USER, "bob")


class Told:
    """A mechanism whose client says how it ends."""

    def step(self, message):
        if message == b"more":
            return Challenge(b"go on")
        name, _, expires_ms = message.decode(errors="replace").partition(" until ")
        if name in ("alice", "bob"):
            return Done(Principal(USER, name), expires_ms=int(expires_ms) if expires_ms else None)
        return Failed("no")


def session(lifetime_ms=0, mechanisms=(PLAIN, SCRAM)):
    return SaslSession(mechanisms, lambda _mechanism: Told(), lifetime_ms)


def begun(made, name="PLAIN", version=1, now_ms=0):
    assert made.verdict(Asked.HANDSHAKE) is Verdict.SERVE
    return made.shake_hands(name, version, now_ms)


def let_in(made, message=b"alice", wall_ms=0):
    asked = Asked.RAW_TOKEN if made.has_raw_tokens else Asked.AUTHENTICATE
    assert made.verdict(asked) is Verdict.SERVE
    return made.let_in(made.step(message), wall_ms)


def opened(lifetime_ms=0, version=1):
    made = session(lifetime_ms)
    assert begun(made, version=version) is ErrorCode.NONE
    assert let_in(made).principal == ALICE
    return made


@pytest.mark.parametrize("asked", [Asked.AUTHENTICATE, Asked.RAW_TOKEN, Asked.OTHER])
def test_nothing_comes_before_the_handshake(asked):
    """Attempts 1 and 2."""
    assert session().verdict(asked) is Verdict.CLOSE
    told = session()
    assert told.verdict(Asked.API_VERSIONS) is Verdict.SERVE
    told.told_versions()
    assert told.verdict(asked) is Verdict.CLOSE
    assert told.verdict(Asked.HANDSHAKE) is Verdict.CLOSE, "it is over"


def test_api_versions_is_told_once():
    made = session()
    for _refused in range(3):
        assert made.verdict(Asked.API_VERSIONS) is Verdict.SERVE
    made.told_versions()
    assert made.verdict(Asked.API_VERSIONS) is Verdict.CLOSE
    assert made.stage is Stage.FAILED


@pytest.mark.parametrize(
    ("asked", "verdict"),
    [
        (Asked.AUTHENTICATE, Verdict.SERVE),
        (Asked.API_VERSIONS, Verdict.ILLEGAL),
        (Asked.HANDSHAKE, Verdict.ILLEGAL),
        (Asked.RAW_TOKEN, Verdict.CLOSE),
        (Asked.OTHER, Verdict.CLOSE),
    ],
)
def test_what_follows_a_handshake(asked, verdict):
    """Attempt 3."""
    made = session()
    begun(made)
    assert made.verdict(asked) is verdict
    assert (made.stage is Stage.FAILED) == (verdict is not Verdict.SERVE)


def test_after_version_0_tokens_have_no_header():
    """Attempt 16."""
    made = session()
    begun(made, version=0)
    assert made.has_raw_tokens
    assert made.verdict(Asked.AUTHENTICATE) is Verdict.CLOSE
    made = session()
    begun(made, version=0)
    let_in(made)
    assert made.is_open
    assert not made.has_raw_tokens
    assert made.verdict(Asked.RAW_TOKEN) is Verdict.CLOSE


@pytest.mark.parametrize("name", ["GSSAPI", "plain", "", "SCRAM-SHA-512"])
def test_a_mechanism_that_is_not_enabled_is_the_end(name):
    """Attempt 17."""
    made = session()
    assert begun(made, name) is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert made.verdict(Asked.HANDSHAKE) is Verdict.CLOSE


def test_a_failure_is_the_end():
    """Attempt 18."""
    made = session()
    begun(made)
    made.fail()
    for asked in Asked:
        assert made.verdict(asked) is Verdict.CLOSE
    assert not made.is_served


def test_all_is_served_then_but_raw_tokens():
    for asked in Asked:
        verdict = opened().verdict(asked)
        assert verdict is (Verdict.CLOSE if asked is Asked.RAW_TOKEN else Verdict.SERVE)


def test_how_long_a_session_is():
    for most, message, lifetime_ms in (
        (0, b"alice", 0),
        (3000, b"alice", 3000),
        (3000, b"alice until 8000", 3000),
        (3000, b"alice until 6000", 1000),
        (0, b"alice until 6000", 1000),
        (-1, b"alice", 0),
    ):
        made = session(most)
        begun(made)
        assert let_in(made, message, 5000).lifetime_ms == lifetime_ms
    made = session()
    begun(made)
    assert isinstance(let_in(made, b"alice until 5000", 5000), Failed)
    assert not made.is_served


def test_a_renewal():
    made = opened(3000)
    assert begun(made, now_ms=10) is ErrorCode.NONE
    assert made.is_served
    assert not made.is_open
    for asked in (Asked.OTHER, Asked.API_VERSIONS):
        assert made.verdict(asked) is Verdict.SERVE, "in the old session"
    renewed = let_in(made)
    assert renewed.is_renewal
    assert renewed.lifetime_ms == 3000
    assert begun(made, now_ms=10 + RENEWAL_PAUSE_MS - 1) is ErrorCode.ILLEGAL_SASL_STATE
    assert made.is_open
    assert begun(made, now_ms=10 + RENEWAL_PAUSE_MS) is ErrorCode.NONE


def test_nobody_becomes_another():
    """Attempt 62."""
    made = opened()
    begun(made)
    refused = let_in(made, b"bob")
    assert refused.told == "Cannot change principals during re-authentication from User.alice: User.bob"
    assert made.principal == ALICE
    assert not made.is_served


@pytest.mark.parametrize(("name", "version"), [("SCRAM-SHA-256", 1), ("PLAIN", 0)])
def test_a_renewal_is_by_the_same_mechanism(name, version):
    """Attempt 63."""
    made = opened()
    assert begun(made, name, version) is ErrorCode.NONE
    assert made.verdict(Asked.AUTHENTICATE) is Verdict.CLOSE
    made = opened()
    assert begun(made, "GSSAPI") is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert not made.is_served


_WORDS = st.sampled_from([
    ("hello",), ("shake", "PLAIN", 1), ("shake", "PLAIN", 0), ("shake", "SCRAM-SHA-256", 1), ("shake", "GSSAPI", 1),
    ("say", b"more"), ("say", b"alice"), ("say", b"bob"), ("say", b"no"), ("token", b"alice"), ("other",),
])  # fmt: skip


@given(st.lists(_WORDS, max_size=12))
def test_random_dialogues_serve_who_was_let_in_alone(words):
    """What is served is what a simpler model of the order allows, whatever comes."""
    made = session()
    log = []  # of what was served before
    for now_ms, word in enumerate(words):
        asked = {"hello": Asked.API_VERSIONS, "shake": Asked.HANDSHAKE, "say": Asked.AUTHENTICATE,
                 "token": Asked.RAW_TOKEN, "other": Asked.OTHER}[word[0]]  # fmt: skip
        was_in = "in" in log
        raw = bool(log) and log[-1] == "raw"
        verdict = made.verdict(asked)
        if asked is Asked.OTHER and verdict is Verdict.SERVE:
            assert was_in, log
        if verdict is not Verdict.SERVE:
            assert all(made.verdict(each) is Verdict.CLOSE for each in Asked)
            return
        if asked is Asked.API_VERSIONS:
            assert was_in or log == []
            made.told_versions()
            log += [] if was_in else ["told"]
        elif asked is Asked.HANDSHAKE:
            assert "login" not in log[-1:], log
            code = made.shake_hands(word[1], word[2], now_ms * RENEWAL_PAUSE_MS)
            if code is not ErrorCode.NONE:
                return
            log.append("raw" if made.has_raw_tokens else "login")
        elif asked in (Asked.AUTHENTICATE, Asked.RAW_TOKEN):
            if made.is_open:
                continue  # the handler answers ILLEGAL_SASL_STATE
            assert raw == (asked is Asked.RAW_TOKEN)
            assert log[-1] in ("login", "raw"), log
            step = made.step(word[1])
            if isinstance(step, Failed):
                made.fail()
            elif isinstance(step, Done):
                before = made.principal
                outcome = made.let_in(step, 0)
                assert isinstance(outcome, Failed) == (before not in (None, step.principal))
                log.append("in")
    assert made.is_served == ("in" in log and made.stage is not Stage.FAILED)
