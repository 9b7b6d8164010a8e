"""The states of a core's partitions, and the tables that go with them."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.storage.recovery.core_partitions import TRANSITIONS, CorePartitions, PartitionState

KEYS = ["a", "b", "recovered", "offline", "released"]
CHECKPOINT, RELEASED = SimpleNamespace(released=None), SimpleNamespace(released="to another core")
IN_STORAGES = {PartitionState.RECOVERED, PartitionState.OPEN, PartitionState.LED, PartitionState.GIVEN_UP}
NOT_IN_STORAGES = {
    PartitionState.ABSENT, PartitionState.PREPARED, PartitionState.MAKING, PartitionState.OFFLINE,
    PartitionState.RELEASED, PartitionState.ADOPTING,
}  # fmt: skip


class TablesDriver:
    """What drives the tables: it has the same files for a partition all the time."""

    def __init__(self):
        self.files = {key: SimpleNamespace(key=key, checkpointed=CHECKPOINT) for key in KEYS}
        self.led = {key: SimpleNamespace(files=self.files[key], handle=number) for number, key in enumerate(KEYS)}
        self.lost = {key: SimpleNamespace(key=key, checkpoint=CHECKPOINT) for key in KEYS}
        self.partitions = CorePartitions(
            {"recovered": self.files["recovered"]},
            {"offline": self.lost["offline"]},
            {"offline": CHECKPOINT, "released": RELEASED},
        )
        self.without_checkpoint = set()
        """Those that are offline by nothing but a mark."""

    def set_aside_before(self, key):
        self.partitions.set_aside_before(SimpleNamespace(key=key, checkpoint=None))
        self.without_checkpoint.add(key)

    def handle_of(self, key):
        """None: it is not led."""
        is_led = self.partitions.state(key) is PartitionState.LED
        return self.led[key].handle if is_led else None

    def tables(self):
        one = self.partitions
        every = (one.storages, one.offline, one.kept, one.unclaimed, one.led, one.given_up)
        return [dict(table) for table in every], [one.state(key) for key in KEYS]


STEPS = {
    "prepared": lambda world, key: world.partitions.prepared([key]),
    "claim": lambda world, key: world.partitions.claim(key),
    "make": lambda world, key: world.partitions.make(key),
    "made": lambda world, key: world.partitions.made(world.files[key]),
    "not_made": lambda world, key: world.partitions.not_made(key),
    "give_back": lambda world, key: world.partitions.give_back(world.files[key]),
    "lead": lambda world, key: world.partitions.lead(world.led[key]),
    "give_up": lambda world, key: world.partitions.give_up(world.led[key], world.lost[key]),
    "set_aside": lambda world, key: world.partitions.set_aside(world.lost[key]),
    "set_aside_before": lambda world, key: world.set_aside_before(key),
    "put_aside": lambda world, key: world.partitions.put_aside(key),
    "begin_deletion": lambda world, key: world.partitions.begin_deletion(key, world.led[key].handle),
    "forget": lambda world, key: world.partitions.forget(world.files[key]),
    "keep": lambda world, key: world.partitions.keep(world.files[key]),
    "deleted": lambda world, key: world.partitions.deleted(key),
    "release": lambda world, key: world.partitions.release(world.led[key], RELEASED),
    "forget_release": lambda world, key: world.partitions.forget_release(key),
    "adopt": lambda world, key: world.partitions.adopt(key),
    "begin_replacement": lambda world, key: world.partitions.begin_replacement(key, world.handle_of(key)),
    "replaced": lambda world, key: world.partitions.replaced(world.files[key]),
    "adopted": lambda world, key: world.partitions.adopted(world.files[key]),
}


def take(world, name, key):
    """One step; whether it was allowed. One that is not changes nothing."""
    before = world.tables()
    try:
        STEPS[name](world, key)
    except AssertionError:
        assert world.tables() == before
        return False
    return True


@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from(KEYS)), max_size=40))
def test_the_tables_say_what_the_states_say(steps):
    world = TablesDriver()
    one = world.partitions
    for name, key in steps:
        before = one.state(key)
        is_taken = take(world, name, key)
        after = one.state(key)
        if after is not PartitionState.OFFLINE:
            world.without_checkpoint.discard(key)
        assert after is before or (is_taken and after in TRANSITIONS[before])
        assert (key in one.unclaimed) == (after is PartitionState.RECOVERED)
        assert (world.led[key] in one.led.values()) == (after is PartitionState.LED)
        assert (key in one.given_up) == (after is PartitionState.GIVEN_UP)
        assert (key in one.offline) == (after is PartitionState.OFFLINE)
        assert key in one.storages or after not in IN_STORAGES
        assert key not in one.storages or after not in NOT_IN_STORAGES
        assert key not in one.kept or after in (
            PartitionState.OFFLINE, PartitionState.DELETING, PartitionState.RELEASED, PartitionState.ADOPTING,
            PartitionState.REPLACING,
        )  # fmt: skip
        assert (
            key in one.kept
            or after not in (PartitionState.OFFLINE, PartitionState.RELEASED)
            or key in world.without_checkpoint
        )
        assert (key in one.all_released()) == (after is PartitionState.RELEASED) == (one.released(key) is not None)
        assert one.is_here(key) == (after not in (PartitionState.ABSENT, PartitionState.RELEASED))


def test_every_transition_of_the_table_happens():
    seen, worlds = set(), [(key, ()) for key in KEYS]
    for _ in range(7):
        longer = []
        for key, path in worlds:
            world = TablesDriver()
            for name in path:
                take(world, name, key)
            before = world.partitions.state(key)
            for name in STEPS:
                again = TablesDriver()
                for earlier in path:
                    take(again, earlier, key)
                after = again.partitions.state(key) if take(again, name, key) else before
                if after is not before and (before, after) not in seen:
                    seen.add((before, after))
                    longer.append((key, (*path, name)))
        worlds += longer
    assert seen == {(before, after) for before, all_after in TRANSITIONS.items() for after in all_after}


def test_a_second_deletion_changes_nothing_and_the_first_ends_it():
    world = TablesDriver()
    assert take(world, "begin_deletion", "recovered")
    assert take(world, "forget", "recovered")
    before = world.tables()
    assert take(world, "begin_deletion", "recovered")
    assert world.tables() == before
    assert world.partitions.kept["recovered"] is CHECKPOINT, "the next start has to find it"
    assert take(world, "deleted", "recovered")
    assert world.partitions.state("recovered") is PartitionState.ABSENT
    assert "recovered" not in world.partitions.kept


def test_what_has_gone_is_remembered_until_a_checkpoint_that_began_behind_it():
    world = TablesDriver()
    one = world.partitions
    assert not one.remembers(["a"])
    assert one.remembers(["offline"])
    assert one.remembers(["released"]), "the checkpoint names it"
    first = one.checkpoint_begins()
    take(world, "forget_release", "released")
    one.checkpoint_done(first)
    assert one.remembers(["a", "released"])
    assert not one.remembers(["a"])
    second = one.checkpoint_begins()
    assert one.remembers(["released"])
    one.checkpoint_done(second)
    assert not one.remembers(["released"])
    for name in ("make", "not_made"):
        assert take(world, name, "a")
    assert not one.remembers(["a"]), "nothing of it was ever written"
    assert take(world, "prepared", "a")
    assert not one.remembers(["a"]), "its folder is new"
