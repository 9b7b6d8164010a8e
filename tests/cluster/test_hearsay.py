"""What nodes tell each other of whom they hear over their links."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio
import trio.testing

from tpc_broker.errors import MailboxError
from tpc_broker.node.membership.hearsay import Hearsay


class Links:
    """Of node 1. `told`: what was told whom; `refuses`: who answers with an error."""

    def __init__(self, nursery):
        self.nursery, self.peers, self.told, self.refuses, self.answer = nursery, {}, [], set(), None

    def serve(self, _method, handler):
        self.answer = handler

    def link(self, node, boot=1):
        async def call(_method, payload):
            await trio.lowlevel.checkpoint()
            self.told.append((node, payload["nodes"]))
            if node in self.refuses:
                raise MailboxError("not now")

        self.peers[node] = SimpleNamespace(hello=SimpleNamespace(node=node, boot=boot), call=call)


def run(story, check=lambda _hello: None):
    async def with_links():
        async with trio.open_nursery() as nursery:
            links = Links(nursery)
            await story(links, Hearsay(links, check))

    trio.run(with_links)


async def told(links, hearsay, heard):
    """By telling twice at once, as whenever something happens."""
    links.told = []
    for _again in range(2):
        hearsay.tell(frozenset(heard))
    await trio.testing.wait_all_tasks_blocked()
    return links.told


def test_each_node_is_told_once_until_it_is_otherwise_or_another_start():
    async def story(links, hearsay):
        links.link(2)
        links.link(3)
        links.peers[4] = SimpleNamespace(hello=None)
        assert sorted(await told(links, hearsay, {2, 3})) == [(2, [2, 3]), (3, [2, 3])]
        assert await told(links, hearsay, {2, 3}) == []
        assert sorted(await told(links, hearsay, {3})) == [(2, [3]), (3, [3])]
        links.link(3, boot=2)
        assert await told(links, hearsay, {3}) == [(3, [3])]

    run(story)


def test_who_did_not_take_it_is_told_again():
    async def story(links, hearsay):
        links.link(2)
        links.refuses = {2}
        assert await told(links, hearsay, {2}) == [(2, [2])]
        assert await told(links, hearsay, {2}) == [(2, [2])]
        links.refuses = set()
        assert await told(links, hearsay, {2, 3}) == [(2, [2, 3])]
        assert await told(links, hearsay, {2, 3}) == []

    run(story)


def test_what_counts_is_what_those_said_last_that_are_heard():
    async def story(links, hearsay):
        assert hearsay.heard_by({2, 3}) == frozenset()
        for node, nodes in ((2, [1, 3, 4]), (3, [5]), (2, [1, 4])):
            await links.answer(SimpleNamespace(node=node), {"nodes": nodes}, [])
        assert hearsay.heard_by({2}) == {1, 4}
        assert hearsay.heard_by({2, 3}) == {1, 4, 5}
        assert hearsay.heard_by(()) == frozenset()

    run(story)


def test_who_is_no_member_says_nothing():
    def refuse(_hello):
        raise MailboxError("who tells is no member")

    async def story(links, hearsay):
        with pytest.raises(MailboxError):
            await links.answer(SimpleNamespace(node=2), {"nodes": [4]}, [])
        assert hearsay.heard_by({2}) == frozenset()

    run(story, refuse)
