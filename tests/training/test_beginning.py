"""How a run's own keys decide what becomes of given weights."""

import contextlib
import types

import numpy as np
import pytest

import vit_jax
from tests import tiny
from tests.calls import recorded
from tests.published import random_model
from tests.stages import mesh_of
from tests.workdirs import write_workdir
from vit_jax.checkpoint import Checkpoints
from vit_jax.config_file import load_config
from vit_jax.data.dataset import open_dataset
from vit_jax.errors import CheckpointError
from vit_jax.hub import NotCachedError
from vit_jax.model_file import Preprocessing
from vit_jax.training import beginning as module
from vit_jax.training.beginning import Beginning, find_beginning, without_another_objectives
from vit_jax.training.experiment import make_experiment
from vit_jax.weights.content import Weights
from vit_jax.weights.resampling import POSITION_RESIZES, resize_positions

SIZES = {"width": 32, "depth": 2, "num_heads": 2, "mlp_width": 64, "channels": 1}
POOLED = {**SIZES, "pooling": "average"}

PREPROCESSING = Preprocessing(mean=(0.3,), std=(0.2,), crop="center", resize=20)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """An export of a model of larger images, with a normalisation of its own."""
    model = random_model("ViT-Ti/2", num_classes=10, image_size=12, **SIZES)
    path = tmp_path_factory.mktemp("export") / "out"
    vit_jax.save_model(model, path, "vit_jax", preprocessing=PREPROCESSING)
    return path, model


def begin(path, **values):
    """The beginning of a run from `path`, fitted, and the experiment."""
    config = tiny.get_config()
    config.update_from_flattened_dict({"init": str(path), **values})
    dataset = open_dataset(config)
    beginning = find_beginning(config, "", dataset)
    experiment = make_experiment(config, mesh_of(1), dataset, beginning.source)
    return beginning.fitted(experiment), experiment


def test_a_run_without_weights_says_so(caplog):
    caplog.set_level("INFO")
    config = load_config("configs/few_labels.py:finetune,100")
    find_beginning(config, "", open_dataset(tiny.get_config()))
    assert "From scratch: config.init names no weights." in caplog.text


@pytest.mark.parametrize("method", POSITION_RESIZES)
def test_positions_are_resized_as_the_config_says(path, method):
    beginning, _ = begin(path[0], init_position_resize=method)
    table = np.asarray(path[1].position_embedding[...])
    method = "bilinear_corner" if method == "auto" else method  # of an export of this package
    expected = resize_positions(table, (6, 6), (4, 4), method)
    np.testing.assert_array_equal(beginning.params["position_embedding"], expected)


def test_what_the_config_skips_starts_fresh_and_all_else_is_taken(path):
    beginning, experiment = begin(path[0], init_skip="^head/kernel|blocks/01/norm1/scale")
    assert beginning.params["head"]["kernel"] is experiment.state.params["head"]["kernel"]
    assert beginning.params["blocks"]["norm1"]["scale"].mask[:, 0].tolist() == [False, True]
    np.testing.assert_array_equal(
        beginning.params["head"]["bias"], np.asarray(path[1].head.bias[...])
    )


def test_positions_lie_on_the_grid_that_the_config_says(tmp_path):
    """18 rows are no square: 3 x 6, or 2 x 9."""
    model = random_model(
        "ViT-Ti/2", num_classes=10, image_size=(6, 12), class_token=False, **POOLED
    )
    vit_jax.save_model(model, tmp_path / "in.npz")
    (tmp_path / "in.json").unlink()
    table = np.asarray(model.position_embedding[...])
    for grid in ((3, 6), (2, 9)):
        values = {"init_source_grid": grid, "model.pooling": "average"}
        beginning, _ = begin(tmp_path / "in.npz", **values)
        expected = resize_positions(table, grid, (4, 4), "bilinear_corner")  # of .npz files
        np.testing.assert_array_equal(beginning.params["position_embedding"], expected)


def test_the_head_of_other_classes_starts_fresh(path, tmp_path):
    names = open_dataset(tiny.get_config()).class_names
    for others, fresh in ((names, False), ((*names[1:], "ten"), True)):
        vit_jax.save_model(path[1], tmp_path / others[-1], "vit_jax", class_names=others)
        beginning, experiment = begin(tmp_path / others[-1])
        is_fresh = beginning.params["head"]["bias"] is experiment.state.params["head"]["bias"]
        assert is_fresh == fresh


@pytest.mark.parametrize(("ema", "checkpoint", "factor"), [(False, "latest", 3), (True, 2, 20)])
def test_the_checkpoint_and_the_averages_are_the_configs(tmp_path, ema, checkpoint, factor):
    flat = write_workdir(tmp_path)
    config = tiny.get_config()
    config.update(init=str(tmp_path), init_ema=ema, init_checkpoint=str(checkpoint), ema_decay=0.9)
    found = find_beginning(config, "", open_dataset(config)).weights.parameters
    for name, array in flat.items():
        np.testing.assert_allclose(found[name], factor * array, rtol=1e-6)


def test_a_run_does_not_go_on_with_other_classes(tmp_path):
    write_workdir(tmp_path)  # Of cat, dog and another.
    config = tiny.get_config()
    dataset = open_dataset(config)
    beginning = find_beginning(config, tmp_path, dataset)
    experiment = make_experiment(config, mesh_of(1), dataset, beginning.source)
    with (
        contextlib.closing(Checkpoints(tmp_path, read_only=True)) as checkpoints,
        pytest.raises(
            CheckpointError, match=r"trained on other classes than the data has now.*cat"
        ),
    ):
        beginning.state(experiment, checkpoints)


@pytest.mark.parametrize(("step", "resumes"), [(0, True), (3, False)])
def test_a_workdir_that_changed_meanwhile_is_told(step, resumes):
    checkpoints = types.SimpleNamespace(latest_step=step)
    with pytest.raises(CheckpointError, match="Another run saved or removed checkpoints in this"):
        Beginning(resumes=resumes).state(None, checkpoints)


def test_a_run_that_goes_on_has_the_last_checkpoint(caplog):
    names = ("cat", "dog")
    source = types.SimpleNamespace(class_names=names)
    model_file = types.SimpleNamespace(class_names=names)
    experiment = types.SimpleNamespace(model_file=model_file, state="shapes")
    checkpoints = types.SimpleNamespace(latest_step=7, restore=lambda *what: what)
    with caplog.at_level("INFO", logger="vit_jax"):
        assert Beginning(source, resumes=True).state(experiment, checkpoints) == (7, "shapes")
    assert caplog.messages == ["Resuming after step 7."]


@pytest.mark.parametrize("before", ["masked_patches", "classification"])
def test_what_was_another_objectives_own_is_left_out(monkeypatch, caplog, before):
    monkeypatch.setattr(module, "recorded_name", lambda path: before)
    config = tiny.get_config()
    config.init = "runs/first"
    arrays = {"objective/mask": 1, "objective/head/bias": 2, "objectives": 3, "norm/bias": 4}
    weights = Weights("runs/first", arrays, None)
    with caplog.at_level("INFO", logger="vit_jax"):
        kept = without_another_objectives(weights, config).parameters
    if before == "classification":
        assert (kept, caplog.messages) == (arrays, [])
    else:
        assert kept == {"objectives": 3, "norm/bias": 4}
        assert caplog.messages == [
            "config.init=runs/first: what was masked_patches's own is left out."
        ]
    plain = Weights("runs/first", {"norm/bias": 4}, None)
    monkeypatch.setattr(module, "recorded_name", lambda path: pytest.fail("nobody asks"))
    assert without_another_objectives(plain, config) is plain


@pytest.mark.parametrize("own", [True, False])
def test_weights_are_fitted_as_the_config_says(monkeypatch, caplog, own):
    """What was another objective's own is left out where the run's objective has parameters."""
    config = tiny.get_config()
    config.update(init_skip="^head", init_head_map="names", init_position_resize="bicubic")
    fitted = recorded(monkeypatch, module, "fit_weights", ("params", "report"))
    monkeypatch.setattr(module, "without_another_objectives", lambda *given: ("without", *given))
    monkeypatch.setattr(module, "chosen_mapping", lambda *given: given)
    experiment = types.SimpleNamespace(
        config=config,
        options="options",
        state=types.SimpleNamespace(params={"objective": 1} if own else {"head": 1}),
        dataset=types.SimpleNamespace(class_names=("a", "b")),
    )
    beginning = Beginning("source", "weights")
    with caplog.at_level("INFO", logger="vit_jax"):
        assert beginning.fitted(experiment) == Beginning("source", "weights", "params")
    weights = ("without", "weights", config) if own else "weights"
    how = {"skip": "^head", "head_map": ("names", "config.init_head_map")}
    how |= {"class_names": ("a", "b"), "position_resize": "bicubic"}
    assert fitted == [((weights, "options", experiment.state.params), how)]
    assert caplog.messages == ["report"]
    nothing = Beginning("source")
    assert nothing.fitted(None) is nothing


@pytest.mark.parametrize("given", [None, "params"])
def test_a_fresh_state_has_the_weights_if_there_are_any(monkeypatch, given):
    monkeypatch.setattr(module, "initial_state", lambda *what: what)
    monkeypatch.setattr(module, "with_weights", lambda *what: ("with", *what))
    experiment = types.SimpleNamespace(
        initialize="initialize",
        config=types.SimpleNamespace(seed=11),
        state="shapes",
        objective="objective",
    )
    checkpoints = types.SimpleNamespace(latest_step=0)
    found = Beginning(params=given).state(experiment, checkpoints)
    fresh = ("initialize", 11, "shapes")
    assert found == (("with", fresh, "params", "objective") if given else fresh)


@pytest.mark.parametrize("directory", ["", "run"])
def test_weights_are_read_as_the_config_says(monkeypatch, tmp_path, directory, caplog):
    """A dry run, without a directory, asks nothing of the network."""
    asked = []
    config = tiny.get_config()
    config.update(init="hf:a/b", init_checkpoint="best", init_ema=True, init_source_grid=(2, 9))
    directory = directory and str(tmp_path / directory)

    def read(*given, **options):
        asked.append((given[0], options))
        if not directory:
            raise NotCachedError("It is not here.")
        return "weights"

    monkeypatch.setattr(module, "read_initial_weights", read)
    monkeypatch.setattr(module, "describe", lambda weights, options: (weights, options.image_size))
    with caplog.at_level("INFO", logger="vit_jax"):
        found = find_beginning(config, directory, open_dataset(config))
    options = {"checkpoint": "best", "ema": True, "source_grid": (2, 9)}
    assert asked == [("hf:a/b", {**options, "cached_only": not directory})]
    if directory:
        assert found == Beginning(("weights", (8, 8)), "weights")
    else:
        assert found == Beginning()
        assert "The run would fetch config.init=hf:a/b. It is not here." in caplog.messages
    config.init_source_grid = ()
    find_beginning(config, directory, open_dataset(config))
    assert asked[1][1]["source_grid"] is None


def test_the_heads_rows_are_those_that_the_config_names(path, tmp_path):
    (tmp_path / "map.tsv").write_text("3\t7\n")
    beginning, _ = begin(path[0], init_head_map=str(tmp_path / "map.tsv"))
    expected = np.asarray(path[1].head.bias[...])[[0, 1, 2, 7, 4, 5, 6, 7, 8, 9]]
    np.testing.assert_array_equal(beginning.params["head"]["bias"], expected)


def test_the_weights_normalisation_is_the_runs(path):
    _, experiment = begin(path[0])
    found = experiment.preprocessing
    assert (found.mean, found.std) == ((0.3,), (0.2,))
    assert found.crop == tiny.get_config().data.eval_crop, "the rest is the config's"
