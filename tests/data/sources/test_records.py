import uuid

import fsspec
import numpy as np
import pytest

from vit_jax import storage
from vit_jax.data.sources import records
from vit_jax.data.sources.records import Records


@pytest.fixture(params=["local", "remote"])
def shards(request, tmp_path):
    """Two shards with the records 0-3, and 4 and 5, of ten bytes each."""
    root = str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    paths = [storage.join(root, f"{number}.shard") for number in range(2)]
    for path, values in zip(paths, ([0, 1, 2, 3], [4, 5]), strict=True):
        write(path, *values)
    arrays = [
        {"start": np.arange(0, 10 * count, 10), "length": np.full(count, 10, np.uint32)}
        for count in (4, 2)
    ]
    return paths, Records(paths, arrays, int)


def write(path, *values):
    storage.write(path, b"".join(f"{value:10}".encode() for value in values))


def test_neighbours_are_one_request(shards, monkeypatch):
    paths, found = shards
    requests = []
    read = storage.read

    def counted(path, start, stop):
        requests.append((path, start, stop))
        return read(path, start, stop)

    monkeypatch.setattr(storage, "read", counted)
    assert list(found.fetch([5, 0, 2, 3, 0])) == [5, 0, 2, 3, 0]
    if storage.is_remote(paths[0]):  # A gap is read through, where a request costs more.
        assert sorted(requests) == [(paths[0], 0, 40), (paths[1], 10, 20)]
    else:
        assert sorted(requests) == [(paths[0], 0, 10), (paths[0], 20, 40), (paths[1], 10, 20)]


def test_a_large_gap_is_not_read_through(monkeypatch):
    monkeypatch.setattr(records, "_GAP", 5)
    monkeypatch.setattr(records, "_LARGEST_REQUEST", 40)
    at = [
        records.Extent(0, "memory://x", start, start + 10) for start in (0, 15, 31, 41, 51, 61, 71)
    ]
    groups = [[extent.start for extent in group] for group in records._neighbours(at)]
    assert groups == [[0, 15], [31, 41, 51, 61], [71]]


def test_what_cannot_be_read_stands_for_itself(shards):
    paths, found = shards
    storage.write(paths[0], storage.read(paths[0])[:25])  # Within the third record.
    fsspec.core.url_to_fs(paths[1])[0].rm(paths[1])
    values = list(found.fetch([1, 2, 3, 5]))
    assert values[0] == 1
    for value, end in zip(values[1:3], (30, 40), strict=True):
        assert f"0.shard ends before byte {end}: it has changed since it was indexed" in str(value)
    assert "1.shard cannot be read" in str(values[3])
    with pytest.raises(IndexError):
        next(found.fetch([6]))
