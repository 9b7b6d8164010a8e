"""The image: replay, snapshot, bytes."""

import base64
import json
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.auth.acls import AclBinding, Pattern, Permission
from tpc_broker.auth.credentials import ScramMechanism, credential_of_password
from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.auth.principals import Principal
from tpc_broker.feature_levels import UNSAID, Levels
from tpc_broker.metadata.acl_records import AclsChanged
from tpc_broker.metadata.image import (
    DELETIONS_REMEMBERED_MAX,
    REMOVALS_REMEMBERED_MAX,
    ClusterImage,
    changed_topics,
)
from tpc_broker.metadata.records import (
    RECORD_TYPES,
    BrokerConfigChanged,
    ClientQuotaChanged,
    ClusterCreated,
    CoresChanged,
    FeatureLevelChanged,
    MetadataDamagedError,
    MoveBegun,
    MoveDone,
    NodeAddress,
    NodeRegistered,
    NodeRemoved,
    ProducerIdsReserved,
    ResourceConfigChanged,
    ScramCredentialChanged,
    TopicAssigned,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    credential_changed,
    decode_record,
    encode_record,
    to_json,
)
from tpc_broker.model import NOT_HERE, MetadataVersion, Replica, TopicId, TopicPartition

IDS = [TopicId(uuid.UUID(int=n)) for n in range(10, 15)]
CREDENTIALS = {
    (mechanism, password): credential_of_password(mechanism, password, b"salt", 1)
    for mechanism in ScramMechanism for password in ("a", "pässword")
}  # fmt: skip
names = st.sampled_from(["retention.ms", "segment.ms"])
values = st.one_of(st.none(), st.sampled_from(["1", "2"]))
owners = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)
replicas = owners.map(lambda cores: tuple((Replica(core + 5, core),) for core in cores))
acls = st.builds(
    AclBinding, st.sampled_from(Resource), st.sampled_from(Pattern), st.sampled_from(["a", "größe", "*"]),
    st.sampled_from([Principal("User", "a:b"), Principal("User", "*"), Principal("Group", "")]),
    st.sampled_from(["*", "::1"]), st.sampled_from(Operation), st.sampled_from(Permission),
)  # fmt: skip
A_RULE = (
    b'{"type":"acls_changed","v":1,"added":[{"resource":"topic","pattern":"literal","name":"t","principal":"User:a",'
    b'"host":"*","operation":"read","permission":"allow"}],"removed":[]}'
)
# A topic id keeps its name for ever, and a name belongs to one live topic at a time: as the controller has it.
records = st.one_of(
    st.builds(ClusterCreated, st.just("c")),
    st.builds(CoresChanged, st.integers(1, 4)),
    st.sampled_from(IDS).flatmap(
        lambda i: st.builds(TopicCreated, st.just(f"tøpic-{i.int}"), st.just(i), owners, st.just(7), st.just(()))
    ),
    st.builds(TopicAssigned, st.sampled_from(IDS), owners, st.just((0,))),
    st.builds(TopicDeleted, st.sampled_from(IDS)),
    st.builds(TopicConfigChanged, st.sampled_from(IDS), names, values),
    st.builds(MoveBegun, st.sampled_from(IDS), st.just(0), st.integers(0, 3), st.integers(0, 2**62), st.just(9)),
    st.builds(MoveDone, st.sampled_from(IDS), st.just(0), st.integers(0, 3)),
    st.builds(BrokerConfigChanged, st.sampled_from([None, 0, 1]), names, values),
    st.builds(
        ResourceConfigChanged, st.sampled_from(["group", "client_metrics"]), st.sampled_from(["a", "größe"]),
        st.dictionaries(names, values, min_size=1),
    ),
    st.builds(
        ClientQuotaChanged,
        st.dictionaries(
            st.sampled_from(["user", "client-id"]), st.sampled_from([None, "a", "größe"]), min_size=1
        ),
        st.dictionaries(names, st.sampled_from([None, 1.0, 2.5]), min_size=1),
    ),
    replicas.flatmap(
        lambda held: st.builds(
            TopicAssigned, st.sampled_from(IDS), st.just(tuple(each[0].core for each in held)), st.just(()),
            st.just(held),
        )
    ),
    st.builds(
        NodeRegistered, st.integers(0, 3), st.integers(0, 3) | st.just(2**62), st.integers(1, 2), st.just("räck"),
        st.just("1"), st.just(NodeAddress("host", 1)),
        st.just((("EXTERNAL", (NodeAddress("h", 2), NodeAddress("h", 3))),)),
        st.sampled_from([UNSAID, Levels(2, 3)]),
    ),
    st.builds(AclsChanged, st.lists(acls, max_size=4).map(tuple), st.lists(acls, max_size=2).map(tuple)),
    st.builds(FeatureLevelChanged, st.integers(2, 4), st.integers(1, 9)),
    st.builds(NodeRemoved, st.integers(0, 3), st.integers(0, 3)),
    st.builds(
        lambda user, kind, credential: credential_changed(user, kind[0], CREDENTIALS[kind] if credential else None),
        st.sampled_from(["anna", "Müller, Max=1"]), st.sampled_from(sorted(CREDENTIALS)), st.booleans(),
    ),
)  # fmt: skip


@st.composite
def histories(draw):
    history = draw(st.lists(records, max_size=40))
    for index, position in enumerate(sorted(draw(st.lists(st.integers(0, len(history)), max_size=4)))):
        history.insert(position + index, ProducerIdsReserved(draw(st.integers(0, 2)), index * 1000, 1000))
    return history


def replay(history):
    return ClusterImage().apply(history, MetadataVersion(len(history)))


def live(image):
    """What an image holds, but for brokers that have no settings left."""
    configs = {broker: texts for broker, texts in image.broker_configs.items() if texts}
    return (
        image.cluster_id,
        image.cores_count,
        image.topics,
        image.ids,
        configs,
        image.group_configs,
        image.client_metrics_configs,
        image.scram_users,
        image.next_producer_id,
        image.producer_ids,
        image.deleted,
        image.nodes,
        image.removed,
        image.moving,
        image.acls,
        (image.feature_level, image.feature_epoch),
    )


@given(records)
def test_a_record_survives_its_bytes(record):
    assert decode_record(encode_record(record)) == record


@given(histories())
def test_a_snapshot_rebuilds_the_image(history):
    image = replay(history)
    assert live(replay(image.snapshot())) == live(image)


@given(histories())
def test_a_snapshot_on_top_of_its_own_image_changes_nothing(history):
    image = replay(history)
    assert live(image.apply(image.snapshot(), MetadataVersion(10_000))) == live(image)


@given(histories())
def test_an_image_survives_being_pushed_to_another_core(history):
    image = replay(history)
    pushed = ClusterImage.from_bytes(image.to_bytes())
    assert (live(pushed), pushed.version) == (live(image), image.version)


@given(histories(), st.integers(0, 40))
def test_replay_in_two_parts_equals_replay_at_once(history, cut):
    cut = min(cut, len(history))
    parts = (
        ClusterImage().apply(history[:cut], MetadataVersion(cut)).apply(history[cut:], MetadataVersion(len(history)))
    )
    assert parts == replay(history)


@given(histories(), histories())
def test_applying_leaves_the_old_image_alone(first, second):
    image = replay(first)
    before = image.to_bytes()
    after = image.apply(second, MetadataVersion(99_999))
    assert image.to_bytes() == before
    changed = {(old or new).topic_id for old, new in changed_topics(image, after)}
    for topic_id in image.topics.keys() | after.topics.keys():
        assert (image.topic_by_id(topic_id) != after.topic_by_id(topic_id)) == (topic_id in changed)


def _credential_bytes(**wrong):
    """A record that is right but for what is named."""
    credential = CREDENTIALS[ScramMechanism.SCRAM_SHA_256, "a"]
    return json.dumps(to_json(credential_changed("a", ScramMechanism.SCRAM_SHA_256, credential)) | wrong).encode()


def test_a_credential_that_is_right_is_read():
    assert decode_record(_credential_bytes()).credential == CREDENTIALS[ScramMechanism.SCRAM_SHA_256, "a"]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"type":"topic_created","v":2}',
        b'{"type":"never_heard_of","v":1}',
        b'{"type":"topic_deleted","v":1}',
        b'{"type":"topic_deleted","v":1,"topic_id":"x"}',
        b'{"type":"topic_deleted","v":1,"topic_id":7}',
        b'{"type":"cluster_created","v":1,"cluster_id":"c","more":1}',
        b'{"type":"resource_config_changed","v":1,"kind":"user","name":"a","changes":{}}',
        b'{"type":"resource_config_changed","v":1,"kind":"group","name":"a","changes":[]}',
        b'{"type":"resource_config_changed","v":1,"kind":"group","name":"a"}',
        b'{"type":"scram_credential_changed","v":1,"user":"","mechanism":1}',
        b'{"type":"scram_credential_changed","v":1,"user":"a\\u0007","mechanism":1}',
        b'{"type":"scram_credential_changed","v":1,"user":"a","mechanism":3}',
        b'{"type":"scram_credential_changed","v":1,"user":7,"mechanism":1}',
        b'{"type":"scram_credential_changed","v":1,"user":"a","mechanism":1,"salt":""}',
        _credential_bytes(salt="*"),
        _credential_bytes(salt=7),
        _credential_bytes(salt="A" * 400),
        _credential_bytes(stored_key="AAAA"),
        _credential_bytes(server_key=None),
        _credential_bytes(iterations=0),
        _credential_bytes(iterations="9"),
        b'{"type":"acls_changed","v":1,"added":[{}]}',
        b'{"type":"acls_changed","v":1,"added":[[]],"removed":[]}',
        b'{"type":"acls_changed","v":1,"added":7}',
        A_RULE.replace(b"User:a", b"a"),
        A_RULE.replace(b'"topic"', b'"planet"'),
        A_RULE.replace(b'"literal"', b'"match"'),
        A_RULE.replace(b'"read"', b'"any"'),
        A_RULE.replace(b'"allow"', b'"any"'),
        A_RULE.replace(b'"*"', b"7"),
        A_RULE.replace(b'"host":"*",', b""),
        b'{"type":"client_quota_changed","v":1,"entity":{},"changes":{}}',
        b'{"type":"client_quota_changed","v":1,"entity":{"group":"a"},"changes":{}}',
        b'{"type":"client_quota_changed","v":1,"entity":{"user":7},"changes":{}}',
        b'{"type":"client_quota_changed","v":1,"entity":{"user":"a"},"changes":{"x":"y"}}',
        b'{"type":"client_quota_changed","v":1,"entity":["user"],"changes":{}}',
        b"\xff",
    ],
)
def test_what_cannot_be_read_is_damage_and_never_guessed(value):
    with pytest.raises(MetadataDamagedError):
        decode_record(value)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version":1,"records":[{}]}'])
def test_an_image_that_cannot_be_read_is_damage(data):
    with pytest.raises(MetadataDamagedError):
        ClusterImage.from_bytes(data)


def test_the_format_on_the_disk_is_what_it_was():
    record = TopicCreated("t", IDS[0], (0, 1), 5, (1,), {"retention.ms": "9"})
    assert encode_record(record) == (
        b'{"type":"topic_created","v":1,"name":"t","topic_id":"00000000-0000-0000-0000-00000000000a",'
        b'"owners":[0,1],"created_ms":5,"manual":[1],"configs":{"retention.ms":"9"}}'
    )
    assert len(RECORD_TYPES) == 19
    quota = ClientQuotaChanged({"user": "a", "client-id": None}, {"producer_byte_rate": 5.0, "x": None})
    assert encode_record(quota) == (
        b'{"type":"client_quota_changed","v":1,"entity":{"user":"a","client-id":null},'
        b'"changes":{"producer_byte_rate":5.0,"x":null}}'
    )
    setting = ResourceConfigChanged("group", "g", {"consumer.session.timeout.ms": "50000", "x": None})
    assert encode_record(setting) == (
        b'{"type":"resource_config_changed","v":1,"kind":"group","name":"g",'
        b'"changes":{"consumer.session.timeout.ms":"50000","x":null}}'
    )


def test_the_format_of_users_on_the_disk_is_what_it_was():
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = credential_of_password(ScramMechanism.SCRAM_SHA_256, "pencil", salt, 4096)
    record = credential_changed("user", ScramMechanism.SCRAM_SHA_256, credential)
    assert encode_record(record) == (
        b'{"type":"scram_credential_changed","v":1,"user":"user","mechanism":1,"salt":"W22ZaJ0SNY7soEsUEjb6gQ==",'
        b'"iterations":4096,"stored_key":"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=",'
        b'"server_key":"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="}'
    )
    assert encode_record(ScramCredentialChanged("user", 2)) == (
        b'{"type":"scram_credential_changed","v":1,"user":"user","mechanism":2,"salt":null,"iterations":0,'
        b'"stored_key":null,"server_key":null}'
    )


def test_no_text_that_is_made_of_a_credential_holds_it():
    image = ClusterImage()
    for (mechanism, _password), credential in CREDENTIALS.items():
        record = credential_changed("anna", mechanism, credential)
        image = image.apply([record], MetadataVersion(1))
        secrets = [record.salt, record.stored_key, record.server_key, repr(credential.stored_key)]
        for text in (repr(record), str(credential), repr(image)):
            assert "anna" in text or "iterations" in text
            assert not [secret for secret in secrets if secret in text]
        with pytest.raises(MetadataDamagedError) as raised:
            decode_record(_credential_bytes(iterations=record.stored_key))
        assert record.stored_key not in repr(raised.value)
def test_the_format_of_rules_of_access_on_the_disk_is_what_it_was():
    on = Resource.TOPIC, Pattern.LITERAL, "t"
    rule = AclBinding(*on, Principal("User", "a"), "*", Operation.READ, Permission.ALLOW)
    assert encode_record(AclsChanged((rule,), ())) == A_RULE
    assert decode_record(A_RULE) == AclsChanged((rule,), ())


def test_rules_of_access_are_shared_by_images_until_they_change():
    rule = decode_record(A_RULE).added[0]
    image = replay([AclsChanged((rule,), ())])
    assert list(image.acls) == [rule]
    later = image.apply([TopicCreated("t", IDS[0], (0,), 5)], MetadataVersion(9))
    assert later.acls is image.acls
    gone = later.apply([AclsChanged((), (rule, rule))], MetadataVersion(10))
    assert (list(gone.acls), list(image.acls)) == ([], [rule])


def test_the_format_of_a_cluster_of_nodes_on_the_disk_is_what_it_was():
    node = NodeRegistered(2, 7, 1, "r", "1.0", NodeAddress("h", 1), (("L", (NodeAddress("c", 2),)),))
    assert encode_record(node) == (
        b'{"type":"node_registered","v":1,"node":2,"incarnation":7,"cores":1,"rack":"r","version":"1.0",'
        b'"address":["h",1],"listeners":[["L",[["c",2]]]]}'
    )
    assert encode_record(NodeRemoved(2, 7)) == b'{"type":"node_removed","v":1,"node":2,"incarnation":7}'
    assert encode_record(replace(node, levels=Levels(2, 3))).endswith(b'[["L",[["c",2]]]],"levels":[2,3]}')
    assert encode_record(FeatureLevelChanged(3, 1)) == b'{"type":"feature_level_changed","v":1,"level":3,"epoch":1}'
    assigned = TopicAssigned(IDS[0], (1,), (), ((Replica(2, 1), Replica(3, 0)),))
    assert encode_record(assigned).endswith(b'"owners":[1],"manual":[],"replicas":[[[2,1],[3,0]]]}')


def test_the_format_of_moves_on_the_disk_is_what_it_was():
    assert encode_record(MoveBegun(IDS[0], 3, 1, 77, 9)) == (
        b'{"type":"move_begun","v":1,"topic_id":"00000000-0000-0000-0000-00000000000a",'
        b'"partition":3,"target":1,"move_id":77,"begun_ms":9}'
    )
    assert encode_record(MoveDone(IDS[0], 3, 1)) == (
        b'{"type":"move_done","v":1,"topic_id":"00000000-0000-0000-0000-00000000000a","partition":3,"owner":1}'
    )


def test_a_move_changes_the_owner_when_it_is_done():
    made = replay([TopicCreated("t", IDS[0], (0, 1), 5, (), {})])
    begun = made.apply([MoveBegun(IDS[0], 1, 2, 77, 9)], MetadataVersion(2))
    key = TopicPartition(IDS[0], 1)
    assert begun.owner_of(key) == 1
    assert begun.moving[key].target == 2
    done = begun.apply([MoveDone(IDS[0], 1, 2)], MetadataVersion(3))
    assert (done.owner_of(key), done.moving) == (2, {})
    assert done.topics[IDS[0]].assignment.manual == {1}
    stays = begun.apply([MoveDone(IDS[0], 1, 1)], MetadataVersion(3))
    assert (stays.topics[IDS[0]], stays.moving) == (made.topics[IDS[0]], {})
    assert not begun.apply([TopicDeleted(IDS[0])], MetadataVersion(3)).moving


def test_where_a_partition_is():
    alone = ClusterImage().apply([TopicCreated("t", IDS[0], (0, 1), 5)], MetadataVersion(1)).topic("t")
    assert [alone.owner_on(9, index) for index in (-1, 0, 1, 2)] == [None, 0, 1, None]
    held = ((Replica(1, 3),), (Replica(2, 0), Replica(1, 1)))
    spread = ClusterImage().apply([TopicCreated("t", IDS[0], (3, 0), 5, replicas=held)], MetadataVersion(1)).topic("t")
    assert [spread.owner_on(1, index) for index in (-1, 0, 1, 2)] == [None, 3, NOT_HERE, None]
    assert spread.leader_place(1, 1) == Replica(2, 0)
    assert (alone.cores_on(9), spread.cores_on(1), spread.cores_on(2)) == ((0, 1), (3, 1), (NOT_HERE, 0))


def test_a_group_of_which_nothing_is_set_any_more_is_not_there():
    image = replay([
        ResourceConfigChanged("group", "g", {"a": "1", "b": "2"}), ResourceConfigChanged("group", "g", {"a": None}),
        ResourceConfigChanged("client_metrics", "g", {"a": "3"}), ResourceConfigChanged("group", "h", {"a": "4"}),
    ])  # fmt: skip
    assert image.group_configs == {"g": {"b": "2"}, "h": {"a": "4"}}
    assert image.client_metrics_configs == {"g": {"a": "3"}}
    gone = image.apply([ResourceConfigChanged("group", "g", {"b": None, "a": None})], MetadataVersion(9))
    assert (gone.group_configs, gone.client_metrics_configs) == ({"h": {"a": "4"}}, {"g": {"a": "3"}})


def test_an_entity_without_quotas_is_not_there():
    image = replay([
        ClientQuotaChanged({"user": "u", "client-id": None}, {"a": 1.0, "b": 2.0}),
        ClientQuotaChanged({"client-id": None, "user": "u"}, {"a": None}),
        ClientQuotaChanged({"ip": "1.2.3.4"}, {"c": 3.0}),
    ])  # fmt: skip
    pair = (("client-id", None), ("user", "u"))
    assert image.client_quotas == {pair: {"b": 2.0}, (("ip", "1.2.3.4"),): {"c": 3.0}}
    gone = image.apply([ClientQuotaChanged({"user": "u", "client-id": None}, {"b": None})], MetadataVersion(9))
    assert gone.client_quotas == {(("ip", "1.2.3.4"),): {"c": 3.0}}


def test_a_removed_node_takes_its_settings_along_and_may_come_back_as_another():
    here = NodeRegistered(1, 7, 1, "", "1", NodeAddress("h", 1), ())
    setting = BrokerConfigChanged(1024, "node.draining", "true")
    image = replay([here, setting])
    assert image.draining == {1}
    gone = image.apply([NodeRemoved(1, 7)], MetadataVersion(3))
    assert (gone.nodes, gone.broker_configs, gone.draining, gone.removed) == ({}, {}, frozenset(), {7: 1})
    back = gone.apply([replace(here, incarnation=8), NodeRemoved(1, 7)], MetadataVersion(5))
    assert back.nodes[1].incarnation == 8, "the old one is removed, however often"
    assert next(iter(replay([NodeRemoved(1, number) for number in range(REMOVALS_REMEMBERED_MAX + 2)]).removed)) == 2


def test_deletions_are_remembered_up_to_a_bound_and_what_was_never_known_is_not_one():
    ids = [TopicId(uuid.UUID(int=number)) for number in range(DELETIONS_REMEMBERED_MAX + 2)]
    image = replay([record for one in ids[:-1] for record in (TopicCreated("t", one, (0,), 7), TopicDeleted(one))])
    assert [image.is_deleted(one) for one in (ids[0], ids[1], ids[-2], ids[-1])] == [False, True, True, False]
    assert list(replay(image.snapshot()).deleted) == list(image.deleted) == ids[1:-1]
