"""Reading ahead: what is asked for, how much at a time, and that batches stay what they are."""

import pickle
import threading

import numpy as np
import pytest

from tests.data.example_sources import Numbered, loading
from tests.runs import LIMIT_SECONDS
from vit_jax.data.loading import pipeline, read_ahead
from vit_jax.data.loading.pipeline import host_batches
from vit_jax.data.loading.read_ahead import ReadAhead
from vit_jax.data.sources.examples import Example
from vit_jax.errors import DataError


class Remote(Numbered):
    """A store's."""

    remote = True


def no_noise(image):
    return image


def test_more_chunks_are_on_their_way_than_threads_decode(monkeypatch):
    """No reading of this source ends before eight have begun; two threads decode."""
    monkeypatch.setattr(pipeline, "num_cores", lambda: 2)
    monkeypatch.setattr(read_ahead, "_UNMEASURED", 8)
    together = threading.Barrier(8)

    class Waiting(Remote):
        def fetch(self, indices):
            together.wait(LIMIT_SECONDS)
            return super().fetch(indices)

    given = loading(Waiting(640), no_noise, 256, None)
    found = host_batches(given, np.arange(256), stop=1)
    expected = next(host_batches(loading(Numbered(640), no_noise, 256, None), np.arange(256)))
    batch = next(found)
    for key in expected:
        np.testing.assert_array_equal(batch[key], expected[key])
    found.close()


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_batches_are_those_of_a_local_source(num_workers):
    asked = []

    class Counted(Remote):
        def fetch(self, indices):
            asked.extend(indices)
            return super().fetch(indices)

    def epoch(source):
        given = loading(source, no_noise, 16, None, num_workers=num_workers, num_threads=1)
        return list(host_batches(given, np.arange(16), start=1))

    remote = Remote(150) if num_workers else Counted(150)
    found, expected = epoch(remote), epoch(Numbered(150))
    assert num_workers or sorted(asked) == list(range(16, 150)), "nothing beyond the end"
    assert len(found) == len(expected) == 9
    for ours, theirs in zip(found, expected, strict=True):
        for key in theirs:
            np.testing.assert_array_equal(ours[key], theirs[key])


def reader(sizes):
    """Reads chunks of one image of so many bytes; and what it was asked for."""
    asked = []

    def read(chunk):
        asked.append(chunk)
        return [Example(b"x" * sizes(chunk), 0, str(chunk))]

    return read, asked


def drained(ahead):
    """Waits for all that was begun."""
    for reading in list(ahead._reading.values()):
        reading.result(LIMIT_SECONDS)


def test_each_chunk_is_read_once_and_none_after_the_last():
    read, asked = reader(lambda chunk: 1)
    ahead = ReadAhead(most=4, stride=3, stop=20)
    for chunk in range(1, 20, 3):
        assert ahead.take(chunk, read)[0].name == str(chunk)
    assert sorted(asked) == [1, 4, 7, 10, 13, 16, 19]
    ahead.close()


def test_chunks_in_another_order_come_all_the_same():
    read, asked = reader(lambda chunk: 1)
    ahead = ReadAhead(most=2, stride=1, stop=30)
    order = [3, 0, 12, 4, 5, 1, 12]  # 0 and 1 are before the first, the second 12 is one more.
    assert [ahead.take(chunk, read)[0].name for chunk in order] == [str(chunk) for chunk in order]
    assert asked.count(12) == 2
    ahead.close()


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, 4), (25, 4), (40, 2), (1000, 1)],  # Of 100 bytes and 4 chunks at most.
)
def test_what_lies_ready_is_bounded_in_bytes(monkeypatch, size, expected):
    monkeypatch.setattr(read_ahead, "_MOST_BYTES", 100)
    read, asked = reader(lambda chunk: size)
    ahead = ReadAhead(most=4, stride=1, stop=1000)
    for chunk in range(10):
        ahead.take(chunk, read)
    drained(ahead)
    assert sorted(asked) == list(range(10 + expected))
    ahead.close()


def test_chunks_that_become_larger_are_fewer_at_once(monkeypatch):
    """However many small ones came before, as in a folder of thumbnails and then of photographs."""
    monkeypatch.setattr(read_ahead, "_MOST_BYTES", 100)
    read, asked = reader(lambda chunk: 1 if chunk < 50 else 40)
    ahead = ReadAhead(most=4, stride=1, stop=1000)
    for chunk in range(60):
        ahead.take(chunk, read)
        if chunk == 50:
            drained(ahead)
            assert sorted(asked) == list(range(54)), "one of the last four is enough"
    drained(ahead)
    assert sorted(asked) == list(range(60 + 2))
    ahead.close()


def test_at_first_little_is_read_ahead_for_nobody_knows_its_size():
    go, begun = threading.Event(), threading.Semaphore(0)

    def read(chunk):
        begun.release()
        go.wait(LIMIT_SECONDS)
        return [Example(b"x", 0, "")]

    ahead = ReadAhead(most=50, stride=1, stop=1000)
    thread = threading.Thread(target=ahead.take, args=(0, read))
    thread.start()
    assert begun.acquire(timeout=LIMIT_SECONDS)
    with ahead._lock:
        assert ahead._next == read_ahead._UNMEASURED
    go.set()
    thread.join(LIMIT_SECONDS)
    assert ahead._next == 51
    ahead.close()


def test_the_size_of_what_was_read():
    array = Example(np.zeros((2, 3, 1), np.float32), 0, "")
    assert [read_ahead._size(each) for each in (array, Example(b"123", 0, ""), OSError())] == [
        24,
        3,
        0,
    ]


def test_an_error_of_reading_comes_when_its_chunk_is_asked_for():
    def read(chunk):
        if chunk == 2:
            raise OSError("the store is gone")
        return []

    ahead = ReadAhead(most=4, stride=1, stop=10)
    assert [ahead.take(chunk, read) for chunk in range(2)] == [[], []]
    with pytest.raises(OSError, match="the store is gone"):
        ahead.take(2, read)
    ahead.close()


def test_closing_reads_no_more():
    go, asked, ended = threading.Event(), [], []

    def read(chunk):
        asked.append(chunk)
        if chunk:
            go.wait(LIMIT_SECONDS)
            ended.append(chunk)
        return []

    ahead = ReadAhead(most=1, stride=1, stop=1000)
    ahead.take(0, read)
    ahead.close()
    assert not ended, "what is on its way is not waited for"
    go.set()
    for chunk in (2, 5):
        with pytest.raises(DataError, match="have been closed"):
            ahead.take(chunk, read)
    assert set(asked) <= {0, 1}
    assert not ahead._reading, "what lies ready is dropped"


def test_a_copy_for_a_worker_process_begins_anew():
    read, asked = reader(lambda chunk: 1)
    ahead = ReadAhead(most=2, stride=2, stop=9)
    ahead.take(0, read)
    copy = pickle.loads(pickle.dumps(ahead))
    assert copy.take(1, read)[0].name == "1"
    drained(copy)
    assert {3, 5} <= set(asked)
    assert 9 not in asked
    ahead.close()
    copy.close()


def test_worker_processes_share_the_cores_and_the_chunks(monkeypatch):
    class Asked(Exception):
        pass

    def read_ahead_of(most, stride, stop):
        raise Asked(most, stride, stop)

    monkeypatch.setattr(pipeline, "num_cores", lambda: 7)
    monkeypatch.setattr(pipeline, "ReadAhead", read_ahead_of)
    given = loading(Remote(640), no_noise, 96, None, num_workers=3)
    with pytest.raises(Asked) as asked:
        host_batches(given, np.arange(96), start=1, stop=5)
    # Two cores for each of three processes; 4 batches of a chunk for each of their six threads.
    assert asked.value.args == (32, 3, 4 * 6)


def test_cores_say_how_many_chunks_are_asked_for():
    assert [read_ahead.chunks_ahead(cores) for cores in (0, 1, 2, 96)] == [16, 16, 32, 64]
