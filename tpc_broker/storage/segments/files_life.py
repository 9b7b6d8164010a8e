"""The life of one partition's files: its states, how they follow each other, and what may change in each.

Changes (a write, a roll, a cut, retention, space taken ahead, the end) are made one after the other: `PartitionStorage`
queues them on one lock, in the order in which they came, and each asks here when its turn has come. A state may change
at any moment, also while a change waits for the disk: a sync fails, a topic is deleted.

```
OPEN ──► FAILED ──► REWRITING ──► OPEN ──► RELEASED
  │        │ ▲          │ │                   │
  │        │ └──────────┘ │                   │
  └────────┴──────────────┴───► DELETING ◄────┘
```

*Failed* files take nothing: the kernel may have thrown pages away. They are *rewritten* from the journal into new ones,
to which only that replay writes. *Released* ones are another core's. Files that are being *deleted* never come back,
whatever was under way.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from tpc_broker.errors import StorageFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class FilesState(Enum):
    """The value is the reason to refuse where there is no other."""

    OPEN = "open"
    FAILED = "failed"
    REWRITING = "being written anew"
    DELETING = "it is being deleted"
    RELEASED = "it was moved to another core"


class Change(Enum):
    """What changes files. The value is named when it fails."""

    WRITE = "write"
    ROLL = "roll"
    CUT = "cut"
    RETAIN = "retention"
    RESERVE = "reserve"
    REPLACE = "swap of cleaned segments"


OF_SEALED_SEGMENTS: Final = frozenset({Change.CUT, Change.RETAIN})
"""They wait until a swap of cleaned segments is over, which itself waits for none of the others."""
TRANSITIONS: Final[Mapping[FilesState, frozenset[FilesState]]] = {
    FilesState.OPEN: frozenset({FilesState.FAILED, FilesState.DELETING, FilesState.RELEASED}),
    FilesState.FAILED: frozenset({FilesState.REWRITING, FilesState.DELETING}),
    FilesState.REWRITING: frozenset({FilesState.OPEN, FilesState.FAILED, FilesState.DELETING}),
    FilesState.DELETING: frozenset(),
    FilesState.RELEASED: frozenset({FilesState.DELETING}),
}
CHANGES: Final[Mapping[FilesState, frozenset[Change]]] = {
    FilesState.OPEN: frozenset(Change),
    FilesState.FAILED: frozenset(),
    FilesState.REWRITING: frozenset({Change.WRITE}),
    FilesState.DELETING: frozenset(),
    FilesState.RELEASED: frozenset(),
}


# Rule: Files that have failed take nothing but what writes them anew. Files that are being deleted never come back,
# whatever was under way. See also tpc_broker/storage/recovery/core_partitions.py. Held by
# tests/storage/test_files_life.py, tests/storage/test_core_partitions.py, tests/engine/test_trouble.py.
class FilesLife:
    """Of one partition."""

    def __init__(self) -> None:
        self.state = FilesState.OPEN
        self.on_failed: Callable[[], None] = lambda: None
        """Called when they have failed: they are to be rewritten."""
        self._reason: str | None = None
        self.failures_count = 0
        self.pages_in_doubt = False
        """Whether a failure may have cost written bytes: any but a write that found no space."""

    @property
    def failed(self) -> str | None:
        """Why nothing may be expected of the files; None: they are open, or being written anew."""
        return self._reason

    def _become(self, state: FilesState) -> None:
        assert state in TRANSITIONS[self.state], (self.state, state, self._reason)
        self.state = state

    def check(self, change: Change) -> None:
        """StorageFailedError: the files may not change so now."""
        if change not in CHANGES[self.state]:
            raise StorageFailedError(self._reason or self.state.value)

    def check_open(self) -> None:
        """StorageFailedError: what the files hold may not be believed."""
        if self.state not in (FilesState.OPEN, FilesState.RELEASED):
            raise StorageFailedError(self._reason or self.state.value)

    def fail(self, reason: str, *, pages_in_doubt: bool) -> None:
        """The first reason counts."""
        self.pages_in_doubt |= pages_in_doubt
        if self.state in (FilesState.OPEN, FilesState.REWRITING):
            self._become(FilesState.FAILED)
            self._reason = reason
            self.failures_count += 1
            self.on_failed()

    def begin_rewrite(self) -> None:
        """StorageFailedError: they are deleted meanwhile."""
        if self.state is FilesState.DELETING:
            raise StorageFailedError(self._reason)
        self._become(FilesState.REWRITING)
        self._reason, self.pages_in_doubt = None, False

    def end_rewrite(self) -> None:
        """They hold again what they should. StorageFailedError: they have failed, or are deleted meanwhile."""
        if self.state is not FilesState.REWRITING:
            raise StorageFailedError(self._reason)
        self._become(FilesState.OPEN)

    def release(self) -> None:
        """For good. They hold what they should, until the journal says whose they are."""
        self._become(FilesState.RELEASED)

    def delete(self) -> None:
        """For good; a second time nothing changes."""
        if self.state is not FilesState.DELETING:
            self._become(FilesState.DELETING)
            self._reason = self._reason or self.state.value
