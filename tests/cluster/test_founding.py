"""When a cluster is founded, joined, waited for or refused."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from tpc_broker.cluster.founding import Acceptor, Founding, Join, Propose, Refuse, SeedAddress, Status, Wait, next_step
from tpc_broker.feature_levels import Levels
from tpc_broker.raft.items import Voter

SEEDS = frozenset(SeedAddress("10.0.0.1", 9000 + number) for number in (1, 2, 3))
FOUNDING = Founding("there", (Voter(1, 11), Voter(2, 12)))


def status(node: int, **changes) -> Status:
    return replace(Status(node, 10 + node, SeedAddress("10.0.0.1", 9000 + node), SEEDS), **changes)


def step(own: Status, *others: Status):
    return next_step(own, {other.address: other for other in others}, "new")


def test_founders_found_when_all_were_seen():
    assert step(status(1), status(2), status(3)) == Propose(Founding("new", (Voter(1, 11), Voter(2, 12), Voter(3, 13))))
    assert isinstance(step(status(2), status(1), status(3)), Wait), "the one with the least id does it"


@pytest.mark.parametrize("others", [(), (status(2),), (status(3),)])
def test_a_founder_alone_never_founds(others):
    assert isinstance(found := step(status(1), *others), Wait)
    assert "missing" in found.reason


def test_who_is_no_founder_waits_and_joins():
    joiner = status(7)
    assert isinstance(step(joiner, status(1), status(2), status(3)), Wait)
    assert step(joiner, status(1), status(2, founding=FOUNDING)) == Join(FOUNDING)


def test_a_founder_that_comes_back_empty_joins():
    assert step(status(1), status(2, founding=FOUNDING)) == Join(FOUNDING)


def test_the_one_that_brings_data_founds_and_its_id_wins():
    assert step(status(2, data_cluster="old"), status(1), status(3)) == Propose(
        Founding("old", (Voter(1, 11), Voter(2, 12), Voter(3, 13)), 2)
    )
    assert isinstance(step(status(1), status(2, data_cluster="old"), status(3)), Wait)


SECURED = ("rules of access", "quotas")


@pytest.mark.parametrize("secured", [(), SECURED])
@pytest.mark.parametrize("highest", [5, 6])
def test_rules_that_the_cluster_could_not_keep_are_not_brought(secured, highest):
    own, other = status(2, data_cluster="old", levels=Levels(2, 6)), status(1, levels=Levels(2, highest))
    third = status(3, levels=Levels(2, 6))
    found = next_step(own, {each.address: each for each in (other, third)}, "new", secured)
    if not secured or highest == 6:
        assert isinstance(found, Propose)
        assert found.founding.level == highest
        return
    assert isinstance(found, Refuse)
    assert "this node brings rules of access, quotas, which a cluster keeps from feature level 6 on" in found.reason
    assert "node 1 at 10.0.0.1:9001 speaks" in found.reason
    joined = next_step(own, {other.address: replace(other, founding=replace(FOUNDING, cluster="old"))}, "new", secured)
    assert isinstance(joined, Join), "that of its own data is there"


def test_two_that_bring_data_are_refused_both_named():
    found = step(status(1, data_cluster="one"), status(2, data_cluster="two"), status(3))
    assert isinstance(found, Refuse)
    assert "one" in found.reason
    assert "two" in found.reason


def test_data_of_another_cluster_are_refused_both_named():
    found = step(status(3, data_cluster="mine"), status(1, founding=FOUNDING))
    assert isinstance(found, Refuse)
    assert "mine" in found.reason
    assert "there" in found.reason
    assert step(status(3, data_cluster="there"), status(1, founding=FOUNDING)) == Join(FOUNDING)


def test_seeds_of_two_clusters_are_refused():
    found = step(status(7), status(1, founding=FOUNDING), status(2, founding=Founding("elsewhere", FOUNDING.voters)))
    assert isinstance(found, Refuse)
    assert "elsewhere" in found.reason


def test_an_id_that_is_alive_is_refused_by_name():
    found = step(status(1, incarnation=99), status(1, address=SeedAddress("10.0.0.1", 9002)))
    assert isinstance(found, Refuse)
    assert "node id 1 is alive at 10.0.0.1:9002" in found.reason


def test_two_founders_with_one_id_are_refused():
    twin = status(2, address=SeedAddress("10.0.0.1", 9003))
    assert isinstance(step(status(1), status(2), twin), Refuse)


def test_founders_need_the_same_seeds():
    found = step(status(1), status(2), status(3, seeds=SEEDS | {SeedAddress("10.0.0.1", 9009)}))
    assert isinstance(found, Refuse)
    assert "9009" in found.reason


def test_a_cluster_begins_with_the_newest_level_that_all_founders_speak():
    def begun(*levels):
        own, *others = (replace(status(number), levels=Levels(*each)) for number, each in enumerate(levels, start=1))
        return step(own, *others)

    assert begun((2, 3), (2, 4), (1, 3)).founding.level == 3
    refused = begun((2, 2), (2, 4), (3, 4))
    assert isinstance(refused, Refuse)
    assert "speaks feature level 2 and node 3" in refused.reason
    assert begun((2, 2), (2, 2), (2, 2)).founding.level == 2


def test_more_founders_than_voters():
    seeds = frozenset(SeedAddress("10.0.0.1", 9000 + number) for number in range(1, 9))
    founders = [status(number, seeds=seeds) for number in range(1, 9)]
    found = step(founders[0], *founders[1:])
    assert [voter.node for voter in found.founding.voters] == [1, 2, 3, 4, 5]
    found = step(replace(founders[7], data_cluster="old"), *founders[:7])
    assert [voter.node for voter in found.founding.voters] == [1, 2, 3, 4, 8], "who brings data is among them"


def test_a_status_comes_back_from_json():
    for one in (status(1), status(2, founding=FOUNDING, data_cluster="x")):
        assert Status.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    ("field", "value"),
    [("node", -1), ("node", True), ("incarnation", 2**64), ("seeds", [["h", 0]]), ("seeds", [["h", 1]] * 65),
     ("address", ["", 1]), ("address", None), ("data_cluster", "x" * 65), ("founding", {"voters": []})],
)  # fmt: skip
def test_what_is_no_status_is_refused(field, value):
    with pytest.raises(ValueError, match=r"."):
        Status.from_json({**status(1).to_json(), field: value})


@pytest.mark.parametrize("seed", range(200))
def test_two_clusters_are_never_founded(seed):
    """Founders that all think that it is their turn, with any delay, loss and restart: at most one founding is made
    durable, because each needs every other one, and none accepts while it proposes itself.
    """
    chooser = random.Random(seed)
    names = range(3)
    acceptors = [Acceptor() for _ in names]
    asking: list[dict[int, bool | None] | None] = [None, None, None]
    founded: list[int | None] = [None, None, None]
    for _ in range(60):
        one = chooser.choice(names)
        match chooser.randrange(4):
            case 0 if founded[one] is None and asking[one] is None:
                acceptors[one].is_proposing = True
                asking[one] = {other: None for other in names if other != one}
            case 1 if asking[one] is not None:
                other = chooser.choice([other for other in names if other != one])
                asking[one][other] = acceptors[other].accepts()
            case 2 if asking[one] is not None:
                if all(asking[one].values()) and chooser.random() < 0.8:
                    founded[one] = one
                    acceptors[one].is_member = True
                asking[one] = None
                acceptors[one].is_proposing = False
            case 3:  # it is started again: what it has accepted or proposed is forgotten, what it has founded is not
                asking[one] = None
                acceptors[one] = Acceptor()
                acceptors[one].is_member = founded[one] is not None
    for one, two in itertools.combinations(names, 2):
        assert founded[one] is None or founded[two] is None, founded
