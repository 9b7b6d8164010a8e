"""Users as the controller decides: Kafka's rules, and ours where Kafka has none."""

from __future__ import annotations

import hashlib

import pytest

from tpc_broker import limits
from tpc_broker.auth.credentials import ScramMechanism, credential_of_password, credential_of_salted
from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import FeatureLevelChanged, NodeAddress, NodeRegistered, decode_record, encode_record
from tpc_broker.metadata.user_control import AlteredUser, DeletedCredential, SetCredential, alter_users
from tpc_broker.model import MetadataVersion, NodeId

SHA_256, SHA_512 = ScramMechanism
TWICE = ErrorCode.DUPLICATE_RESOURCE


def wanted(user, mechanism=1, iterations=4096, salt=b"salt", salted_password=b"x" * 32):
    return SetCredential(user, mechanism, iterations, salt, salted_password)


class Users:
    def __init__(self):
        self.image = ClusterImage()

    def alter(self, *changes):
        deletions = [each for each in changes if isinstance(each, DeletedCredential)]
        upsertions = [each for each in changes if isinstance(each, SetCredential)]
        records, told = alter_users(self.image, deletions, upsertions)
        self.records = [decode_record(encode_record(record)) for record in records]
        self.image = self.image.apply(self.records, MetadataVersion(self.image.version + len(records)))
        return {each.user: each.error_code for each in told}


def test_what_is_kept_is_made_of_the_salted_password_and_not_it():
    users = Users()
    assert users.alter(wanted("anna"), wanted("bert", 2, 16_384, b"", b"y")) == {"anna": 0, "bert": 0}
    assert users.image.scram_users == {
        ("anna", SHA_256): credential_of_salted(SHA_256, b"x" * 32, b"salt", 4096),
        ("bert", SHA_512): credential_of_salted(SHA_512, b"y", b"", 16_384),
    }
    assert users.alter(wanted("anna")) == {"anna": 0}
    assert users.records == [], "that is how it was"
    assert users.alter(wanted("anna", 2)) == {"anna": 0}
    assert users.alter(DeletedCredential("anna", 1)) == {"anna": 0}
    assert set(users.image.scram_users) == {("anna", SHA_512), ("bert", SHA_512)}


def test_the_salted_password_of_a_password_logs_that_password_in():
    credential = credential_of_password(SHA_512, "pässword", b"salt", 4096)
    salted = hashlib.pbkdf2_hmac("sha512", "pässword".encode(), b"salt", 4096)
    users = Users()
    users.alter(wanted("anna", 2, salted_password=salted))
    assert users.image.scram_users == {("anna", SHA_512): credential}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([wanted("a"), wanted("a", 2)], TWICE),
        ([wanted("a"), wanted("a"), wanted("a")], TWICE),
        ([wanted("a"), wanted("a", 7)], TWICE),
        ([wanted("a", 7), wanted("a")], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([DeletedCredential("there", 1), wanted("there", 2)], TWICE),
        ([DeletedCredential("there", 2), wanted("there", 1)], ErrorCode.RESOURCE_NOT_FOUND),
        ([DeletedCredential("there", 1), DeletedCredential("there", 1)], TWICE),
        ([DeletedCredential("there", 7), DeletedCredential("there", 1)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([DeletedCredential("a", 1)], ErrorCode.RESOURCE_NOT_FOUND),
        ([DeletedCredential("", 1)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([wanted("a", iterations=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([wanted("a", iterations=16_385)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([wanted("")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([wanted("a\n")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([wanted("a" * 256)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([wanted("a", salt=b"x" * 257)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([wanted("a", salted_password=b"")], ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_what_is_refused_changes_nothing_of_that_user_and_the_others_are_changed(changes, code):
    users = Users()
    users.alter(wanted("there"))
    before = dict(users.image.scram_users)
    found = users.alter(*changes, wanted("other"))
    assert found == {"other": 0, changes[0].user: code}
    assert users.image.scram_users.keys() - before.keys() == {("other", SHA_256)}
    assert before.items() <= users.image.scram_users.items()


def test_there_is_a_bound_and_what_is_there_may_be_changed_and_deleted_at_it(monkeypatch):
    monkeypatch.setattr(limits, "SCRAM_CREDENTIALS_MAX", 2)
    users = Users()
    assert users.alter(wanted("a"), wanted("b"), wanted("c")) == {"a": 0, "b": 0, "c": ErrorCode.POLICY_VIOLATION}
    assert users.alter(wanted("a", 2)) == {"a": ErrorCode.POLICY_VIOLATION}
    assert users.alter(wanted("a", iterations=5000), DeletedCredential("b", 1)) == {"a": 0, "b": 0}
    assert users.alter(wanted("c"), wanted("d")) == {"c": 0, "d": ErrorCode.POLICY_VIOLATION}


def test_they_are_written_only_when_all_nodes_can_read_them():
    users = Users()
    node = NodeRegistered(NodeId(1), 1, 1, "", "1", NodeAddress("h", 1), ())
    users.image = users.image.apply([node, FeatureLevelChanged(5, 1)], MetadataVersion(2))
    text = "Users are kept from tpc.version=6 on; the level is 5 (tpc cluster level --raise 6)."
    records, told = alter_users(users.image, [], [wanted("a")])
    assert (records, told) == ([], [AlteredUser("a", ErrorCode.UNSUPPORTED_VERSION, text)])
    assert users.alter(DeletedCredential("a", 1)) == {"a": ErrorCode.RESOURCE_NOT_FOUND}
    users.image = users.image.apply([FeatureLevelChanged(6, 2)], MetadataVersion(3))
    assert users.alter(wanted("a")) == {"a": 0}


def test_no_text_of_a_request_holds_its_secrets():
    assert "secret" not in repr(wanted("a", salt=b"secret salt", salted_password=b"secret password"))
