"""Which APIs there are, in which versions, and which header versions go with them.

`ApiKey` is the enumeration, `api(key)` the facts. A broker advertises ``first_version`` to ``last_version`` of what it
implements, except that Produce is advertised from 0 (`advertised_versions`), which old librdkafka needs (KAFKA-18659).
Versions that Kafka calls unstable can be encoded and decoded, and are not in ``last_version``.
"""

from dataclasses import dataclass
from functools import cache

from .api_table import API_ROWS, ApiKey
from .errors import UnsupportedVersionError

__all__ = ["Api", "ApiKey", "advertised_versions", "api", "apis", "request_header_version", "response_header_version"]


@dataclass(frozen=True, slots=True)
class Api:
    """One API. Versions from ``first_version`` to ``last_version``, both valid and stable."""

    key: int
    name: str
    first_version: int
    last_version: int
    flexible_version: int
    """The first flexible version; larger than any version when there is none."""
    has_unstable_version: bool
    """Whether ``last_version + 1`` exists as an unstable version."""
    listeners: tuple[str, ...]
    request_name: str
    response_name: str

    def is_valid(self, version: int) -> bool:
        return self.first_version <= version <= self.last_version

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_version


@cache
def apis() -> dict[int, Api]:
    """All APIs by key."""
    table = {}
    for key, name, first, last, flexible, unstable, listeners in API_ROWS:
        stable = last - 1 if unstable else last
        table[key] = Api(key, name, first, stable, flexible, unstable, listeners, f"{name}Request", f"{name}Response")
    return table


def api(key: int) -> Api:
    """The API of that key, or `UnsupportedVersionError`."""
    found = apis().get(key)
    if found is None:
        raise UnsupportedVersionError(f"there is no API with key {key}")
    return found


def advertised_versions(key: int) -> tuple[int, int]:
    """First and last version, both inclusive, that ApiVersions names for an API."""
    facts = api(key)
    return (0 if key == ApiKey.PRODUCE else facts.first_version), facts.last_version


def request_header_version(key: int, version: int) -> int:
    """Request header 2 for flexible versions, else 1. Unknown keys get 1: the client id is readable in both."""
    facts = apis().get(key)
    return 2 if facts is not None and facts.is_flexible(version) else 1


def response_header_version(key: int, version: int) -> int:
    """Response header 1 for flexible versions, else 0; always 0 for ApiVersions, as the client does not know us yet."""
    return 1 if key != ApiKey.API_VERSIONS and api(key).is_flexible(version) else 0
