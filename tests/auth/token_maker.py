"""An issuer of tokens for tests: keys, their public set, and tokens that are right but for what is asked."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER, AUDIENCE = "https://issuer.example", "tpc"
NOW_S = 1_800_000_000


def encoded(data: bytes | dict[str, Any]) -> bytes:
    """Base64url without padding, of JSON too."""
    raw = json.dumps(data).encode() if isinstance(data, dict) else data
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


class Issuer:
    """Its keys are made once: RSA takes a while."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, Any]] = {
            "rsa": ("RS256", rsa.generate_private_key(public_exponent=65537, key_size=2048)),
            "ec": ("ES256", ec.generate_private_key(ec.SECP256R1())),
            "ed": ("EdDSA", ed25519.Ed25519PrivateKey.generate()),
        }

    def jwk(self, kid: str, **more: Any) -> dict[str, Any]:
        algorithm, key = self.keys[kid]
        made = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key())
        return {"kid": kid, "use": "sig", **json.loads(made), **more}

    def key_set(self, *kids: str) -> bytes:
        return json.dumps({"keys": [self.jwk(kid) for kid in kids or self.keys]}).encode()

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Those of a good token; None leaves one out."""
        said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW_S + 600, "iat": NOW_S} | changes
        return {name: value for name, value in said.items() if value is not None}

    def token(
        self, kid: str = "rsa", algorithm: str | None = None, header: dict[str, Any] | None = None, **changes: Any
    ) -> bytes:
        """`header`: what else it has; None leaves one out. `changes`: of the claims."""
        wanted, key = self.keys[kid]
        said = {"typ": "JWT", "kid": kid, "alg": algorithm or wanted} | (header or {})
        said = {name: value for name, value in said.items() if value is not None}
        signed = encoded(said) + b"." + encoded(self.claims(**changes))
        algorithm_ = jwt.get_algorithm_by_name(algorithm or wanted)
        return signed + b"." + encoded(algorithm_.sign(signed, key))


ISSUER_OF_TESTS = Issuer()
ATTACKER = Issuer()
