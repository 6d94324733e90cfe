"""How a run's own keys decide what becomes of given weights."""

import numpy as np
import pytest

import vit_jax
from tests import tiny
from tests.published import random_model
from tests.stages import mesh_of
from vit_jax.data.dataset import open_dataset
from vit_jax.model_file import Preprocessing
from vit_jax.training.beginning import find_beginning
from vit_jax.training.experiment import make_experiment
from vit_jax.weights.resampling import POSITION_RESIZES, resize_positions

SIZES = {"width": 32, "depth": 2, "num_heads": 2, "mlp_width": 64, "channels": 1}

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


def test_the_weights_normalisation_is_the_runs(path):
    _, experiment = begin(path[0])
    found = experiment.preprocessing
    assert (found.mean, found.std) == ((0.3,), (0.2,))
    assert found.crop == tiny.get_config().data.eval_crop, "the rest is the config's"
