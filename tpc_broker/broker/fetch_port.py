"""A Fetch that the data plane left to Python, as its handler sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence


class FetchPart(NamedTuple):
    """What a Fetch asks of one partition; offsets and epochs as in the request, -1 for none."""

    topic: str | uuid.UUID
    """As the client names it: by id from version 13 on, by name before."""
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int


class FetchOutcome(NamedTuple):
    """What became of one partition of a Fetch, as far as its session cares."""

    error_code: int
    high_watermark: int
    log_start_offset: int
    has_records: bool
    is_elsewhere: bool = False
    """The client is told to read from another replica."""


class Fetch(Protocol):
    """A Fetch whose session was looked up and moved on; the session may know more partitions than the request names."""

    error_code: int
    """Of the session; then there are no parts."""
    session_id: int
    listener: int
    """Of its request."""
    bytes_max: int
    deadline_ms: int
    """Of the monotonic clock: answered by then with what there is."""
    parts: list[FetchPart]
    lacks_rights: bool
    """The data plane does not know whether its subject may read, and was asked for nothing else."""

    def go_on(self) -> bool:
        """Hand it back, with its request, when the rights are installed that it lacked. False: it stays here; True: it
        has ended.
        """
        ...

    def select(self, outcomes: Sequence[FetchOutcome]) -> list[bool]:
        """For each part, in order: is it in the answer? The session remembers what was sent."""
        ...

    def reserve(self) -> int | None:
        """Charge what will be read: how many bytes the answer may have. None: what nobody reads holds all there is."""
        ...

    def unreserve(self) -> None:
        """Nothing is kept for the answer just now. ``end`` does it too."""
        ...

    def end(self) -> None:
        """To be called exactly once, when the answer is made or will not be."""
        ...
