"""Decides changes of quotas of clients: AlterClientQuotas, and what DescribeClientQuotas asks for.

Like `ConfigController`: `(records, response)` from an image and a request, one result for each entity, Kafka's codes
and words. An entity changes as a whole or not at all. Records are written only for what really changes.
"""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpc_broker import limits
from tpc_broker.error_codes import ErrorCode
from tpc_broker.feature_levels import FIRST_WITH_SECURITY, kept_from
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from tpc_broker.metadata.records import ENTITY_TYPES, IP, ClientQuotaChanged, MetadataRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tpc_broker.metadata.image import ClusterImage, QuotaEntity

_LARGEST: Final[Mapping[str, int | None]] = {
    PRODUCER_BYTE_RATE: 2**63 - 1,
    CONSUMER_BYTE_RATE: 2**63 - 1,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
"""Of each quota of users and clients; None: any number above 0, whole or not."""
_LARGEST_OF_IPS: Final[Mapping[str, int | None]] = {CONNECTION_CREATION_RATE: 2**31 - 1}
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,253}")


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """Changes of one entity, in the order of the request: (key, new value or None to remove)."""

    entity: Mapping[str, str | None]
    ops: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, slots=True)
class AlteredQuota:
    """Result for one entity."""

    entity: QuotaEntity
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class QuotaController:
    """Decisions about quotas for the cluster of which `image` is the state. Of an entity that is named twice the first
    change is made and the answer is an error, as in Kafka.
    """

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._entities = len(image.client_quotas)
        """With what was decided already."""

    def alter(
        self, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
    ) -> tuple[list[MetadataRecord], list[AlteredQuota]]:
        """AlterClientQuotas."""
        records: list[MetadataRecord] = []
        results: dict[QuotaEntity, AlteredQuota] = {}
        for each in alterations:
            entity = tuple(sorted(each.entity.items()))
            if entity in results:
                results[entity] = AlteredQuota(entity, ErrorCode.INVALID_REQUEST, "Ignoring duplicate entity")
                continue
            try:
                records += self._changes_of(entity, each)
            except Refusal as refusal:
                results[entity] = AlteredQuota(entity, refusal.code, refusal.message)
            else:
                results[entity] = AlteredQuota(entity)
        return ([] if validate_only else records), list(results.values())

    def _changes_of(self, entity: QuotaEntity, alteration: QuotaAlteration) -> Sequence[MetadataRecord]:
        if len({key for key, _value in alteration.ops}) < len(alteration.ops):
            raise Refusal(ErrorCode.INVALID_REQUEST, "Duplicate quota key")
        why = _entity_fault(alteration.entity)
        if why:
            raise Refusal(ErrorCode.INVALID_REQUEST, why)
        largest = _LARGEST_OF_IPS if IP in alteration.entity else _LARGEST
        for key, value in alteration.ops:
            why = _value_fault(key, value, largest)
            if why:
                raise Refusal(ErrorCode.INVALID_REQUEST, why)
        present = self._image.client_quotas.get(entity, {})
        changes = {key: value for key, value in alteration.ops if present.get(key) != value}
        if not changes:
            return ()
        if self._image.level < FIRST_WITH_SECURITY:
            why = kept_from("Quotas", FIRST_WITH_SECURITY, self._image.level)
            raise Refusal(ErrorCode.UNSUPPORTED_VERSION, why)
        if not present and self._entities >= limits.QUOTA_ENTITIES_MAX:
            raise Refusal(
                ErrorCode.POLICY_VIOLATION,
                f"There are quotas of at most {limits.QUOTA_ENTITIES_MAX} entities; remove some that nobody needs.",
            )
        self._entities += not present
        return [ClientQuotaChanged(dict(entity), changes)]


def matching(
    image: ClusterImage, wanted: Mapping[str, str | None], named: frozenset[str], *, strict: bool
) -> Iterator[tuple[QuotaEntity, Mapping[str, float]]]:
    """Entities with quotas: `wanted` are types with the name that an entity has to have (None: that without one),
    `named` types of which it has to have any. Strict: and no others.
    """
    for entity, quotas in sorted(image.client_quotas.items(), key=lambda each: str(each[0])):
        has = dict(entity)
        if strict and len(has) != len(wanted) + len(named):
            continue
        if named <= has.keys() and all(of_type in has and has[of_type] == name for of_type, name in wanted.items()):
            yield entity, quotas


def _entity_fault(entity: Mapping[str, str | None]) -> str:
    if not entity:
        return "Invalid empty client quota entity"
    for of_type, name in entity.items():
        why = _name_fault(of_type, name)
        if why:
            return why
    if IP not in entity:
        return ""
    if len(entity) > 1:
        return "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
    address = entity[IP]
    return "" if address is None or _may_be_host(address) else f"{address} is not a valid IP or resolvable host."


def _name_fault(of_type: str, name: str | None) -> str:
    if of_type not in ENTITY_TYPES:
        return f"Unhandled client quota entity type: {of_type}"
    if name == "":
        return f"Empty {of_type} not supported"
    if name is not None and len(name.encode()) > limits.QUOTA_NAME_BYTES_MAX:
        return f"A {of_type} has at most {limits.QUOTA_NAME_BYTES_MAX} bytes"
    return ""


def _may_be_host(text: str) -> bool:
    """No name is looked up for it."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None
    return True


def _value_fault(key: str, value: float | None, largest: Mapping[str, int | None]) -> str:
    """`value` None: it is to be removed, and whatever key there is not is not there."""
    if value is None:
        return ""
    if key not in largest:
        return f"Invalid configuration key {key}"
    if not (value > 0 and math.isfinite(value)):
        return f"Quota {key} must be greater than 0"
    limit = largest[key]
    if limit is None:
        return ""
    if value > limit:
        return f"Proposed value for {key} is too large."
    return "" if value.is_integer() else f"{key} cannot be a fractional value."
