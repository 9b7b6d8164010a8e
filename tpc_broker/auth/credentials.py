"""What is kept of a user's password: SCRAM's verifier (RFC 5802), from which the password cannot be read.

It is a secret all the same: who has it can try passwords against it without asking, and who has its `server_key` can
pass for the broker. So it is in no text that is made of it.
"""

from __future__ import annotations

import hashlib
import hmac
import unicodedata
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from tpc_broker.auth.principals import PRINCIPAL_NAME_BYTES_MAX

ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 16_384
"""Kafka's bounds."""
SALT_BYTES: Final = 16
"""Of a salt that is made here."""
SALT_BYTES_MAX: Final = 256
PASSWORD_BYTES_MAX: Final = 1_024


class ScramMechanism(IntEnum):
    """With the numbers of Kafka's requests and of the metadata."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """Such as SCRAM-SHA-256."""
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        """As `hashlib` and `hmac` know it."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        """How many bytes each key has, and the salted password."""
        return 32 if self is ScramMechanism.SCRAM_SHA_256 else 64


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """Of one user by one mechanism."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def credential_of_salted(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """What is kept of a salted password (RFC 5802, section 3), which itself is kept nowhere."""
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.hash_name)
    server_key = hmac.digest(salted_password, b"Server Key", mechanism.hash_name)
    return ScramCredential(salt, iterations, hashlib.new(mechanism.hash_name, client_key).digest(), server_key)


def credential_of_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> ScramCredential:
    """What is kept of a password. It takes milliseconds: the iterations are meant to."""
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password_bytes(password), salt, iterations)
    return credential_of_salted(mechanism, salted, salt, iterations)


def password_bytes(password: str) -> bytes:
    """As it goes into the hash: in UTF-8, as clients have it (Kafka's and librdkafka's prepare it no further)."""
    return password.encode()


def user_name_fault(name: str) -> str | None:
    """Why nobody may be called so; None: somebody may."""
    if not name:
        return "Username must not be empty"
    if any(unicodedata.category(letter) in {"Cc", "Cs"} for letter in name):
        return "Username must not hold control characters"
    if len(name.encode()) > PRINCIPAL_NAME_BYTES_MAX:
        return f"Username must not be longer than {PRINCIPAL_NAME_BYTES_MAX} bytes"
    return None
