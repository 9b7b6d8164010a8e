"""Users that log in by SCRAM: described, made, changed and deleted (KIP-554).

The password does not leave the client: the broker gets it salted and hashed, and keeps less than that.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tpc_broker.client.cluster import Cluster
from tpc_broker.client.errors import RefusedError, refusal_of
from tpc_broker.client.exchange import Exchange
from tpc_broker.client.requests import in_any_version
from tpc_broker.kafka import ApiKey, ErrorCode, messages

MECHANISMS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""By Kafka's numbers."""
NAMES: Final = {number: name for name, number in MECHANISMS.items()}
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


@dataclass(frozen=True, slots=True)
class User:
    """`mechanisms`: by name, with the iterations of each."""

    name: str
    mechanisms: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class NewCredential:
    """Of one user by one mechanism. `salt`: random bytes, new for each."""

    user: str
    mechanism: str
    password: str = field(repr=False)
    salt: bytes = field(repr=False)
    iterations: int


def to_describe(names: Sequence[str] = ()) -> Exchange[list[User]]:
    kind = messages.DescribeUserScramCredentialsRequest
    users = [kind.UserName(name=name) for name in dict.fromkeys(names)]
    message = kind(users=users or None)

    def read(answer: messages.DescribeUserScramCredentialsResponse) -> list[User]:
        if answer.error_code:
            raise refusal_of(answer, "users")
        found = []
        for one in answer.results:
            if one.error_code == ErrorCode.RESOURCE_NOT_FOUND:
                continue
            if one.error_code:
                raise refusal_of(one, f"user {one.user!r}")
            mechanisms = {NAMES.get(each.mechanism, str(each.mechanism)): each for each in one.credential_infos}
            found.append(User(one.user, {name: each.iterations for name, each in sorted(mechanisms.items())}))
        return sorted(found, key=lambda user: user.name)

    return Exchange(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, in_any_version(message), read)


def to_set(wanted: NewCredential) -> Exchange[None]:
    """Salts and hashes, which takes as long as the iterations want: some ms. `ValueError`: a mechanism there is not."""
    if wanted.mechanism not in MECHANISMS:
        raise ValueError(f"mechanism {wanted.mechanism!r}; allowed are {', '.join(MECHANISMS)}")
    salted = hashlib.pbkdf2_hmac(
        _HASHES[wanted.mechanism], wanted.password.encode(), wanted.salt, wanted.iterations
    )  # fmt: skip
    kind = messages.AlterUserScramCredentialsRequest
    upsertion = kind.ScramCredentialUpsertion(
        name=wanted.user, mechanism=MECHANISMS[wanted.mechanism], iterations=wanted.iterations, salt=wanted.salt,
        salted_password=salted,
    )  # fmt: skip
    return _alteration(kind(upsertions=[upsertion]))


def to_delete(user: str, mechanism: str) -> Exchange[bool]:
    """False: there was none. A request changes a user once, so there is one for each mechanism."""
    if mechanism not in MECHANISMS:
        raise ValueError(f"mechanism {mechanism!r}; allowed are {', '.join(MECHANISMS)}")
    kind = messages.AlterUserScramCredentialsRequest
    alteration = _alteration(kind(deletions=[kind.ScramCredentialDeletion(name=user, mechanism=MECHANISMS[mechanism])]))

    def read(answer: messages.AlterUserScramCredentialsResponse) -> bool:
        try:
            alteration.read(answer)
        except RefusedError as error:
            if error.code != ErrorCode.RESOURCE_NOT_FOUND:
                raise
            return False
        return True

    return Exchange(alteration.key, alteration.make, read)


def _alteration(message: messages.AlterUserScramCredentialsRequest) -> Exchange[None]:
    def read(answer: messages.AlterUserScramCredentialsResponse) -> None:
        for one in answer.results:
            if one.error_code:
                raise refusal_of(one, f"user {one.user!r}")

    return Exchange(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, in_any_version(message), read)


def describe_users(cluster: Cluster, names: Sequence[str] = ()) -> list[User]:
    """Those of these names that there are, or all; by name."""
    return cluster.answered(lambda: to_describe(names).over(cluster.any_connection()))


def set_credential(cluster: Cluster, wanted: NewCredential) -> None:
    """RefusedError: the broker does not take it."""
    exchange = to_set(wanted)
    cluster.answered(lambda: exchange.over(cluster.any_connection()))


def delete_credentials(cluster: Cluster, user: str, mechanisms: Iterable[str]) -> None:
    """One after the other: a request changes a user once. What is gone already is left out."""
    for mechanism in mechanisms:
        exchange = to_delete(user, mechanism)
        cluster.answered(lambda exchange=exchange: exchange.over(cluster.any_connection()))  # type: ignore[misc]
