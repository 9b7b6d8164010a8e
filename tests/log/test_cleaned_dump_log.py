"""Kafka's own `kafka-dump-log` reads what our cleaner writes, logs and indexes, and has nothing to say against it."""

from __future__ import annotations

import re
from random import Random

import pytest

from tests.support.cleaning_stories import Append, Clean, Roll, Traits, log_story
from tests.support.kafka_peer import run_tool
from tests.support.written_logs import OwnLog
from tpc_broker.cleaner.cleaning_run import clean

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]

COMPLAINTS = ["mismatch", "out of order", "not valid", "Could not read", "Exception", "isvalid: false"]
SETTINGS = {"segment.bytes": 30_000, "index.interval.bytes": 300, "delete.retention.ms": 10_000}


@pytest.fixture(scope="module")
def cleaned(module_tmp_path) -> OwnLog:
    """Several segments, some of which take the place of several."""
    log = OwnLog(module_tmp_path / "cleaned-0", SETTINGS)
    traits = Traits(keys=2000, segments=5, batches=60, rounds=5, transactional=2, gaps=0.05)
    for step in log_story(Random("dump log"), traits):
        if isinstance(step, Append):
            log.append(step.data)
        elif isinstance(step, Roll):
            log.roll()
        else:
            assert isinstance(step, Clean)
            log.clean(lambda job, take: clean(job, take, lambda _: None, lambda: False), step.upper, step.now_ms)
    assert len(log.seals) > 3
    return log


def dumped(log: OwnLog, suffix: str, *arguments: str) -> str:
    files = sorted(log.folder.glob(f"*{suffix}"))
    assert files
    done = run_tool("dump-log", "--files", ",".join(map(str, files)), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    for complaint in COMPLAINTS:
        assert complaint.lower() not in (done.stdout + done.stderr).lower(), (done.stdout + done.stderr)[:3000]
    assert done.stderr.replace("\n", "") == "" or suffix == ".log", done.stderr
    return done.stdout


@pytest.mark.parametrize("arguments", [(), ("--deep-iteration",), ("--print-data-log", "--deep-iteration")])
def test_the_logs(cleaned, arguments):
    told = dumped(cleaned, ".log", *arguments)
    assert told.count("isvalid: true") == sum(seal.batches_count for seal in cleaned.seals)
    offsets = [int(found) for found in re.findall(r"baseOffset: (\d+)", told)]
    assert offsets == sorted(set(offsets))


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("argument", ["", "--index-sanity-check", "--verify-index-only"])
def test_the_indexes(cleaned, suffix, argument):
    told = dumped(cleaned, suffix, *([argument] if argument else []))
    if argument == "--index-sanity-check":
        assert told.count("passed sanity check.") == len(list(cleaned.folder.glob(f"*{suffix}")))
    if not argument:
        assert told.count("offset: ") > 20


def test_the_indexes_of_transactions(cleaned):
    told = dumped(cleaned, ".txnindex")
    in_seals = [one for one in cleaned.aborted() if one.last_offset < cleaned.active_base]
    assert told.count("producerId: ") == len(in_seals)
