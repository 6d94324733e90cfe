"""Rewrites on the way to another model: it computes what the file's model computes."""

import numpy as np
import pytest

import vit_jax
from tests.published import logits, parameters, random_model
from vit_jax.model_file import Preprocessing
from vit_jax.models import model_options
from vit_jax.weights import equivalence
from vit_jax.weights.equivalence import Form, order_classes, plain_head
from vit_jax.weights.loading import fit_weights, read_initial_weights

TINY = {
    **{"width": 16, "depth": 2, "mlp_width": 16, "num_heads": 2, "patch_size": 4},
    **{"image_size": (12, 8), "num_classes": 5},
}


def images(channels=3):
    shape = (2, 12, 8, channels)
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


def loaded(tmp_path, source, changes, **saved):
    """A model with random parameters, its logits, and it as loaded with other options."""
    model = random_model("ViT-Ti/16", **{**TINY, **source})
    vit_jax.save_model(model, tmp_path / "out", "vit_jax", **saved)
    return model, vit_jax.load_model(tmp_path / "out", **changes)


REGISTERS = {"num_registers": 2}


@pytest.mark.parametrize("source", [{}, REGISTERS], ids=["class token", "registers too"])
def test_a_tokens_position_row_becomes_part_of_the_token(tmp_path, source):
    model, other = loaded(tmp_path, source, {"prefix_positions": False})
    assert parameters(other)["position_embedding"].shape[1] == 6
    np.testing.assert_array_equal(logits(other, images()), logits(model, images()))


def test_a_folded_row_stays_folded_where_the_grid_is_resized(tmp_path):
    model, other = loaded(tmp_path, {}, {"prefix_positions": False, "image_size": 16})
    expected = parameters(model)["class_token"] + parameters(model)["position_embedding"][:, :1]
    np.testing.assert_array_equal(parameters(other)["class_token"], expected)
    vit_jax.save_model(model, tmp_path / "in", "vit_jax")
    ordinary = vit_jax.load_model(tmp_path / "in", image_size=16)
    pixels = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 3)).astype(np.float32)
    np.testing.assert_array_equal(logits(other, pixels), logits(ordinary, pixels))


SINCOS, SHARED = {"positions": "sincos_2d"}, {"position_placement": "every_layer_shared"}
LEARNED = {"positions": "learned_1d"}
BIAS, SHARED_BIAS = (
    {"relative_position_bias": kind} for kind in ("every_layer", "every_layer_shared")
)


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ({"prefix_positions": False}, {"prefix_positions": True}),
        (SINCOS, LEARNED),
        (SINCOS, {**LEARNED, "prefix_positions": False}),
        (SINCOS | SHARED, LEARNED),
        ({"positions": "learned_2d"}, LEARNED),
        ({"positions": "learned_2d", "position_placement": "every_layer"}, LEARNED),
        ({"positions": "none"}, LEARNED),
        ({"positions": "none"}, {**LEARNED, "position_placement": "every_layer"}),
        ({"positions": "none"}, {"positions": "learned_2d"}),
        ({"positions": "none"}, {"positions": "relative"}),
        ({}, {"norm_after_pooling": True}),
        ({}, BIAS),
        ({}, SHARED_BIAS),
        (SHARED_BIAS, BIAS),
    ],
)
def test_the_logits_are_the_same_to_the_bit(tmp_path, caplog, source, changes):
    model, other = loaded(tmp_path, source, changes)
    assert getattr(other.options, next(iter(changes))) == changes[next(iter(changes))]
    np.testing.assert_array_equal(logits(other, images()), logits(model, images()))
    assert "Note: the weights are for" not in caplog.text


@pytest.mark.parametrize(("there", "here"), [(0.0, 1e-4), (0.1, 0.0)], ids=["added", "folded"])
def test_layer_scale_comes_and_goes(tmp_path, there, here):
    """Its factors are parameters: these of a random model are far from their initial values."""
    model, other = loaded(tmp_path, {"layer_scale": there}, {"layer_scale": here})
    assert ("blocks/layer_scale1" in parameters(other)) == bool(here)
    expected = logits(model, images())
    np.testing.assert_allclose(logits(other, images()), expected, atol=1e-5 * abs(expected).max())


def test_layer_scale_may_start_fresh_all_the_same(tmp_path):
    vit_jax.save_model(random_model("ViT-Ti/16", **TINY), tmp_path / "out", "vit_jax")
    options = model_options("ViT-Ti/16", **TINY, layer_scale=1e-4)
    fresh = {"blocks": {"layer_scale1": np.zeros((2, 16)), "norm1": {"scale": np.zeros((2, 16))}}}
    weights = read_initial_weights(tmp_path / "out", options)
    params, _ = fit_weights(weights, options, fresh, skip="layer_scale")
    assert params["blocks"]["layer_scale1"] is fresh["blocks"]["layer_scale1"]
    assert (fit_weights(weights, options, fresh)[0]["blocks"]["layer_scale1"] == 1).all()


@pytest.mark.parametrize("std", [(0.2, 0.2, 0.5), (0.3,)])
def test_a_gray_picture_is_its_rgb_copy_though_channels_are_normalised_apart(tmp_path, std):
    preprocessing = Preprocessing(mean=(0.4, 0.5, 0.6), std=std)
    model, other = loaded(tmp_path, {}, {"channels": 1}, preprocessing=preprocessing)
    pixels = np.random.default_rng(1).uniform(0, 1, (2, 12, 8, 1)).astype(np.float32)
    colour = (np.repeat(pixels, 3, axis=-1) - np.float32((0.4, 0.5, 0.6))) / np.float32(std)
    gray = (pixels - np.float32(other.preprocessing.mean)) / np.float32(other.preprocessing.std)
    expected = logits(model, colour)
    np.testing.assert_allclose(logits(other, gray), expected, atol=1e-5 * abs(expected).max())


def test_a_head_alone_does_what_it_did_behind_its_norm():
    rng = np.random.default_rng(0)
    kernel, bias, mean = rng.normal(size=(4, 3)), rng.normal(size=3), rng.normal(size=4)
    # One as small as the norm's epsilon.
    variance, features = np.array([0.2, 1e-6, 1.5, 0.7]), rng.normal(size=(5, 4))
    parameters = {
        **{"head/kernel": kernel, "head/bias": bias},
        **{"head_norm/mean": mean, "head_norm/variance": variance},
    }
    head, names = plain_head(parameters)
    assert names == ("head_norm/mean", "head_norm/variance")
    expected = (features - mean) / np.sqrt(variance + 1e-6) @ kernel + bias
    found = features @ head["head/kernel"] + head["head/bias"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("there", "names", "order"),
    [
        (("a", "b", "c"), ("c", "a", "b"), [2, 0, 1]),
        (("a", "b", "c"), ("a", "b", "c"), None),
        (("a", "b", "c"), ("a", "b", "d"), None),
        (("a", "a", "b"), ("a", "b", "a"), None),  # Which of both cannot be told.
        ((), ("a", "b", "c"), None),
    ],
)
def test_columns_in_the_order_of_names(there, names, order):
    kernel = np.arange(6.0).reshape(2, 3)
    options = model_options("ViT-Ti/16", **{**TINY, "num_classes": 3})
    form = Form({"head/kernel": kernel, "norm/scale": kernel}, options, there)
    found = order_classes(form, names)
    assert (found is form) == (order is None)
    np.testing.assert_array_equal(found.parameters["head/kernel"], kernel[:, order or [0, 1, 2]])
    np.testing.assert_array_equal(found.parameters["norm/scale"], kernel)


def test_positions_of_another_place_are_not_the_same():
    """Those of each layer's own input are not those of the first one's."""
    stem, every = ({"position_placement": place} for place in ("stem", "every_layer_shared"))
    names = {"position_embedding": (1, 7, 16), "class_token": (1, 1, 16)}
    names |= {"position_embedding/rows": (3, 8), "position_embedding/columns": (2, 8)}
    parameters = {name: np.ones(shape) for name, shape in names.items()}

    def of(**options):
        return model_options("ViT-Ti/16", **{**TINY, **options})

    learned, bare = {"positions": "learned_1d"}, {"prefix_positions": False}
    for there, here in ((stem, every), (every, stem), (every, every)):
        form = Form(parameters, of(**there))
        assert equivalence.fold_position_rows(form, of(**here, **bare)) is form
    for there, here in ((stem, every), (every, stem)):
        form = Form(parameters, of(**there, positions="learned_2d"))
        assert equivalence.spread_positions(form, of(**here, **learned)) is form
        form = Form(parameters, of(**there, positions="sincos_2d"))
        assert equivalence.add_positions(form, of(**here, **learned), names) is form


def test_columns_and_rows_become_a_table_of_their_sums_place_by_place():
    rows, columns = np.arange(6.0).reshape(3, 2), 10 + np.arange(4.0).reshape(2, 2)
    options = model_options("ViT-Ti/16", **TINY, positions="learned_2d")
    form = Form({"position_embedding/rows": rows, "position_embedding/columns": columns}, options)
    here = model_options("ViT-Ti/16", **TINY, positions="learned_1d")
    found = equivalence.spread_positions(form, here)
    expected = [[*columns[c], *rows[r]] for r in range(3) for c in range(2)]
    assert found.parameters.keys() == {"position_embedding"}
    np.testing.assert_array_equal(found.parameters["position_embedding"], [expected])
    assert found.changes == {"position_embedding": "of columns and rows"}
    assert (found.options.positions, found.options.prefix_positions) == ("learned_1d", False)
