"""Distillation against numpy; teachers of another size, order of classes, normalisation, type."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import vit_jax
from tests import tiny
from tests.runs import read_metrics, rewound
from tests.stages import Setup, mesh_of, random_model
from vit_jax import evaluate, train
from vit_jax.checkpoint import restore_params
from vit_jax.devices import sharding
from vit_jax.devices.topology import open_topology
from vit_jax.errors import CheckpointError, ConfigError
from vit_jax.model_file import Preprocessing
from vit_jax.objectives.distillation import divergence
from vit_jax.objectives.mixing import mixed_images, mixed_targets, pair
from vit_jax.training import planning


def save_teacher(path, *, names=tuple("0123456789"), preprocessing=None, **options):
    """A random model of the tiny config's kind."""
    sizes = {"width": 32, "depth": 1, "num_heads": 2, "mlp_width": 64, "channels": 1}
    options = {"image_size": 8, "num_classes": 10, **sizes, **options}
    model = random_model("ViT-Ti/2", seed=3, **options)
    model.class_names = names
    model.preprocessing = preprocessing or Preprocessing()
    vit_jax.save_model(model, path)
    return str(path)


def answers(path, images):
    """The logits of a saved model for normalised images."""
    return np.float64(nnx.jit(lambda model, x: model(x))(vit_jax.load_model(path), images))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return save_teacher(tmp_path_factory.mktemp("teacher") / "teacher.npz")


def make_config(teacher, **values):
    config = tiny.get_config()
    config.objective.name, config.init_teacher, config.model.depth = "distillation", teacher, 1
    config.total_steps, config.eval_every_steps, config.schedule.name = 4, 2, "constant"
    config.checkpoint_every_steps, config.keep_checkpoints = 2, 2
    config.update_from_flattened_dict(values)
    return config


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_the_divergence_against_numpy():
    rng = np.random.default_rng(0)
    taught, said = rng.normal(size=(2, 5, 7))
    p, q = log_softmax(taught / 3), log_softmax(said / 3)
    expected = 9 * (np.exp(p) * (p - q)).sum(-1)
    np.testing.assert_allclose(divergence(taught, said, 3.0), expected, rtol=1e-4)


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_the_loss_against_numpy(teacher, kind):
    setup = Setup(make_config(teacher), mesh_of(1))
    values = {"objective.kind": kind, "objective.teacher_weight": 0.75}
    values |= {"objective.temperature": 2.0, "objective.label_smoothing": 0.1}
    objective = Setup(make_config(teacher, **values), mesh_of(1)).experiment.objective
    batch = next(setup.batches())
    params = jax.tree.map(lambda x: np.asarray(x) + np.float32(0.01), setup.state.params)
    prepared = jax.jit(objective.prepare)(batch, 0, 0)
    loss, _ = jax.jit(objective.loss)(params, objective.frozen(), prepared, None)
    said = np.float64(jax.jit(setup.experiment.network)(params, batch["image"]))
    taught = answers(teacher, np.float32(batch["image"]) / 255 * 2 - 1)
    rows, labels = np.arange(len(said)), np.asarray(batch["label"])
    of_labels = -0.9 * log_softmax(said)[rows, labels] - 0.1 * log_softmax(said).mean(-1)
    of_teacher = -log_softmax(said)[rows, taught.argmax(-1)]
    if kind == "soft":
        p = log_softmax(taught / 2)
        of_teacher = 4 * (np.exp(p) * (p - log_softmax(said / 2))).sum(-1)
    np.testing.assert_allclose(loss, 0.25 * of_labels + 0.75 * of_teacher, rtol=1e-4)


def test_a_student_that_is_its_teacher_learns_nothing(teacher):
    config = make_config(teacher, **{"objective.temperature": 2.0})
    setup = Setup(config, mesh_of(1))
    objective, batch = setup.experiment.objective, next(setup.batches())
    frozen = objective.frozen()

    def total(params):
        return objective.loss(params, frozen, objective.prepare(batch, 0, 0), None)[0].mean()

    loss, gradients = jax.jit(jax.value_and_grad(total))(frozen["teacher"])
    assert abs(loss) < 1e-5
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradients)) < 1e-5


def test_the_teachers_own_size_classes_and_normalisation_are_honoured(tmp_path):
    names = tuple("1234567890")  # An order that is not its own inverse.
    preprocessing = Preprocessing(mean=(0.1,), std=(0.3,))
    path = save_teacher(tmp_path / "t.npz", names=names, preprocessing=preprocessing, image_size=16)
    objective = Setup(make_config(path), mesh_of(1)).experiment.objective
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 1), np.uint8)
    found = jax.jit(objective._teach)(objective.frozen()["teacher"], jnp.asarray(images))
    large = jax.image.resize(np.float32(images), (4, 16, 16, 1), "linear")
    expected = answers(path, (np.float32(large) / 255 - 0.1) / 0.3)
    expected = np.roll(expected, 1, axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_each_head_of_a_student_with_the_token_has_its_own_loss(teacher):
    """Labels train the class token's head only, the teacher the distillation token's."""
    setup = Setup(make_config(teacher, **{"model.distillation_token": True}), mesh_of(1))
    objective, batch = setup.experiment.objective, next(setup.batches())

    def parts(params):
        prepared = objective.prepare(batch, 0, 0)
        _, values = objective.loss(params, objective.frozen(), prepared, None)
        return values["label_loss"].sum(), values["teacher_loss"].sum()

    of_labels, of_teacher = jax.jit(jax.jacrev(parts))(setup.state.params)
    for gradients, trained, other in (
        (of_labels, "head", "distillation_head"),
        (of_teacher, "distillation_head", "head"),
    ):
        assert np.abs(gradients[trained]["kernel"]).max() > 0
        assert np.abs(gradients[other]["kernel"]).max() == 0


@pytest.mark.parametrize(("weight", "token"), [(0.0, "distillation"), (1.0, "class")])
def test_a_head_that_learns_from_nothing_is_told(teacher, caplog, weight, token):
    values = {"model.distillation_token": True, "objective.teacher_weight": weight}
    Setup(make_config(teacher, **values), mesh_of(1))
    assert f"teacher_weight={weight:g} and model.distillation_token: the {token}" in caplog.text


def test_what_agrees_with_the_teacher_is_the_distillation_tokens_answer(teacher):
    """And the teacher sees what the student sees: mixed images."""
    values = {"model.distillation_token": True, "objective.mixing.mixup_alpha": 1.0}
    setup = Setup(make_config(teacher, **values), mesh_of(1))
    objective, params = setup.experiment.objective, setup.state.params
    heads = ("head", "distillation_head")
    for number, head in enumerate(heads):
        kernel = jax.random.normal(jax.random.key(number), params[head]["kernel"].shape)
        params = {**params, head: {**params[head], "kernel": kernel}}
    plain = next(setup.batches())
    batch = jax.jit(objective.prepare, static_argnums=1)(plain, 3, 5)
    mixed = jax.jit(lambda batch: pair(batch, 5, 3, objective.options.mixing))(plain)
    images = mixed_images(mixed)
    np.testing.assert_array_equal(mixed_images(batch), images)
    taught = answers(teacher, np.float32(images) / 255 * 2 - 1)
    tokens = jax.jit(setup.experiment.network.outputs)(params, images)["pre_logits"]
    said = np.asarray(tokens[:, tokens.shape[1] // 2 :] @ params["distillation_head"]["kernel"])
    _, values = jax.jit(objective.loss)(params, objective.frozen(), batch, None)
    np.testing.assert_array_equal(values["agreement"], taught.argmax(-1) == said.argmax(-1))
    p, q = log_softmax(taught), log_softmax(np.float64(said))
    np.testing.assert_allclose(values["teacher_loss"], (np.exp(p) * (p - q)).sum(-1), rtol=1e-3)
    heard = np.asarray(tokens[:, : tokens.shape[1] // 2] @ params["head"]["kernel"])
    targets = mixed_targets(mixed, lambda labels: jax.nn.one_hot(labels, 10))
    expected = -(np.float64(targets) * log_softmax(np.float64(heard))).sum(-1)
    np.testing.assert_allclose(values["label_loss"], expected, rtol=1e-3)


RUN = {"evaluators": "classification | objective(name='o')"}


@pytest.fixture(scope="module")
def whole(teacher, tmp_path_factory):
    """The workdir of a whole run."""
    folder = tmp_path_factory.mktemp("whole")
    train.run(make_config(teacher, **RUN), folder)
    return folder


def test_it_trains_resumes_and_leaves_the_teacher_alone(teacher, whole, tmp_path):
    rewound(whole, 2, tmp_path)
    train.run(make_config(teacher, **RUN), tmp_path)
    jax.tree.map(
        np.testing.assert_array_equal, restore_params(whole, 4), restore_params(tmp_path, 4)
    )
    last = read_metrics(whole)[-1]
    assert last["train/teacher_loss"] == pytest.approx(last["train/loss"])
    assert {"eval/accuracy", "o/teacher_loss", "o/agreement"} <= last.keys()
    assert "teacher" not in restore_params(whole, 4)
    with pytest.raises(CheckpointError, match="another teacher"):
        train.run(make_config(save_teacher(tmp_path / "other.npz", depth=2), **RUN), tmp_path)


def test_a_split_teacher_is_left_alone_and_teaches_as_a_whole_one(teacher, whole, monkeypatch):
    monkeypatch.setattr(sharding, "MIN_FSDP_ELEMENTS", 2048)
    setup = Setup(make_config(teacher), mesh_of(4, data=2, fsdp=2))
    assert "teacher" not in str(jax.tree.structure(setup.abstract)), "nor an optimiser's state"
    held = jax.tree.leaves(setup.experiment.objective.frozen())
    assert all(isinstance(leaf, np.ndarray) for leaf in held), "no device has it twice"
    kernel = setup.frozen["teacher"]["blocks"]["mlp"]["dense1"]["kernel"]
    assert "fsdp" in kernel.sharding.spec
    before = jax.device_get(setup.frozen)
    losses, _, _ = setup.run()
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(setup.frozen), before)
    expected = [r["train/loss"] for r in read_metrics(whole) if "train/loss" in r]
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-5)


def test_a_teacher_computes_in_bfloat16_if_asked(teacher):
    config = make_config(teacher, **{"objective.teacher_dtype": "bfloat16"})
    half = Setup(config, mesh_of(1)).experiment.objective
    exact = Setup(make_config(teacher), mesh_of(1)).experiment.objective
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 1), np.uint8)
    params = exact.frozen()["teacher"]
    rough, fine = (np.asarray(jax.jit(o._teach)(params, images)) for o in (half, exact))
    assert 0 < np.abs(rough - fine).max() < 0.05 * np.abs(fine).max()


def test_a_plan_counts_the_teacher(teacher, monkeypatch):
    """By its shapes: nothing is compiled."""
    monkeypatch.setattr(planning, "try_to_compile", lambda *arguments: (None, "refused"))
    plan = planning.make_plan(make_config(teacher), open_topology("gpu:8"))
    params = Setup(make_config(teacher), mesh_of(1)).experiment.objective.frozen()["teacher"]
    assert plan.memory.objective == sum(leaf.nbytes for leaf in jax.tree.leaves(params))


@pytest.fixture
def without(teacher):
    """While the teacher's file is away."""
    path = pathlib.Path(teacher)
    away = path.rename(path.with_name("away.npz"))
    yield teacher
    away.rename(path)


def test_a_student_outlives_its_teacher(whole, without, tmp_path, capsys):
    file, student = tmp_path / "results.json", str(whole)
    assert evaluate.main([student, "--evaluators=classification | knn", f"--json={file}"]) == 0
    assert {"eval/accuracy", "knn/accuracy"} <= json.loads(file.read_text())[0]["metrics"].keys()
    assert evaluate.main([student, "--evaluators=objective"]) == 2
    assert without in capsys.readouterr().err


def test_a_teacher_on_the_hub_is_not_fetched_to_look_at_a_run(hub_server, tmp_path):
    save_teacher(tmp_path / "teacher.npz")
    hub_server.add("user/teacher", {"teacher.npz": (tmp_path / "teacher.npz").read_bytes()})
    config = make_config("hf:user/teacher")
    with pytest.raises(ConfigError, match=r"the teacher .* is not here: .*load_model"):
        train.run(config, tmp_path / "run", dry_run=True)
    assert not hub_server.asked()
    vit_jax.load_model("hf:user/teacher")
    asked = len(hub_server.asked())
    train.run(config, tmp_path / "run", dry_run=True)
    assert len(hub_server.asked()) == asked


def test_a_teacher_without_a_use_is_refused(teacher, tmp_path):
    config = make_config(teacher, **{"objective.name": "classification"})
    with pytest.raises(ConfigError, match="Classification has no teacher"):
        train.run(config, tmp_path, dry_run=True)


def test_its_digest_tells_teachers_apart(teacher, tmp_path):
    other = save_teacher(tmp_path / "other.npz", depth=2)
    digests = [
        Setup(make_config(path), mesh_of(1)).experiment.objective.digest()
        for path in (teacher, teacher, other)
    ]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 7, "names": ()}, "knows 7 classes"),
        ({"names": tuple("abcdefghij")}, "does not know the data's class '0'"),
        ({"channels": 3}, "3 channels"),
    ],
)
def test_teachers_that_do_not_fit_are_refused(options, message, tmp_path):
    path = save_teacher(tmp_path / "t.npz", **options)
    with pytest.raises(ConfigError, match=message):
        train.run(make_config(path), tmp_path / "run", dry_run=True)


def test_without_a_teacher_it_says_how_to_name_one(tmp_path):
    with pytest.raises(ConfigError, match=r"--config\.init_teacher"):
        train.run(make_config(""), tmp_path, dry_run=True)
