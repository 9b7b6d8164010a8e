"""Memory that C looks at beyond one call: an exception that is put by with it must not end the process when it is
collected, as it would by a fault of Python before 3.12.7 (gh-77894). In a process of its own, since that may crash.
"""

import subprocess
import sys

from tests.support.waiting import PATIENCE_S

PUT_BY = """
import gc, os
from tpc_broker.log.batch import BatchDamageError
from tpc_broker.log.segment import AppendWalk, LogSettings, SegmentIndexes
from tpc_broker.log.state import LogState
from tpc_broker.engine.ring import Ring
from tpc_broker.engine.trio_ring import current_ring, run

def in_a_cycle(garbage):
    cycle = [garbage]
    cycle.append(cycle)

def failing(perform):
    async def main():
        ring = current_ring()
        fd = os.open(os.devnull, os.O_RDONLY)
        try:
            await perform(ring, fd)
        except OSError as error:
            in_a_cycle(error)
    return lambda: run(main)

async def write(ring, fd):
    await ring.write(fd, memoryview(bytearray(8192))[4096:], 0)

async def write_in_parts(ring, fd):
    await ring.write_in_parts(fd, memoryview(bytearray(8192))[4096:], 0, 4096)

async def writev(ring, fd):
    await ring.writev(fd, [memoryview(bytearray(8))[4:]] * 2, 0)

def walk():
    view = memoryview(bytearray(100))
    walk = AppendWalk(view, LogSettings(), 0, LogState())
    walk.use(SegmentIndexes(0, 4096), 0)
    try:
        walk.step()
    except BatchDamageError as error:
        in_a_cycle(error)

for case in (failing(write), failing(write_in_parts), failing(writev), walk):
    gc.disable()
    case()
    assert gc.collect() > 0
    print("collected")
"""


def test_an_exception_that_is_put_by_can_be_collected():
    done = subprocess.run(
        [sys.executable, "-c", PUT_BY], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout.split()) == (0, ["collected"] * 4), done.stderr
