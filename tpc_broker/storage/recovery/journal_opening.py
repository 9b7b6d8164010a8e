"""Opening a core's journal for its recovery: it is locked, and whole, or nothing is believed of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.log.files import checkpoint_file_name
from tpc_broker.storage.recovery.checkpoint import JournalFile

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tpc_broker.log.journal import JournalScan
    from tpc_broker.model import CoreId
    from tpc_broker.storage.ports import Disk


class JournalDamagedError(Exception):
    """Acknowledged commits of a journal cannot be read. Nothing was changed; an operator has to decide."""


async def checked_scan(journal_file: JournalFile, generation: int, *, accept_damage: bool) -> JournalScan:
    """What the journal holds. JournalDamagedError: it is not whole, or a later release's."""
    named = journal_file.superblock.checkpoint_generation
    if generation < named and not accept_damage:
        raise JournalDamagedError(f"{journal_file.path} builds on checkpoint {named}, found is {generation}")
    scan = await journal_file.scan()
    problem = scan.too_new or (None if accept_damage else scan.damage)
    if problem is not None:
        raise JournalDamagedError(f"{journal_file.path}: {problem}")
    return scan


async def open_journal(
    disk: Disk,
    journals: Path,
    core: CoreId,
    create: Callable[[], Awaitable[JournalFile]],
    lock: Callable[[int], Awaitable[None]] | None,
    *,
    accept_damage: bool,
) -> JournalFile:
    """The core's journal, locked before anything of it is believed; made when neither it nor a checkpoint is there."""
    try:
        return await JournalFile.open(disk, journals, core, lock=lock)
    except FileNotFoundError:
        if checkpoint_file_name(core) in await disk.listdir(journals) and not accept_damage:
            missing = f"{journals}: the journal of core {core} is missing, its checkpoint is there"
            raise JournalDamagedError(missing) from None
    journal_file = await create()
    if lock is not None:
        try:
            await lock(journal_file.fd)
        except BaseException:
            await journal_file.close()
            raise
    return journal_file
