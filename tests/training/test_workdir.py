"""The run's directory: writable, and the same run as before."""

import concurrent.futures
import functools
import json
import logging
import os
import re
import threading
import time
import types

import jax
import numpy as np
import pytest
from etils import epath

from tests.runs import LIMIT_SECONDS
from vit_jax.config import default_config, flatten
from vit_jax.errors import CheckpointError
from vit_jax.training import workdir

BEST = "eval/accuracy"


@pytest.fixture
def recorded(tmp_path):
    """A function that records a config with some keys set, as a run or as its resumption."""

    def record(*, resuming=True, num_train_examples=64, teacher="", **values):
        config = default_config()
        config.update_from_flattened_dict(values)
        path = epath.Path(tmp_path)
        inputs = workdir.Inputs(num_train_examples, f"of {num_train_examples}", teacher)
        workdir.record_config(path, config, inputs, BEST, resuming=resuming)

    record(resuming=False)
    return record


def test_a_directory_is_made_with_its_parents_and_left_empty(tmp_path):
    path = workdir.open_directory(tmp_path / "runs" / "first")
    assert path.is_dir()
    assert not list(path.iterdir())
    assert workdir.open_directory(str(path)) == path  # Again.


def test_what_cannot_be_written_is_named_with_the_reason(tmp_path):
    (tmp_path / "file").write_text("")
    for directory, reason in (("file", "File exists"), ("file/run", "Not a directory")):
        with pytest.raises(CheckpointError) as error:
            workdir.open_directory(tmp_path / directory)
        assert str(error.value) == (
            f"--workdir={tmp_path / directory} cannot be written ({reason}): name another."
        )


def as_processes(monkeypatch, functions):
    """What each function returns or raises, run by a process of its own: here, by a thread."""
    barrier = threading.Barrier(len(functions), timeout=LIMIT_SECONDS)
    local, told = threading.local(), [None] * len(functions)

    def gather(value):
        told[local.process] = value
        barrier.wait()
        answers = np.array(told)
        barrier.wait()  # All have them before the next ones come.
        return answers

    def process_index():
        if local.process == 0:
            time.sleep(0.05)  # So that whoever does not wait for process 0 comes before it.
        return local.process

    def run(process):
        local.process = process
        try:
            return functions[process]()
        except CheckpointError as error:
            return error

    monkeypatch.setattr(workdir.distributed, "gather", gather)
    monkeypatch.setattr(workdir.jax, "process_index", process_index)
    monkeypatch.setattr(workdir.jax, "process_count", lambda: len(functions))
    with concurrent.futures.ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(run, range(len(functions))))


def test_processes_may_share_a_directory_which_is_left_empty(tmp_path, monkeypatch):
    opened = as_processes(monkeypatch, [lambda: workdir.open_directory(tmp_path)] * 3)
    assert opened == [epath.Path(tmp_path)] * 3
    assert not list(tmp_path.iterdir())


def test_all_processes_are_told_which_of_them_sees_another_directory(tmp_path, monkeypatch):
    paths = [tmp_path / name for name in ("a", "a", "b")]
    errors = as_processes(
        monkeypatch, [functools.partial(workdir.open_directory, path) for path in paths]
    )
    for error, path in zip(errors, paths, strict=True):
        assert f"--workdir={path} is another directory on process 2 than" in str(error)
        assert not list(path.iterdir())


def test_process_0_alone_records_the_config_once_all_have_read_it(monkeypatch, recorded, caplog):
    """Who reads it after that does not see how it differs."""
    writers, write, written = [], workdir.write_json, threading.Event()

    def write_json(*what):
        writers.append(jax.process_index())
        write(*what)
        written.set()

    def late():
        written.wait(0.5)  # In vain, for process 0 waits for this one.
        recorded(log_every_steps=7)

    monkeypatch.setattr(workdir, "write_json", write_json)
    as_processes(monkeypatch, [lambda: recorded(log_every_steps=7), late])
    assert writers == [0]
    told = [message for message in caplog.messages if "config.log_every_steps was" in message]
    assert len(told) == 2


@pytest.mark.parametrize(("before", "now"), [("", "run/compilation_cache"), ("mine", None)])
def test_programs_are_kept_in_the_workdir_unless_said_otherwise(monkeypatch, before, now):
    updates = {}
    config = types.SimpleNamespace(jax_compilation_cache_dir=before, update=updates.__setitem__)
    monkeypatch.setattr(workdir, "jax", types.SimpleNamespace(config=config))
    workdir.enable_compilation_cache(epath.Path("run"))
    assert updates == ({"jax_compilation_cache_dir": now} if now else {})


def test_indices_lie_in_a_local_workdir():
    assert workdir.index_directory("runs/a") == os.path.join("runs", "a", "index")
    assert workdir.index_directory("gs://bucket/run") == ""


@pytest.mark.parametrize("name", ["model.safetensors", "params.safetensors"])
def test_a_model_is_not_written_over(tmp_path, name):
    workdir.check_apart_from_weights(tmp_path / "new", init=str(tmp_path))
    (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=f"{tmp_path} holds {name}"):
        workdir.check_apart_from_weights(tmp_path, init="")
    workdir.check_apart_from_weights(tmp_path / "new", init=str(tmp_path))
    (tmp_path / "checkpoints").mkdir()  # A run, into which its weights were exported.
    workdir.check_apart_from_weights(tmp_path, init="")


def test_a_run_does_not_start_from_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for init in (str(tmp_path), f"{tmp_path}/", "."):
        with pytest.raises(CheckpointError, match=f"init={init} is --workdir itself"):
            workdir.check_apart_from_weights(tmp_path, init)


def test_config_json_has_every_key_and_the_versions(recorded, tmp_path):
    content = json.loads((tmp_path / "config.json").read_text())
    mixing = {"mixup_alpha": 0.0, "cutmix_alpha": 0.0, "probability": 1.0}
    mixing |= {"cutmix_probability": 0.5, "form": "big_vision"}
    objective = {"name": "classification", "loss": "softmax", "label_smoothing": 0.0}
    expected = json.loads(default_config().to_json())
    found = content["config"]
    chosen = {key: value for key, value in found["objective"].items() if value is not None}
    assert chosen == {**objective, "mixing": mixing}
    assert flatten(found).keys() - flatten(objective | mixing) >= flatten(expected).keys() - {
        key for key in flatten(expected) if key.startswith("objective.")
    }
    unset = {key for key, value in flatten(expected).items() if value is None}
    for key, value in flatten(expected).items():
        assert key in unset or key in ("best_metric", "evaluators") or flatten(found)[key] == value


def test_what_the_program_chose_is_recorded(recorded, tmp_path):
    """For options that are None, `auto` or empty: a later version may choose otherwise."""
    found = flatten(json.loads((tmp_path / "config.json").read_text())["config"])
    chosen = {
        **{"best_metric": "eval/accuracy", "evaluators": "classification"},
        **{"optimizer.b1": 0.9, "optimizer.b2": 0.999, "optimizer.momentum": None},
        **{"schedule.end": 0.0, "schedule.timescale": None},
        **{"model.width": 768, "model.gelu": "tanh", "model.dtype": "float32"},
    }
    assert {key: found[key] for key in chosen} == chosen


def test_the_versions_are_recorded(recorded, tmp_path):
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["versions"].keys() >= {"jax", "jaxlib", "flax", "optax", "vit_jax"}
    assert content["versions"]["numpy"] == np.__version__
    assert content["versions"]["device"] == "cpu"
    assert not list(tmp_path.glob("*.tmp"))


def test_an_equal_config_resumes_in_silence(recorded, caplog):
    recorded()
    assert not caplog.records


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch_size", 64),
        ("seed", 1),
        ("data.train_split", "train[:50%]"),
        ("model.name", "ViT-S/16"),
        ("model.image_size", 384),
        ("model.dropout_rate", 0.1),
        ("optimizer.name", "sgd"),
        ("optimizer.freeze", "^(?!head/)"),
    ],
)
def test_another_run_is_refused_with_the_difference(recorded, tmp_path, key, value):
    before = (tmp_path / "config.json").read_text()
    old = flatten(json.loads(before)["config"])[key]
    with pytest.raises(CheckpointError) as error:
        recorded(**{key: value})
    assert f"{tmp_path} holds a run with config.{key}={old!r}, not {value!r}" in str(error.value)
    assert (tmp_path / "config.json").read_text() == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.classes", ("cat", "dog")),
        ("data.label", "clevr_count"),
        ("data.held_out_fraction", 0.2),
        ("data.shuffle", "blocks"),
        ("data.max_train_examples", 100),
    ],
)
def test_what_changes_the_order_of_examples_makes_another_run(recorded, key, value):
    with pytest.raises(CheckpointError, match=rf"holds a run with config\.{key}="):
        recorded(**{key: value})


def test_an_earlier_version_s_keys_are_found_under_their_new_names(recorded, tmp_path, caplog):
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    objective = content["config"].pop("objective")
    content["config"] |= {key: objective[key] for key in ("loss", "label_smoothing", "mixing")}
    content["config"]["loss"] = "sigmoid"
    path.write_text(json.dumps(content))
    recorded()
    (record,) = caplog.records
    assert record.message == (
        "config.objective.loss was 'sigmoid' before this resume and is 'softmax' now."
    )


def test_all_differences_are_shown_at_once(recorded):
    with pytest.raises(CheckpointError, match=r"batch_size=128, not 64; config\.seed=0, not 1: "):
        recorded(batch_size=64, seed=1, total_steps=7)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("total_steps", 200),
        ("optimizer.learning_rate", 0.5),
        ("optimizer.grad_clip_norm", 1.0),
        ("ema_decay", 0.9),
        ("eval_every_steps", 7),
        ("model.dtype", "bfloat16"),
        ("mesh.fsdp", 8),
        ("data.num_workers", 2),
    ],
)
def test_other_differences_are_logged_and_recorded(recorded, tmp_path, caplog, key, value):
    with caplog.at_level(logging.WARNING, logger="vit_jax"):
        recorded(**{key: value})
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"config.{key} was ")
    assert message.endswith(f"is {value!r} now.")
    caplog.clear()
    recorded(**{key: value})
    assert not caplog.records


def test_how_the_model_is_computed_is_recorded_and_may_change(recorded, tmp_path, caplog):
    """From what was chosen to what is asked for without a word; between two values with one."""
    for value in (1, 4):
        recorded(**{"model.scan_unroll": value, "model.remat": "full"})
    (message,) = caplog.messages
    assert message == "config.model.scan_unroll was 1 before this resume and is 4 now."
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["config"]["model"]["scan_unroll"] == 4
    assert config["config"]["model"]["attention"] == "auto"


def test_what_is_chosen_in_another_way_is_told(tmp_path, caplog):
    """As by a version that chooses otherwise, or on other devices; not what the command line sets."""
    config = default_config()
    config.model.remat = "full"
    for attention, remat in (("xla", "none"), ("joint", "full"), ("joint", "full")):
        execution = {"attention": attention, "remat": remat}
        inputs = workdir.Inputs(64, "", execution=execution)
        resuming = attention == "joint"
        workdir.record_config(epath.Path(tmp_path), config, inputs, BEST, resuming=resuming)
    (message,) = caplog.messages
    assert re.match(
        r"config\.model\.attention=auto was 'xla' before .* is 'joint' now: .* Set it", message
    )


def test_a_pair_equals_the_list_it_is_stored_as(tmp_path, caplog):
    for resuming in (False, True):
        config = default_config()
        config.model.image_size = (64, 32)
        workdir.record_config(
            epath.Path(tmp_path), config, workdir.Inputs(64, ""), BEST, resuming=resuming
        )
    assert not caplog.records


def test_other_data_is_mentioned(recorded, tmp_path, caplog):
    recorded(num_train_examples=1_065)
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith("The data had 64 training examples before this resume and has 1,065")
    caplog.clear()
    recorded(num_train_examples=1_065)
    assert not caplog.records
    inputs = workdir.Inputs(1_065, "others")
    workdir.record_config(epath.Path(tmp_path), default_config(), inputs, BEST, resuming=True)
    (message,) = caplog.messages
    assert message.startswith("The names or labels of the training examples are others than before")


def test_without_a_checkpoint_any_config_replaces_the_recorded_one(recorded, tmp_path):
    recorded(resuming=False, seed=1)
    assert json.loads((tmp_path / "config.json").read_text())["config"]["seed"] == 1


def test_a_lost_config_is_written_anew_and_a_damaged_one_named(recorded, tmp_path):
    (tmp_path / "config.json").unlink()
    recorded(seed=5)
    for damaged in ('{"config": ', "[1]", '{"config": [1]}', '{"config": null}'):
        (tmp_path / "config.json").write_text(damaged)
        with pytest.raises(CheckpointError, match=r"config\.json is damaged"):
            recorded(seed=5)


def test_keys_that_an_older_version_did_not_know_had_their_defaults(recorded, tmp_path, caplog):
    recorded(resuming=False)
    path = tmp_path / "config.json"
    stored = json.loads(path.read_text())
    del stored["config"]["ema_decay"], stored["config"]["data"]["classes"]
    path.write_text(json.dumps(stored))
    with caplog.at_level(logging.WARNING, logger="vit_jax"):
        recorded()
    assert not caplog.records
    path.write_text(json.dumps(stored))
    with pytest.raises(CheckpointError, match=r"config\.data\.classes=\[\], not \['1', '2'\]"):
        recorded(**{"data.classes": ("1", "2")})


def test_a_run_that_recorded_no_teacher_may_have_one(recorded, tmp_path):
    """Earlier versions did not."""
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    del content["objective_digest"], content["execution"]
    path.write_text(json.dumps(content))
    recorded(teacher="one")
    assert json.loads(path.read_text())["objective_digest"] == "one"


def test_another_teacher_is_refused_on_resume(recorded, tmp_path):
    recorded(resuming=False, teacher="one")
    recorded(teacher="one")
    message = (
        rf"^{tmp_path}/config\.json .* another teacher than --config\.init_teacher .* new --workdir"
    )
    with pytest.raises(CheckpointError, match=message):
        recorded(teacher="two")
