"""Trackers, by stand-ins that keep what they are given; docs/training.md says how real ones were tried."""

import json
import sys
import types

import numpy as np
import pytest

from vit_jax.errors import ConfigError
from vit_jax.training.metrics_files import MetricsWriter
from vit_jax.writers import Writers, open_writers

CONFIG = {"optimizer.name": "adamw", "batch_size": 8}
PICTURE = np.zeros((2, 3, 3), np.uint8)


class Recorder:
    """Keeps every call as (name, positional arguments, keyword arguments)."""

    def __init__(self, calls, **results):
        self._calls, self._results = calls, results

    def __getattr__(self, name):
        def call(*arguments, **keywords):
            self._calls.append((name, arguments, keywords))
            return self._results.get(name)

        return call


@pytest.fixture
def calls():
    return []


@pytest.fixture
def packages(calls, monkeypatch):
    """Stand-ins for both packages."""
    wandb = Recorder(calls, init=Recorder(calls), Image="an image")
    entities = types.SimpleNamespace(Metric=lambda *parts: parts)
    run = types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1"))
    client = Recorder(calls, create_experiment="e1", create_run=run)
    client.known = None

    def find(name):
        calls.append(("get_experiment_by_name", (name,), {}))
        return client.known

    client.get_experiment_by_name = find

    def make(uri):
        calls.append(("MlflowClient", (uri,), {}))
        return client

    monkeypatch.setitem(sys.modules, "wandb", wandb)
    mlflow = types.SimpleNamespace(MlflowClient=make, entities=entities)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return client


def named(calls, name):
    return [(arguments, keywords) for called, arguments, keywords in calls if called == name]


def train(workdir, start_step=0):
    """The metrics and the picture of two steps, as a run hands them over."""
    trackers = open_writers(("wandb", "mlflow"), workdir, "photos", CONFIG)
    writer = MetricsWriter(workdir, start_step=start_step, trackers=trackers)
    writer.write(start_step + 1, {"train/loss": 1.5})
    writer.write_image(start_step + 1, "train/augmented_batch", PICTURE)
    writer.write(start_step + 2, {"train/loss": np.float32(1.25), "eval/accuracy": 0.5})
    writer.close()


def test_wandb_gets_the_config_the_metrics_and_the_pictures(packages, calls, tmp_path):
    train(tmp_path)
    ((_, given),) = named(calls, "init")
    assert given["config"] == CONFIG
    assert (given["project"], given["name"]) == ("photos", tmp_path.name)
    assert (given["dir"], given["resume"]) == (str(tmp_path), "allow")
    assert named(calls, "define_metric") == [(("*",), {"step_metric": "step"})]
    assert [arguments[0] for arguments, _ in named(calls, "log")] == [
        {"train/augmented_batch": "an image", "step": 1},
        {"train/loss": 1.5, "step": 1},
        {"train/loss": 1.25, "eval/accuracy": 0.5, "step": 2},
    ]
    assert len(named(calls, "finish")) == 1


def test_mlflow_gets_them_too(packages, calls, tmp_path):
    train(tmp_path)
    assert named(calls, "MlflowClient") == [((f"sqlite:///{tmp_path}/mlflow.db",), {})]
    assert named(calls, "get_experiment_by_name") == [(("photos",), {})]
    assert named(calls, "create_experiment") == [(("photos", f"{tmp_path}/mlflow"), {})]
    assert named(calls, "create_run") == [(("e1",), {"run_name": tmp_path.name})]
    assert named(calls, "update_run") == [(("r1",), {"status": "RUNNING"})]
    parameters = {key: value for (_, key, value), _ in named(calls, "log_param")}
    assert parameters == CONFIG
    metrics = [each for _, keywords in named(calls, "log_batch") for each in keywords["metrics"]]
    found = [(name, value, step) for name, value, _, step in metrics]
    assert found == [("train/loss", 1.5, 1), ("train/loss", 1.25, 2), ("eval/accuracy", 0.5, 2)]
    ((_, keywords),) = named(calls, "log_image")
    assert keywords == {"key": "train.augmented_batch", "step": 1}
    assert named(calls, "set_terminated") == [(("r1",), {})]


def test_a_run_that_is_resumed_stays_the_same_run_there(packages, calls, tmp_path):
    train(tmp_path)
    train(tmp_path, start_step=2)
    first, second = named(calls, "init")
    assert first[1]["id"] == second[1]["id"]
    assert len(named(calls, "create_run")) == 1
    assert [arguments[0] for arguments, _ in named(calls, "log_batch")] == ["r1"] * 4
    assert set(json.loads((tmp_path / "writers.json").read_text())) == {"wandb", "mlflow"}


def test_mlflows_own_variable_says_where(packages, calls, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking")
    open_writers(("mlflow",), tmp_path, "photos", CONFIG)
    assert named(calls, "MlflowClient") == [((None,), {})]
    assert named(calls, "create_experiment") == [(("photos", None), {})]


def test_an_experiment_that_is_there_gets_the_run(packages, calls, tmp_path):
    packages.known = types.SimpleNamespace(experiment_id="e7")
    open_writers(("mlflow",), f"{tmp_path}/", "photos", CONFIG)
    assert named(calls, "create_experiment") == []
    assert named(calls, "create_run") == [(("e7",), {"run_name": tmp_path.name})]


def test_a_store_is_no_folder_for_trackers(packages, calls):
    open_writers(("wandb", "mlflow", "wandb"), "memory://writers/a/", "photos", CONFIG)
    ((_, given),) = named(calls, "init")
    assert (given["dir"], given["name"]) == (None, "a")
    assert named(calls, "MlflowClient") == [((None,), {})]
    assert named(calls, "create_experiment") == [(("photos", None), {})]


def test_a_tracker_that_is_left_out_for_once_is_remembered(packages, calls, tmp_path):
    (tmp_path / "writers.json").write_text('{"mlflow": "m5"}')
    open_writers(("wandb",), tmp_path, "photos", CONFIG)
    known = json.loads((tmp_path / "writers.json").read_text())
    assert known == {"mlflow": "m5", "wandb": named(calls, "init")[0][1]["id"]}


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_package_that_is_missing_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ConfigError, match=rf"{name} is not installed .*pip install 'vit_jax\[{name}"
    ):
        open_writers((name,), tmp_path, "photos", {})
    assert not any(tmp_path.iterdir())


class Silent:
    """Fails without a word."""

    def init(**keywords):
        raise OSError

    def scalars(self, step, values):
        raise OSError

    def image(self, step, name, image):
        raise OSError

    def close(self):
        pass


def test_one_that_cannot_be_opened_is_named(tmp_path, monkeypatch):
    def init(**keywords):
        raise RuntimeError("no account\nmore")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    with pytest.raises(ConfigError, match=r"wandb cannot be opened \(no account\)"):
        open_writers(("wandb",), tmp_path, "photos", {})
    monkeypatch.setitem(sys.modules, "wandb", Silent)
    with pytest.raises(ConfigError, match=r"cannot be opened \(OSError\(\)\)"):
        open_writers(("wandb",), tmp_path, "photos", {})


def test_one_that_fails_later_is_told_once_and_stops_nothing(caplog, tmp_path):
    class Failing:
        def scalars(self, step, values):
            raise OSError("the server is gone\nfor ever")

        def image(self, step, name, image):
            raise OSError("as before")

        def close(self):
            raise OSError("still")

    calls = []
    trackers = Writers({"mlflow": Failing(), "other": Recorder(calls), "third": Silent()})
    writer = MetricsWriter(tmp_path, start_step=0, trackers=trackers)
    for step in (1, 2, 3):
        writer.write(step, {"train/loss": 1.0})
    writer.write_image(3, "a", PICTURE)
    writer.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    assert caplog.messages == [
        f"{name} misses metrics of this run ({reason}); its own files do not."
        for name, reason in (("mlflow", "the server is gone"), ("third", "OSError()"))
    ]
    assert sorted(name for name, *_ in calls) == ["close", "image", *["scalars"] * 3]
    assert [given[:2] for given, _ in named(calls, "image")] == [(3, "a")]


def test_without_any_nothing_is_written(tmp_path):
    open_writers((), tmp_path, "photos", CONFIG)
    assert not any(tmp_path.iterdir())
