"""Three cores with real disks drive a replicated partition of large batches, and not all of them are as fast."""

import pytest

from tests.support.replica_cores import ReplicaCores


@pytest.fixture
def carried(tmp_path):
    made = ReplicaCores(tmp_path, is_carried=True)
    made.leader()
    made.until(lambda: all(node.is_carried() for node in made.up()))
    yield made
    made.shut()


def values(count, size):
    return [f"{number}".encode().ljust(size, b".") for number in range(count)]


def until_in_place(cores):
    """Large batches, until all write them once."""
    leader = cores.leader()

    def opens(node):
        async def look():
            await node.storage.write_behind(all_of_it=False)
            await node.storage.checkpoint()
            return node.plane.set_in_place_space(node.handle, node.files.active.reserved_end_position)

        return node.ask(look)

    for _ in range(20):
        cores.produce(leader, values(4, 300_000))
        opened = [opens(node) for node in cores.up()]
        if all(opened):
            return
    pytest.skip("the file system takes no direct writes here")


def test_followers_write_large_batches_from_where_they_arrived(carried):
    until_in_place(carried)
    leader = carried.leader()
    followers = [node for node in carried.up() if node is not leader]
    before = [node.ask(node.plane.journal_statistics) for node in followers]
    for _ in range(4):
        carried.produce(leader, values(3, 150_000))
    carried.check()
    for node, had in zip(followers, before, strict=True):
        has = node.ask(node.plane.journal_statistics)
        assert has["in_place_bytes_written"] - had["in_place_bytes_written"] > 1_200_000, "hardly anything"
        staged = has["in_place_bytes_staged"] - had["in_place_bytes_staged"]
        assert staged <= 12 * 4096 + 450_000, "more than shared blocks, and the first ones"
