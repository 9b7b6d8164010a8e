"""What the disks of tests have in common: a test counts their operations, and is asked before each that it names.

An operation that another one is made of (`open` in `open_many`) counts as that one alone, and passes its hooks alone.
"""

import functools
import os
from collections import Counter
from contextvars import ContextVar

import trio

from tpc_broker.storage.disk_watch import DiskWatch
from tpc_broker.storage.ports import Disk

OPERATIONS = frozenset(name for name in vars(Disk) if not name.startswith("_")) - {"watch"}
NEVER_CANCELLED = {"close", "close_many"}
_is_inside = ContextVar("_is_inside", default=False)


class Operations:
    """`counts`: how often each operation was asked for. Without `waits` none waits: for coroutines that are not run by
    trio, but stepped once.
    """

    def __init__(self, *, waits=True):
        self.waits = waits
        self.watch = DiskWatch()
        self.counts = Counter()
        self._hooks = {}

    def during(self, *operations, do):
        """`await do(go, *arguments)` in place of each of these, where `await go()` does it. None: as ever."""
        assert OPERATIONS.issuperset(operations)
        self._hooks.update(dict.fromkeys(operations, do))

    def poll_ring(self):
        self.counts["poll_ring"] += 1


def refusing(number):
    """The operation fails, and has done nothing."""

    async def refuse(_go, *arguments):
        raise OSError(number, os.strerror(number), str(arguments[0]))

    return refuse


def taking(seconds):
    async def take(go, *_arguments):
        await trio.sleep(seconds)
        return await go()

    return take


async def forgetting(_go, *_arguments):
    """It says that it is done, and does nothing."""


class Held:
    """An operation that waits, and says that it does, until it `may_go`; or, with `afterwards`, when it is done."""

    def __init__(self, *, afterwards=False, when=lambda *_arguments: True):
        self.waiting, self.may_go = trio.Event(), trio.Event()
        self._afterwards, self._when = afterwards, when

    async def __call__(self, go, *arguments):
        done = await go() if self._afterwards else None
        if self._when(*arguments):
            self.waiting.set()
            await self.may_go.wait()
        return done if self._afterwards else await go()


def counted(cls):
    """A class of disks, whose operations are checkpoints, count and pass their hooks."""
    for name in OPERATIONS - {"poll_ring"}:
        setattr(cls, name, _counted(name, getattr(cls, name)))
    return cls


def _counted(name, method):
    async def inside(self, arguments, named):
        token = _is_inside.set(True)
        try:
            return await method(self, *arguments, **named)
        finally:
            _is_inside.reset(token)

    @functools.wraps(method)
    async def operation(self, *arguments, **named):
        if self.waits and name not in NEVER_CANCELLED:
            await trio.lowlevel.checkpoint()
        if _is_inside.get():
            return await method(self, *arguments, **named)
        self.counts[name] += 1
        go, hook = functools.partial(inside, self, arguments, named), self._hooks.get(name)
        return await (go() if hook is None else hook(go, *arguments))

    return operation


async def outcome(write):
    """The error that a write ended with, or None."""
    try:
        await write
    except OSError as error:
        return error
    return None


async def make_folders_one_by_one(disk, paths, name, content):
    """`Disk.make_folders` of a disk that counts, or records, each step."""
    made = []
    for path in paths:
        try:
            await disk.mkdir(path)
        except FileExistsError:
            made.append(False)
            continue
        fd = await disk.open(path / name, os.O_RDWR | os.O_CREAT)
        await disk.writev(fd, [content], 0)
        await disk.close(fd)
        made.append(True)
    return made


class ManyOneByOne:
    """What a disk does to many files in one job, done to one after the other."""

    async def truncate_many(self, ends):
        return [await outcome(self._truncate_named(path, length)) for path, length in ends]

    async def _truncate_named(self, path, length):
        fd = await self.open(path, os.O_RDWR)
        try:
            await self.truncate(fd, length)
        finally:
            await self.close(fd)

    async def replace_many(self, files):
        for path, content in files:
            beside = path.with_name(path.name + ".tmp")
            fd = await self.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                await self.write_at(fd, content, 0)
            finally:
                await self.close(fd)
            await self.rename(beside, path)

    async def open_many(self, paths, flags):
        found = []
        for path in paths:
            try:
                found.append(await self.open(path, flags))
            except OSError as error:
                found.append(error)
        return found

    async def reserve_many(self, spaces):
        return [await outcome(self.fallocate(fd, at, length, keep_size=True)) for fd, at, length in spaces]

    async def write_many(self, writes):
        return [await outcome(self.writev(fd, [data], position)) for fd, data, position in writes]

    async def close_many(self, descriptors):
        for fd in descriptors:
            await self.close(fd)


def error_of(number, path=None):
    return OSError(number, os.strerror(number), *([] if path is None else [str(path)]))
