"""A node that drains gives its leaderships away, some at a time."""

from __future__ import annotations

from types import SimpleNamespace

from tpc_broker.broker.replicated import HANDED_OVER_AT_ONCE, ReplicatedPartitions

COUNT = 2 * HANDED_OVER_AT_ONCE + 20


def draining(transfer):
    """A core of node 1, which leads that many partitions of four replicas; node 2 drains, and node 4 has no space."""
    led = [SimpleNamespace(key=number, index=number, led_epoch=1) for number in range(COUNT)]
    made = object.__new__(ReplicatedPartitions)
    made._handed_over = 0
    made._core = SimpleNamespace(
        view=SimpleNamespace(image=SimpleNamespace(draining={1, 2})),
        partitions=SimpleNamespace(opened=lambda: iter(led)),
    )
    made.replication = SimpleNamespace(
        in_sync=lambda _key: (1, 2, 3, 4), has_space=lambda _key, node: node != 4, transfer=transfer
    )
    return made, led


def test_leaderships_are_handed_over_some_at_a_time_and_to_nobody_that_drains_or_has_no_space():
    given = []

    def transfer(key, node):
        given.append((key, node))
        led[key].led_epoch = None
        return True

    made, led = draining(transfer)
    for looks in range(1, 4):
        made._lead_no_more()
        assert len(given) == min(COUNT, looks * HANDED_OVER_AT_ONCE)
    assert sorted(given) == [(key, 3) for key in range(COUNT)]


def test_who_does_not_take_its_leaderships_holds_the_others_up_no_longer_than_a_round():
    tried = []
    made, _led = draining(lambda key, _node: tried.append(key) or True)
    for _look in range(3):
        made._lead_no_more()
    assert set(tried) == set(range(COUNT))
    assert len(tried) == 3 * HANDED_OVER_AT_ONCE
