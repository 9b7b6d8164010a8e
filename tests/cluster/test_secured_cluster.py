"""Three nodes with logins, rules of access and encrypted links, that are killed, paused and cut off: what was
acknowledged is there, and who has no right gets nothing, whatever fails meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.cluster.test_histories import fail
from tests.support.broker_process import run_command
from tests.support.cluster_nodes import Cluster, eventually
from tests.support.host_nodes import cluster_on_hosts
from tests.support.namespaces import Hosts, why_no_namespaces
from tests.support.waiting import PATIENCE_S, stopwatch
from tpc_broker.engine.tls import is_built

WHY_NOT = why_no_namespaces()
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
    pytest.mark.skipif(not is_built(), reason="built without OpenSSL"),
]

SECONDS = 45
PARTITIONS = 6
OPEN, HIDDEN = "open", "hidden"
BEFORE = b"before the numbers"
PASSWORDS = {"admin": "the first one", "writer": "w,r=i", "reader": "only reads", "nobody": "may nothing"}
ATTACKS = ("kill", "pause", "isolate", "restart", "kill all")


def login(made: Cluster, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": made.bootstrap, "log_level": 0, "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": user, "sasl.password": PASSWORDS[user],
    }  # fmt: skip


def secure(made: Cluster) -> None:
    """Before the first start: one user who may do everything, given to one of the founders."""
    for node in made.nodes:
        node.overrides |= {
            "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT", "super.users": "User:admin",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4",
        }  # fmt: skip
    password = made.folder / "password"
    password.write_text(PASSWORDS["admin"])
    place = ["--data", str(made[1].data_folder), "--password-file", str(password)]
    added = run_command("user", "add", "admin", *place)
    assert added.returncode == 0, added.stderr


def rule(topic: str, user: str, operation: AclOperation) -> AclBinding:
    who, pattern = f"User:{user}", ResourcePatternType.LITERAL
    return AclBinding(ResourceType.TOPIC, topic, pattern, who, "*", operation, AclPermissionType.ALLOW)


def done(futures: dict[Any, Any]) -> bool:
    for each in futures.values():
        each.result(PATIENCE_S)
    return True


def set_up(made: Cluster) -> AdminClient:
    admin = AdminClient(login(made, "admin"))
    topics = [NewTopic(name, PARTITIONS, 3) for name in (OPEN, HIDDEN)]
    eventually(lambda: done(admin.create_topics(topics)), "topics are there")
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    changes = [
        UserScramCredentialUpsertion(name, info, password.encode())
        for name, password in PASSWORDS.items() if name != "admin"
    ]  # fmt: skip
    eventually(lambda: done(admin.alter_user_scram_credentials(changes)), "users are there")
    rules = [
        rule(OPEN, "writer", AclOperation.WRITE), rule(OPEN, "reader", AclOperation.READ),
        rule(HIDDEN, "writer", AclOperation.WRITE),
    ]  # fmt: skip
    eventually(lambda: done(admin.create_acls(rules)), "rules are there")
    eventually(lambda: may_write_everywhere(made), "all nodes know them")
    return admin


def may_write_everywhere(made: Cluster) -> bool:
    """Each node leads some of these: a rule is there a moment later than at the one that made it, as in Kafka."""
    producer, told = Producer({**login(made, "writer"), "message.timeout.ms": 10_000}), []

    def note(error: KafkaError | None, _message: Any) -> None:
        told.append(error)

    with suppress(KafkaException):  # librdkafka knows already that it may not
        for topic in (OPEN, HIDDEN):
            for partition in range(PARTITIONS):
                producer.produce(topic, BEFORE, partition=partition, on_delivery=note)
    producer.flush(PATIENCE_S)
    return told == [None] * 2 * PARTITIONS


class Writer:
    """Numbers, one after the other in each partition, each of which is acknowledged before it counts."""

    def __init__(self, made: Cluster) -> None:
        self.sent, self.acknowledged, self.failed = Counter(), {topic: {} for topic in (OPEN, HIDDEN)}, []
        self._made, self._is_over = made, threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _write(self) -> None:
        settings = {"acks": "all", "enable.idempotence": True, "message.timeout.ms": 240_000, "linger.ms": 5}
        producer = Producer({**login(self._made, "writer"), **settings})

        def told(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self.failed.append(error.str())
                return
            value = int(message.value())
            self.acknowledged[message.topic()].setdefault(message.partition(), []).append(value)

        while not self._is_over.is_set():
            for topic in (OPEN, HIDDEN):
                for partition in range(PARTITIONS):
                    producer.produce(topic, str(self.sent[topic, partition]), partition=partition, on_delivery=told)
                    self.sent[topic, partition] += 1
            producer.poll(0.02)
        assert producer.flush(240) == 0


class Intruder:
    """Asks again and again for what it may not have: whatever it is given is kept."""

    def __init__(self, made: Cluster, user: str) -> None:
        self.taken, self.refused, self._made, self._user = [], Counter(), made, user
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._try)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _try(self) -> None:
        chance = Random(1)
        consumer = Consumer({**login(self._made, self._user), "group.id": "g", "auto.offset.reset": "earliest"})
        producer = Producer({**login(self._made, self._user), "message.timeout.ms": 5_000})

        def told(error: KafkaError | None, message: Any) -> None:
            if error is None:
                self.taken.append(("write", message.topic()))
            else:
                self.refused["write", error.code()] += 1

        while not self._is_over.is_set():
            partition = chance.randrange(PARTITIONS)
            consumer.assign([TopicPartition(HIDDEN, partition, 0)])
            for message in consumer.consume(10, 0.5):
                error = message.error()
                if error is None:
                    self.taken.append(("read", message.topic()))
                else:
                    self.refused["read", error.code()] += 1
            try:
                producer.produce(HIDDEN, b"an intruder's", partition=partition, on_delivery=told)
            except KafkaException as error:  # librdkafka knows it already
                self.refused["write", error.args[0].code()] += 1
            producer.poll(0.2)
        consumer.close()
        producer.flush(PATIENCE_S)


def attack(made: Cluster, on: Hosts, chance: Random, kind: str) -> None:
    number = chance.choice([1, 2, 3])
    if kind == "restart":
        made[number].stop()
        made.start(number)
    elif kind == "kill all":
        made.kill_all()
        made.start()
    else:
        fail(made, on, kind, number, chance.uniform(0.5, 5))


def read(made: Cluster, user: str, topic: str) -> dict[int, list[int]]:
    """All that is there, by partition."""
    consumer = Consumer({**login(made, user), "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    ended: set[int] = set()
    try:
        patience = stopwatch()
        while len(ended) < PARTITIONS:
            assert patience() < PATIENCE_S
            for message in consumer.consume(1000, 1):
                error = message.error()
                if error is None:
                    if message.value() != BEFORE:
                        found[message.partition()].append(int(message.value()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                elif error.code() not in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._ALL_BROKERS_DOWN):
                    raise KafkaException(error)
    finally:
        consumer.close()
    return found


def test_a_secured_cluster_keeps_what_it_acknowledged_and_tells_nobody_else(tmp_path):
    chance = Random(7)
    with cluster_on_hosts(tmp_path, Hosts) as (made, on):
        secure(made)
        made.start()
        admin = set_up(made)
        with Writer(made) as writer, Intruder(made, "nobody") as nobody, Intruder(made, "reader") as reader:
            spent, times = stopwatch(), 0
            while spent() < SECONDS or times < len(ATTACKS):
                attack(made, on, chance, ATTACKS[times % len(ATTACKS)])
                times += 1
                time.sleep(chance.uniform(0.5, 2))
        assert writer.failed == []
        assert (nobody.taken, reader.taken) == ([], [])
        for intruder in (nobody, reader):  # librdkafka says nothing to a reader whose topic is hidden
            assert intruder.refused["write", KafkaError.TOPIC_AUTHORIZATION_FAILED] > 0, intruder.refused
            assert intruder.refused["read", KafkaError.GROUP_AUTHORIZATION_FAILED] > 0, intruder.refused
        for user, topic in (("reader", OPEN), ("admin", HIDDEN)):
            found = eventually(lambda user=user, topic=topic: read(made, user, topic), "it is read")
            for partition, values in found.items():
                acknowledged = writer.acknowledged[topic].get(partition, [])
                assert len(acknowledged) > 50
                assert values == list(range(writer.sent[topic, partition])), "each once, in its order"
                assert acknowledged == values
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        assert len(admin.describe_acls(everything).result(PATIENCE_S)) == 3
        eventually(lambda: done(admin.delete_acls([everything])), "the rules are gone")
        eventually(lambda: is_refused(made, OPEN), "and with them the right")


def is_refused(made: Cluster, topic: str) -> bool:
    """The writer, who was not before."""
    producer, told = Producer({**login(made, "writer"), "message.timeout.ms": 10_000}), []
    try:
        producer.produce(topic, b"too late", partition=0, on_delivery=lambda error, _message: told.append(error))
        producer.flush(PATIENCE_S)
    except KafkaException as error:  # librdkafka knows it already
        told.append(error.args[0])
    return told[0] is not None and bool(told[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED)
