"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554): who may log in by SCRAM."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from tpc_broker.auth.operations import Operation
from tpc_broker.broker.handlers.refusals import while_allowed
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.metadata.user_control import DeletedCredential, SetCredential, alter_users

if TYPE_CHECKING:
    from tpc_broker.auth.credentials import ScramMechanism
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import MetadataRecord
    from tpc_broker.metadata.user_control import AlteredUser

    _Described = messages.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


def handle_describe_user_scram_credentials(
    core: Core, _request: Request, message: messages.DescribeUserScramCredentialsRequest
) -> messages.DescribeUserScramCredentialsResponse:
    """Those that are named, or all of them."""
    known: dict[str, list[tuple[ScramMechanism, int]]] = defaultdict(list)
    for (name, mechanism), credential in core.view.image.scram_users.items():
        known[name].append((mechanism, credential.iterations))
    asked = Counter(user.name for user in message.users or ()) or Counter(known.keys())
    return messages.DescribeUserScramCredentialsResponse(
        error_message="",
        results=[_described(name, times, sorted(known.get(name, ()))) for name, times in sorted(asked.items())],
    )


def _described(name: str, times: int, found: list[tuple[ScramMechanism, int]]) -> _Described:
    kind = messages.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    if times > 1:
        why = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        return kind(user=name, error_code=int(ErrorCode.DUPLICATE_RESOURCE), error_message=why)
    if not found:
        why = f"Attempt to describe a user credential that does not exist: {name}"
        return kind(user=name, error_code=int(ErrorCode.RESOURCE_NOT_FOUND), error_message=why)
    of_mechanism = messages.DescribeUserScramCredentialsResponse.CredentialInfo
    infos = [of_mechanism(mechanism=int(mechanism), iterations=iterations) for mechanism, iterations in found]
    return kind(user=name, error_message="", credential_infos=infos)


async def handle_alter_user_scram_credentials(
    core: Core, request: Request, message: messages.AlterUserScramCredentialsRequest
) -> messages.AlterUserScramCredentialsResponse:
    deletions = [DeletedCredential(each.name, each.mechanism) for each in message.deletions]
    upsertions = [
        SetCredential(each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password))
        for each in message.upsertions
    ]

    def decide(image: ClusterImage) -> tuple[list[MetadataRecord], list[AlteredUser]]:
        return alter_users(image, deletions, upsertions)

    results = await core.metadata.change(while_allowed(core, request, Operation.ALTER, decide))
    kind = messages.AlterUserScramCredentialsResponse
    return kind(
        results=[
            kind.AlterUserScramCredentialsResult(
                user=each.user, error_code=int(each.error_code), error_message=each.error_message
            )
            for each in sorted(results, key=lambda each: each.user)
        ]
    )
