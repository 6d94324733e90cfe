"""A cell that is trained and measured has the numbers of both."""

import dataclasses
import threading

from tests import tiny
from vit_jax.benchmark.speed import Timing
from vit_jax.studies import runs


def test_a_trained_cell_is_measured_on_each_device(monkeypatch, tmp_path):
    config, measured = tiny.get_config(), []
    monkeypatch.setattr(runs, "trained", lambda *given: {"step": 4.0, "given": given})
    assert runs.BATCH_SIZE == 64
    assert dataclasses.astuple(runs.TIMING) == (10, 3)
    monkeypatch.setattr(runs, "BATCH_SIZE", 8)
    monkeypatch.setattr(runs, "TIMING", Timing(0.01, 1))

    def measure(*given):
        speed = runs_measure(*given)
        measured.append(speed)
        return dataclasses.replace(speed, devices=2, repeats=(6.0,))

    runs_measure = runs.measure_inference
    monkeypatch.setattr(runs, "measure_inference", measure)
    found = runs.trained_and_measured(config, str(tmp_path), None)
    assert found["step"] == 4
    assert found["given"] == (config, str(tmp_path), None)
    assert found[runs.IMAGES_PER_SECOND] == 3.0
    assert measured[0].batch_size == 8 * runs.jax.device_count()
    assert config.batch_size == 32  # The run's own.
    assert [*tmp_path.iterdir()] == []


def test_a_cell_is_trained_in_its_folder_until_it_is_stopped(monkeypatch):
    given, stop = [], threading.Event()
    monkeypatch.setattr(runs.train, "run", lambda *a, **k: given.append((a, k)) or {"step": 1})
    assert runs.trained("config", "DIR", stop) == {"step": 1}
    assert given == [(("config", "DIR"), {"stop": stop})]
