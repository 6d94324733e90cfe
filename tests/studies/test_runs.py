"""A cell's inference: its numbers, the memory that they come from, and when it ends."""

import threading

import jax
import pytest

from tests import tiny
from vit_jax.errors import PreemptedError
from vit_jax.studies import runs


@pytest.fixture
def few(monkeypatch):
    """Short measurements in a small memory."""
    monkeypatch.setattr(runs, "SECONDS", 0.0)
    monkeypatch.setattr(runs, "PATIENCE", 1)
    monkeypatch.setattr(runs, "capacity_bytes", lambda: 2**20)


def test_inference_of_a_config(few, tmp_path):
    config = tiny.get_config()
    config.model.image_size = (8, 18)
    found = runs.measured(config, str(tmp_path / "none"), None)
    assert found.keys() == {runs.IMAGES_PER_SECOND, runs.LARGEST_BATCH, runs.IMAGE_SIZE}
    assert found[runs.IMAGE_SIZE] == 12
    assert found[runs.IMAGES_PER_SECOND] > 0
    assert not (tmp_path / "none").exists()


def test_the_largest_batch_just_fits(few):
    config = tiny.get_config()
    options = runs.model_options(config, 10)
    abstract = jax.eval_shape(lambda: runs.build(config.model.name, options))
    found = runs.largest_batch(abstract, options)
    structure, parameters = runs.nnx.split(abstract)
    needed = [
        runs.bytes_of(runs.program(structure, parameters, options, size))
        for size in (found, found + 8)  # Programs differ a little from a line.
    ]
    assert found > 16
    assert 0.9 * 2**20 < needed[0] < 1.02 * 2**20 < needed[1]


def test_a_stop_is_heeded_between_batches(few):
    stop = threading.Event()
    stop.set()
    with pytest.raises(PreemptedError):
        runs.measured(tiny.get_config(), "", stop)


def test_larger_batches_are_tried_while_they_are_faster():
    assert not runs.is_over([1.0])
    assert not runs.is_over([1.0, 0.9])
    assert not runs.is_over([1.0, 0.9, 1.5])
    assert runs.is_over([1.0, 2.0, 2.01, 1.9])
    assert [*runs.sizes_up_to(9)] == [1, 2, 4, 8]


def test_a_cell_that_trains_and_is_measured_has_both(monkeypatch):
    monkeypatch.setattr(runs, "trained", lambda *_: {"a": 1.0})
    monkeypatch.setattr(runs, "measured", lambda *_: {"b": 2.0})
    assert runs.trained_and_measured(None, "", None) == {"a": 1.0, "b": 2.0}
