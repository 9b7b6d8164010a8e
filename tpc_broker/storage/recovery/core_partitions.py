"""The partitions that one core has files of: the state of each, and the tables that the parts of its storage share.

```
ABSENT ──► MAKING ──► OPEN ──► LED ──► GIVEN_UP ──► OFFLINE ──► ABSENT (put aside)
   └► PREPARED ─┘    ▲ │        │          │            │
                     │ ▼        ▼          ▼            ▼
          (a start) RECOVERED ──────────► DELETING ──► ABSENT

LED ──► RELEASED ──► ABSENT (another core has it)          (what is RELEASED may be deleted, too)
           └─► ADOPTING ──► RECOVERED
ABSENT ────────┘

LED, OFFLINE ──► REPLACING ──► RECOVERED
```

*Recovered* partitions wait for the broker to open them; one whose leader epoch the journal does not take goes back
there. A *led* one is in the data plane, by its handle. One that can be mended no more is *given up* (taken out of the
data plane), and *offline* when what the journal has of it lies beside its files; recovery makes such ones too. What is
*being deleted* is forgotten durably first, and absent when its folder has another name.

One that is moved to another core is *released* here: checkpoints say so until the other core is known to have it. One
that comes from there, or is taken back, is being *adopted* until the journal has it. Files of a replica that give way
to another replica's are being *replaced*.

One that an earlier run set aside is offline again when it is first asked for, where only its mark beside the journals
tells of it (from *absent*).

Everybody may look into the tables; only the methods here change them, and each asserts that its step is one of
`TRANSITIONS`. A deletion takes a partition out of `led` at any moment, so that is to be looked at again after every
await. `checkpointing` is held while a checkpoint runs, and by whoever changes what the next one has to name or what of
the journal it may give back (`storages`, `kept`), or acts on what was given up.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.errors import PartitionOfflineError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.model import TopicPartition
    from tpc_broker.storage.recovery.recovery import OfflinePartition
    from tpc_broker.storage.segments.leader_partition import LeaderPartition
    from tpc_broker.storage.segments.partition_storage import PartitionStorage


class PartitionState(Enum):
    """See the module."""

    ABSENT = "absent"
    PREPARED = "its folder is new and durable"
    MAKING = "being made"
    RECOVERED = "recovered"
    OPEN = "open"
    LED = "led"
    GIVEN_UP = "given up"
    OFFLINE = "offline"
    DELETING = "being deleted"
    RELEASED = "released to another core"
    ADOPTING = "being adopted"
    REPLACING = "its files are being replaced by another replica's"


_S = PartitionState
TRANSITIONS: Final[Mapping[PartitionState, frozenset[PartitionState]]] = {
    _S.ABSENT: frozenset({_S.PREPARED, _S.MAKING, _S.ADOPTING, _S.OFFLINE}),
    _S.PREPARED: frozenset({_S.MAKING}),
    _S.MAKING: frozenset({_S.OPEN, _S.ABSENT}),
    _S.RECOVERED: frozenset({_S.OPEN, _S.DELETING, _S.ABSENT}),
    _S.OPEN: frozenset({_S.LED, _S.RECOVERED}),
    _S.LED: frozenset({_S.GIVEN_UP, _S.DELETING, _S.RELEASED, _S.REPLACING}),
    _S.GIVEN_UP: frozenset({_S.OFFLINE, _S.DELETING}),
    _S.OFFLINE: frozenset({_S.DELETING, _S.ABSENT, _S.REPLACING}),
    _S.DELETING: frozenset({_S.ABSENT}),
    _S.RELEASED: frozenset({_S.ABSENT, _S.ADOPTING, _S.DELETING}),
    _S.ADOPTING: frozenset({_S.RECOVERED}),
    _S.REPLACING: frozenset({_S.RECOVERED}),
}


class CorePartitions:
    """Of one core. `storages` and `offline` are what was recovered; `kept` what every checkpoint has to say besides."""

    def __init__(
        self,
        storages: dict[TopicPartition, PartitionStorage],
        offline: dict[TopicPartition, OfflinePartition],
        kept: dict[TopicPartition, PartitionCheckpoint],
    ) -> None:
        self.storages = storages
        """Checkpoints capture these."""
        self.offline = offline
        self.kept = kept
        """Checkpoints say of these what the last one said."""
        self.unclaimed = dict(storages)
        """Recovered."""
        self.led: dict[int, LeaderPartition] = {}
        """By their handles in the data plane."""
        self.given_up: dict[TopicPartition, OfflinePartition] = {}
        self.checkpointing = trio.Lock()
        self._ended: dict[TopicPartition, int] = {}
        """Those that are here no more, and how many checkpoints had begun when they went: until a later one is done,
        a start finds something of them in the journal or in the checkpoint.
        """
        self._checkpoints_begun = 0
        released = {key for key, one in kept.items() if one.released is not None}
        self._states = {
            **dict.fromkeys(storages, _S.RECOVERED), **dict.fromkeys(offline, _S.OFFLINE),
            **dict.fromkeys(released - offline.keys(), _S.RELEASED),
        }  # fmt: skip

    def state(self, key: TopicPartition) -> PartitionState:
        """Now."""
        return self._states.get(key, _S.ABSENT)

    def writable(self, handle: int) -> LeaderPartition:
        """The one that is in the data plane by this handle; PartitionOfflineError when none is, or when it failed."""
        led = self.led.get(handle)
        if led is None:
            raise PartitionOfflineError("the partition is closed")
        if led.files.failed is not None:
            raise PartitionOfflineError(led.files.failed)
        return led

    def _become(
        self, key: TopicPartition, state: PartitionState, *, of: PartitionState | None = None
    ) -> PartitionState:
        """What it was before: `of`, where several states lead there by different steps."""
        before = self.state(key)
        assert state in TRANSITIONS[before], (key, before, state)
        assert of in (None, before), (key, before, state)
        if state is _S.ABSENT:
            del self._states[key]
            if before is not _S.MAKING:
                self._ended[key] = self._checkpoints_begun
        else:
            self._states[key] = state
        return before

    # -- what a start would find -------------------------------------------------------------------------------------

    def remembers(self, keys: Iterable[TopicPartition]) -> bool:
        """Whether a start would find anything of what one of these was here before."""
        return any(key in self._ended or self.state(key) not in (_S.ABSENT, _S.PREPARED) for key in keys)

    def checkpoint_begins(self) -> int:
        """Its number; with `checkpointing`."""
        self._checkpoints_begun += 1
        return self._checkpoints_begun

    def checkpoint_done(self, number: int) -> None:
        """The journal begins where it began, and it names only what was here then."""
        self._ended = {key: begun for key, begun in self._ended.items() if begun >= number}

    # -- opening -----------------------------------------------------------------------------------------------------

    def prepared(self, keys: Collection[TopicPartition]) -> None:
        """Their folders are new and durable."""
        for key in keys:
            self._become(key, _S.PREPARED)

    def claim(self, key: TopicPartition) -> PartitionStorage | None:
        """The files of a recovered partition, which is open now; None: they have to be made."""
        if self.state(key) is not _S.RECOVERED:
            return None
        self._become(key, _S.OPEN)
        return self.unclaimed.pop(key)

    def make(self, key: TopicPartition) -> bool:
        """Its files are about to be made; whether its folder is there, new and durable."""
        return self._become(key, _S.MAKING) is _S.PREPARED

    def made(self, files: PartitionStorage) -> None:
        """It is open."""
        self._become(files.key, _S.OPEN, of=_S.MAKING)
        self.storages[files.key] = files

    def not_made(self, key: TopicPartition) -> None:
        """It could not be."""
        self._become(key, _S.ABSENT, of=_S.MAKING)

    def give_back(self, files: PartitionStorage) -> None:
        """It was opened, and is to be opened again."""
        self._become(files.key, _S.RECOVERED, of=_S.OPEN)
        self.unclaimed[files.key] = files

    def lead(self, led: LeaderPartition) -> None:
        """The data plane has it."""
        self._become(led.files.key, _S.LED)
        self.led[led.handle] = led

    # -- trouble -----------------------------------------------------------------------------------------------------

    def give_up(self, led: LeaderPartition, offline: OfflinePartition) -> None:
        """The data plane has it no more; its files hold checkpoints back until it is `set_aside`."""
        self._become(offline.key, _S.GIVEN_UP)
        del self.led[led.handle]
        self.given_up[offline.key] = offline

    def set_aside(self, offline: OfflinePartition) -> PartitionStorage:
        """What the journal has of it is beside its files, which are returned; with `checkpointing`."""
        assert offline.checkpoint is not None
        self._become(offline.key, _S.OFFLINE, of=_S.GIVEN_UP)
        del self.given_up[offline.key]
        self.offline[offline.key] = offline
        self.kept[offline.key] = offline.checkpoint
        return self.storages.pop(offline.key)

    def set_aside_before(self, offline: OfflinePartition) -> None:
        """By an earlier run, of which only its mark beside the journals tells."""
        assert offline.checkpoint is None
        self._become(offline.key, _S.OFFLINE, of=_S.ABSENT)
        self.offline[offline.key] = offline

    def put_aside(self, key: TopicPartition) -> None:
        """The metadata do not know it, and it has left the folder of topics; with `checkpointing`."""
        assert self.state(key) in (_S.RECOVERED, _S.OFFLINE), (key, self.state(key))
        self._become(key, _S.ABSENT)
        for table in (self.unclaimed, self.kept, self.storages, self.offline):
            table.pop(key, None)

    # -- moves to other cores ----------------------------------------------------------------------------------------

    def is_here(self, key: TopicPartition) -> bool:
        """Whether this core's journal or checkpoint has it, or is about to; one that was released is not here."""
        return self.state(key) not in (_S.ABSENT, _S.RELEASED)

    def release(self, led: LeaderPartition, released: PartitionCheckpoint) -> None:
        """The journal's entry is durable: checkpoints say that it is not here any more."""
        key = led.files.key
        self._become(key, _S.RELEASED)
        del self.led[led.handle]
        del self.storages[key]
        self.kept[key] = released

    def released(self, key: TopicPartition) -> PartitionCheckpoint | None:
        """What goes over, of a partition that was released here."""
        return self.kept[key] if self.state(key) is _S.RELEASED else None

    def all_released(self) -> list[TopicPartition]:
        """Those that nobody is known to have adopted yet."""
        return [key for key, state in self._states.items() if state is _S.RELEASED]

    def forget_release(self, key: TopicPartition) -> None:
        """Another core has it."""
        assert self.state(key) is _S.RELEASED, (key, self.state(key))
        self._become(key, _S.ABSENT)
        del self.kept[key]

    def adopt(self, key: TopicPartition) -> None:
        """The journal's entry is about to be written, and is not taken back."""
        self._become(key, _S.ADOPTING)

    def adopted(self, files: PartitionStorage) -> None:
        """It is durable: the partition is here as if it had been recovered."""
        if self.state(files.key) is _S.RECOVERED:
            return  # the entry was written twice
        self._become(files.key, _S.RECOVERED, of=_S.ADOPTING)
        self.kept.pop(files.key, None)
        self.storages[files.key] = self.unclaimed[files.key] = files

    # -- replicas that are filled --------------------------------------------------------------------------------------

    def begin_replacement(self, key: TopicPartition, handle: int | None) -> None:
        """The journal has an entry by which other files take the place of its own; with `checkpointing` until the end.
        `handle`: None where it is offline.
        """
        self._become(key, _S.REPLACING)
        self.offline.pop(key, None)
        if handle is not None:
            del self.led[handle]

    def replaced(self, files: PartitionStorage) -> None:
        """The entry is durable, and the files are in their place: it is here as if it had been recovered."""
        self._become(files.key, _S.RECOVERED, of=_S.REPLACING)
        self.kept.pop(files.key, None)
        self.storages[files.key] = self.unclaimed[files.key] = files

    # -- deletion ----------------------------------------------------------------------------------------------------

    def begin_deletion(self, key: TopicPartition, handle: int | None = None) -> None:
        """It is opened, mended and set aside no more. Checkpoints capture it until `forget`; again: nothing changes."""
        if self.state(key) is _S.DELETING:
            return
        self._become(key, _S.DELETING)
        if handle is not None:
            self.led.pop(handle, None)
        for table in (self.unclaimed, self.given_up, self.offline):
            table.pop(key, None)

    def forget(self, files: PartitionStorage) -> None:
        """Checkpoints say of it what the last one said, until its folder is gone; with `checkpointing`."""
        assert self.state(files.key) is _S.DELETING, (files.key, self.state(files.key))
        if self.storages.pop(files.key, None) is not None:
            self.kept[files.key] = files.checkpointed

    def keep(self, files: PartitionStorage) -> None:
        """Its folder cannot be moved now: the next start has to find it."""
        assert self.state(files.key) is _S.DELETING, (files.key, self.state(files.key))
        self.kept[files.key] = files.checkpointed

    def deleted(self, key: TopicPartition) -> None:
        """Its folder is out of the way."""
        assert key not in self.storages, key
        self._become(key, _S.ABSENT, of=_S.DELETING)
        self.kept.pop(key, None)
