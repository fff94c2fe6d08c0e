"""The journal's file: whatever byte it ends or breaks at, what comes back was true; it stays small; disks may fail."""

import errno
import os
import random
import stat

import numpy as np
import pytest

from lbbsp.errors import ConfigError, ServiceError
from lbbsp.protocol import Hello
from lbbsp.service import journal as journal_module
from lbbsp.service.journal import COMPACT_ABOVE_BYTES, COMPACT_FACTOR, Journal
from lbbsp.service.journal_file import HEADER, framed, payloads
from lbbsp.service.journal_records import Ended, Forgotten, Learnt, Opened, Started, encode


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal"


def hello(job: str, incarnation: str = "i", rank: int = 0) -> Hello:
    return Hello(
        job=job, incarnation=incarnation, rank=rank, world_size=1, global_batch=8, min_samples=0, max_samples=8
    )


def started(job: str, incarnation: str = "i", **fields) -> Started:
    return Started(job=job, incarnation=incarnation, at_s=1.0, hellos=(hello(job, incarnation),), **fields)


def learnt(job: str, number: int, size: int = 10, incarnation: str = "i") -> Learnt:
    return Learnt(
        job=job, incarnation=incarnation, at_s=1.0, state={"number": number, "array": np.full(size, float(number))}
    )


def numbers(path) -> dict[str, int]:
    """The number that each job had learnt, by a journal opened anew; every array agrees with its number."""
    journal = Journal(path)
    found = {}
    for record in journal.records():
        if isinstance(record, Learnt):
            assert (record.state["array"] == record.state["number"]).all()
            found[record.job] = record.state["number"]
    journal.close()
    return found


def written(path, records, flush_each: bool = False) -> None:
    journal = Journal(path)
    for record in records:
        journal.append(record)
        if flush_each:
            assert journal.flush()
    journal.close()


def test_what_was_written_comes_back_the_newest_of_each_kind(path):
    written(path, [started("a"), learnt("a", 1), started("b"), learnt("a", 2), learnt("b", 7)])
    assert numbers(path) == {"a": 2, "b": 7}


def test_a_new_incarnation_drops_what_the_one_before_had_learnt_and_forgetting_drops_all(path):
    written(path, [started("a"), learnt("a", 1), started("a", "ii"), started("b"), learnt("b", 1), Forgotten(job="b")])
    journal = Journal(path)
    (record,) = journal.records()
    assert (record.job, record.incarnation) == ("a", "ii")
    journal.close()


@pytest.mark.parametrize("flush_each", [False, True])
def test_it_ends_the_same_whether_written_one_by_one_or_together(path, flush_each):
    random.seed(4)
    records, expected = [], {}
    for number in range(200):
        job = random.choice("abc")
        kind = random.random()
        if kind < 0.1:
            records += [Forgotten(job=job)]
            expected.pop(job, None)
        elif kind < 0.3:
            records += [started(job, f"i{number}"), learnt(job, number, incarnation=f"i{number}")]
            expected[job] = number
        elif kind < 0.4:
            records += [Ended(job=job, at_s=1.0)]
        elif job in expected:
            records += [learnt(job, number)]
            expected[job] = number
    written(path, records, flush_each)
    assert numbers(path) == expected


def test_cut_at_any_byte_it_comes_up_with_what_was_true_and_says_so(path, caplog):
    written(path, [started("a")])
    states = []
    journal = Journal(path)
    for number in range(3):
        journal.append(learnt("a", number))
        assert journal.flush()
        states.append(path.stat().st_size)
    journal.close()
    whole = path.read_bytes()
    for length in sorted({*range(len(HEADER), len(whole), 5), *(size - off for size in states for off in (0, 1))}):
        path.write_bytes(whole[:length])
        caplog.clear()
        found = numbers(path)
        newest = sum(length >= size for size in states) - 1
        assert found == ({"a": newest} if newest >= 0 else {})
        ends = {len(HEADER)} | {place for _, place in ended(whole, path)}
        assert ("torn tail" in caplog.text) == (length not in ends)


def ended(whole: bytes, path):
    copy = path.with_name("copy")
    copy.write_bytes(whole)
    with copy.open("rb") as file:
        return list(payloads(file))


def test_no_flipped_byte_is_ever_believed(path):
    written(path, [started("a"), learnt("a", 1)])
    journal = Journal(path)
    journal.append(learnt("a", 2))
    assert journal.flush()
    journal.close()
    whole = path.read_bytes()
    for place in range(len(HEADER), len(whole), 3):
        broken = bytearray(whole)
        broken[place] ^= 0x10
        path.write_bytes(broken)
        assert numbers(path).get("a") in (None, 1, 2)


def test_a_name_that_is_half_written_or_an_empty_file_is_ours_to_take(path):
    path.write_bytes(b"")
    written(path, [started("a"), learnt("a", 1)])
    assert numbers(path) == {"a": 1}


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"\x89PNG\r\n", "is no journal of lbbsp"),
        (b"lbbsp journal 2\nxyz", "format 2"),
        (b"lbbsp journal 11\n", "format 11"),
        (b"lbbsp recording\n", "is no journal of lbbsp"),
        (HEADER + framed(b"\x81\xa4type\xa6future"), "can't read"),
    ],
)
def test_a_foreign_or_newer_file_is_refused_by_name_and_left_alone(path, content, word):
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=word) as refused:
        Journal(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert path.read_bytes() == content


def test_where_no_file_can_be_it_says_so(tmp_path):
    with pytest.raises(ServiceError, match="can't be opened"):
        Journal(tmp_path / "no" / "journal")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ServiceError, match="can't be opened"):
        Journal(tmp_path / "folder")


def test_one_manager_at_a_time(path):
    journal = Journal(path)
    with pytest.raises(ConfigError, match="in use by another manager"):
        Journal(path)
    journal.close()
    Journal(path).close()


def test_each_run_has_a_generation_of_its_own_also_after_a_tail_was_lost(path):
    generations = []
    for _ in range(5):
        journal = Journal(path)
        generations.append(journal.generation)
        journal.append(learnt("a", 1))
        journal.close()
        path.write_bytes(path.read_bytes()[:-3])
    assert generations == [1, 2, 3, 4, 5]


def test_only_its_owner_reads_it(path):
    written(path, [])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_stays_within_a_small_multiple_of_what_is_current(path):
    journal = Journal(path)
    journal.append(started("a"))
    largest = 0
    for number in range(300):
        journal.append(learnt("a", number, size=2_000))
        assert journal.flush()
        largest = max(largest, path.stat().st_size)
    assert journal.compactions > 2
    assert largest < COMPACT_ABOVE_BYTES + COMPACT_FACTOR * 40_000
    journal.close()
    assert numbers(path) == {"a": 299}
    assert path.stat().st_size < 40_000


def test_what_waits_for_a_slow_disk_is_bounded(path, monkeypatch):
    journal = Journal(path)
    journal.append(started("a"))
    assert journal.flush()
    with journal._wake:  # the thread gets nothing
        for number in range(1000):
            journal._waiting.pop(("a", "learnt"), None)
            journal.append(learnt("a", number))
        assert len(journal._waiting) == 1
    journal.close()
    assert numbers(path) == {"a": 999}


@pytest.mark.parametrize("call", ["write", "fdatasync", "fsync", "replace"])
def test_a_disk_that_fails_is_told_once_and_written_again_when_it_works(path, monkeypatch, caplog, call):
    monkeypatch.setattr(journal_module, "RETRY_EVERY_S", 0.01)
    monkeypatch.setattr(journal_module, "COMPACT_ABOVE_BYTES", 0)
    journal = Journal(path)
    journal.append(started("a"))
    journal.append(learnt("a", 1))
    assert journal.flush()
    real, failing = getattr(os, call), [True]

    def full(descriptor, *arguments):
        if not failing[0]:
            return real(descriptor, *arguments)
        if call == "write" and len(arguments[0]) > 10:
            real(descriptor, arguments[0][:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    for number in range(2, 50):
        journal.append(learnt("a", number))
        journal.flush(0.02)
    failing[0] = False
    assert journal.flush()
    journal.append(learnt("a", 50))
    assert journal.flush()
    assert sum("can't be written" in record.getMessage() for record in caplog.records) == 1
    assert journal.failures == 0
    journal.close()
    assert numbers(path) == {"a": 50}


def test_records_of_this_version_never_change_their_bytes():
    """A file written by an earlier 1 is read for ever: what this freezes takes a new format to change."""
    opened = b"\x82\xa4type\xa6opened\xaageneration\x03"
    assert framed(encode(Opened(generation=3))) == b"\x19\x00\x00\x00L\xc0\xd0\xb5" + opened
    assert encode(Learnt(job="a", incarnation="i", at_s=1.0, state={"x": np.arange(2.0)})) == (
        b"\x85\xa4type\xa6learnt\xa3job\xa1a\xabincarnation\xa1i\xa4at_s\xcb?\xf0\x00\x00\x00\x00\x00\x00\xa5state"
        b"\x81\xa1x\xc7\x19\x01\x93\xa3<f8\x91\x02\xc4\x10" + np.arange(2.0).tobytes()
    )
