"""Names and text files, as Kafka has them."""

import uuid

import pytest

from tpc_broker.log.epochs import LeaderEpochs
from tpc_broker.log.files import (
    EpochStart,
    TextFileError,
    decode_partition_metadata,
    deleted_folder_name,
    encode_epochs,
    encode_partition_metadata,
    parse_journal_file_name,
    parse_partition_folder_name,
    parse_segment_file_name,
    segment_file_name,
)

TOPIC_ID = uuid.UUID(bytes=bytes(range(16)))


def test_segment_names_have_twenty_digits():
    assert segment_file_name(42, ".log") == "00000000000000000042.log"
    assert parse_segment_file_name("00000000000000000042.timeindex") == (42, ".timeindex")
    for name in ("42.log", "00000000000000000042.log.deleted", "99999999999999999999.log", "leader-epoch-checkpoint"):
        assert parse_segment_file_name(name) is None


def test_partition_folders():
    assert parse_partition_folder_name("a.b-c_d-12") == ("a.b-c_d", 12)
    for name in ("topic", "topic-01", "topic-", "-1", "topic-99999999999", deleted_folder_name("topic", 1, "ab")):
        assert parse_partition_folder_name(name) is None
    assert len(deleted_folder_name("t" * 249, 2**31 - 1, "a" * 32)) <= 255


def test_journal_names():
    assert parse_journal_file_name("0003.journal") == 3
    assert parse_journal_file_name("0003.checkpoint") is None


def test_partition_metadata_is_kafkas():
    assert encode_partition_metadata(TOPIC_ID) == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert decode_partition_metadata(encode_partition_metadata(TOPIC_ID)) == TOPIC_ID
    for text in (b"", b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw", b"version: 0\ntopic_id: short"):
        with pytest.raises(TextFileError):
            decode_partition_metadata(text)


def test_the_epoch_file_is_kafkas():
    entries = [EpochStart(0, 0), EpochStart(3, 17)]
    assert encode_epochs(entries) == b"0\n2\n0 0\n3 17\n"


def test_epochs_without_records_stay_until_they_are_forgotten():
    epochs = LeaderEpochs()
    for epoch, start in ((0, 0), (1, 10), (2, 10), (5, 30), (6, 30)):
        epochs.assign(epoch, start)
    assert epochs.entries == ((0, 0), (1, 10), (2, 10), (5, 30), (6, 30))
    assert encode_epochs(epochs.entries) == b"0\n3\n0 0\n2 10\n6 30\n"
    assert LeaderEpochs(epochs.entries).entries == epochs.entries
    assert not epochs.assign(4, 40)
    assert [epochs.end_offset_for(epoch, 50) for epoch in (0, 1, 2, 5)] == [(0, 10), (1, 10), (2, 30), (5, 30)]
    epochs.forget_empty()
    assert epochs.entries == ((0, 0), (2, 10), (6, 30))


def test_where_an_epoch_ended():
    epochs = LeaderEpochs([EpochStart(1, 0), EpochStart(2, 10), EpochStart(5, 30)])
    assert epochs.end_offset_for(1, 50) == (1, 10)
    assert epochs.end_offset_for(4, 50) == (2, 30)
    assert epochs.end_offset_for(5, 50) == (5, 50)
    assert epochs.end_offset_for(6, 50) == (-1, -1)
    assert epochs.end_offset_for(0, 50) == (0, 0)


def test_epochs_follow_both_ends_of_the_log():
    epochs = LeaderEpochs([EpochStart(1, 0), EpochStart(2, 10), EpochStart(5, 30)])
    epochs.truncate_end(30, 5)
    epochs.truncate_end(30)
    assert epochs.entries == ((1, 0), (2, 10), (5, 30)), "epoch 5 has begun at 30, whatever was cut there"
    epochs.truncate_end(30, 2)
    assert epochs.entries == ((1, 0), (2, 10))
    epochs.assign(3, 20)
    epochs.truncate_end(10)
    assert epochs.entries == ((1, 0), (2, 10))
    epochs.truncate_start(15)
    assert epochs.entries == ((2, 15),)
    epochs.assign(3, 15)
    epochs.truncate_start(15)
    assert epochs.entries == ((2, 15), (3, 15))


def test_epochs_of_batches_are_taken_in():
    epochs = LeaderEpochs([EpochStart(1, 0), EpochStart(5, 30)])
    epochs.learn([EpochStart(5, 31), EpochStart(3, 20)])
    assert epochs.entries == ((1, 0), (3, 20), (5, 30))
    epochs.learn([EpochStart(4, 40)])
    assert epochs.entries == ((1, 0), (3, 20), (5, 30)), "it contradicts what is known"
