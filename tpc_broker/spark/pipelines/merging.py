"""Which files of an archive are merged into larger ones. Pure.

Files are sorted into tiers by size, each tier `FAN_IN` times the one below; the highest holds those that are large
enough. When a folder has `FAN_IN` files of one tier, they become one of the next. So a folder has at most
`FAN_IN - 1` files per tier beside its large ones, and a row is written again at most once per tier, however small the
micro-batches are.
"""

from collections.abc import Iterable
from typing import Final

from tpc_broker.spark.pipelines.file_list import DataFile

FAN_IN: Final = 8
LARGE_ENOUGH: Final = 0.5
"""A file of this share of the target is left alone."""


def tier(size_bytes: int, target_bytes: int) -> int:
    """0 for files a little too small, more for smaller ones."""
    found, bound = 0, target_bytes * LARGE_ENOUGH / FAN_IN
    while size_bytes < bound:
        found += 1
        bound /= FAN_IN
    return found


def merge_groups(files: Iterable[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Groups of files of the same folder; each is to become one file of about ``target_bytes`` or less."""
    tiers: dict[tuple[str, int], list[DataFile]] = {}
    for file in files:
        if file.size_bytes < target_bytes * LARGE_ENOUGH:
            tiers.setdefault((file.folder, tier(file.size_bytes, target_bytes)), []).append(file)
    return [
        group
        for _where, members in sorted(tiers.items())
        if len(members) >= FAN_IN
        for group in _cut(sorted(members, key=lambda file: (file.modified_ms, file.name)), target_bytes)
    ]


def _cut(files: list[DataFile], target_bytes: int) -> list[list[DataFile]]:
    groups: list[list[DataFile]] = [[]]
    for file in files:
        if groups[-1] and sum(member.size_bytes for member in groups[-1]) + file.size_bytes > target_bytes:
            groups.append([])
        groups[-1].append(file)
    return [group for group in groups if len(group) > 1]
