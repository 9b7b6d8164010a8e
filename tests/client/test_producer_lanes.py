"""A partition's batches as a machine: order, once, and true fates, whatever is lost, late, refused or given up."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.producer_model import Story
from tpc_broker.client.values import Fate
from tpc_broker.kafka import ErrorCode

STEPS = {
    "post": Story.post,
    "post more": lambda story: [story.post(size=60) for _ in range(4)],
    "post bad": lambda story: story.post("bad"),
    "post large": lambda story: story.post(size=12_000),
    "send": Story.send,
    "carry out": Story.carry_out,
    "answer": Story.answer,
    "cut": Story.cut,
    "arrive late": Story.arrive_late,
    "not leader": lambda story: story.carry_out(ErrorCode.NOT_LEADER_OR_FOLLOWER, appends=False),
    "no longer leader": lambda story: story.carry_out(ErrorCode.NOT_LEADER_OR_FOLLOWER),
    "timed out": lambda story: story.carry_out(ErrorCode.REQUEST_TIMED_OUT),
    "too few replicas": lambda story: story.carry_out(ErrorCode.NOT_ENOUGH_REPLICAS, appends=False),
    "a moment": lambda story: story.pass_time(0.3),
    "a while": lambda story: story.pass_time(4.0),
    "smaller batches": lambda story: setattr(story.leader, "bytes_max", 150),
}


def run(story: Story, steps: list[str]) -> None:
    for name in steps:
        if name == "withdraw":
            if story.posted:
                story.withdraw()
        else:
            STEPS[name](story)
        story.check()
    story.settle()
    while story.late:
        story.arrive_late()
        story.check()
    story.check_end()


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from([*STEPS, "send", "carry out", "answer", "withdraw"]), max_size=60))
def test_records_are_in_order_and_once_and_their_fates_are_true(steps):
    run(Story(), steps)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([*STEPS, "send", "carry out", "answer", "post more"]), max_size=40))
def test_the_same_where_numbers_and_epochs_end(steps):
    story = Story(first_epoch=32_765, first_sequence=2**31 - 3)
    story.leader.producer_id, story.leader.epoch, story.leader.next_sequence = 7, 32_765, 2**31 - 3
    run(story, steps)


def proven() -> Story:
    """The leader knows the producer, so several batches may be under way."""
    story = Story()
    story.post("first")
    story.settle()
    return story


def test_a_late_copy_of_what_came_behind_a_refused_batch_is_fenced():
    story = proven()
    for text in ("bad", "a", "b"):
        story.post(text)
        story.send()
    story.carry_out()
    story.answer()
    story.cut()
    story.pass_time(0.3)
    story.send()
    story.carry_out()
    story.arrive_late()
    story.arrive_late()
    story.settle()
    story.check_end()
    assert [batch.fate for batch, _row, _value in story.posted] == [
        Fate.DELIVERED, Fate.REFUSED, Fate.DELIVERED, Fate.DELIVERED,
    ]  # fmt: skip
    assert story.lane.identity.producer_epoch == 1


def test_nothing_new_is_sealed_while_batches_have_to_be_sent_again():
    story = proven()
    for text in ("a", "b"):
        story.post(text)
        story.send()
    story.carry_out(ErrorCode.NOT_ENOUGH_REPLICAS, appends=False)
    story.answer()
    story.post("c")
    story.pass_time(1.0)
    assert not story.lane.can_send(story.now)
    story.carry_out()
    story.answer()
    assert [batch.fate for batch, _row, _value in story.posted[1:]] == [Fate.UNDER_WAY, Fate.UNDER_WAY, Fate.WAITING]
    story.settle()
    story.check_end()
    assert len(story.leader.log) == 4


def test_a_batch_in_doubt_is_not_pushed_out_of_what_brokers_recognise():
    """Others behind it may be in the log already: what is sent beside it then could be one too many."""
    story = Story(batch_bytes=1)
    story.post()
    story.settle()
    for _ in range(5):
        story.post()
    story.send()
    story.carry_out(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    for _ in range(4):
        story.carry_out()
    for _ in range(5):
        story.answer()
        story.post()
    story.pass_time(1.0)
    story.send()
    while story.requests:
        story.carry_out()
    story.cut()
    story.settle()
    story.check_end()
    assert {batch.fate_of(row) for batch, row, _value in story.posted} == {Fate.DELIVERED}


def test_a_refused_batch_leaves_no_gap_and_costs_no_epoch():
    story = proven()
    for text in ("a", "bad", "b"):
        story.post(text)
        story.send()
    story.settle()
    story.check_end()
    assert [value[:1] for value in story.leader.log] == [b"f", b"a", b"b"]
    assert story.lane.identity.producer_epoch == 0


def test_what_was_given_up_in_doubt_is_followed_under_another_epoch_when_it_is_not_there():
    story = proven()
    story.post("a")
    story.send()
    story.cut()
    story.late.clear()
    story.pass_time(11.0)
    story.post("b")
    story.settle()
    story.check_end()
    assert [batch.fate for batch, _row, _value in story.posted] == [Fate.DELIVERED, Fate.UNKNOWN, Fate.DELIVERED]
    assert story.lane.identity.producer_epoch == 1


def test_a_batch_that_is_too_large_is_halved_and_those_behind_it_are_filled_less():
    story = proven()
    story.leader.bytes_max = 150
    for _record in range(3):
        story.post(size=40)
    before = story.lane.batch_bytes
    story.settle()
    story.check_end()
    assert len(story.leader.log) == 4
    assert story.lane.batch_bytes < before


def test_a_batch_that_is_too_large_is_halved_also_when_its_first_refusal_was_lost():
    story = proven()
    story.leader.bytes_max = 150
    for _record in range(3):
        story.post(size=40)
    story.send()
    story.carry_out()
    story.cut()
    story.settle()
    story.check_end()
    assert {batch.fate_of(row) for batch, row, _value in story.posted} == {Fate.DELIVERED}


def test_halves_of_what_is_in_the_log_already_are_not_written_again():
    story = proven()
    for _record in range(2):
        story.post(size=40)
    story.send()
    story.carry_out()
    story.cut()
    story.leader.bytes_max = 150
    story.settle()
    story.check_end()
    assert {batch.fate_of(row) for batch, row, _value in story.posted[1:]} == {Fate.UNKNOWN}
    assert len(story.leader.log) == 3


def test_a_bad_record_does_not_take_its_neighbours_along():
    story = proven()
    story.lane.batch_bytes = 10_000
    for number in range(20):
        story.post("bad" if number in (3, 11) else "good")
    story.settle()
    story.check_end()
    fates = [batch.fate_of(row) for batch, row, _value in story.posted[1:]]
    assert [number for number, fate in enumerate(fates) if fate is not Fate.DELIVERED] == [3, 11]
    assert story.lane.batch_bytes == 10_000


def test_one_record_that_is_too_large_is_refused_by_the_setting_s_name():
    story = proven()
    story.post(size=12_000)
    story.settle()
    batch, _row, _value = story.posted[-1]
    assert batch.failure is not None
    assert batch.failure.code == ErrorCode.MESSAGE_TOO_LARGE
    assert "max.message.bytes" in batch.failure.text
