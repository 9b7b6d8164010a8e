"""Tokens that are believed, and attempts 31 to 41 and 45 of the plan to have others believed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from tests.auth.token_maker import ATTACKER, AUDIENCE, ISSUER, ISSUER_OF_TESTS, NOW_S, encoded
from tpc_broker.auth import tokens
from tpc_broker.auth.tokens import ALGORITHMS, Believed, Demands, KeySet, TokenError, UnknownKeyError, check_token
from tpc_broker.metadata import oauth_settings

MAKER = ISSUER_OF_TESTS
KEYS = KeySet.of_json(MAKER.key_set())
DEMANDS = Demands(ISSUER, frozenset((AUDIENCE, "other")), frozenset(ALGORITHMS))


def check(token, keys=KEYS, demands=DEMANDS, now_s=NOW_S):
    return check_token(token, keys, demands, now_s * 1000)


def refused(token, why, kind=TokenError, **how):
    with pytest.raises(kind) as raised:
        check(token, **how)
    assert type(raised.value) is kind
    assert why in str(raised.value)
    assert not token[:40] or token[:40].decode(errors="replace") not in str(raised.value)


def test_the_settings_name_the_algorithms_that_there_are():
    assert oauth_settings.ALGORITHMS == ALGORITHMS


@pytest.mark.parametrize(
    ("kid", "algorithm"),
    [("rsa", name) for name in ALGORITHMS if name[1] == "S" and name[0] in "RP"] + [("ec", "ES256"), ("ed", "EdDSA")],
)
def test_a_token_that_is_right_names_its_user(kid, algorithm):
    assert check(MAKER.token(kid, algorithm)) == Believed("alice", (NOW_S + 600) * 1000)


def test_what_a_token_may_say_in_several_ways():
    assert check(MAKER.token(aud=["x", "other"])).subject == "alice"
    assert check(MAKER.token(iat=None, nbf=NOW_S)).subject == "alice"
    assert check(MAKER.token(email="a@b", sub=7), demands=Demands(
        ISSUER, frozenset((AUDIENCE,)), frozenset(("RS256",)), "email")).subject == "a@b"  # fmt: skip
    alone = KeySet.of_json(MAKER.key_set("ec"))
    assert check(MAKER.token("ec", header={"kid": None}), alone).subject == "alice"
    assert check(MAKER.token(sub="Müller, Max")).subject == "Müller, Max"


def test_clocks_may_differ_by_as_much_as_is_said():
    assert check(MAKER.token(exp=NOW_S - 29)).expires_ms == (NOW_S + 1) * 1000, "that is how long it still holds"
    refused(MAKER.token(exp=NOW_S - 30), "its time is over")
    assert check(MAKER.token(nbf=NOW_S + 30, iat=NOW_S + 30)).subject == "alice"


def test_a_time_may_have_a_fraction():
    """RFC 7519, NumericDate. It never counts for longer than it says."""
    assert check(MAKER.token(exp=NOW_S + 600.9, iat=NOW_S - 0.5)).expires_ms == (NOW_S + 600) * 1000
    assert check(MAKER.token(exp=float(NOW_S + 600))).expires_ms == (NOW_S + 600) * 1000
    assert check(MAKER.token(nbf=NOW_S + 29.5, iat=NOW_S + 29.1)).subject == "alice"


def test_31_no_algorithm():
    for name in ("none", "None", "NONE", ""):
        unsigned = encoded({"alg": name, "kid": "rsa"}) + b"." + encoded(MAKER.claims()) + b"."
        refused(unsigned, "does not have the form")
        refused(unsigned + b"AA", "not signed by an algorithm that is taken")
    refused(MAKER.token(header={"alg": None}), "not signed by an algorithm")
    refused(MAKER.token(header={"alg": ["RS256"]}), "not signed by an algorithm")


def test_32_a_public_key_as_a_secret():
    public = MAKER.keys["rsa"][1].public_key()
    for secret in (
        public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
        json.dumps(MAKER.jwk("rsa")).encode(),
    ):
        signed = encoded({"alg": "HS256", "kid": "rsa"}) + b"." + encoded(MAKER.claims())
        forged = signed + b"." + encoded(hmac.digest(secret, signed, hashlib.sha256))
        refused(forged, "not signed by an algorithm that is taken")
        refused(forged, "not signed by an algorithm that is taken", demands=Demands(
            ISSUER, frozenset((AUDIENCE,)), frozenset(("HS256", "RS256"))))  # fmt: skip
    secret = {"kty": "oct", "kid": "rsa", "k": encoded(b"x" * 32).decode(), "alg": "HS256"}
    with pytest.raises(TokenError, match="none that can be used"):
        KeySet.of_json(json.dumps({"keys": [secret]}).encode())


def test_33_an_algorithm_that_is_not_listed():
    only = Demands(ISSUER, frozenset((AUDIENCE,)), frozenset(("ES256",)))
    refused(MAKER.token("rsa"), "not signed by an algorithm that is taken", demands=only)
    assert check(MAKER.token("ec"), demands=only).subject == "alice"
    for name in ("RS1", "ES256K", "HS512", "dir", "ECDH-ES"):
        refused(MAKER.token(header={"alg": name}), "not signed by an algorithm that is taken")
    refused(MAKER.token("ec", header={"alg": "RS256"}), "not known", UnknownKeyError)  # the key is not for it
    pinned = KeySet.of_json(json.dumps({"keys": [MAKER.jwk("rsa", alg="RS512")]}).encode())
    refused(MAKER.token("rsa", "RS256"), "not known", UnknownKeyError, keys=pinned)


@pytest.mark.parametrize(
    "kid", ["../../dev/null", "/etc/passwd", "x' UNION SELECT 'key", "rsa\0", "", "RSA", "a" * 10_000, "\u202ersa"]
)
def test_34_a_kid_is_only_looked_up(kid):
    refused(MAKER.token(header={"kid": kid}), "signed by a key that is not known", UnknownKeyError)


def test_34_a_kid_that_is_no_text_and_none_of_several():
    for kid in (7, ["rsa"], {"kid": "rsa"}, True):
        refused(MAKER.token(header={"kid": kid}), "its kid is no text")
    refused(MAKER.token(header={"kid": None}), "not known", UnknownKeyError)


def test_35_keys_that_a_token_brings_along_are_not_looked_at():
    own = ATTACKER.jwk("rsa")
    for brought in (
        {"jwk": own}, {"jku": "https://attacker.example/keys"}, {"x5u": "https://attacker.example/cert"},
        {"x5c": [base64.b64encode(b"cert").decode()]},
    ):  # fmt: skip
        refused(ATTACKER.token(header=brought), "its signature is wrong")
        refused(ATTACKER.token(header={**brought, "kid": "other"}), "not known", UnknownKeyError)
        assert check(MAKER.token(header=brought)).subject == "alice", "it is one of ours all the same"


def test_36_extensions_that_must_be_understood():
    for crit in (["exp"], ["x"], [], "x", ["b64"], None):
        header = {"alg": "RS256", "kid": "rsa", "crit": crit, "x": 1}
        signed = encoded(header) + b"." + encoded(MAKER.claims())
        signature = jwt.get_algorithm_by_name("RS256").sign(signed, MAKER.keys["rsa"][1])
        refused(signed + b"." + encoded(signature), "an extension that is not understood")
    refused(MAKER.token(header={"b64": False}), "an extension that is not understood")


@pytest.mark.parametrize("issuer", [[ISSUER], {"a": ISSUER}, None, "", ISSUER + "/", ISSUER.upper(), 7, True])
def test_37_another_issuer(issuer):
    refused(MAKER.token(iss=issuer), "of another issuer")


@pytest.mark.parametrize(
    ("audience", "why"),
    [
        (None, "does not say for whom"), ("", "for others"), ([], "for others"), ("tpc ", "for others"),
        (["x"], "for others"), ({"tpc": 1}, "does not say for whom"), (7, "does not say for whom"),
        ([["tpc"]], "does not say for whom"), (["tpc", 7], "does not say for whom"), ("tp", "for others"),
    ],
)  # fmt: skip
def test_38_another_audience(audience, why):
    refused(MAKER.token(aud=audience), why)


@pytest.mark.parametrize(
    ("expires", "why"),
    [
        (None, "until when"), (NOW_S - 3600, "its time is over"), (0, "its time is over"), (-1, "no time"),
        (NOW_S - 29.5, "its time is over"), (-0.5, "no time"), (1e30, "no time"), (10**30, "no time"),
        (2**63, "no time"), (str(NOW_S + 600), "no time"), (True, "no time"), ([NOW_S + 600], "no time"),
        (float("inf"), "no time"), (float("nan"), "no time"),
    ],
)  # fmt: skip
def test_39_when_it_ends(expires, why):
    refused(MAKER.token(exp=expires), why)


def test_39_a_number_that_is_too_long_to_be_read():
    signed = encoded({"alg": "RS256", "kid": "rsa"}) + b"." + encoded(b'{"exp":' + b"9" * 10_000 + b"}")
    signature = jwt.get_algorithm_by_name("RS256").sign(signed, MAKER.keys["rsa"][1])
    refused(signed + b"." + encoded(signature), "its payload is not JSON")


@pytest.mark.parametrize("claim", ["nbf", "iat"])
def test_40_when_it_begins(claim):
    refused(MAKER.token(**{claim: NOW_S + 31}), "its time has not begun")
    refused(MAKER.token(**{claim: NOW_S + 30.5}), "its time has not begun")
    for odd in ("x", float("nan"), float("inf"), 1e30, -0.5, -1, 10**30, [], True):
        refused(MAKER.token(**{claim: odd}), f"its claim {claim} is no time")


def test_41_what_is_no_base64url():
    header, payload, signature = MAKER.token().split(b".")
    for broken in (
        header + b"=." + payload + b"." + signature, header + b"." + payload + b"=." + signature,
        header + b"." + payload + b"." + signature + b"=", header + b"." + payload + b"." + signature + b"\n",
        header + b"+." + payload + b"." + signature, b"." + payload + b"." + signature, header + b".." + signature,
        header + b"." + payload, b".".join([header, payload, signature, signature]), b"", b"...",
        header + b" ." + payload + b"." + signature, b"\xff" + header + b"." + payload + b"." + signature,
    ):  # fmt: skip
        refused(broken, "does not have the form of one")
    refused(header[:-1] + b"." + payload + b"." + signature, "")
    refused(b"A." + payload + b"." + signature, "not base64url")


def test_41_trailing_bits_that_say_nothing_are_not_taken():
    header, payload, signature = MAKER.token().split(b".")
    last = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    other = last[last.index(signature[-1:]) + 1 : last.index(signature[-1:]) + 2]
    assert len(signature) % 4 == 2, "256 bytes leave four bits that say nothing"
    refused(b".".join([header, payload, signature[:-1] + other]), "its signature is wrong")


def test_45_one_that_is_too_long_is_not_decoded(monkeypatch):
    monkeypatch.setattr(tokens, "_decoded", lambda _text: pytest.fail("it was decoded"))
    refused(b"A" * (1 << 20), "too long")
    refused(MAKER.token(filler="x" * 60_000), "too long")


def test_whoever_signs_with_another_key_or_changes_something_is_not_believed():
    refused(ATTACKER.token(), "its signature is wrong")
    header, payload, signature = MAKER.token().split(b".")
    refused(b".".join([header, encoded(MAKER.claims(sub="admin")), signature]), "its signature is wrong")
    refused(b".".join([header, payload, signature[:-4]]), "its signature is wrong")
    refused(b".".join([header, payload, encoded(b"")]), "does not have the form")


@pytest.mark.parametrize("subject", [None, "", 7, ["alice"], "a\nb", "a\0", "x" * 256, {"a": 1}])
def test_a_subject_that_is_no_name(subject):
    refused(MAKER.token(sub=subject), "is no name of a user")


def test_of_two_members_of_one_name_none_is_taken():
    claims = json.dumps(MAKER.claims()).encode()[:-1] + b',"sub":"admin"}'
    signed = encoded({"alg": "RS256", "kid": "rsa"}) + b"." + encoded(claims)
    signature = jwt.get_algorithm_by_name("RS256").sign(signed, MAKER.keys["rsa"][1])
    refused(signed + b"." + encoded(signature), "says something twice")


@pytest.mark.parametrize("payload", [b"[]", b"7", b"null", b"{", b"\xff", b'"x"', b"[" * 30_000])
def test_a_payload_that_is_no_object(payload):
    signed = encoded({"alg": "RS256", "kid": "rsa"}) + b"." + encoded(payload)
    signature = jwt.get_algorithm_by_name("RS256").sign(signed, MAKER.keys["rsa"][1])
    refused(signed + b"." + encoded(signature), "its payload is")


# -- sets of keys ------------------------------------------------------------------------------------------------------


def test_keys_that_cannot_be_used_are_left_out():
    rsa_1024 = rsa.generate_private_key(public_exponent=65537, key_size=1024).public_key()
    small = json.loads(jwt.get_algorithm_by_name("RS256").to_jwk(rsa_1024))
    p521 = json.loads(jwt.get_algorithm_by_name("ES512").to_jwk(ec.generate_private_key(ec.SECP521R1()).public_key()))
    private = json.loads(jwt.get_algorithm_by_name("RS256").to_jwk(MAKER.keys["rsa"][1]))
    rows = [
        7, {}, {"kty": "RSA"}, {**small, "kid": "small"}, {**private, "kid": "private"}, MAKER.jwk("rsa", use="enc"),
        {**MAKER.jwk("rsa"), "kid": 7}, MAKER.jwk("rsa", n="*"), MAKER.jwk("rsa", n="A" * 100_000),
        MAKER.jwk("ec", crv="x"), MAKER.jwk("ec", x="AA"), MAKER.jwk("rsa", alg="RSA-OAEP"), {**p521, "kid": "p521"},
        MAKER.jwk("ed"),
    ]  # fmt: skip
    found = KeySet.of_json(json.dumps({"keys": rows, "more": 1}).encode())
    assert set(found.keys) == {("p521", "ES512"), ("ed", "EdDSA")}


def test_of_two_keys_of_one_name_the_first_counts():
    found = KeySet.of_json(json.dumps({"keys": [MAKER.jwk("rsa"), ATTACKER.jwk("rsa")]}).encode())
    assert check(MAKER.token(), found).subject == "alice"
    refused(ATTACKER.token(), "its signature is wrong", keys=found)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"), (b"[]", "no object"), (b"{}", "no list"), (b'{"keys":{}}', "no list"),
        (b'{"keys":[]}', "none that can be used"), (b'{"keys":[' + b"7," * 100 + b"7]}", "no list of at most 100"),
        (b" " * (1 << 20) + b"{}", "more than 1048576 bytes"), (b"\xff", "not JSON"), (b"[" * 500_000, "not JSON"),
    ],
)  # fmt: skip
def test_what_is_no_set_of_keys(data, why):
    with pytest.raises(TokenError, match=why):
        KeySet.of_json(data)


@given(st.binary(max_size=200) | st.text("abcXYZ019-_.", max_size=200).map(str.encode))
def test_nothing_by_chance_is_believed_or_raises_another_error(data):
    with pytest.raises(TokenError):
        check(data)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_no_token_with_a_byte_that_differs_is_believed(where, byte):
    token = bytearray(GOOD)
    place = where % len(token)
    before, token[place] = token[place], byte
    if before == byte:
        assert check(bytes(token)).subject == "alice"
        return
    with pytest.raises(TokenError):
        check(bytes(token))


GOOD = MAKER.token("ed")
