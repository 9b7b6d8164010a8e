"""JSON Web Tokens of others: who they are for, signed by one of the keys that are believed (RFC 7515, 7517, 7519).

Only what is asked of a token counts. Its header chooses between keys that are known, by `kid`, and between algorithms
that are listed and that its key is for; all are asymmetric, so a public key is never taken for a secret. Where a header
says where keys are to be found (`jku`, `x5u`, `jwk`, `x5c`), it is not looked at. An extension that must be understood
(`crit`) is not, and a payload that is not encoded (`b64`) is none of a token.

Sizes are looked at before anything is decoded. Texts of errors have nothing of the token in them.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import jwt
from jwt.exceptions import PyJWTError

from tpc_broker.auth.credentials import user_name_fault

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN_BYTES_MAX: Final = 64 * 1024
KEY_SET_BYTES_MAX: Final = 1024 * 1024
KEYS_MAX: Final = 100
RSA_BITS_MIN, RSA_BITS_MAX = 2048, 8192
TIME_S_MAX: Final = 253_402_300_799
"""The end of the year 9999."""
_KINDS: Final = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", None)),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
"""By algorithm, the type of key and its curve."""
_TOKEN: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_NOT_UNDERSTOOD: Final = ("crit", "b64")


class TokenError(Exception):
    """Why a token, or a set of keys, is not believed; nothing of it is in the text."""


class UnknownKeyError(TokenError):
    """It may be signed by a key that is not known yet."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """Public keys, by `kid` and algorithm."""

    keys: dict[tuple[str | None, str], jwt.PyJWK] = field(repr=False)

    @classmethod
    def of_json(cls, data: bytes) -> KeySet:
        """Of a JWK set. Keys that are not for signatures by one of `ALGORITHMS` are left out; TokenError where none is
        left, or it is none.
        """
        if len(data) > KEY_SET_BYTES_MAX:
            raise TokenError(f"the set of keys has more than {KEY_SET_BYTES_MAX} bytes")
        found = _json_object(data, "the set of keys").get("keys")
        if not isinstance(found, list) or len(found) > KEYS_MAX:
            raise TokenError(f"the set of keys has no list of at most {KEYS_MAX} keys")
        keys: dict[tuple[str | None, str], jwt.PyJWK] = {}
        for row in found:
            for algorithm, key in _usable(row):
                keys.setdefault((row.get("kid"), algorithm), key)
        if not keys:
            raise TokenError("the set of keys has none that can be used")
        return cls(keys)

    def find(self, kid: str | None, algorithm: str) -> jwt.PyJWK | None:
        """Without a `kid` there has to be one key alone."""
        if kid is None and len({known for known, _algorithm in self.keys}) == 1:
            kid = next(iter(self.keys))[0]
        return self.keys.get((kid, algorithm))


@dataclass(frozen=True, slots=True)
class Demands:
    """What a token has to say. `skew_s`: by which its clock may differ from ours."""

    issuer: str
    audiences: frozenset[str]
    algorithms: frozenset[str]
    subject_claim: str = "sub"
    skew_s: int = 30


@dataclass(frozen=True, slots=True)
class Believed:
    """`subject`: whom the token names. `expires_ms`: when it ends, by the wall clock."""

    subject: str
    expires_ms: int


ALGORITHMS: Final = tuple(_KINDS)
"""That can be asked for: asymmetric ones."""


# Rule: A token counts only when a listed asymmetric algorithm and a key of ours have signed all of it, and it names the
# issuer, an audience, and a time that is not over; nothing that it says chooses what is believed. Held by
# tests/auth/test_tokens.py, tests/integration/differential/test_tokens.py.
def check_token(token: bytes, keys: KeySet, demands: Demands, now_ms: int) -> Believed:
    """Whom it names. TokenError: it is not believed; UnknownKeyError: by these keys."""
    if len(token) > TOKEN_BYTES_MAX:
        raise TokenError("the token is too long")
    if _TOKEN.fullmatch(token) is None:
        raise TokenError("the token does not have the form of one")
    header = _json_object(_decoded(token.partition(b".")[0]), "its header")
    if any(name in header for name in _NOT_UNDERSTOOD):
        raise TokenError("its header has an extension that is not understood")
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in demands.algorithms or algorithm not in _KINDS:
        raise TokenError("it is not signed by an algorithm that is taken")
    if kid is not None and not isinstance(kid, str):
        raise TokenError("its kid is no text")
    key = keys.find(kid, algorithm)
    if key is None:
        raise UnknownKeyError("it is signed by a key that is not known")
    try:
        payload = jwt.PyJWS(algorithms=[algorithm]).decode(token, key, algorithms=[algorithm])
    except (PyJWTError, ValueError, TypeError):
        raise TokenError("its signature is wrong") from None
    return _believed(_json_object(payload, "its payload"), demands, now_ms)


def _believed(claims: dict[str, Any], demands: Demands, now_ms: int) -> Believed:
    if claims.get("iss") != demands.issuer:
        raise TokenError("it is of another issuer, or of none")
    audience = claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else audience
    if not isinstance(audiences, list) or not all(isinstance(each, str) for each in audiences):
        raise TokenError("it does not say for whom it is")
    if demands.audiences.isdisjoint(audiences):
        raise TokenError("it is for others")
    expires_s = _time(claims, "exp", math.floor)
    if expires_s is None:
        raise TokenError("it does not say until when it holds")
    skew_ms = demands.skew_s * 1000
    if expires_s * 1000 + skew_ms <= now_ms:
        raise TokenError("its time is over")
    for name in ("nbf", "iat"):
        begins_s = _time(claims, name, math.ceil)
        if begins_s is not None and begins_s * 1000 > now_ms + skew_ms:
            raise TokenError("its time has not begun")
    subject = claims.get(demands.subject_claim)
    if not isinstance(subject, str) or user_name_fault(subject) is not None:
        raise TokenError(f"its claim {demands.subject_claim} is no name of a user")
    is_over = expires_s * 1000 <= now_ms  # by our clock, but not by the issuer's
    return Believed(subject, expires_s * 1000 + (skew_ms if is_over else 0))


def _time(claims: dict[str, Any], name: str, rounded: Callable[[float], int]) -> int | None:
    """Whole seconds since 1970; a NumericDate (RFC 7519, section 2) may have a fraction. None: it is not said."""
    if name not in claims:
        return None
    value = claims[name]
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= TIME_S_MAX:
        raise TokenError(f"its claim {name} is no time")  # NaN is in no range
    return rounded(value)


def _usable(row: Any) -> list[tuple[str, jwt.PyJWK]]:
    """The algorithms that a key is for. One that tells its private half is believed by nobody any more."""
    if not isinstance(row, dict) or not isinstance(row.get("kid"), str | None):
        return []
    if "d" in row or row.get("use", "sig") != "sig":
        return []
    found = []
    for algorithm, (kind, curve) in _KINDS.items():
        if row.get("kty") != kind or row.get("alg", algorithm) != algorithm:
            continue
        if curve is not None and row.get("crv") != curve:
            continue
        if kind == "RSA" and not _has_fair_size(row.get("n")):
            continue
        try:
            found.append((algorithm, jwt.PyJWK(row, algorithm)))
        except (PyJWTError, ValueError, TypeError, KeyError):
            continue
    return found


def _has_fair_size(modulus: Any) -> bool:
    if not isinstance(modulus, str) or len(modulus) > RSA_BITS_MAX // 4:
        return False
    try:
        number = int.from_bytes(_decoded(modulus.encode()), "big")
    except (TokenError, UnicodeEncodeError):
        return False
    return RSA_BITS_MIN <= number.bit_length() <= RSA_BITS_MAX


def _decoded(text: bytes) -> bytes:
    """Base64url without padding (RFC 7515, section 2)."""
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise TokenError("a part of it is not base64url") from None


def _json_object(data: bytes, what: str) -> dict[str, Any]:
    """Each name once: of two, others might take the other."""

    def only_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise TokenError(f"{what} says something twice")
        return found

    try:
        found = json.loads(data, object_pairs_hook=only_once)
    except (ValueError, RecursionError):
        raise TokenError(f"{what} is not JSON") from None
    if not isinstance(found, dict):
        raise TokenError(f"{what} is no object")
    return found
