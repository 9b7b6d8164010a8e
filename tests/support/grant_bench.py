"""A plane that asks about subjects, with rules that the test makes: what Python decides, without the broker's."""

from __future__ import annotations

import uuid

from tests.support.fetch_bench import FETCH, FetchBench
from tests.support.plane_bench import topic_id_of
from tests.support.plane_values import Left
from tpc_broker._ring import lib
from tpc_broker.broker.ports import ProduceFallback
from tpc_broker.engine.produces import asked_produce

READ, WRITE, TRANSACT = lib.TPC_RIGHT_READ, lib.TPC_RIGHT_WRITE, lib.TPC_RIGHT_TRANSACT
ALICE, BOB = 1, 2


class GrantBench(FetchBench):
    """`rules` are (subject, right, topic or transactional id). What C leaves for want of rights is decided by them
    while `decides`; `decided` has what was.
    """

    def __init__(self, path, *, in_c=True, asks_about_subjects=True, **options):
        super().__init__(path, in_c=in_c, **options)
        self.core.grants = self
        self.rules, self.decided, self.decides = set(), [], True
        self.generation = 0
        self.subjects = {}
        self.waiting = []
        self.plane.take_transactions()
        if asks_about_subjects:
            self.begin()

    def begin(self):
        self.generation += 1
        self.face.begin_grants(self.generation)

    def change(self, *, add=(), remove=()):
        """The rules, so that C hears of it."""
        self.rules = (self.rules | set(add)) - set(remove)
        self.generation += 1
        self.face.forget_grants(self.generation)

    def connect_as(self, subject):
        """A client whose connection has a subject; 0: it is not known yet."""
        client = self.connect()
        self.until(lambda: len(self.opened) > len(self.subjects))
        connection = self.opened[len(self.subjects)][0]
        self.subjects[connection] = subject
        if subject:
            self.connections.let_in(connection, subject, 0, f"User:{subject}", "127.0.0.1")
        return client

    def counts(self):
        return self.face.grant_statistics()

    # -- Python's part ------------------------------------------------------------------------------------------------

    def _decide(self, subject, right, name):
        is_allowed = (subject, right, name) in self.rules
        self.decided.append((subject, right, name, is_allowed))
        if right == TRANSACT:
            self.face.grant_transactional(self.generation, subject, name, is_allowed=is_allowed)
        else:
            topic_id = uuid.UUID(bytes=topic_id_of(name))
            self.face.grant(self.generation, subject, topic_id, writes=right == WRITE, is_allowed=is_allowed)

    def name(self, request):
        self.face.name_subject(request, self.subjects[request.connection])

    def decide_fetch(self, request, fetch):
        for topic in dict.fromkeys(part.topic for part in fetch.parts):
            name = topic if isinstance(topic, str) else topic.bytes.rstrip(b"!").decode()
            self._decide(self.subjects[request.connection], READ, name)

    def decide_produce(self, request):
        asked = asked_produce(self.plane.pointer, request)
        assert not isinstance(asked, ProduceFallback)
        self.name(request)
        subject = self.subjects[request.connection]
        for topic in dict.fromkeys(part.topic for part in asked.parts):
            self._decide(subject, WRITE, topic)
        if asked.transactional_id is not None:
            self._decide(subject, TRANSACT, asked.transactional_id)

    def offer(self, request):
        if not self.decides and request.api_key == FETCH:
            self.waiting.append(request)
            return
        super().offer(request)
        if self.decides and self.left and self.left[-1][0] is Left.AUTHORIZE:
            self.left.pop()
            self.decide_produce(request)
            if not self.plane.produce(request):
                self.left.append((self.plane.fallback_reason, request))
