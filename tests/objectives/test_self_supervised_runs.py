"""Runs of the objectives without labels: resumed, on every mesh, measured, fine-tuned from."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests import tiny
from tests.runs import read_metrics, rewound
from tests.stages import Setup, config_with, mesh_of, random_model
from vit_jax import evaluate, main, predict, train
from vit_jax.checkpoint import restore_params
from vit_jax.errors import ConfigError
from vit_jax.training.beginning import find_beginning
from vit_jax.weights.loading import fit_weights, read_initial_weights

SMALL_DECODER = {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}
SMALL_HEAD = {"prototypes": 32, "head_width": 16, "bottleneck_width": 8, "local_views": 1}
OPTIONS = {
    "masked_patches": {},
    "masked_autoencoder": SMALL_DECODER,
    "self_distillation": {
        **SMALL_HEAD,
        "local_views": 0,
    },  # Of local ones is `test_self_distillation`.
}
OWN = {
    "masked_patches": "objective/mask",
    "masked_autoencoder": "objective/head/kernel",
    "self_distillation": "objective/prototypes/kernel",
}


def make_config(name):
    config = tiny.get_config()
    config.objective.name = name
    config.objective.update(OPTIONS[name])
    config.total_steps, config.eval_every_steps, config.schedule.name = 4, 2, "constant"
    config.model.depth = 1
    config.checkpoint_every_steps, config.keep_checkpoints = 2, 2
    return config


@pytest.fixture(scope="module", params=OPTIONS)
def whole(request, tmp_path_factory):
    """The objective's name, and the workdir of a whole run."""
    folder = tmp_path_factory.mktemp(request.param)
    train.run(make_config(request.param), folder)
    return request.param, folder


@pytest.mark.parametrize(
    "whole",
    [
        # Their only random numbers are of a step, as in `test_resume.py`; the other has a teacher.
        pytest.param("masked_patches", marks=pytest.mark.slow),
        pytest.param("masked_autoencoder", marks=pytest.mark.slow),
        "self_distillation",
    ],
    indirect=True,
)
def test_it_resumes_bit_for_bit(whole, tmp_path):
    name, folder = whole
    rewound(folder, 2, tmp_path)
    train.run(make_config(name), tmp_path)
    jax.tree.map(
        np.testing.assert_array_equal, restore_params(tmp_path, 4), restore_params(folder, 4)
    )
    assert read_metrics(tmp_path)[-1]["eval/loss"] == read_metrics(folder)[-1]["eval/loss"]


def test_it_measures_itself(whole):
    name, folder = whole
    records = [record for record in read_metrics(folder) if "eval/loss" in record]
    assert [record["step"] for record in records] == [2, 4]
    assert records[-1]["eval/count"] == 360
    events = b"".join(file.read_bytes() for file in (folder / "tensorboard").iterdir())
    assert (b"eval/pictures" in events) == (name != "self_distillation")


@pytest.mark.parametrize(
    "whole",
    [  # One without a state, with all evaluators; one with a state; the third is as the first.
        "masked_patches",
        pytest.param("masked_autoencoder", marks=pytest.mark.slow),
        "self_distillation",
    ],
    indirect=True,
)
def test_it_is_evaluated_without_a_head(whole, tmp_path):
    name, folder = whole
    of_features = name == "masked_patches"  # They know nothing of the objective: one will do.
    file = tmp_path / "results.json"
    arguments = [
        "--evaluators=objective" + " | knn(k=1) | fewshot(shots=(5,))" * of_features,
        "--batch_size=32",
        f"--json={file}",
    ]
    assert evaluate.main([str(folder), *arguments]) == 0
    metrics = json.loads(file.read_text())[0]["metrics"]
    assert metrics["eval/loss"] == pytest.approx(read_metrics(folder)[-1]["eval/loss"], rel=1e-5)
    if of_features:
        assert any(key.startswith("fewshot/") for key in metrics)
        assert metrics["knn/accuracy"] > 0.15  # Pixels through random weights tell digits apart.
    said = main.summary(read_metrics(folder)[-1], str(folder))
    assert "vit_jax.embed" in said
    assert "predict" not in said
    assert "Accuracy" not in said


def test_a_model_without_a_head_is_refused_where_classes_are_needed(tmp_path, capsys):
    model, picture = tmp_path / "model.npz", tmp_path / "picture.png"
    options = {"width": 8, "depth": 1, "num_heads": 1, "mlp_width": 8, "num_classes": 0}
    vit_jax.save_model(random_model("ViT-Ti/4", image_size=8, channels=1, **options), model)
    Image.new("L", (8, 8)).save(picture)
    measured = [str(model), "--source=digits"]
    for command, arguments in (
        (evaluate, measured),
        (evaluate, [*measured, "--evaluators=knn | classification(name='c')"]),
        (predict, [str(model), str(picture)]),
    ):
        assert command.main(arguments) == 2
        assert "has no head" in capsys.readouterr().err


def test_another_objectives_own_parameters_are_not_taken_for_its_own(whole):
    """A decoder's [mask] may have the shape of an embedding's; names and shapes say nothing."""
    name, folder = whole
    other = "masked_autoencoder" if name == "masked_patches" else "masked_patches"
    for objective, status in ((name, "loaded"), (other, "fresh")):
        config = make_config(objective)
        config.init = str(folder)
        experiment = Setup(config, mesh_of(1)).experiment
        beginning = find_beginning(config, "", experiment.dataset).fitted(experiment)
        fresh = [
            isinstance(leaf, jax.ShapeDtypeStruct)
            for leaf in jax.tree.leaves(beginning.params["objective"])
        ]
        assert fresh == [status == "fresh"] * len(fresh)
        assert isinstance(beginning.params["norm"]["scale"], np.ndarray)


def test_evaluators_of_classes_are_refused_at_the_start(tmp_path):
    config = make_config("masked_patches")
    config.evaluators = "objective | classification(name='c')"
    with pytest.raises(ConfigError, match=r"'c' needs a classifier.*probe"):
        train.run(config, tmp_path, dry_run=True)


@pytest.mark.parametrize("name", ["masked_patches", "masked_autoencoder"])
@pytest.mark.parametrize("layer", [{"pooling": "attention"}, {"representation_size": 8}])
def test_layers_that_nothing_would_train_are_refused(name, layer, tmp_path):
    config = make_config(name)
    config.model.update(layer)
    with pytest.raises(ConfigError, match=f"{name}.* trains no layers of pooling"):
        train.run(config, tmp_path, dry_run=True)


@pytest.mark.parametrize(
    ("mesh", "accumulation"),
    [
        # A fast one: `training/test_gradients.py`, the objectives' own blocks.
        pytest.param({"data": 2, "fsdp": 4}, 2, marks=pytest.mark.slow),
        pytest.param({"data": 8}, 1, marks=pytest.mark.slow),
        pytest.param({"fsdp": 8}, 1, marks=pytest.mark.slow),
        pytest.param({"data": 2, "fsdp": 2, "tensor": 2}, 1, marks=pytest.mark.slow),
    ],
)
def test_a_mesh_and_micro_batches_train_alike(whole, mesh, accumulation):
    name, folder = whole
    config = make_config(name)
    config.optimizer.accumulation_steps = accumulation
    losses, _, _ = Setup(config, mesh_of(8, **mesh)).run()
    expected = [r["train/loss"] for r in read_metrics(folder) if "train/loss" in r]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_its_model_fine_tunes_without_what_was_its_own(whole, caplog):
    name, folder = whole
    model = vit_jax.load_model(folder)
    assert model.options.num_classes == 0
    assert f"skipped  {OWN[name]}" in caplog.text
    setup = Setup(config_with(**{"model.depth": 1}), mesh_of(1))
    options = setup.experiment.options
    params, report = fit_weights(
        read_initial_weights(folder, options), options, setup.abstract.params
    )
    rows = {row.name: row.status for row in report.rows}
    assert rows[OWN[name]] == "skipped"
    assert rows["head/kernel"] == "fresh"
    saved = restore_params(folder, 4)
    np.testing.assert_array_equal(params["norm"]["scale"], saved["norm"]["scale"])


@pytest.mark.parametrize("format", ["npz", "timm", "huggingface"])
def test_its_model_is_written_for_other_libraries(whole, format, tmp_path):
    """As their features: no head, and nothing that was the objective's."""
    model = vit_jax.load_model(whole[1])
    path = tmp_path / ("model.npz" if format == "npz" else "model")
    vit_jax.save_model(model, path, format)
    loaded = vit_jax.load_model(path, **({"num_heads": 2} if format == "timm" else {}))
    images = np.random.default_rng(0).uniform(-1, 1, (2, 8, 8, 1)).astype(np.float32)
    np.testing.assert_allclose(loaded.embed(images), model.embed(images), atol=1e-5)
