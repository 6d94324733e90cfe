"""The values that a run goes on with: recorded ones, but for what the command line sets."""

import copy
import json

import pytest
from etils import epath

from vit_jax.config import default_config, flatten, lookup
from vit_jax.config_file import chosen_keys
from vit_jax.earlier import EARLIER
from vit_jax.errors import CheckpointError, ConfigError
from vit_jax.training import workdir
from vit_jax.training.resuming import (
    OF_THIS_START,
    as_json,
    as_recorded,
    check_same_run,
    has_checkpoints,
)


def config_of(**values):
    config = default_config()
    config.update_from_flattened_dict(values)
    return config


@pytest.fixture
def resume(tmp_path):
    """A function that resumes a run of other values: what the config says, and what was chosen."""
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)

    def started_with(*without, **values):
        workdir.record_config(
            epath.Path(tmp_path),
            config_of(**values),
            workdir.Inputs(64, ""),
            "eval/accuracy",
            resuming=False,
        )
        path = tmp_path / "config.json"
        content = json.loads(path.read_text())
        for key in without:  # Of versions that did not know it.
            *sections, name = f"config.{key}".split(".")
            del lookup(content, ".".join(sections))[name]
        path.write_text(json.dumps(content))

        def go_on(*overrides, **now):
            config = config_of(**now)
            return as_recorded(config, tmp_path, chosen_keys(overrides))

        return go_on

    return started_with


# Of every section, and of every type; a second value for each.
CHANGES = {
    "batch_size": 256,
    "total_epochs": 7.0,
    "warmup_steps": 9,
    "keep_checkpoints": 3,
    "best_metric": "eval/loss",
    "evaluators": "classification(name='other')",
    "ema_decay": 0.5,
    "data.augmentation": "randaug_tf(2, 15)",
    "data.classes": ("1", "2"),
    "data.mean": (0.1, 0.2, 0.3),
    "objective.label_smoothing": 0.1,
    "objective.mixing.mixup_alpha": 0.2,
    "model.image_size": (64, 32),
    "model.dropout_rate": 0.1,
    "model.remat": "full",
    "optimizer.b1": 0.5,
    "optimizer.decay_multipliers": (("head", 0.5), ("kernel$", 1.0)),
    "optimizer.sharpness.rho": 0.1,
    "schedule.end": 0.1,
    "mesh.fsdp": 8,
    "sweep.learning_rates": (0.1, 0.2),
}


LEFT_OPEN = {"best_metric", "model.remat"}  # By default: they take whatever was recorded.


def test_every_key_that_is_not_set_is_as_it_was(resume, caplog):
    """Whichever of the two was the other's default."""
    for before, now in ((CHANGES, {}), ({}, CHANGES)):
        caplog.clear()
        found = flatten(resume(**before)(**now))
        for key in CHANGES:
            expected = flatten(config_of(**before))[key]
            if expected not in (None, "", "auto") and key not in ("best_metric", "evaluators"):
                assert found[key] == expected, key
        (line,) = caplog.messages
        for key in CHANGES.keys() - LEFT_OPEN if now == {} else CHANGES:
            assert f"config.{key}=" in line
    assert found["best_metric"] == "eval/accuracy"
    assert found["optimizer.b1"] == 0.9


# What makes another run, and what does not.
IDENTITY = {
    **{"model.depth": 3, "model.num_classes": 7, "model.head_bias": -1.0, "model.image_size": 64},
    **{"batch_size": 8, "seed": 5, "optimizer.name": "lion", "optimizer.freeze": "x"},
    **{"objective.name": "regression", "data.source": "fake", "data.data_dir": "/d"},
    **{"data.train_split": "x", "data.classes": ["a"], "data.label": "x", "data.columns": "x"},
    **{"data.held_out_fraction": 0.3, "data.holding_out": "hash", "data.fold": "1/2"},
    **{"data.shuffle": "blocks", "data.sampling": "sqrt", "data.exclude": "x"},
    **{"data.max_train_examples": 9},
}
CHANGEABLE = {
    **{"model.dtype": "bfloat16", "model.remat": "full", "model.attention": "cudnn"},
    **{"model.matmul_precision": "high", "model.scan_unroll": 1, "optimizer.b1": 0.1},
    **{"optimizer.learning_rate": 7.0, "data.augmentation": "x", "data.eval_split": "x"},
    **{"schedule.name": "constant", "total_steps": 9, "data.num_threads": 3, "note": "x"},
}


@pytest.fixture(scope="module")
def recorded_run(tmp_path_factory):
    path = epath.Path(tmp_path_factory.mktemp("run"))
    config = config_of(
        **{"model.remat": "none", "model.attention": "xla", "model.scan_unroll": 2},
        **{"model.matmul_precision": "default"},
    )
    workdir.record_config(path, config, workdir.Inputs(64, ""), "eval/accuracy", resuming=False)
    return path / "config.json", as_json(config)


@pytest.mark.parametrize("key", [*IDENTITY, *CHANGEABLE])
def test_which_keys_make_another_run(recorded_run, key, caplog):
    path, before = recorded_run
    now = copy.deepcopy(before)
    value = {**IDENTITY, **CHANGEABLE}[key]
    *sections, name = key.split(".")
    (now[sections[0]] if sections else now)[name] = value
    if key in CHANGEABLE:
        check_same_run(path, now, moved=False)
        assert f"config.{key} was" in caplog.text
    else:
        with pytest.raises(CheckpointError, match=rf"config\.{key}=.*, not "):
            check_same_run(path, now, moved=False)
    if key in ("data.source", "data.data_dir", "data.exclude"):
        check_same_run(path, now, moved=True)
    elif key in IDENTITY:
        with pytest.raises(CheckpointError, match="holds a run with"):
            check_same_run(path, now, moved=True)


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({"seed": 5}, "config.seed=0, not 5"),
        (
            {"batch_size": 64, "data.source": "x", "data.exclude": "y"},
            "config.batch_size=128, not 64; config.data.exclude='', not 'y'; "
            "config.data.source='', not 'x'",
        ),
        (
            {"model.name": "ViT-S/16", "model.width": 7, "seed": 5},  # The width is the name's.
            "config.model.name=None, not 'ViT-S/16'; config.seed=0, not 5",
        ),
    ],
)
def test_what_another_run_is_told_to_do_instead(recorded_run, changes, differing):
    path, before = recorded_run
    now = copy.deepcopy(before)
    for key, value in changes.items():
        *sections, name = key.split(".")
        (now[sections[0]] if sections else now)[name] = value
    with pytest.raises(CheckpointError) as error:
        check_same_run(path, now, moved=False)
    message = str(error.value)
    assert message.startswith(f"{path.parent} holds a run with {differing}: resume it with")
    assert message.endswith(f"in a new --workdir with --config.init={path.parent}.")
    # Advice on a key is there once, and with that key alone.
    assert message.count("config.optimizer.accumulation_steps") == ("batch_size" in changes)
    assert message.count("config.data.allow_changes=True") == ("data.source" in changes)


def test_what_is_not_the_configs_is_told_in_a_line(resume, tmp_path, caplog):
    resume(ema_decay=0.5, total_steps=7, **{"data.flip": False})("total_steps=9", total_steps=9)
    assert caplog.messages == [
        f"The run goes on as {tmp_path}/config.json has it, with config.data.flip=False (not True), "
        "config.ema_decay=0.5 (not 0.0): set what shall change on the command line."
    ]


def test_a_workdir_has_checkpoints_where_a_step_is_saved(tmp_path):
    assert not has_checkpoints(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    assert not has_checkpoints(tmp_path)
    (tmp_path / "checkpoints" / "7").mkdir()
    assert has_checkpoints(tmp_path)


def test_a_run_on_other_data_is_another_run(resume):
    """Unless the command line names the data: then it is compared, see test_moved_data."""
    go_on = resume(**{"data.source": "folder:a"})
    with pytest.raises(
        CheckpointError, match=r"'folder:a', and this config has 'folder:b'.*workdir"
    ):
        go_on(**{"data.source": "folder:b"})
    moved = go_on("data.source=folder:b", **{"data.source": "folder:b"})
    assert moved.data.source == "folder:b"


def test_a_preset_as_it_was_says_nothing(resume, caplog):
    same = CHANGES | {"best_metric": "auto"}
    resume(**same)(**same)
    assert not caplog.messages


def test_what_the_command_line_sets_wins(resume, caplog):
    go_on = resume(**CHANGES)
    found = go_on("ema_decay=0.75", "total_steps=5", ema_decay=0.75, total_steps=5)
    assert found.ema_decay == 0.75
    assert (found.total_steps, found.total_epochs) == (5, 0), "one duration in another unit"
    assert found.warmup_steps == 9
    assert "ema_decay" not in caplog.text
    assert "total" not in caplog.text


MACHINE = ["note", "log_every_steps", "watchdog_minutes", "profile.start_step"]
MACHINE += ["profile.num_steps", "data.allow_changes", "data.index_dir", "data.num_threads"]
MACHINE += ["data.num_workers", "data.cache_gib"]


def test_which_keys_are_of_the_machine_and_the_screen():
    found = [key for key in flatten(default_config()) if key.startswith(OF_THIS_START)]
    assert sorted(found) == sorted(MACHINE)


@pytest.mark.parametrize("key", MACHINE)
def test_keys_of_the_machine_and_the_screen_are_the_configs(resume, caplog, key):
    old = flatten(default_config())[key]
    other = {bool: True, int: 7, float: 0.5, str: "other"}[type(old)]
    assert flatten(resume()(**{key: other}))[key] == other
    assert flatten(resume(**{key: other})())[key] == old
    assert not caplog.messages


def test_another_schedule_takes_no_options_of_the_recorded_one(resume):
    go_on = resume(
        **{"schedule.name": "cosine", "schedule.end": 0.25, "schedule.warmup_start": 0.1}
    )
    assert go_on().schedule.end == 0.25
    assert go_on("schedule.name=linear", **{"schedule.name": "linear"}).schedule.end is None
    assert go_on("schedule.name=cosine").schedule.end == 0.25, "the same one"


def test_what_the_run_is_too_old_to_know_is_as_it_was_then(resume, caplog):
    go_on = resume(*EARLIER)
    new = {"ema_warmup": False, "optimizer.sharpness.shares": 32, "data.bit_depth": 12}
    found = flatten(go_on(**new))
    assert {key: found[key] for key in EARLIER} == EARLIER
    assert found["data.bit_depth"] == 16, "the default is what versions before the key did"
    (line,) = caplog.messages
    assert "config.data.holding_out='hash' (not 'stratified')" in line
    assert go_on("ema_warmup=False", **new).ema_warmup is False


def test_from_python_every_key_was_set_on_purpose_but_for_those_that_it_is_too_old_for(
    resume, tmp_path
):
    resume(*EARLIER, total_steps=2)
    found = as_recorded(config_of(total_steps=9, ema_decay=0.5), tmp_path)
    assert (found.total_steps, found.ema_decay) == (9, 0.5)
    assert {key: flatten(found)[key] for key in EARLIER} == EARLIER


def test_without_a_checkpoint_nothing_goes_on(resume, tmp_path):
    go_on = resume(seed=5)
    (tmp_path / "checkpoints" / "1").rmdir()
    assert go_on().seed == 0


def test_a_lost_record_is_said_and_a_damaged_one_is_named(resume, tmp_path, caplog):
    go_on, path = resume(seed=5), tmp_path / "config.json"
    content = path.read_text()
    path.unlink()
    assert go_on().seed == 0
    assert f"{path} is missing" in caplog.text
    for damaged in ("[1]", "{", "{}", content.replace('"seed": 5', '"seed": "five"')):
        path.write_text(damaged)
        with pytest.raises(CheckpointError, match=r"config\.json is damaged"):
            go_on()


def test_what_is_set_has_to_go_with_what_was_recorded(resume):
    go_on = resume(**{"optimizer.sharpness.rho": 0.5, "optimizer.sharpness.rho_min": 0.4})
    with pytest.raises(ConfigError, match=r"rho_min=0\.4: must be at most .*rho=0\.1"):
        go_on("optimizer.sharpness.rho=0.1", **{"optimizer.sharpness.rho": 0.1})


def recorded_as_none(folder, *keys):
    """Rewrites the record as versions wrote it that left defaults open."""
    path = folder / "config.json"
    content = json.loads(path.read_text())
    for key in keys:
        *sections, name = f"config.{key}".split(".")
        lookup(content, ".".join(sections))[name] = None
    path.write_text(json.dumps(content))


def test_a_default_that_was_left_open_is_as_it_was_then(resume, tmp_path):
    """From the command line, and from Python, where all else is set on purpose."""
    go_on = resume()
    recorded_as_none(tmp_path, "model.scan_unroll", "model.remat")
    for found in (go_on(), as_recorded(config_of(), tmp_path)):
        assert (found.model.scan_unroll, found.model.remat) == (1, "none")


def test_an_older_run_has_no_options_that_its_architecture_lacks(resume):
    values = {"model.name": "BiT-R50x1", "model.image_size": 32}
    found = resume(*EARLIER, **values)("model.name=BiT-R50x1", **values)
    assert found.model.attention is None
    assert found.model.remat == "none"
