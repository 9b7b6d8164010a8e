"""How the controller is asked: over the link to it, else by who has one; and what is asked again."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from tpc_broker.errors import CallFailedError, CoreDownError, MailboxError, NotDeliveredError
from tpc_broker.model import NodeId
from tpc_broker.node.metadata.controller_calls import ControllerCalls
from tpc_broker.node.node import ClusterNodeMain
from tpc_broker.raft.items import Voter

CONTROLLER, HELPER, ASKS, ANOTHER = 1, 2, 3, 4


class Nodes:
    """`pairs` of them have links; `asked`: what was asked of whom. The controller answers what it is asked."""

    def __init__(self, *pairs):
        self.pairs, self.asked = set(pairs), []
        self.calls, self.heard_of = {}, {}
        self.answers, self.fails, self.controller, self.is_by_hearsay = {}, {}, CONTROLLER, True
        self.known, self.hangs, self.strangers = CONTROLLER, False, set()
        for number in (CONTROLLER, HELPER, ASKS, ANOTHER):
            self.calls[number] = ControllerCalls(
                Links(self, number), is_controller=lambda number=number: number == self.controller,
                known=lambda: self.known, followed=lambda: self.controller, is_by_hearsay=lambda: self.is_by_hearsay,
                told=lambda node, number=number: self.heard_of.update({number: node}),
                check=partial(self._check, number),
            )  # fmt: skip
            self.calls[number].serve("echo", self._echo)

    def _check(self, number, _hello):
        if number in self.strangers:
            raise MailboxError("who asks is no member")

    async def _echo(self, payload, blobs):
        await (trio.sleep_forever if self.hangs else trio.lowlevel.checkpoint)()
        return payload, blobs

    def ask(self):
        async def asked():
            return await self.calls[ASKS].call("echo", {"one": 1}, [b"two"])

        return trio.run(asked, clock=trio.testing.MockClock(autojump_threshold=0))


class Links:
    """Of one of them."""

    def __init__(self, nodes, number):
        self._nodes, self._number = nodes, number

    def serve(self, _method, handler):
        self._nodes.answers[self._number] = handler

    def peer_of(self, node):
        return self.peers.get(node)

    @property
    def peers(self):
        of = [pair for pair in sorted(self._nodes.pairs) if self._number in pair]
        return {node: self._peer(node) for pair in of for node in pair if node != self._number}

    def _peer(self, node):
        async def call(_method, asked, blobs, *, timeout_ms):
            assert timeout_ms
            self._nodes.asked.append((self._number, node))
            if node in self._nodes.fails:
                raise self._nodes.fails[node]
            try:
                return await self._nodes.answers[node](None, asked, blobs)
            except MailboxError as error:
                raise CallFailedError(str(error)) from error

        return SimpleNamespace(hello=SimpleNamespace(node=node), call=call)


def test_who_has_a_link_asks_over_it():
    nodes = Nodes((CONTROLLER, ASKS), (CONTROLLER, HELPER), (HELPER, ASKS))
    assert nodes.ask() == ({"one": 1}, [b"two"])
    assert nodes.asked == [(ASKS, CONTROLLER)]


def test_who_has_none_asks_by_the_first_who_has_one():
    nodes = Nodes((CONTROLLER, ANOTHER), (HELPER, ASKS), (ANOTHER, ASKS), (HELPER, ANOTHER))
    assert nodes.ask() == ({"one": 1}, [b"two"])
    assert nodes.asked == [(ASKS, HELPER), (ASKS, ANOTHER), (ANOTHER, CONTROLLER)]
    assert nodes.heard_of == {}


def test_nobody_is_asked_while_it_may_be_that_nobody_leads():
    nodes = Nodes((CONTROLLER, HELPER), (HELPER, ASKS))
    nodes.is_by_hearsay = False
    with pytest.raises(NotDeliveredError):
        nodes.ask()
    assert nodes.asked == []


def test_what_nobody_delivers_is_to_be_asked_again():
    nodes = Nodes((HELPER, ASKS))
    with pytest.raises(NotDeliveredError, match="nobody else has one"):
        nodes.ask()
    nodes.pairs.add((CONTROLLER, HELPER))
    nodes.fails[CONTROLLER] = NotDeliveredError("its link is full")
    with pytest.raises(NotDeliveredError):
        nodes.ask()


def test_what_may_have_been_done_is_not_asked_again_by_another():
    nodes = Nodes((CONTROLLER, HELPER), (CONTROLLER, ANOTHER), (HELPER, ASKS), (ANOTHER, ASKS))
    nodes.fails[CONTROLLER] = CoreDownError("the link ended")
    with pytest.raises(CallFailedError, match="the link ended"):
        nodes.ask()
    assert nodes.asked == [(ASKS, HELPER), (HELPER, CONTROLLER)]


def test_who_is_asked_and_leads_no_more_names_who_does():
    nodes = Nodes((CONTROLLER, HELPER), (HELPER, ASKS))
    nodes.controller = ANOTHER
    with pytest.raises(NotDeliveredError, match="another one"):
        nodes.ask()
    assert nodes.heard_of == {ASKS: ANOTHER}


def test_a_call_is_given_up_when_another_node_leads():
    nodes = Nodes((CONTROLLER, ASKS))
    nodes.hangs = True

    async def asked():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nodes.calls[ASKS].call, "echo", {}, [])
            await trio.sleep(60)
            nodes.known = None
            await trio.sleep(60)
            nodes.known = ANOTHER

    with pytest.RaisesGroup(pytest.RaisesExc(CoreDownError, match="another node leads the metadata by now")):
        trio.run(asked, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("who", [CONTROLLER, HELPER])
def test_only_members_are_answered_and_helped(who):
    nodes = Nodes((CONTROLLER, HELPER), (HELPER, ASKS))
    nodes.strangers.add(who)
    with pytest.raises(CallFailedError, match="no member"):
        nodes.ask()


def test_hearsay_of_a_term_that_is_over_is_not_believed():
    class Node:
        """As much of one as tells who leads: it follows node 2 in term 8, and has not heard it for a moment."""

        _identity, _is_voter = SimpleNamespace(node=1), True
        _group = SimpleNamespace(
            leader=Voter(NodeId(2), 0), heard=lambda: frozenset({3}), group=SimpleNamespace(term=8)
        )
        _follows, _is_told_more = ClusterNodeMain._follows, ClusterNodeMain._is_told_more
        _followed, _controller_node = ClusterNodeMain._followed, ClusterNodeMain._controller_node

        def __init__(self, term):
            self._observer = SimpleNamespace(is_told=True, controller=3, term=term)

    assert [Node(term)._controller_node for term in (7, 8, 9)] == [2, 3, 3]
