"""The server's side of SCRAM: the examples of RFC 7677 and 5802's rules, and whatever is not a login fails."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.auth.credentials import ScramCredential, ScramMechanism, credential_of_password
from tpc_broker.auth.exchange import Challenge, Done, Failed
from tpc_broker.auth.plain import usual_verifier
from tpc_broker.auth.principals import USER, Principal
from tpc_broker.auth.scram import (
    ACTS_FOR_ANOTHER,
    CLIENT_NONCE_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    ScramExchange,
    Shape,
    stand_in,
    unescaped,
    usual_shape,
)
from tpc_broker.client.sasl import Scram
from tpc_broker.client.security import Mechanism, SaslSettings

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
PASSWORD, SALT, NONCE = "pass,word=1", b"salt of sixteen!", "server's"


class Users:
    """As the broker has them, of passwords."""

    secret = b"the broker's"

    def __init__(self, passwords, iterations=4096):
        self.known = {
            (name, mechanism): credential_of_password(mechanism, password, SALT, iterations)
            for name, password in passwords.items()
            for mechanism in ScramMechanism
        }

    def credential(self, user, mechanism):
        return self.known.get((user, mechanism))

    def stand_in(self, user, mechanism):
        return stand_in(mechanism, user, self.secret, usual_shape(self.known.values()))

    def usual_verifier(self):
        return usual_verifier(self.known)


USERS = Users({"alice": PASSWORD, "al=i,ce": "=,=", "bob": "b"})


def exchange(mechanism=SHA_256, users=USERS, nonce=NONCE):
    return ScramExchange(mechanism, users, nonce)


def client(user, password, mechanism=SHA_256, nonce="client's"):
    return Scram(SaslSettings(Mechanism(mechanism.sasl_name), user, password), nonce)


def dialogue(server, one):
    """The server's last word; what the client makes of it has to hold too."""
    step, message = None, one.first()
    while message is not None:
        step = server.step(message)
        if isinstance(step, Failed):
            return step
        message = one.next(step.message)
    return step


def test_the_example_of_rfc_7677():
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    users = Users({})
    users.known["user", SHA_256] = credential_of_password(SHA_256, "pencil", salt, 4096)
    server = exchange(users=users, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = server.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert first == Challenge(b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    last = server.step(b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert last == Done(Principal(USER, "user"), b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
@pytest.mark.parametrize(("user", "password"), [("alice", PASSWORD), ("al=i,ce", "=,=")])
def test_who_knows_the_password_is_let_in_and_nobody_else(mechanism, user, password):
    done = dialogue(exchange(mechanism), client(user, password, mechanism))
    assert isinstance(done, Done)
    assert done.principal == Principal(USER, user)
    for name, wrong in ((user, password + "x"), (user, ""), ("bob", password), ("eve", password)):
        assert isinstance(dialogue(exchange(mechanism), client(name, wrong, mechanism)), Failed)


def test_verifiers_of_the_other_hash_prove_nothing():
    """Attempt 30."""
    users = Users({})
    users.known["alice", SHA_512] = credential_of_password(SHA_256, PASSWORD, SALT, 4096)
    assert isinstance(dialogue(exchange(SHA_512, users), client("alice", PASSWORD, SHA_512)), Failed)
    users.known["alice", SHA_256] = ScramCredential(SALT, 0, bytes(32), bytes(32))
    assert b",i=4096" in exchange(SHA_256, users).step(b"n,,n=alice,r=x").message


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (b"p=tls-unique,,n=alice,r=x", "channel bound"),
        (b"p=tls-exporter,,n=alice,r=x", "channel bound"),
        (b"n,,n=,r=x", "name"),
        (b"n,,n=al=ice,r=x", "name"),
        (b"n,,n=a=2cb,r=x", "name"),
        (b"n,,n=a=3d,r=x", "name"),
        (b"n,,n=a\0b,r=x", "name"),
        (b"n,,n=a\x1bb,r=x", "name"),
        (b"n,,n=" + b"a" * 256 + b",r=x", "name"),
        (b"n,,n=alice,r=", "nonce"),
        (b"n,,n=alice,r=a b", "nonce"),
        (b"n,,n=alice,r=" + b"x" * (CLIENT_NONCE_BYTES_MAX + 1), "nonce"),
        (b"n,,m=1,n=alice,r=x", "malformed"),
        (b"n,n=alice,r=x", "malformed"),
        (b"x,,n=alice,r=x", "malformed"),
        (b"n,,n=alice", "malformed"),
        (b"n,,r=x,n=alice", "malformed"),
        (b"", "malformed"),
        (b"n,,n=\xff,r=x", "UTF-8"),
        (b"n,,n=alice,r=x,tokenauth=true", "tokens"),
        (b"n,,n=" + b"a" * 65_536 + b",r=x", "too long"),
        (b"n,,n=alice,r=x" + b",e=" + b"x" * MESSAGE_BYTES_MAX, "too long"),
    ],
)
def test_first_messages_that_are_refused(first, why):
    """Attempts 21 and 28."""
    step = exchange().step(first)
    assert isinstance(step, Failed)
    assert why in step.reason
    assert not step.told


def test_nobody_acts_for_another():
    """Attempt 22 (CVE-2017-12610)."""
    for authzid in (b"bob", b"alice=2C", b"=", b"ALICE"):
        assert exchange().step(b"n,a=" + authzid + b",n=alice,r=x").told == ACTS_FOR_ANOTHER
    for header in (b"n,a=alice,", b"n,,", b"y,,"):
        assert isinstance(exchange().step(header + b"n=alice,r=x"), Challenge)


def last_message(server, change=lambda text: text, header=b"n,,", user="alice", password=PASSWORD):
    """A proof that is right for what is sent: `change` is made before it is computed."""
    bare = f"n={user},r=client's".encode()
    server_first = server.step(header + bare).message
    fields = dict(part.split(b"=", 1) for part in server_first.split(b","))
    unproved = change(b"c=" + base64.b64encode(header) + b",r=" + fields[b"r"])
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(fields[b"s"]), int(fields[b"i"]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    signed = b",".join([bare, server_first, unproved])
    signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
    return unproved, base64.b64encode(bytes(one ^ other for one, other in zip(key, signature, strict=True)))


@pytest.mark.parametrize("header", [b"n,,", b"y,,", b"n,a=alice,"])
def test_what_was_said_of_channels_is_said_again(header):
    server = exchange()
    unproved, proof = last_message(server, header=header)
    assert isinstance(server.step(unproved + b",p=" + proof), Done)
    server = exchange()
    unproved, proof = last_message(server, lambda text: text.replace(b"c=", b"c=cD10bHM"), header=header)
    assert "channels" in server.step(unproved + b",p=" + proof).reason


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b"client's", b"another"),
        lambda text: text.replace(b"server's", b""),
        lambda text: text + b"x",
        lambda text: text[:-1],
        lambda text: text.replace(b"r=client'sserver's", b"r="),
    ],
)
def test_the_whole_nonce_counts(change):
    """Attempt 20: the proof fits, and the nonce is another."""
    server = exchange()
    unproved, proof = last_message(server, change)
    step = server.step(unproved + b",p=" + proof)
    assert isinstance(step, Failed)
    assert "nonce" in step.reason


def test_a_recorded_login_is_good_for_nothing():
    """Attempt 19: the server's nonce is another each time."""
    server = exchange()
    unproved, proof = last_message(server)
    assert isinstance(server.step(unproved + b",p=" + proof), Done)
    again = exchange(nonce="another one of the server's")
    again.step(b"n,,n=alice,r=client's")
    assert isinstance(again.step(unproved + b",p=" + proof), Failed)


def test_a_login_begins_with_its_beginning():
    """Attempt 24."""
    server = exchange()
    unproved, proof = last_message(server)
    assert isinstance(exchange().step(unproved + b",p=" + proof), Failed)
    assert isinstance(server.step(b"n,,n=alice,r=client's"), Failed)


@pytest.mark.parametrize(
    "proof", [b"", b"=", b"AAAA", base64.b64encode(bytes(32)), base64.b64encode(bytes(33)), b"!" * 44]
)
def test_proofs_that_prove_nothing(proof):
    server = exchange()
    unproved, _right = last_message(server)
    assert isinstance(server.step(unproved + b",p=" + proof), Failed)


def test_a_credential_that_goes_between_the_two_messages():
    """Attempt 29."""
    users = Users({"alice": PASSWORD})
    server = exchange(users=users)
    unproved, proof = last_message(server)
    kept = users.known.pop(("alice", SHA_256))
    assert "just been changed" in server.step(unproved + b",p=" + proof).reason
    users.known["alice", SHA_256] = kept
    server = exchange(users=users)
    unproved, proof = last_message(server)
    users.known["alice", SHA_256] = credential_of_password(SHA_256, "another", SALT, 4096)
    assert "just been changed" in server.step(unproved + b",p=" + proof).reason


def test_an_unknown_user_looks_like_one_that_is_there():
    """Attempt 25: the same salt each time, others for others and for another secret; as long, and as many rounds."""
    known, unknown = (exchange().step(f"n,,n={name},r=x".encode()).message for name in ("alice", "eve"))
    assert exchange().step(b"n,,n=eve,r=x").message == unknown
    assert exchange().step(b"n,,n=mallory,r=x").message != unknown
    assert len(known) == len(unknown)
    assert known.split(b",")[2] == unknown.split(b",")[2]
    other = Users({"alice": PASSWORD})
    other.secret = b"another broker's"
    assert exchange(users=other).step(b"n,,n=eve,r=x").message != unknown
    assert exchange(SHA_512).step(b"n,,n=eve,r=x").message != unknown
    server = exchange()
    unproved, proof = last_message(server, user="eve")
    assert "no user 'eve'" in server.step(unproved + b",p=" + proof).reason


def test_the_work_of_the_first_answer_is_the_same_whoever_is_named():
    asked, users = [], Users({"alice": PASSWORD})
    users.stand_in = lambda *who: asked.append(who) or Users.stand_in(users, *who)
    for name in ("alice", "eve"):
        assert isinstance(exchange(users=users).step(f"n,,n={name},r=x".encode()), Challenge)
    assert asked == [("alice", SHA_256), ("eve", SHA_256)]


def test_nobody_has_the_password_of_who_is_not_there():
    made = stand_in(SHA_256, "eve", b"secret", Shape())
    for password in ("", "eve", "secret"):
        assert credential_of_password(SHA_256, password, made.salt, made.iterations).stored_key != made.stored_key
    assert len(stand_in(SHA_256, "eve", b"secret", Shape(200, 8192)).salt) == 200


def test_the_usual_shape_is_most_users():
    assert usual_shape([]) == Shape()
    shapes = [(16, 4096), (64, 8192), (64, 8192)]
    made = [ScramCredential(bytes(salt), count, b"", b"") for salt, count in shapes]
    assert usual_shape(made) == Shape(64, 8192)


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_escapes_and_back(name):
    assert unescaped(name.replace("=", "=3D").replace(",", "=2C")) == name


_MESSAGES = st.binary(max_size=60) | st.sampled_from([b"n,,n=alice,r=x", b"c=biws,r=xserver's,p=AAAA"])


@given(st.lists(_MESSAGES, max_size=6))
def test_random_dialogues_let_nobody_in(messages):
    server = exchange()
    for message in messages:
        step = server.step(message)
        assert not isinstance(step, Done)
        if isinstance(step, Failed):
            return


def test_secrets_are_in_no_text():
    done = dialogue(exchange(), client("alice", PASSWORD))
    assert "v=" not in repr(done)
    assert "salt" not in repr(exchange().step(b"n,,n=alice,r=x"))
