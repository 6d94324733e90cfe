"""The trainer: against the reference's trajectories, across meshes, and across micro-batches."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import vit_jax
from tests import tiny
from tests.models.filled import predict
from tests.runs import GOLDEN, read_metrics
from tests.shared_programs import shared_programs  # noqa: F401
from tests.stages import Setup, config_with, mesh_of, run_on
from tests.workdirs import NAME, PREPROCESSING, TINY, write_workdir
from vit_jax import train
from vit_jax.checkpoint import Checkpoints, TrainState, restore_params
from vit_jax.config import default_config
from vit_jax.data.dataset import open_dataset
from vit_jax.devices import sharding
from vit_jax.durations import Durations
from vit_jax.errors import NonFiniteLossError, PreemptedError
from vit_jax.model_file import read_model_file, write_model_file
from vit_jax.objectives.base import Labels
from vit_jax.objectives.classification import Classification
from vit_jax.optimizer import build_optimizer
from vit_jax.optimizer.groups import parameter_groups
from vit_jax.optimizer.schedules import make_schedule
from vit_jax.training.experiment import build_schedule, make_experiment
from vit_jax.training.state import with_weights
from vit_jax.training.step import make_train_step

pytestmark = pytest.mark.usefixtures("shared_programs")

MESHES = [
    pytest.param({"data": 8}, marks=pytest.mark.slow),  # The others have a data axis too.
    {"fsdp": 8},
    pytest.param({"data": 2, "fsdp": 4}, marks=pytest.mark.slow),
    {"data": 4, "tensor": 2},
]
WIDE = {"model.width": 128, "model.mlp_width": 512, "total_steps": 5, "warmup_steps": 1}


@pytest.mark.parametrize(
    ("golden", "optimizer"),
    [
        *(("vit_token", "sgd"), ("vit_token", "adamw")),
        *(  # Their gradients are the reference's in `weights/test_npz.py`, in the fast tests too.
            pytest.param(golden, optimizer, marks=pytest.mark.slow)
            for golden in ("vit_token_representation", "vit_gap")
            for optimizer in ("sgd", "adamw")
        ),
    ],
)
def test_twelve_steps_follow_the_reference(golden, optimizer):
    file = np.load(GOLDEN / f"{golden}.npz")
    model = vit_jax.load_model(GOLDEN / f"{golden}.npz", num_heads=2)
    graphdef, state = nnx.split(model)
    params = nnx.to_pure_dict(state)

    config = default_config()
    config.optimizer.name = optimizer
    config.optimizer.grad_clip_norm = 1.0
    config.optimizer.weight_decay = {"sgd": 0.0, "adamw": 0.1}[optimizer]
    recipe = {
        "sgd": {"name": "cosine", "base": 0.05, "warmup_steps": 3},
        "adamw": {"name": "linear", "base": 3e-3, "warmup_steps": 4},
    }
    schedule = make_schedule(total_steps=12, **recipe[optimizer])
    groups = parameter_groups(config.optimizer, params)
    transformation = build_optimizer(config.optimizer, schedule, groups)

    # As `Network`, of images that the reference has already normalised.
    network = types.SimpleNamespace(
        options=model.options,
        outputs=lambda params, images, key: {"logits": nnx.merge(graphdef, params)(images)},
        statistics=lambda outputs: {},
        follow=lambda params, means: params,
    )
    mesh = mesh_of(1)
    state = TrainState(jnp.int32(0), params, jax.jit(transformation.init)(params), None)
    state = jax.device_put(state, sharding.replicated(mesh))
    classes = Labels((), model.options.num_classes)
    objective = Classification(Classification.Options(), network, classes)
    step = make_train_step(
        config, objective, transformation, groups.trainable, schedule, state, mesh
    )
    batch = {
        "image": jnp.asarray(file["images"]),
        "label": jnp.asarray(file["labels"]),
        "mask": jnp.ones(len(file["labels"]), bool),
    }
    losses = []
    for _ in range(12):
        state, metrics = step(state, {}, batch)
        losses.append(float(metrics["loss"]))
    np.testing.assert_allclose(losses, file[f"trajectory_{optimizer}/loss"], atol=1e-4)
    expected = file[f"trajectory_{optimizer}/head_kernel"]
    np.testing.assert_allclose(state.params["head"]["kernel"], expected, atol=1e-5)


@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_every_mesh_trains_as_one_device_does(axes):
    losses, indices, state = run_on(mesh_of(1), **WIDE)
    mesh_losses, mesh_indices, mesh_state = run_on(mesh_of(**axes), **WIDE)
    np.testing.assert_array_equal(mesh_indices, indices)
    np.testing.assert_allclose(mesh_losses, losses, atol=1e-5)
    assert np.abs(np.diff(losses[1:])).min() > 1e-3  # Each update but the first has a rate.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3), mesh_state, state)


def test_fsdp_leaves_an_eighth_of_each_large_array_on_a_device():
    _, _, state = run_on(mesh_of(fsdp=8), **WIDE)
    num_split = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        shard = leaf.addressable_shards[0].data
        if leaf.size >= sharding.MIN_FSDP_ELEMENTS:
            assert shard.size * 8 == leaf.size, path
            num_split += 1
        else:
            assert shard.size == leaf.size, path
    assert num_split == 2 * 3  # Both MLP kernels, and Adam's two moments of each.


@pytest.mark.slow  # Of one update in the fast tests: `training/test_step.py`.
@pytest.mark.parametrize(("name", "tolerance"), [("sgd", 1e-6), ("adamw", 1e-5)])
def test_accumulated_micro_batches_equal_one_batch(name, tolerance):
    values = {"batch_size": 64, "total_steps": 5, "optimizer.name": name}
    losses, _, state = run_on(mesh_of(1), **values)
    micro = {**values, "optimizer.accumulation_steps": 4}
    micro_losses, _, micro_state = run_on(mesh_of(1), **micro)
    np.testing.assert_allclose(micro_losses, losses, atol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance),
        micro_state.params,
        state.params,
    )


MIXING = {"objective.mixing.mixup_alpha": 1.0, "objective.mixing.cutmix_alpha": 1.0}
DROPOUT = {"model.dropout_rate": 0.1, "model.stochastic_depth_rate": 0.2}


@pytest.mark.parametrize(
    ("values", "axes", "accumulation_steps"),
    [
        pytest.param(  # One of eight devices: `objectives/test_mixing.py`.
            {**MIXING, "objective.mixing.form": "deit"}, {"data": 8}, 4, marks=pytest.mark.slow
        ),
        # Micro-batches draw their own dropout: these are the same as on one device only.
        ({**MIXING, **DROPOUT, "optimizer.accumulation_steps": 2}, {"data": 4, "fsdp": 2}, 2),
        pytest.param(DROPOUT, {"data": 2, "fsdp": 4}, 1, marks=pytest.mark.slow),
        pytest.param(MIXING, {"data": 2, "fsdp": 4}, 1, marks=pytest.mark.slow),
    ],
    ids=["mixing in DeiT's form", "all and accumulation", "dropout", "mixing"],
)
def test_what_is_random_is_the_same_on_any_mesh_and_in_micro_batches(
    values, axes, accumulation_steps
):
    values = {"total_steps": 4, "warmup_steps": 0, **values}
    losses, _, _ = run_on(mesh_of(1), **values)
    values["optimizer.accumulation_steps"] = accumulation_steps
    mesh_losses, _, _ = run_on(mesh_of(8, **axes), **values)
    np.testing.assert_allclose(mesh_losses, losses, rtol=1e-5)


def test_averaged_parameters_follow_the_formula():
    """Steps 1 and 2 are of the average's warm-up, 3 and 4 have the decay that was asked for."""
    values = {"ema_decay": 0.2, "total_steps": 4, "warmup_steps": 0}
    setup = Setup(config_with(**values, **{"optimizer.learning_rate": 0.1}), mesh_of(1))
    state, average = setup.state, jax.tree.map(np.array, setup.state.params)
    for batch, keep in zip(setup.batches(), (1 / 10, 2 / 11, 0.2, 0.2), strict=True):
        state, _ = setup.step(state, batch)
        params = jax.device_get(state.params)
        average = jax.tree.map(lambda a, p, k=keep: k * a + (1 - k) * p, average, params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state.ema, average)


@pytest.mark.parametrize(
    ("warmup", "cooldown", "peaks"),
    [(100, 0, False), (20, 90, False), (0, 101, False), (20, 80, True), (0, 100, True)],
)
def test_a_rate_that_never_peaks_is_warned_of(warmup, cooldown, peaks, caplog):
    build_schedule(default_config(), Durations(100, warmup, cooldown, 0, 0))
    expected = f"100 steps has no room for its warm-up of {warmup} and cooldown of {cooldown}"
    assert (expected in caplog.text) == (not peaks)


def measured(model, config):
    """The accuracy and the mean loss of a model over the evaluation split, in NumPy."""
    logits, labels = [], []
    mean, std = (np.float32(x) for x in (model.preprocessing.mean, model.preprocessing.std))
    experiment = make_experiment(config, mesh_of(1), open_dataset(config))
    for batch in experiment.setting(config.data).data.open().batches():
        real = np.asarray(batch["mask"])
        outputs = predict(model, (np.asarray(batch["image"]) / 255 - mean) / std)
        logits.append(np.asarray(outputs)[real])
        labels.append(np.asarray(batch["label"])[real])
    logits, labels = np.float64(np.concatenate(logits)), np.concatenate(labels)
    own = logits[np.arange(len(labels)), labels]
    losses = np.logaddexp.reduce(logits, axis=-1) - own
    return {"accuracy": (logits.argmax(-1) == labels).mean(), "loss": losses.mean()}


def assert_measured(record, name, model, config):
    for metric, expected in measured(model, config).items():
        assert record[f"{name}/{metric}"] == pytest.approx(expected, rel=1e-5), metric


def test_run_writes_what_it_promises(tmp_path, monkeypatch):
    config = tiny.get_config()
    config.eval_every_steps, config.ema_decay = 4, 0.9
    config.profile.start_step, config.profile.num_steps = 3, 2
    save, on_disk = Checkpoints.save, {}

    def save_and_look(checkpoints, step, *rest):
        on_disk[step] = read_metrics(tmp_path)[-1]["step"]
        return save(checkpoints, step, *rest)

    monkeypatch.setattr(Checkpoints, "save", save_and_look)
    last = train.run(config, tmp_path)
    assert on_disk  # Records are there before the checkpoint that will cut later ones.
    assert all(step == record for step, record in on_disk.items())
    records = read_metrics(tmp_path)
    assert [record["step"] for record in records] == list(range(1, 11))
    assert [record["step"] for record in records if "eval/accuracy" in record] == [4, 8, 10]
    assert records[-1] == last
    assert last["eval/count"] == last["eval_ema/count"] == 360
    for name, ema in (("eval", False), ("eval_ema", True)):
        assert_measured(last, name, vit_jax.load_model(tmp_path, ema=ema), config)
    assert last["eval_ema/loss"] > last["eval/loss"] + 1e-4  # The average lags behind.
    assert records[0]["train/learning_rate"] == 0
    assert {"model.json", "config.json", "checkpoints", "tensorboard", "augmented_batch.png"} <= {
        path.name for path in tmp_path.iterdir()
    }
    assert list(tmp_path.glob("tensorboard/plugins/profile/*/*.xplane.pb"))
    assert train.run(config, tmp_path) == last  # Nothing is left to do.
    assert read_metrics(tmp_path) == records


class Asked:
    """An event that is set when the loop asks for the given time."""

    def __init__(self, time):
        self.left = time

    def is_set(self):
        self.left -= 1
        return self.left == 0


@pytest.mark.parametrize("stopping", [False, True], ids=["at a checkpoint", "when stopped"])
def test_a_step_whose_loss_is_not_finite_is_not_saved(tmp_path, stopping):
    """The second update ruins the parameters: of steps 3 and 4, step 4 is to be saved."""
    config = config_with(total_steps=8, warmup_steps=1, checkpoint_every_steps=0 if stopping else 4)
    config.optimizer.learning_rate, config.optimizer.grad_clip_norm = 1e30, 0.0
    with pytest.raises(NonFiniteLossError, match="The loss of step 3 "):
        train.run(config, tmp_path, stop=Asked(4 if stopping else 0))
    assert not list((tmp_path / "checkpoints").glob("[0-9]*"))


def test_two_classes_and_bfloat16_stay_finite(tmp_path):
    config = tiny.get_config()
    config.total_steps = 20
    config.optimizer.learning_rate = default_config().optimizer.learning_rate
    config.data.source, config.data.num_train_examples = "fake", 64
    config.model.num_classes = 2
    config.model.dtype = "bfloat16"
    config.objective.loss = "sigmoid"
    last = train.run(config, tmp_path)
    assert np.isfinite(last["train/loss"])
    assert "eval/top5_accuracy" not in last


def test_training_starts_from_the_best_average_of_another_run(tmp_path):
    """With its normalisation, and with that average as the first of its own."""
    (tmp_path / "first").mkdir()
    write_workdir(tmp_path / "first")  # Parameters times 1, 2, 3; averages ten times; 2 is best.
    unnamed = dataclasses.replace(read_model_file(tmp_path / "first"), class_names=())
    write_model_file(tmp_path / "first", unnamed)  # So that the head is kept.
    config = tiny.get_config()
    config.data.source = "fake"
    config.data.num_train_examples = config.data.num_eval_examples = 32
    config.model.update(name=NAME, channels=3, patch_size=8, num_classes=3, **TINY)
    config.total_steps, config.optimizer.learning_rate, config.ema_decay = 2, 0.0, 0.9
    config.eval_every_steps = 1
    config.init, config.init_checkpoint, config.init_ema = str(tmp_path / "first"), "best", True
    with pytest.raises(PreemptedError, match="after step 1"):
        train.run(config, tmp_path / "second", stop=Asked(1))
    (last,) = read_metrics(tmp_path / "second")
    before, after, average = (
        restore_params(tmp_path / run, 1, ema=ema)
        for run, ema in (("first", False), ("second", False), ("second", True))
    )
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(b, a * np.float32(20)), before, after)
    jax.tree.map(np.testing.assert_array_equal, average, after)
    preprocessing = read_model_file(tmp_path / "second").preprocessing
    assert (preprocessing.mean, preprocessing.std) == (PREPROCESSING.mean, PREPROCESSING.std)
    source = vit_jax.load_model(tmp_path / "first", "best", ema=True)
    for record in (last, train.run(config, tmp_path / "second")):  # And when it goes on.
        for name in ("eval", "eval_ema"):
            assert_measured(record, name, source, config)
    assert read_model_file(tmp_path / "second").preprocessing == preprocessing


def test_of_given_weights_single_layers_may_start_fresh():
    mesh = mesh_of(8, data=8)
    fresh = {name: jnp.full((3, 2), 7.0) for name in ("whole", "part", "none")}
    state = TrainState(jnp.int32(0), jax.device_put(fresh, sharding.replicated(mesh)), (), None)
    given = np.arange(6, dtype=np.float32).reshape(3, 2)
    mask = np.array([[False], [True], [False]]) & np.ones((3, 2), bool)
    weights = {
        "whole": given,
        "part": np.ma.masked_array(given, mask),
        "none": jax.ShapeDtypeStruct((3, 2), jnp.float32),
    }
    params = with_weights(state, weights, objective=None).params
    np.testing.assert_array_equal(params["whole"], given)
    np.testing.assert_array_equal(params["part"], [[0, 1], [7, 7], [4, 5]])
    np.testing.assert_array_equal(params["none"], np.full((3, 2), 7))
    assert params["part"].sharding == state.params["part"].sharding
