"""What is kept of a password, by the example of RFC 7677."""

import base64
import hashlib
import hmac

import pytest

from tpc_broker.auth.credentials import (
    PASSWORD_BYTES_MAX,
    ScramMechanism,
    credential_of_password,
    user_name_fault,
)

SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def test_the_keys_of_a_password_are_those_of_rfc_7677():
    credential = credential_of_password(ScramMechanism.SCRAM_SHA_256, "pencil", base64.b64decode(SALT), 4096)
    said = f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={NONCE},s={SALT},i=4096,c=biws,r={NONCE}".encode()
    signature = hmac.digest(credential.server_key, said, "sha256")
    assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    of_client = hmac.digest(credential.stored_key, said, "sha256")
    client_key = bytes(a ^ b for a, b in zip(proof, of_client, strict=True))
    assert hashlib.sha256(client_key).digest() == credential.stored_key


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_what_is_kept_has_the_size_of_its_hash_and_depends_on_all_of_it(mechanism):
    found = {
        credential_of_password(mechanism, password, salt, iterations).stored_key
        for password in ("a", "b") for salt in (b"", b"1") for iterations in (1, 2)
    }  # fmt: skip
    assert len(found) == 8
    assert {len(key) for key in found} == {mechanism.key_bytes}
    assert mechanism.sasl_name == f"SCRAM-SHA-{mechanism.key_bytes * 8}"
    assert credential_of_password(mechanism, "x" * PASSWORD_BYTES_MAX, b"", 1).salt == b""


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "Username must not be empty"),
        ("a\0b", "Username must not hold control characters"),
        ("a\x7f", "Username must not hold control characters"),
        ("a\ud800", "Username must not hold control characters"),
        ("ä" * 128, "Username must not be longer than 255 bytes"),
        ("ä" * 127, None),
        ("Max Müller, CN=a=b", None),
    ],
)
def test_names_of_users(name, fault):
    assert user_name_fault(name) == fault
