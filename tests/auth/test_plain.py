"""The server's side of PLAIN: whose password is right is let in, after work for a thread, or by a recent login."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.auth.test_scram import PASSWORD, SALT, Users
from tpc_broker.auth.credentials import ScramCredential, ScramMechanism, credential_of_password
from tpc_broker.auth.exchange import Done, Failed, Work
from tpc_broker.auth.plain import MESSAGE_BYTES_MAX, RECENT_MAX, RECENT_MS, WRONG, PlainExchange, RecentLogins
from tpc_broker.auth.principals import USER, Principal
from tpc_broker.auth.scram import ACTS_FOR_ANOTHER


class Clock:
    now_ms = 1_000

    def __call__(self):
        return self.now_ms


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def recent():
    return RecentLogins(b"a key")


@pytest.fixture
def users():
    return Users({"alice": PASSWORD, "bob": "b"})


def step(users, recent, clock, message):
    return PlainExchange(users, recent, clock).step(message)


def outcome(users, recent, clock, message):
    made = step(users, recent, clock, message)
    return made.then(made.run()) if isinstance(made, Work) else made


def test_the_right_password(users, recent, clock):
    for message in (b"\0alice\0pass,word=1", b"alice\0alice\0pass,word=1"):
        assert outcome(users, recent, clock, message) == Done(Principal(USER, "alice"))


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0pass,word=1\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0alice\0pass\0word", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0pass,word=1", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"bob\0alice\0pass,word=1", ACTS_FOR_ANOTHER),
        (b"\0alice\0wrong", WRONG),
        (b"\0Alice\0pass,word=1", WRONG),
        (b"\0eve\0pass,word=1", WRONG),
        (b"\0a\x07\0x", WRONG),
        (b"\0" + b"a" * 256 + b"\0x", WRONG),
        (b"\0alice\0\xff", WRONG),
        (b"\0alice\0" + b"x" * MESSAGE_BYTES_MAX, WRONG),
    ],
)
def test_what_is_refused_and_what_is_told(users, recent, clock, message, told):
    """Attempts 22, 26, 27 and 28."""
    failed = outcome(users, recent, clock, message)
    assert isinstance(failed, Failed)
    assert failed.told == told
    assert b"pass,word=1" not in failed.reason.encode()


@pytest.mark.parametrize(
    "message",
    [b"\0alice", b"\0alice\0", b"\0\0x", b"bob\0alice\0x", b"\0a\x07\0x", b"\0alice\0" + b"x" * MESSAGE_BYTES_MAX],
)
def test_what_can_be_no_login_costs_no_work(users, recent, clock, message):
    assert isinstance(step(users, recent, clock, message), Failed)


def test_a_credential_that_can_be_none_is_nobody_s(users, recent, clock):
    for mechanism in ScramMechanism:
        users.known["alice", mechanism] = ScramCredential(SALT, 0, b"", b"")
    users.known["bob", ScramMechanism.SCRAM_SHA_256] = ScramCredential(SALT, 4096, bytes(64), bytes(64))
    assert outcome(users, recent, clock, b"\0alice\0pass,word=1").told == WRONG
    assert isinstance(outcome(users, recent, clock, b"\0bob\0b"), Done), "by the other one"


def test_a_recent_login_takes_no_work_for_a_minute(users, recent, clock):
    message = b"\0alice\0pass,word=1"
    assert isinstance(step(users, recent, clock, message), Work)
    outcome(users, recent, clock, message)
    assert step(users, recent, clock, message) == Done(Principal(USER, "alice"))
    assert isinstance(step(users, recent, clock, b"\0alice\0wrong"), Work)
    assert isinstance(step(users, RecentLogins(b"another"), clock, message), Work)
    clock.now_ms += RECENT_MS
    assert isinstance(step(users, recent, clock, message), Work)


def test_a_failed_login_is_not_remembered(users, recent, clock):
    for message in (b"\0alice\0wrong", b"\0eve\0x"):
        for _ in range(2):
            made = step(users, recent, clock, message)
            assert isinstance(made, Work)
            assert isinstance(made.then(made.run()), Failed)


def test_another_password_or_none_ends_what_was_remembered(users, recent, clock):
    message = b"\0alice\0pass,word=1"
    outcome(users, recent, clock, message)
    for mechanism in ScramMechanism:
        users.known["alice", mechanism] = credential_of_password(mechanism, "another", SALT, 4096)
    assert outcome(users, recent, clock, message).told == WRONG
    assert isinstance(outcome(users, recent, clock, b"\0alice\0another"), Done)
    users.known.clear()
    assert outcome(users, recent, clock, b"\0alice\0another").told == WRONG


def test_a_user_who_goes_while_the_password_is_checked(users, recent, clock):
    """Attempt 29."""
    made = step(users, recent, clock, b"\0alice\0pass,word=1")
    stored_key = made.run()
    users.known.clear()
    assert isinstance(made.then(stored_key), Failed)


def test_unknown_users_cost_the_same_work(users, recent, clock):
    """Attempt 25."""
    made = step(users, recent, clock, b"\0eve\0x")
    assert isinstance(made, Work)
    assert len(made.run()) == 32


def test_unknown_users_cost_the_work_that_most_users_do(users, recent, clock):
    for name in ("alice", "bob"):
        del users.known[name, ScramMechanism.SCRAM_SHA_256]
    users.known |= Users({"carol": "c"}).known
    made = step(users, recent, clock, b"\0eve\0x")
    assert len(made.run()) == 64
    assert isinstance(made.then(made.run()), Failed)
    users.known |= Users({"dave": "d", "erin": "e"}).known
    assert len(step(users, recent, clock, b"\0eve\0x").run()) == 32


def test_one_verifier_is_enough(users, recent, clock):
    del users.known["alice", ScramMechanism.SCRAM_SHA_256]
    assert isinstance(outcome(users, recent, clock, b"\0alice\0pass,word=1"), Done)
    users.known["alice", ScramMechanism.SCRAM_SHA_512] = credential_of_password(
        ScramMechanism.SCRAM_SHA_256, PASSWORD, SALT, 4096
    )
    assert isinstance(outcome(users, recent, clock, b"\0alice\0pass,word=1"), Failed)


def test_recent_logins_are_bounded():
    recent = RecentLogins(b"key")
    for number in range(RECENT_MAX + 1):
        recent.add(b"%d" % number, 0)
    assert not recent.has(b"0", 0)
    assert recent.has(b"1", 0)
    recent.add(b"late", RECENT_MS)
    assert len(recent) == 1


def test_what_is_remembered_is_no_password(recent, users):
    credential = users.credential("alice", ScramMechanism.SCRAM_SHA_256)
    proof = recent.proof("alice", PASSWORD.encode(), credential)
    assert PASSWORD.encode() not in proof
    assert proof != recent.proof("alic", b"e" + PASSWORD.encode(), credential)
    assert proof != recent.proof("bob", PASSWORD.encode(), credential)


@given(st.binary(max_size=80) | st.lists(st.sampled_from(["alice", "bob", PASSWORD, "", "\0"])).map(
    lambda parts: "\0".join(parts).encode()))  # fmt: skip
def test_random_messages_let_in_whose_password_it_is_alone(message):
    made = outcome(Users({"alice": PASSWORD, "bob": "b"}, 1), RecentLogins(b"key"), Clock(), message)
    right = {b"\0alice\0pass,word=1", b"alice\0alice\0pass,word=1", b"\0bob\0b", b"bob\0bob\0b"}
    assert isinstance(made, Done) == (message in right)
