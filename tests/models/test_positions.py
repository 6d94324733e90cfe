"""Position embeddings against loops over the grid, and their placements against one another."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.filled import (
    filled_model,
    flat_parameters,
    predict,
    random_images,
    with_parameters,
)
from vit_jax.models import create_model, model_options
from vit_jax.models.positions import relative_logits, relative_position_bias

TINY = {
    "width": 16,
    "depth": 2,
    "mlp_width": 24,
    "num_heads": 2,
    "num_classes": 3,
    "image_size": (8, 12),
    "patch_size": 4,
}


def test_learned_2d_concatenates_the_columns_and_the_rows_table():
    model = filled_model("ViT-B/16", **TINY, positions="learned_2d")
    parameters = flat_parameters(model)
    columns, rows = (parameters[f"position_embedding/{axis}"] for axis in ("columns", "rows"))
    assert columns.shape == (3, 8)
    assert rows.shape == (2, 8)
    table = model.position_table()
    assert table.shape == (1, 7, 16)
    np.testing.assert_array_equal(table[0, 0], 0)  # The class token has no place on the grid.
    for row in range(2):
        for column in range(3):
            expected = np.concatenate([columns[column], rows[row]])
            np.testing.assert_array_equal(table[0, 1 + 3 * row + column], expected)


def test_relative_logits_are_the_query_times_the_embedding_of_the_offset():
    rng = np.random.default_rng(0)
    query = rng.normal(size=(2, 5, 3, 4)).astype(np.float32)
    table = rng.normal(size=(9, 4)).astype(np.float32)
    logits = relative_logits(query, table)
    for i in range(5):
        for j in range(5):
            expected = query[:, i] @ table[i - j + 4]
            np.testing.assert_allclose(logits[:, :, i, j], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_a_relative_position_bias_is_the_tables_number_for_the_offset(prefix):
    """On a grid of 2×3; the tokens before the patches share three rows."""
    before = {"pooling": "average", "class_token": prefix > 0, "num_registers": max(0, prefix - 1)}
    options = model_options("ViT-B/16", **TINY, **before, relative_position_bias="every_layer")
    table = np.random.default_rng(0).normal(size=(3 * 5 + 3 * (prefix > 0), 2)).astype(np.float32)
    bias = relative_position_bias(jnp.asarray(table), options)
    offsets = table[:15].reshape(3, 5, 2)
    assert bias.shape == (2, 6 + prefix, 6 + prefix)
    for query in range(6 + prefix):
        for key in range(6 + prefix):
            if min(query, key) >= prefix:
                (row, column), (row2, column2) = (divmod(i - prefix, 3) for i in (query, key))
                expected = offsets[row - row2 + 1, column - column2 + 2]
            else:  # The token to a patch, a patch to the token, the tokens to one another.
                expected = table[15 + (0 if key >= prefix else 1 if query >= prefix else 2)]
            np.testing.assert_array_equal(bias[:, query, key], expected)


def test_a_bias_that_layers_share_is_each_ones_own():
    shared = filled_model("ViT-B/16", **TINY, relative_position_bias="every_layer_shared")
    table = flat_parameters(shared)["relative_position_bias"]
    assert table.shape == (18, 2)
    images = random_images(shared.options)
    own = filled_model("ViT-B/16", **TINY, relative_position_bias="every_layer")
    own = with_parameters(
        own,
        {**flat_parameters(shared), "blocks/relative_position_bias": np.stack([table, table])},
    )
    np.testing.assert_allclose(predict(own, images), predict(shared, images), atol=1e-6)
    without = with_parameters(shared, {"relative_position_bias": 0 * table})
    assert np.abs(predict(without, images) - predict(shared, images)).max() > 1e-2


def test_a_bias_begins_at_nothing():
    """So a model that gets one computes at first what it did without."""
    create = functools.partial(create_model, "ViT-B/16", **TINY | {"depth": 1}, head_bias=-10.0)
    with_bias = flat_parameters(create(relative_position_bias="every_layer"))
    without = flat_parameters(create())
    assert not np.any(with_bias.pop("blocks/relative_position_bias"))
    assert with_bias.keys() == without.keys()
    for name, array in without.items():
        np.testing.assert_array_equal(with_bias[name], array)


def test_without_positions_a_permutation_of_the_patches_does_not_matter():
    model = filled_model("ViT-B/16", **TINY, positions="none")
    images = random_images(model.options)
    flipped = np.concatenate([images[:, 4:], images[:, :4]], axis=1)  # Swaps both rows of patches.
    np.testing.assert_allclose(predict(model, images), predict(model, flipped), atol=1e-5)
    with_positions = filled_model("ViT-B/16", **TINY)
    assert np.abs(predict(with_positions, images) - predict(with_positions, flipped)).max() > 1e-2


@pytest.mark.parametrize("positions", ["learned_1d", "learned_2d"])
def test_placements_agree_where_their_tables_do(positions):
    shared = filled_model(
        "ViT-B/16", **TINY, positions=positions, position_placement="every_layer_shared"
    )
    table = {
        name: array
        for name, array in flat_parameters(shared).items()
        if name.startswith("position_embedding")
    }
    images = random_images(shared.options)

    every_layer = filled_model(
        "ViT-B/16", **TINY, positions=positions, position_placement="every_layer"
    )
    same = {f"blocks/{name}": np.stack([array, array]) for name, array in table.items()}
    every_layer = with_parameters(every_layer, {**flat_parameters(shared), **same})
    np.testing.assert_allclose(predict(every_layer, images), predict(shared, images), atol=1e-5)

    stem = filled_model("ViT-B/16", **TINY, positions=positions)
    stem = with_parameters(stem, flat_parameters(shared))
    first_only = {f"blocks/{name}": np.stack([array, 0 * array]) for name, array in table.items()}
    every_layer = with_parameters(every_layer, first_only)
    np.testing.assert_allclose(predict(every_layer, images), predict(stem, images), atol=1e-5)
    assert np.abs(predict(stem, images) - predict(shared, images)).max() > 1e-2


def test_the_class_token_and_registers_have_rows_only_if_asked():
    model = filled_model("ViT-B/16", **TINY, num_registers=2)
    assert model.position_embedding.shape == (1, 9, 16)
    model = filled_model("ViT-B/16", **TINY, num_registers=2, prefix_positions=False)
    assert model.position_embedding.shape == (1, 6, 16)
    np.testing.assert_array_equal(model.position_table()[0, :3], 0)
    np.testing.assert_array_equal(model.position_table()[0, 3:], model.position_embedding[0])
