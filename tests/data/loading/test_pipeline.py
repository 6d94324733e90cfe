import errno
import functools
import hashlib
import itertools
import os
import signal
import threading
import time

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.data.example_sources import Numbered, loading
from tests.data.pictures import encode, photograph
from tests.runs import LIMIT_SECONDS
from vit_jax import config
from vit_jax.data.images.transforms import train_transform
from vit_jax.data.loading import pipeline
from vit_jax.data.loading.chunks import Loading
from vit_jax.data.loading.order import Order
from vit_jax.data.loading.pipeline import batches, default_workers, host_batches, local_rows
from vit_jax.data.sources.examples import Source
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import ConfigError, DataError


def with_noise(image, rng):
    """Shows both the image and the random numbers it was given."""
    noise = rng.integers(0, 256, (1, 3, 1), np.uint8)
    return np.concatenate([image, noise], axis=1)


def identity(image):
    return image


def mesh_sharding(**axes):
    mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
    return NamedSharding(mesh, PartitionSpec(tuple(name for name in axes if name != "tensor")))


def take(
    count,
    *,
    size=37,
    batch_size=16,
    seed=0,
    axes=None,
    transform=with_noise,
    start=0,
    stop=None,
    **options,
):
    """The first batches, as NumPy arrays."""
    loaded = loading(Numbered(size), transform, batch_size, seed, **options)
    iterator = batches(loaded, mesh_sharding(**(axes or {"data": 8})), start, stop)
    found = [jax.device_get(batch) for batch in itertools.islice(iterator, count)]
    iterator.close()
    return found


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for key in ("image", "label", "index", "mask"):
            np.testing.assert_array_equal(one[key], other[key], err_msg=key)


# ---------------------------------------------------------------------------- batches


def test_batches_follow_the_order():
    order = Order(37, seed=0).indices(np.arange(16 * 6)).reshape(6, 16)
    for batch, indices in zip(take(6), order, strict=True):
        np.testing.assert_array_equal(batch["index"], indices)
        np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], indices)
        np.testing.assert_array_equal(batch["label"], indices % 2)
        assert batch["mask"].all()
    dtypes = {key: value.dtype.name for key, value in batch.items()}
    assert dtypes == {"image": "uint8", "label": "int32", "index": "int32", "mask": "bool"}


@pytest.mark.parametrize(
    "axes",
    [{"data": 1}, {"data": 2, "fsdp": 4}, {"data": 4, "tensor": 2}, {"data": 2, "tensor": 4}],
)
def test_layouts_of_devices_see_the_same(axes):
    assert_same(take(4, axes=axes), take(4))


def test_each_device_holds_its_rows():
    loaded = loading(Numbered(64), identity, batch_size=16, seed=None)
    (batch,) = itertools.islice(batches(loaded, mesh_sharding(data=8)), 1)
    for shard in batch["index"].addressable_shards:
        np.testing.assert_array_equal(shard.data, np.arange(16)[shard.index])
    assert batch["image"].sharding.is_equivalent_to(mesh_sharding(data=8), 4)


@pytest.mark.parametrize("start", [1, 2, 3, 7])
def test_resuming_at_any_step(start):
    assert_same(take(9 - start, start=start), take(9)[start:])


def test_stop():
    assert_same(take(99, start=2, stop=4), take(4)[2:])
    assert take(99, start=4, stop=4) == take(99, start=5, stop=3) == []


@pytest.mark.parametrize("num_threads", [1, 2, 7])
def test_threads_do_not_matter(num_threads):
    assert_same(take(5, num_threads=num_threads), take(5))


@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_workers_do_not_matter(num_workers):
    assert_same(
        take(5, batch_size=40, num_workers=num_workers, num_threads=1), take(5, batch_size=40)
    )


@pytest.mark.parametrize(("cores", "workers"), [(1, 0), (16, 0), (17, 2), (96, 12)])
def test_worker_processes_are_for_many_cores(monkeypatch, cores, workers):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(cores), raising=False)
    assert default_workers() == workers


def test_processes_share_the_cores_of_their_host_unless_the_system_does(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 96)
    asked = []
    monkeypatch.setattr(pipeline, "processes_on_host", lambda: asked.append(True) or 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(96), raising=False)
    assert pipeline.num_cores() == 24
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(10), raising=False)
    assert pipeline.num_cores() == 10
    assert len(asked) == 2, "always: processes that the system binds must not leave others waiting"


def test_large_batches_are_loaded_in_chunks():
    (batch,) = take(1, size=1000, batch_size=520, num_threads=3)
    np.testing.assert_array_equal(batch["index"], Order(1000, 0).indices(np.arange(520)))


@pytest.mark.parametrize(
    ("rows", "threads", "chunks"), [(520, 3, 17), (512, 3, 16), (16, 6, 6), (4, 6, 4), (33, 1, 2)]
)
def test_chunks_have_32_rows_at_most(rows, threads, chunks):
    assert pipeline.num_chunks(rows, threads) == chunks


def test_worker_processes_leave_signals_to_the_run(monkeypatch):
    ignored, ends = {}, []
    monkeypatch.setattr(signal, "signal", lambda number, action: ignored.update({number: action}))
    monkeypatch.setattr(pipeline, "end_with_parent", lambda: ends.append(True))
    pipeline._start_worker(0, 1)
    assert ignored == dict.fromkeys((signal.SIGINT, signal.SIGTERM), signal.SIG_IGN)
    assert ends == [True]


def test_random_numbers_depend_on_seed_and_position_only():
    noise = {}
    for seed, batch_size, start in ((0, 16, 0), (0, 8, 1), (1, 16, 0)):
        (batch,) = take(1, seed=seed, batch_size=batch_size, start=start)
        noise[seed, batch_size] = batch["image"][:, 0, 1:, 0]
    np.testing.assert_array_equal(noise[0, 8], noise[0, 16][8:])
    assert len(np.unique(noise[0, 16], axis=0)) == 16
    assert not (noise[0, 16] == noise[1, 16]).all(axis=1).any()


def test_a_dataset_smaller_than_the_batch_wraps_around():
    found = np.concatenate([batch["index"] for batch in take(3, size=5)])
    for epoch in found[:45].reshape(9, 5):
        assert sorted(epoch) == [0, 1, 2, 3, 4]


# ---------------------------------------------------------------------------- evaluation


@pytest.mark.parametrize(("size", "batch_size"), [(50, 32), (7, 8), (64, 32), (1, 64), (33, 8)])
def test_evaluation_counts_every_example_once(size, batch_size):
    found = take(99, size=size, batch_size=batch_size, seed=None, transform=identity)
    assert len(found) == -(-size // batch_size)
    counted = np.concatenate([batch["index"][batch["mask"]] for batch in found])
    np.testing.assert_array_equal(counted, np.arange(size))
    padding = ~found[-1]["mask"]
    assert (found[-1]["image"][padding] == size - 1).all()
    assert (found[-1]["label"][padding] == (size - 1) % 2).all()


# ---------------------------------------------------------------------------- processes


class OneProcess:
    """A sharding as process `process` of several sees it, with its own devices only."""

    def __init__(self, sharding, process, num_processes):
        self._sharding = sharding
        count = len(sharding.mesh.devices.flat) // num_processes
        self._mine = set(range(process * count, (process + 1) * count))

    def addressable_devices_indices_map(self, shape):
        indices = self._sharding.devices_indices_map(shape)
        return {device: index for device, index in indices.items() if device.id in self._mine}


@pytest.mark.parametrize("num_processes", [2, 4])
@pytest.mark.parametrize("axes", [{"data": 8}, {"tensor": 2, "data": 4}, {"data": 4, "tensor": 2}])
def test_processes_load_the_rows_of_their_devices(axes, num_processes):
    (whole,) = take(1)
    seen = []
    for process in range(num_processes):
        rows = local_rows(OneProcess(mesh_sharding(**axes), process, num_processes), 16)
        loaded = host_batches(loading(Numbered(37), with_noise, 16, seed=0), rows)
        batch = next(loaded)
        loaded.close()
        seen += rows.tolist()
        assert_same([batch], [{key: values[rows] for key, values in whole.items()}])
    assert set(seen) == set(range(16))
    # A tensor axis across processes makes rows repeat; otherwise each is loaded once.
    repeats = {2: 2, 4: 2}[num_processes] if next(iter(axes)) == "tensor" else 1
    assert len(seen) == 16 * repeats


def interleaved_sharding():
    """Of devices whose neighbours in the mesh are of other processes: their rows have gaps."""
    devices = np.array(jax.devices())[[0, 4, 1, 5, 2, 6, 3, 7]]
    return NamedSharding(jax.sharding.Mesh(devices, "data"), PartitionSpec("data"))


@pytest.mark.parametrize("process", [0, 1, 3])
@pytest.mark.parametrize(
    "axes", [{"data": 8}, {"data": 2, "fsdp": 4}, {"tensor": 2, "data": 4}, {}], ids=str
)
def test_a_process_hands_its_devices_their_rows_of_the_global_batch(axes, process, monkeypatch):
    """JAX asks by global rows; a process holds some of them, which start elsewhere than at 0."""
    whole = mesh_sharding(**axes) if axes else interleaved_sharding()
    sharding = OneProcess(whole, process, 4)

    def shards_of(shape, given, callback):
        assert given is sharding
        indices = sharding.addressable_devices_indices_map(shape).values()
        return shape, [(np.arange(shape[0])[index[0]], callback(index)) for index in indices]

    monkeypatch.setattr(jax, "make_array_from_callback", shards_of)
    (batch,) = batches(loading(Numbered(32), identity, 16, seed=None), sharding, 1, 2)
    count = 4 if "tensor" in axes else 2
    for shape, shards in batch.values():
        assert shape[0] == 16, "the global batch's"
        assert [len(values) for _, values in shards] == [count] * 2, "of its two devices"
    for key in ("index", "image"):
        for rows, values in batch[key][1]:
            np.testing.assert_array_equal(np.ravel(values), 16 + rows)


def test_indivisible_batch():
    with pytest.raises(ConfigError, match="batch_size=12"):
        local_rows(mesh_sharding(data=8), 12)


# ---------------------------------------------------------------------------- failures


def broken(image, rng):
    raise ZeroDivisionError("a bug in a transform")


def deadly(image, rng):
    os._exit(3)


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_bug_shows_itself(num_workers):
    with pytest.raises(ZeroDivisionError, match="a bug in a transform"):
        take(1, transform=broken, num_workers=num_workers)


@pytest.mark.slow
def test_the_death_of_a_worker_is_an_error():
    with pytest.raises(DataError, match="worker process"):
        take(1, transform=deadly, num_workers=1)


# ---------------------------------------------------------------------------- threads and memory


def test_closing_stops_the_threads():
    before = threading.active_count()
    take(2, num_threads=4)
    deadline = time.monotonic() + LIMIT_SECONDS
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def count_and_return(image, rng, *, counter):
    next(counter)
    return image


def test_only_a_few_batches_are_held_ready():
    counter = itertools.count()
    transform = functools.partial(count_and_return, counter=counter)
    examples = loading(Numbered(1000), transform, batch_size=64, seed=0, num_threads=2)
    iterator = host_batches(examples, np.arange(64))
    next(iterator)
    time.sleep(0.5)
    assert next(counter) <= 4 * 64
    iterator.close()


def test_transfers_pass_the_guard():
    with jax.transfer_guard("disallow"):
        loaded = loading(Numbered(37), with_noise, batch_size=16, seed=0)
        iterator = batches(loaded, mesh_sharding(data=8))
        next(iterator)
        iterator.close()


# ---------------------------------------------------------------------------- exactness


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Opens 24 photographs of different sizes in two classes, with crops and augmentation."""
    root = tmp_path_factory.mktemp("photographs")
    for index in range(24):
        path = root / "train" / ("cat" if index % 3 else "dog") / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(photograph(80 + 3 * index, 200 - index), "JPEG"))
    data = config.default_config().data
    data.source, data.held_out_fraction = f"folder:{root}", 0.0
    data.augmentation = "randaug_tf(1, 3) | random_erasing(0.5)"
    source = open_source(data, "train", image_size=(32, 32), channels=3, num_classes=0)
    return source, train_transform(data, (32, 32), 3)


def hashes(photographs, rows, start=0, **options):
    """What rows of batches hold: (index, hash of the pixels), by batch."""
    loaded = loading(*photographs, batch_size=16, seed=4, copies=2, **options)
    return [
        [
            (int(index), hashlib.sha256(image).hexdigest())
            for index, image in zip(batch["index"], batch["image"], strict=True)
        ]
        for batch in host_batches(loaded, np.asarray(rows), start, stop=5)
    ]


def test_pixels_are_the_same_for_any_processes_threads_and_start(photographs):
    expected = hashes(photographs, range(16))
    assert len({pixels for batch in expected for _, pixels in batch}) == 5 * 16
    assert hashes(photographs, range(16), num_threads=1) == expected
    for count in (2, 4):
        parts = [hashes(photographs, rows) for rows in np.split(np.arange(16), count)]
        for number, batch in enumerate(zip(*parts, strict=True)):
            assert list(itertools.chain(*batch)) == expected[number]
    for start in range(5):
        assert hashes(photographs, range(16), start=start) == expected[start:]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_pixels_are_the_same_for_any_worker_processes(photographs, num_workers):
    expected = hashes(photographs, range(16))
    assert hashes(photographs, range(16), num_workers=num_workers) == expected
    found = hashes(photographs, range(4, 8), start=3, num_workers=num_workers)
    assert found == [batch[4:8] for batch in expected[3:]]


def test_a_list_of_files_that_is_gone_is_named():
    def chunks():
        yield from ()
        raise FileNotFoundError(2, "No such file", "index/files.npy")

    with pytest.raises(DataError, match=r"index/files.npy has been removed since the run began"):
        next(pipeline._gather(chunks(), 1, None, None))


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (
            errno.ENOSPC,
            r"\(No space left on device\): /dev/shm is too small; .*num_workers, 0 for none",
        ),
        (errno.EMFILE, r"\(Too many open files\): allow more open files \(ulimit -n\), or set"),
        (
            errno.ENFILE,
            r"in system\): allow the machine more open files \(sysctl fs.file-max\), or",
        ),
    ],
)
def test_what_worker_processes_run_out_of_is_named(number, advice):
    def chunks():
        yield from ()
        raise OSError(number, os.strerror(number))

    with pytest.raises(DataError, match=advice):
        next(pipeline._gather(chunks(), 1, None, None))


def test_other_errors_of_the_system_stay_what_they_are():
    def chunks():
        yield from ()
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        next(pipeline._gather(chunks(), 1, None, None))


@pytest.mark.parametrize(
    ("num_threads", "cores", "processes", "expected"),
    [(0, 12, 1, 12), (0, 12, 4, 3), (0, 1, 1, 2), (3, 12, 4, 3)],
)
def test_a_thread_decodes_for_each_core(monkeypatch, num_threads, cores, processes, expected):
    monkeypatch.setattr(pipeline, "num_cores", lambda: cores)
    loading = Loading(Source(), None, Order(1, None), 1, num_threads=num_threads)
    assert pipeline.num_threads_of(loading, processes) == expected


def test_closing_the_batches_closes_what_loads_them_at_once():
    """Not when Python happens to collect it."""
    closed = []

    def chunks():
        try:
            while True:
                yield {"label": [1], "index": [2], "mask": [True], "image": [[3.5]], "unread": []}
        finally:
            closed.append(True)

    loaded = chunks()  # Held here, too.
    gathered = pipeline._gather(loaded, 2, None, None)
    assert next(gathered)["image"].tolist() == [[3.5], [3.5]]
    assert not closed
    gathered.close()
    assert closed


def halves(image):
    return image.astype(np.float32) / 2


def test_floats_stay_floats_where_threads_put_them_together():
    loaded = host_batches(loading(Numbered(9), halves, 8, None, num_threads=2), np.arange(8))
    first, last = loaded
    assert first["image"].ravel().tolist() == [index / 2 for index in range(8)]
    assert last["image"].ravel().tolist() == [4.0] * 8
    assert first["image"].dtype == np.float32
