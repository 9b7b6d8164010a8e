"""One side of a differential test: sends a scenario's requests to one broker and writes down the decoded answers.

Theory of operation. A scenario is a function that takes a `Dialogue`; it is run once against each peer, and what it
does may depend only on the answers (a member id that the broker chose is used in the next request). The dialogue keeps
every exchange with its answer *normalised*: values that differ from peer to peer by nature (ids, ports, producer ids,
session ids, clock times) become symbols such as `<member 1>`, numbered in the order in which they were first seen, so
that a wrong identity still shows. Everything else is kept as it came.

Requests for a partition or a group are sent to the broker that Metadata or FindCoordinator names (one of several cores
of ours), over connections that carry nothing that is compared.
"""

from __future__ import annotations

import re
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.definitions import NO_ID, Malformed, decode, decode_response, message
from tests.support.native_batches import read_records
from tests.support.raw_client import Closed, RawConnection
from tests.support.record_batches import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, read_batches
from tests.support.server_process import Broker
from tpc_broker.kafka.compression import Compression, decompress

BASE_MS = int(time.time()) * 1000 - 3_600_000
"""A recent time stamp, the same for both peers of a run: old records would be deleted by retention."""

_CLOCK_FROM_MS = BASE_MS + 3_500_000
"""Record time stamps after this one were taken from a broker's clock: scenarios use none in between."""

CLOSED = "<connection closed>"
NO_ANSWER = "<no answer>"
_ANSWER_SECONDS = _PATIENCE_S = 60.0
_PAUSE_S = 0.02

_MUTATING = {
    "CreateTopics", "DeleteTopics", "CreatePartitions", "AlterConfigs", "IncrementalAlterConfigs",
    "AlterUserScramCredentials", "AlterClientQuotas",
}  # fmt: skip
_KAFKA_SETTLING_SECONDS = 0.1
"""Kafka answers these before its broker has applied the change; ours must have applied it, so it gets no such pause."""

_UUID_IN_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_MADE_MEMBER_ID = re.compile(r"[A-Za-z0-9_-]{22}")
"""A member id that the coordinator of a consumer group makes for a member that has brought none. Ours makes a UUID for
one that comes by JoinGroup.
"""

_BROKER_ID_FIELDS = {"LeaderId", "NodeId", "ControllerId", "BrokerId"}
_BROKER_LIST_FIELDS = {"ReplicaNodes", "IsrNodes", "OfflineReplicas"}
_EPOCH_FIELDS = {"LeaderEpoch", "CommittedLeaderEpoch", "Epoch"}
_TEXT_FIELDS = {"ErrorMessage", "BatchIndexErrorMessage", "Documentation"}
_ITEM_KEYS = (
    "Name", "Topic", "TopicId", "GroupId", "ResourceName", "Key", "MemberId", "LogDir", "ApiKey", "NodeId",
    "PartitionIndex", "Partition", "Index", "PartitionId", "BatchIndex", "Feature", "User", "Mechanism",
)  # fmt: skip
"""What names an item of a list. Kafka lists a user's mechanisms in an order that is another in each JVM."""


def _tries() -> Iterator[None]:
    """Of a loop that asks again, with pauses in between, for as long as a busy machine may need."""
    give_up_at = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up_at:
        yield
        time.sleep(_PAUSE_S)


@dataclass(frozen=True)
class Exchange:
    api: str
    version: int
    request: Any
    answer: Any
    """Normalised body, or `CLOSED`, or `NO_ANSWER`, or a string that says why the bytes are no answer."""


class Symbols:
    """Numbers values in the order of their first appearance, by kind."""

    def __init__(self) -> None:
        self._known: dict[str, dict[Any, str]] = {}

    def of(self, kind: str, value: Any) -> str:
        known = self._known.setdefault(kind, {})
        return known.setdefault(value, f"<{kind} {len(known) + 1}>")


@dataclass
class Dialogue:
    """`prefix` names the scenario; topics and groups it makes start with it, and listings show only those."""

    peer: Broker
    prefix: str
    first_epoch: int = 0
    """Leader epoch of a partition that was just made; epochs are compared relative to it."""
    trace: list[Exchange] = field(default_factory=list)
    symbols: Symbols = field(default_factory=Symbols)
    topic_ids: dict[uuid.UUID, str] = field(default_factory=dict)
    normaliser: type[Normaliser] | None = None
    _lines: dict[tuple[int, str], Line] = field(default_factory=dict)
    _guide: RawConnection | None = None

    # ---- where to send ------------------------------------------------------------------------------------------

    def line(self, port: int, name: str = "") -> Line:
        key = (port, name)
        if key not in self._lines:
            self._lines[key] = Line(self, port)
        return self._lines[key]

    @property
    def anywhere(self) -> Line:
        """A connection to the first broker of the list."""
        return self.line(self.peer.ports[0])

    def guide(self, api: str, version: int, values: dict[str, Any]) -> dict[str, Any]:
        """Ask something that is not part of what is compared."""
        if self._guide is None:
            self._guide = RawConnection("127.0.0.1", self.peer.ports[0], timeout_seconds=_ANSWER_SECONDS)
        return self._guide.ask(api, version, values)

    def guide_coordinator(self, group: str, api: str, version: int, values: dict[str, Any]) -> dict[str, Any]:
        """Like `guide`, of the group's coordinator."""
        [found] = self.guide("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": [group]})["Coordinators"]
        with RawConnection("127.0.0.1", found["Port"], timeout_seconds=_ANSWER_SECONDS) as connection:
            return connection.ask(api, version, values)

    def until(self, holds: Callable[[], bool]) -> None:
        """Poll until something holds that another connection's request brings about."""
        for _ in _tries():
            if holds():
                return
        raise AssertionError("it never came to hold")

    def settle(self) -> None:
        """Until Kafka's broker has applied what its controller has committed, and has had a moment to open and close
        logs; ours has done both when it answers.
        """
        if self.peer.name == "kafka":
            log = {"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}
            [topic] = self.guide("DescribeQuorum", 0, {"Topics": [log]})["Topics"]
            last = topic["Partitions"][0]["HighWatermark"] - 1
            asked = {"ClientSoftwareName": "guide", "ClientSoftwareVersion": "1"}
            self.until(lambda: self.guide("ApiVersions", 3, asked)["FinalizedFeaturesEpoch"] >= last)
            time.sleep(_KAFKA_SETTLING_SECONDS)

    def until_described(self, group: str) -> None:
        """Kafka tells a first member its id before the group that this makes is durable, and can be described; ours
        must have it when it answers.
        """
        if self.peer.name == "kafka":
            asked = {"Groups": [group]}
            self.until(
                lambda: self.guide_coordinator(group, "DescribeGroups", 5, asked)["Groups"][0]["GroupState"] != "Dead"
            )

    def leader(self, topic: str, partition: int = 0, name: str = "") -> Line:
        """A connection to the leader of a partition; the first broker's where there is no such partition."""
        asked = {"Topics": [{"Name": topic}], "AllowAutoTopicCreation": False}
        answer = self.guide("Metadata", 12, asked)
        ports = {broker["NodeId"]: broker["Port"] for broker in answer["Brokers"]}
        for found in answer["Topics"][0]["Partitions"]:
            if found["PartitionIndex"] == partition and found["LeaderId"] in ports:
                return self.line(ports[found["LeaderId"]], name)
        return self.line(self.peer.ports[0], name)

    def coordinator(self, group: str, name: str = "") -> Line:
        """A connection to the group's coordinator; waits while there is none yet."""
        for _ in _tries():
            [answer] = self.guide("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": [group]})["Coordinators"]
            if answer["ErrorCode"] == 0:
                return self.line(answer["Port"], name)
        raise AssertionError(f"no coordinator for {group}: {answer}")

    def ask_every_broker(self, api: str, version: int, values: dict[str, Any], listed: str) -> None:
        """What each broker answers for itself alone, as one answer: the lists named `listed` in a row."""
        merged: dict[str, Any] | str = NO_ANSWER
        for port in self.peer.ports:
            with RawConnection("127.0.0.1", port, timeout_seconds=_ANSWER_SECONDS) as connection:
                answer = connection.ask(api, version, values)
            if isinstance(merged, dict):
                answer[listed] = merged[listed] + answer[listed]
            merged = answer
        self.note(api, version, values, merged)

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        if self._guide is not None:
            self._guide.close()

    # ---- what scenarios need often ------------------------------------------------------------------------------

    def topic(
        self,
        name: str,
        partitions_count: int = 1,
        configs: dict[str, str] | None = None,
        assigned_to: list[int] | None = None,
    ) -> str:
        """Make a topic, wait until it has leaders, and learn its id; not compared. Returns the full name."""
        full = f"{self.prefix}-{name}"
        wanted = {
            "Name": full,
            "NumPartitions": partitions_count,
            "ReplicationFactor": 1,
            "Configs": [{"Name": key, "Value": value} for key, value in (configs or {}).items()],
        }
        if assigned_to is not None:
            partitions_count = len(assigned_to)
            wanted["NumPartitions"] = wanted["ReplicationFactor"] = -1
            wanted["Assignments"] = [
                {"PartitionIndex": index, "BrokerIds": [broker]} for index, broker in enumerate(assigned_to)
            ]
        [made] = self.guide("CreateTopics", 7, {"Topics": [wanted], "timeoutMs": 10_000})["Topics"]
        assert made["ErrorCode"] == 0, made
        self.topic_ids[made["TopicId"]] = full
        self.wait_for_topic(full, partitions_count)
        return full

    def wait_for_topic(self, full: str, partitions_count: int) -> None:
        """Kafka answers before its broker has the new partitions; ours must have them when it answers."""
        for _ in _tries() if self.peer.name == "kafka" else range(1):
            asked = {"Topics": [{"Name": full}], "AllowAutoTopicCreation": False}
            [found] = self.guide("Metadata", 12, asked)["Topics"]
            led = [one for one in found["Partitions"] if one["ErrorCode"] == 0]
            if found["ErrorCode"] == 0 and len(led) == partitions_count:
                self.settle()
                return
        raise AssertionError(f"topic {full} has no leaders: {found}")

    def wait_for_topic_made(self, full: str) -> None:
        """After a Metadata request that makes a topic, which nobody promises to have happened yet."""
        for _ in _tries():
            asked = {"Topics": [{"Name": full}], "AllowAutoTopicCreation": False}
            [found] = self.guide("Metadata", 12, asked)["Topics"]
            if found["ErrorCode"] == 0 and all(one["ErrorCode"] == 0 for one in found["Partitions"]):
                self.topic_ids[found["TopicId"]] = full
                return
        raise AssertionError(f"topic {full} was not made: {found}")

    def topic_id(self, full: str) -> uuid.UUID:
        for known, name in reversed(self.topic_ids.items()):
            if name == full:
                return known
        raise KeyError(full)

    def epoch(self, relative: int) -> int:
        """An absolute leader epoch for a request; negative ones mean none."""
        return relative if relative < 0 else relative + self.first_epoch

    def note(self, api: str, version: int, request: Any, answer: Any) -> None:
        if isinstance(answer, dict):
            answer = (self.normaliser or Normaliser)(self, api).body(answer)
        self.trace.append(Exchange(api, version, request, answer))
        if api in _MUTATING and _changed_something(answer):
            self.settle()


def _changed_something(answer: Any) -> bool:
    """Whether any topic or resource of the answer is without error."""
    if not isinstance(answer, dict):
        return False
    items = next(filter(None, map(answer.get, ("Topics", "Responses", "Results", "Entries"))), ())
    return any(one.get("ErrorCode") == 0 for one in items)


class Line:
    """A connection whose exchanges are compared; opened again after the broker closed it."""

    def __init__(self, dialogue: Dialogue, port: int) -> None:
        self._dialogue = dialogue
        self._port = port
        self._connection: RawConnection | None = None
        self._pending: list[tuple[str, int, dict[str, Any]]] = []

    def _open(self) -> RawConnection:
        if self._connection is None:
            self._connection = RawConnection("127.0.0.1", self._port, timeout_seconds=_ANSWER_SECONDS)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self, api: str, version: int, values: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send, wait, note. Returns the body as it came; an empty dictionary when there was none."""
        self.send(api, version, values)
        return self.receive()

    def send(self, api: str, version: int, values: dict[str, Any] | None = None) -> None:
        """Send now; `receive` takes the answer later."""
        try:
            self._open().send(api, version, values or {})
        except Closed:
            self.close()
        self._pending.append((api, version, values or {}))

    def receive(self) -> dict[str, Any]:
        """The answer to the oldest request that has none yet."""
        api, version, values = self._pending.pop(0)
        raw = self._take_frame()
        if isinstance(raw, str):
            self._dialogue.note(api, version, values, raw)
            return {}
        try:
            _, body = decode_response(api, version, raw)
        except Malformed as problem:
            self._dialogue.note(api, version, values, f"<malformed: {problem}>")
            return {}
        self._dialogue.note(api, version, values, body)
        return body

    def _take_frame(self) -> bytes | str:
        if self._connection is None:
            return CLOSED
        try:
            return self._connection.receive_frame()
        except Closed:
            self.close()
            return CLOSED
        except TimeoutError:
            self.close()
            return NO_ANSWER

    def exchange_bytes(self, label: str, payload: bytes) -> bytes | str:
        """Send any frame; note whether it is answered, ignored, or ends the connection. Returns the answer."""
        try:
            self._open().send_frame(payload)
        except Closed:
            self.close()
        raw = self._take_frame()
        self._dialogue.note(label, 0, payload[:200], raw if isinstance(raw, str) else "<an answer>")
        return raw

    def expect_silence(self, api: str, version: int, values: dict[str, Any]) -> None:
        """Send what must not be answered (acks=0); the next answer must be that of a request behind it."""
        try:
            connection = self._open()
            connection.send(api, version, values)
            connection.send("ApiVersions", 0, {})
        except Closed:
            self.close()
        raw = self._take_frame()
        if isinstance(raw, bytes):
            (error,) = struct.unpack(">h", raw[4:6])
            raw = f"<silence, then ApiVersions {error}>" if len(raw) > 60 else f"<{len(raw)} bytes instead of silence>"
        self._dialogue.note(api, version, values, raw)


class Normaliser:
    """Makes one answer comparable; see the module's docstring for the rule."""

    def __init__(self, dialogue: Dialogue, api: str) -> None:
        self._dialogue = dialogue
        self._api = api

    def body(self, values: dict[str, Any]) -> dict[str, Any]:
        self._learn_topic_ids(values)
        if self._api == "ListTransactions":  # in no order, and before producers are numbered in the order of the answer
            states = self._own(values["TransactionStates"], "TransactionalId")
            values = {**values, "TransactionStates": sorted(states, key=lambda one: str(one["TransactionalId"]))}
        normalised = self._struct(values)
        special = getattr(self, f"_{self._api}", None)
        return special(normalised) if special else normalised

    def _learn_topic_ids(self, value: Any) -> None:
        if isinstance(value, list):
            for item in value:
                self._learn_topic_ids(item)
        elif isinstance(value, dict):
            name = value.get("Name") or value.get("Topic")
            if name and value.get("TopicId", NO_ID) != NO_ID:
                self._dialogue.topic_ids[value["TopicId"]] = name
            for item in value.values():
                self._learn_topic_ids(item)

    def _struct(self, values: dict[str, Any]) -> dict[str, Any]:
        return {key: self._value(key, value, values) for key, value in values.items()}

    def _value(self, key: str, value: Any, around: dict[str, Any]) -> Any:
        if key == "Records" and value is not None:
            return self._batches(value)
        if key in _BROKER_LIST_FIELDS and value is not None:
            return ["<broker>" for _ in value]
        if isinstance(value, dict):
            return self._struct(value)
        if isinstance(value, list):
            return [self._value(key, item, around) for item in value]
        return self._scalar(key, value)

    def _scalar(self, key: str, value: Any) -> Any:
        symbols = self._dialogue.symbols
        if isinstance(value, uuid.UUID):
            return self._id(value)
        if isinstance(value, bool) or value is None or isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return self._text(key, value)
        if key in _BROKER_ID_FIELDS:
            return "<broker>" if value >= 0 else value
        if key in _EPOCH_FIELDS:
            return value - self._dialogue.first_epoch if value >= 0 else value
        if key == "Port":
            return "<port>" if value > 0 else value
        if key == "SessionId":
            return symbols.of("session", value) if value else 0
        if key == "ProducerId":
            return symbols.of("producer", value) if value >= 0 else value
        if key == "LogAppendTimeMs":
            return "<time>" if value > 0 else value
        if key in ("Timestamp", "LastTimestamp", "TransactionStartTimeMs") and value > _CLOCK_FROM_MS:
            return "<time>"
        if key in ("TotalBytes", "UsableBytes"):
            return "<bytes>" if value > 0 else value
        return value

    def _id(self, value: uuid.UUID) -> Any:
        if value == NO_ID or value.int < 1000:
            return str(value)
        name = self._dialogue.topic_ids.get(value)
        return f"<id of {name}>" if name else self._dialogue.symbols.of("id", value)

    def _text(self, key: str, value: str) -> str:
        if key == "ClusterId":
            return "<cluster>"
        if key == "LogDir":
            return "<path>" if value else value
        if key in _TEXT_FIELDS:
            return "<text>" if value else value
        if key == "MemberId" and (_MADE_MEMBER_ID.fullmatch(value) or _UUID_IN_TEXT.fullmatch(value)):
            return self._dialogue.symbols.of("member", value)
        return _UUID_IN_TEXT.sub(lambda found: self._dialogue.symbols.of("uuid", found.group()), value)

    def _batches(self, raw: bytes) -> list[dict[str, Any]]:
        batches = read_batches(raw)
        for one in batches:
            if one["attributes"] & 7 and one["attributes"] & DELETE_HORIZON | (
                one["records_count"] <= one["last_offset_delta"]
            ):  # a cleaner has packed it
                unpacked = read_records(decompress(Compression(one["attributes"] & 7), one["records"]))
                one["records"] = [tuple(record) for record in unpacked]
            if one["leader_epoch"] >= 0:
                one["leader_epoch"] -= self._dialogue.first_epoch
            if one["attributes"] & LOG_APPEND_TIME:
                one["max_timestamp"] = "<time>"
            if one["attributes"] & CONTROL:  # by the broker's clock; its value is the coordinator's epoch
                one["max_timestamp"] = "<time>"
                one["base_timestamp"] = "<time>" if one["base_timestamp"] >= 0 else one["base_timestamp"]
                one["records"] = [key for _offset, _timestamp, key, _value, _headers in one["records"]]
            elif one["attributes"] & DELETE_HORIZON and one["base_timestamp"] > _CLOCK_FROM_MS:  # a cleaner's clock
                since = one["base_timestamp"]
                one["records"] = [(offset, since + delta, *more) for offset, delta, *more in one["records"]]
                one["base_timestamp"] = "<horizon>"
            identifier, epoch, sequence = one["producer"]
            if identifier >= 0:
                one["producer"] = (self._dialogue.symbols.of("producer", identifier), epoch, sequence)
        return batches

    # ---- answers that show more than the scenario's own things ---------------------------------------------------

    def _own(self, items: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
        own = [item for item in items if (item.get(key) or self._dialogue.prefix).startswith(self._dialogue.prefix)]
        return own or items[:0]

    def _one_broker(self, values: dict[str, Any]) -> dict[str, Any]:
        if values.get("Brokers"):
            same = all(one == values["Brokers"][0] for one in values["Brokers"])
            values["Brokers"] = values["Brokers"][:1] if same else values["Brokers"]
        return values

    def _Metadata(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 (named after the API)
        others = [one for one in values["Topics"] if one["ErrorCode"] != 0]
        listed = [one for one in values["Topics"] if one["ErrorCode"] == 0]
        values["Topics"] = self._own(listed, "Name") + others
        return self._one_broker(values)

    def _DescribeCluster(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        return self._one_broker(values)

    def _DescribeQuorum(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        """How far the metadata are, and what their listener is called, is each peer's own matter."""
        partitions = [partition for topic in values["Topics"] for partition in topic["Partitions"]]
        for each in [*partitions, *(voter for partition in partitions for voter in partition["CurrentVoters"])]:
            for key in ("HighWatermark", "LogEndOffset", "LastFetchTimestamp", "LastCaughtUpTimestamp"):
                if each.get(key, 0) > 0:
                    each[key] = "<known>"
            if "ReplicaId" in each:
                each["ReplicaId"] = "<broker>"
            if each.get("LeaderEpoch", -1) >= 0 and each.get("LeaderId", -1) != -1:
                each["LeaderEpoch"] = "<epoch>"
        for node in values.get("Nodes", ()):
            for listener in node["Listeners"]:
                listener["Name"] = "<name>" if listener["Name"] else ""
        return values

    def _AlterClientQuotas(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        """In no order."""
        for entry in values["Entries"]:
            entry["Entity"].sort(key=lambda one: one["EntityType"])
        values["Entries"].sort(key=lambda entry: str(entry["Entity"]))
        return values

    def _DescribeClientQuotas(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        """In no order."""
        for entry in values["Entries"] or ():
            entry["Entity"].sort(key=lambda one: one["EntityType"])
            entry["Values"].sort(key=lambda one: one["Key"])
        if values["Entries"]:
            values["Entries"].sort(key=lambda entry: str(entry["Entity"]))
        return values

    def _DescribeProducers(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        """In no order."""
        for partition in (one for topic in values["Topics"] for one in topic["Partitions"]):
            partition["ActiveProducers"].sort(key=lambda one: str(one["ProducerId"]))
        return values

    def _DescribeTransactions(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        """Topics and partitions are in no order."""
        for state in values["TransactionStates"]:
            state["Topics"].sort(key=lambda topic: str(topic["Topic"]))
            for topic in state["Topics"]:
                topic["Partitions"].sort()
        return values

    def _ConsumerGroupHeartbeat(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        """Partitions are in no order."""
        for topic in (values["Assignment"] or {}).get("TopicPartitions", ()):
            topic["Partitions"].sort()
        return values

    def _ConsumerGroupDescribe(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        """Names and partitions are in no order."""
        for member in (one for group in values["Groups"] for one in group["Members"]):
            member["SubscribedTopicNames"].sort()
            for assignment in (member["Assignment"], member["TargetAssignment"]):
                for topic in assignment["TopicPartitions"]:
                    topic["Partitions"].sort()
        return values

    def _ListGroups(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        values["Groups"] = sorted(self._own(values["Groups"], "GroupId"), key=lambda group: group["GroupId"])
        return values

    def _ListConfigResources(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        """Of topics, groups and subscriptions the scenario's own; of brokers one, as every core of ours is."""
        kinds = {4: "<broker>", 8: "<loggers of a broker>"}
        listed = [
            {**one, "ResourceName": kinds.get(one.get("ResourceType"), one["ResourceName"])}
            for one in values["ConfigResources"]
        ]
        named = {2, 16, None, 32}  # version 0 has subscriptions alone, and does not say so
        others = [one for one in listed if one.get("ResourceType") not in named]
        own = self._own([one for one in listed if one.get("ResourceType") in named], "ResourceName")
        values["ConfigResources"] = own + [one for i, one in enumerate(others) if one not in others[:i]]
        return values

    def _DescribeLogDirs(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        for one in values["Results"]:
            one["Topics"] = self._own(one["Topics"], "Name")
        return values

    def _ApiVersions(self, values: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        values["FinalizedFeaturesEpoch"] = "<epoch>" if values.get("FinalizedFeaturesEpoch", -1) >= 0 else "<none>"
        return values


# ---- comparison ---------------------------------------------------------------------------------------------------


def _item_key(item: Any, position: int) -> str:
    if isinstance(item, dict):
        keys = [str(item[key]) for key in _ITEM_KEYS if key in item and not isinstance(item[key], (list, dict))]
        if len(keys) > 1 and (item.get("Name") or item.get("Topic")) and "TopicId" in item:
            keys.remove(str(item["TopicId"]))  # a name says enough, and the id may be what differs
        if keys:
            return ",".join(keys)
    return str(position)


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Every scalar by its path, `Topics[foo].Partitions[0].ErrorCode`; list items by what names them, not by place."""
    if isinstance(value, dict):
        flat = {}
        for key, inner in value.items():
            flat.update(flatten(inner, f"{path}.{key}" if path else key))
        return flat
    if isinstance(value, list):
        flat = {f"{path}.length": len(value)}
        seen: dict[str, int] = {}
        for position, item in enumerate(value):
            name = _item_key(item, position)
            seen[name] = seen.get(name, 0) + 1
            again = f"#{seen[name]}" if seen[name] > 1 else ""
            flat.update(flatten(item, f"{path}[{name}{again}]"))
        return flat
    return {path or "answer": value}


MISSING = "<missing>"


def differences(left: Any, right: Any) -> list[tuple[str, Any, Any]]:
    """Paths where two normalised answers differ, with both values."""
    if left != right and (isinstance(left, str) or isinstance(right, str)):
        return [("answer", left, right)]
    one, other = flatten(left), flatten(right)
    return [
        (path, one.get(path, MISSING), other.get(path, MISSING))
        for path in sorted(one.keys() | other.keys())
        if one.get(path, MISSING) != other.get(path, MISSING)
    ]


def stable_versions(api: str) -> range:
    """Every stable version of Kafka's definition."""
    described = message(f"{api}Request")
    return range(described.versions.lowest, described.versions.highest + 1 - (api in _LATEST_UNSTABLE))


_LATEST_UNSTABLE = {"InitProducerId"}
"""APIs of ours whose highest version Kafka 4.3 marks as unstable and does not advertise."""

Scenario = Callable[[Dialogue], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    """Register a scenario under its function's name."""
    name = function.__name__.replace("_", "-")
    assert name not in SCENARIOS, name
    SCENARIOS[name] = function
    return function


def warm_up(peer: Broker) -> None:
    """Wait until the broker has what it fetches late: its first block of producer ids, its group coordinators."""
    with RawConnection("127.0.0.1", peer.ports[0]) as connection:
        for _ in _tries():
            if connection.ask("InitProducerId", 4, {"TransactionalId": None})["ErrorCode"] == 0:
                break
        else:
            raise AssertionError("no producer id")
    for number in range(100):
        _wait_for_coordinator(peer, f"warm-up-{number}")


def _wait_for_coordinator(peer: Broker, group: str) -> None:
    """One of the 50 coordinators has loaded its partition."""
    for _ in _tries():
        with RawConnection("127.0.0.1", peer.ports[0]) as connection:
            asked = {"KeyType": 0, "CoordinatorKeys": [group]}
            [found] = connection.ask("FindCoordinator", 4, asked)["Coordinators"]
        if found["ErrorCode"] == 0:
            with RawConnection("127.0.0.1", found["Port"]) as connection:
                if connection.ask("OffsetFetch", 5, {"GroupId": group, "Topics": None})["ErrorCode"] == 0:
                    return
    raise AssertionError(f"no coordinator for {group}")


def first_epoch_of(peer: Broker) -> int:
    """The leader epoch that this broker gives to a new partition."""
    with RawConnection("127.0.0.1", peer.ports[0]) as connection:
        wanted = {"Name": "first-epoch", "NumPartitions": 1, "ReplicationFactor": 1}
        connection.ask("CreateTopics", 7, {"Topics": [wanted], "timeoutMs": 10_000})
        for _ in _tries():
            [found] = connection.ask("Metadata", 12, {"Topics": [{"Name": "first-epoch"}]})["Topics"]
            if found["ErrorCode"] == 0 and found["Partitions"][0]["ErrorCode"] == 0:
                return found["Partitions"][0]["LeaderEpoch"]
    raise AssertionError("no leader")


__all__ = ["BASE_MS", "Dialogue", "Line", "decode", "scenario", "stable_versions"]
