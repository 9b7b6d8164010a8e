"""Decides changes of rules of access, as Kafka's controller does: `(records, response)`.

A rule that is there already is made once more without a word, and deleting what no filter finds is no error. All that
one request changes is one batch, or it is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker import limits
from tpc_broker.auth.acls import ACLS_MAX
from tpc_broker.error_codes import ErrorCode
from tpc_broker.feature_levels import FIRST_WITH_SECURITY, kept_from
from tpc_broker.metadata.acl_records import ACL_TEXT_BYTES_MAX, acl_records
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.records import encode_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpc_broker.auth.acl_filters import AclFilter
    from tpc_broker.auth.acls import AclBinding
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import MetadataRecord

CHANGES_MAX: Final = 10_000
"""Rules that one request may make or delete, as in Kafka."""


def create_acls(
    image: ClusterImage, bindings: Sequence[AclBinding]
) -> tuple[list[MetadataRecord], list[Refusal | None]]:
    """None for each that is there afterwards. Refusal: none was made."""
    _check_level(image)
    if len(bindings) > CHANGES_MAX:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Cannot make more than {CHANGES_MAX} acls in a single operation.")
    results = [_fault(binding) for binding in bindings]
    sound = (binding for binding, fault in zip(bindings, results, strict=True) if fault is None)
    added = dict.fromkeys(binding for binding in sound if binding not in image.acls)
    if len(image.acls) + len(added) > ACLS_MAX:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"The cluster would have {len(image.acls) + len(added)} rules of access; at most {ACLS_MAX} are allowed.",
        )
    return _fitting(added), results


def delete_acls(
    image: ClusterImage, filters: Sequence[AclFilter]
) -> tuple[list[MetadataRecord], list[list[AclBinding]]]:
    """What each filter found, which is there no more. Refusal: nothing was deleted."""
    _check_level(image)
    removed: dict[AclBinding, None] = {}
    found: list[list[AclBinding]] = []
    for one in filters:
        found.append(sorted(one.found_in(image.acls)))
        removed.update(dict.fromkeys(found[-1]))
        if sum(map(len, found)) > CHANGES_MAX:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"Cannot remove more than {CHANGES_MAX} acls in a single delete operation."
            )
    return _fitting((), removed), found


def _check_level(image: ClusterImage) -> None:
    if not image.knows_security:
        raise Refusal(ErrorCode.UNSUPPORTED_VERSION, kept_from("Rules of access", FIRST_WITH_SECURITY, image.level))


def _fault(binding: AclBinding) -> Refusal | None:
    texts = binding.name, *binding.principal, binding.host
    if sum(len(text.encode()) for text in texts) <= ACL_TEXT_BYTES_MAX:
        return None
    message = f"A rule's name, principal and host have at most {ACL_TEXT_BYTES_MAX} bytes together."
    return Refusal(ErrorCode.INVALID_REQUEST, message)


def _fitting(added: Iterable[AclBinding], removed: Iterable[AclBinding] = ()) -> list[MetadataRecord]:
    """Records that are one batch. Refusal."""
    records: list[MetadataRecord] = list(acl_records(added, removed))
    size = sum(len(encode_record(record)) + limits.OWN_RECORD_OVERHEAD_BYTES for record in records)
    if size > limits.OWN_BATCH_BYTES_MAX:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"The rules of one request would be {size} bytes of metadata; at most {limits.OWN_BATCH_BYTES_MAX} are "
            "written at once: use several requests.",
        )
    return records
