"""What goes between a core and a cleaner: it comes whole, and nothing else is believed."""

from __future__ import annotations

import json
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cleaning_jobs import REPORT, a_group, a_job
from tpc_broker import limits
from tpc_broker.cleaner.cleaner_frames import (
    Failure,
    Frame,
    FrameError,
    FrameReader,
    Kind,
    decode_failure,
    decode_group,
    decode_job,
    decode_report,
    encode_failure,
    encode_frame,
    encode_group,
    encode_job,
    encode_report,
    progress_bytes,
)
from tpc_broker.log.cleaning_job import CleaningSource, KeptProducer
from tpc_broker.log.indexes import AbortedTransaction

NUMBERS = st.integers(0, 2**63 - 1)


def only_frame(data: bytes, bytes_max: int = limits.CLEANER_JOB_BYTES_MAX) -> Frame:
    reader = FrameReader(bytes_max)
    reader.feed(data)
    frame = reader.next_frame()
    assert frame is not None
    assert reader.next_frame() is None
    return frame


def changed(job_frame: Frame, **fields: object) -> Frame:
    return job_frame._replace(fields={**job_frame.fields, **fields})


@given(
    aborted=st.lists(st.builds(AbortedTransaction, NUMBERS, NUMBERS, NUMBERS, NUMBERS), max_size=5),
    producers=st.lists(st.builds(KeptProducer, NUMBERS, st.integers(-1, 2**63 - 1), st.integers(-1, 5)), max_size=5),
    bases=st.sets(NUMBERS, min_size=2, max_size=6),
    is_urgent=st.booleans(),
)
def test_a_job_comes_as_it_was_sent(aborted, producers, bases, is_urgent):
    ordered = sorted(bases)
    sources = [
        CleaningSource(base, end, 100, 7, number % 2 == 0, base, 9)
        for number, (base, end) in enumerate(pairwise(ordered))
    ]
    job = a_job(sources=tuple(sources), aborted=tuple(aborted), producers=tuple(producers), is_urgent=is_urgent)
    assert decode_job(only_frame(encode_job(job))) == job


def test_a_job_of_many_producers_is_carried_and_more_than_fit_are_refused():
    producers = tuple(KeptProducer(number, number, -1) for number in range(200_000))
    job = a_job(producers=producers)
    assert len(decode_job(only_frame(encode_job(job))).producers) == 200_000
    with pytest.raises(FrameError, match="too long"):
        encode_job(a_job(producers=producers * 15))


def test_answers_come_as_they_were_sent():
    group = a_group()
    assert decode_group(only_frame(encode_group(group))) == group
    assert decode_report(only_frame(encode_report(REPORT))) == REPORT
    failure = Failure("ü" * 5000, 28, is_void=True)
    assert decode_failure(only_frame(encode_failure(failure))) == Failure("ü" * 1024, 28, is_void=True)
    assert progress_bytes(only_frame(encode_frame(Kind.PROGRESS, {"bytes": 5}))) == 5


def test_frames_are_read_however_they_are_cut():
    data = encode_report(REPORT) + encode_frame(Kind.TAKEN) + encode_group(a_group())
    reader, kinds = FrameReader(limits.CLEANER_ANSWER_BYTES_MAX), []
    for byte in data:
        reader.feed(bytes([byte]))
        while (frame := reader.next_frame()) is not None:
            kinds.append(frame.kind)
    assert kinds == [Kind.REPORT, Kind.TAKEN, Kind.GROUP]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("=IBI", limits.CLEANER_ANSWER_BYTES_MAX + 1, 3, 2),
        struct.pack("=IBI", 4, 3, 0),
        struct.pack("=IBI", 10, 3, 6) + b"{}    ",
        struct.pack("=IBI", 7, 99, 2) + b"{}",
        struct.pack("=IBI", 7, 3, 2) + b"[]",
        struct.pack("=IBI", 7, 3, 2) + b"\xff\xff",
        struct.pack("=IBI", 5 + 60_000, 3, 60_000) + b"[" * 60_000,
    ],
    ids=["too long", "too short", "json beyond it", "no kind", "no fields", "no json", "deep"],
)
def test_what_is_no_frame_is_refused(data):
    reader = FrameReader(limits.CLEANER_ANSWER_BYTES_MAX)
    reader.feed(data)
    with pytest.raises(FrameError):
        reader.next_frame()


JOB_FRAME = only_frame(encode_job(a_job()))


@pytest.mark.parametrize(
    "fields",
    [
        {"now_ms": -1}, {"now_ms": 2**63}, {"now_ms": 1.5}, {"now_ms": True}, {"now_ms": None}, {"sources": 10**18},
        {"sources": -1}, {"aborted": 2}, {"folder": "relative"}, {"folder": "/a\0b"}, {"folder": 5},
        {"folder": "/" * 5000}, {"label": None}, {"is_urgent": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_job_that_cannot_be_is_refused(fields):
    with pytest.raises(FrameError):
        decode_job(changed(JOB_FRAME, **fields))


@pytest.mark.parametrize(
    "source",
    [
        CleaningSource(5, 5, 1, 1, False, 0, 0), CleaningSource(0, 5, -1, 1, False, 0, 0),
        CleaningSource(0, 5, 1, 1, 2, 0, 0),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_segments_that_cannot_be_are_refused(source):
    with pytest.raises(FrameError):
        decode_job(only_frame(encode_job(a_job(sources=(source,)))))
    first = CleaningSource(0, 10, 1, 1, False, 0, 0)
    with pytest.raises(FrameError):
        decode_job(only_frame(encode_job(a_job(sources=(first, first._replace(base_offset=9, end_offset=20))))))


@pytest.mark.parametrize("seconds", [-1.0, "1", None, True, float("inf")])
def test_a_report_that_cannot_be_is_refused(seconds):
    frame = only_frame(encode_report(REPORT))
    with pytest.raises(FrameError):
        decode_report(changed(frame, seconds=seconds))
    with pytest.raises(FrameError):
        decode_report(changed(frame, bytes_read=-5))


def test_a_seal_that_is_damaged_is_refused():
    frame = only_frame(encode_group(a_group()))
    with pytest.raises(FrameError):
        decode_group(frame._replace(rest=frame.rest[:-2] + b"x\n"))


@given(st.binary(max_size=200), st.integers(0, 200))
def test_a_job_with_any_tables_is_refused_or_read(rest, count):
    frame = changed(JOB_FRAME, sources=0, aborted=0, producers=count)._replace(rest=rest)
    try:
        job = decode_job(frame)
    except FrameError:
        return
    assert len(job.producers) == count
    assert json.dumps(job.producers)
