"""Decides changes of users' SCRAM credentials: AlterUserScramCredentials (KIP-554).

Like `Controller`: `(records, response)` from an image and a request, one result per user, Kafka's codes and words. A
user is changed once in a request, whatever the mechanisms: named twice, nothing of theirs is changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpc_broker import limits
from tpc_broker.auth.credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES_MAX,
    ScramMechanism,
    credential_of_salted,
    user_name_fault,
)
from tpc_broker.error_codes import ErrorCode
from tpc_broker.feature_levels import FIRST_WITH_SECURITY, kept_from
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.records import MetadataRecord, ScramCredentialChanged, credential_changed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.metadata.image import ClusterImage


@dataclass(frozen=True, slots=True)
class DeletedCredential:
    """`mechanism` is a number of the protocol, which may be one that does not exist."""

    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class SetCredential:
    """As the request has it: the salted password is forgotten with it."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AlteredUser:
    """Result for one user."""

    user: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


_NUMBERS = frozenset(int(each) for each in ScramMechanism)
_TWICE = Refusal(ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request")


def alter_users(
    image: ClusterImage, deletions: Sequence[DeletedCredential], upsertions: Sequence[SetCredential]
) -> tuple[list[MetadataRecord], list[AlteredUser]]:
    """Which fault of several is told is as in Kafka: deletions are looked at first, and the first fault stays."""
    wanted: dict[str, DeletedCredential | SetCredential] = {}
    faults: dict[str, Refusal] = {}
    asked: list[DeletedCredential | SetCredential] = [*deletions, *upsertions]
    for each in asked:
        name = each.user
        if wanted.pop(name, None) is not None:
            faults[name] = _TWICE
        elif name not in faults:
            try:
                _check(image, each)
                wanted[name] = each
            except Refusal as refusal:
                faults[name] = refusal
    records: list[MetadataRecord] = []
    told: list[AlteredUser] = []
    count = len(image.scram_users)
    for name, each in wanted.items():
        try:
            made, added = _carried_out(image, each, count)
        except Refusal as refusal:
            faults[name] = refusal
        else:
            records += made
            count += added
            told.append(AlteredUser(name))
    return records, told + [AlteredUser(name, fault.code, fault.message) for name, fault in faults.items()]


def _check(image: ClusterImage, wanted: DeletedCredential | SetCredential) -> None:
    """What Kafka looks at first."""
    if not wanted.user:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if wanted.mechanism not in _NUMBERS:
        raise Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(wanted, DeletedCredential):
        if (wanted.user, ScramMechanism(wanted.mechanism)) not in image.scram_users:
            raise Refusal(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    elif wanted.iterations < ITERATIONS_MIN:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    elif wanted.iterations > ITERATIONS_MAX:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")


def _carried_out(
    image: ClusterImage, wanted: DeletedCredential | SetCredential, count: int
) -> tuple[list[ScramCredentialChanged], int]:
    """The records, and how many credentials there are more then; `count`: how many there are before."""
    mechanism = ScramMechanism(wanted.mechanism)
    if isinstance(wanted, DeletedCredential):
        return [credential_changed(wanted.user, mechanism, None)], -1
    _check_ours(image, wanted)
    before = image.scram_users.get((wanted.user, mechanism))
    if before is None and count >= limits.SCRAM_CREDENTIALS_MAX:
        why = f"There are at most {limits.SCRAM_CREDENTIALS_MAX} credentials of users."
        raise Refusal(ErrorCode.POLICY_VIOLATION, why)
    credential = credential_of_salted(mechanism, wanted.salted_password, wanted.salt, wanted.iterations)
    if before == credential:
        return [], 0
    return [credential_changed(wanted.user, mechanism, credential)], int(before is None)


def _check_ours(image: ClusterImage, wanted: SetCredential) -> None:
    if not wanted.salted_password:  # Kafka has no words for it, because it does not expect that
        raise Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, None)
    if len(wanted.salt) > SALT_BYTES_MAX:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"A salt has at most {SALT_BYTES_MAX} bytes")
    fault = user_name_fault(wanted.user)
    if fault is not None:
        raise Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, fault)
    if not image.knows_security:
        raise Refusal(ErrorCode.UNSUPPORTED_VERSION, kept_from("Users", FIRST_WITH_SECURITY, image.level))
