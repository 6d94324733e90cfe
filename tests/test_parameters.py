"""Names of parameters, one for each layer, and the part of them that is trained."""

import jax
import numpy as np
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from vit_jax.config import default_config
from vit_jax.models import registry
from vit_jax.optimizer.groups import parameter_groups
from vit_jax.parameters import layer_names, named_leaves

PARAMS = unflatten_dict(
    {
        "embedding/kernel": np.arange(6.0).reshape(2, 3),
        "blocks/mlp/dense1/kernel": np.arange(12 * 4.0).reshape(12, 2, 2),
        "blocks/norm1/scale": np.arange(12 * 2.0).reshape(12, 2),
        "head/kernel": np.arange(6.0).reshape(3, 2),
        "head/bias": np.arange(2.0),
    },
    sep="/",
)


def trainable_part(freeze, params):
    config = default_config().optimizer
    config.freeze = freeze
    return parameter_groups(config, params).trainable


def by_name(tree):
    return flatten_dict(tree, sep="/")


def test_a_stacked_parameter_has_a_name_for_each_layer():
    assert layer_names("head/kernel", (3, 2)) == ["head/kernel"]
    names = layer_names("blocks/mlp/dense1/kernel", (12, 2, 2))
    assert len(names) == 12
    assert (names[0], names[7], names[11]) == tuple(
        f"blocks/{layer}/mlp/dense1/kernel" for layer in ("00", "07", "11")
    )


def test_an_objectives_blocks_are_stacked_too():
    assert layer_names("objective/blocks/norm/scale", (2, 5)) == [
        *("objective/blocks/00/norm/scale", "objective/blocks/01/norm/scale")
    ]
    for name in ("objective/x/blocks/a", "xblocks/a", "x/blocks/a"):
        assert layer_names(name, (2, 5)) == [name]
    assert layer_names("blocks/a/blocks/b", (1, 5)) == ["blocks/00/a/blocks/b"]


def test_without_an_expression_everything_is_trained_as_it_is():
    part = trainable_part("", PARAMS)
    assert part.layers == dict.fromkeys(by_name(PARAMS))
    assert jax.tree.map(id, part.select(PARAMS)) == jax.tree.map(id, PARAMS)  # Not even copied.
    assert jax.tree.map(id, part.insert(PARAMS, PARAMS)) == jax.tree.map(id, PARAMS)


@pytest.mark.parametrize("freeze", ["^(?!head/)", "embedding|blocks", "^[be]", "^(?!head)"])
def test_a_linear_probe_trains_the_head_only(freeze):
    part = trainable_part(freeze, PARAMS).select(PARAMS)
    assert list(part) == ["head"]
    jax.tree.map(np.testing.assert_array_equal, part["head"], PARAMS["head"])


def test_frozen_layers_are_cut_out_and_put_back():
    part = trainable_part(r"blocks/0[0-5]/|blocks/11/norm1", PARAMS)
    selected = by_name(part.select(PARAMS))
    assert {name: array.shape for name, array in selected.items()} == {
        "embedding/kernel": (2, 3),
        "blocks/mlp/dense1/kernel": (6, 2, 2),
        "blocks/norm1/scale": (5, 2),
        "head/kernel": (3, 2),
        "head/bias": (2,),
    }
    scales = PARAMS["blocks"]["norm1"]["scale"]
    np.testing.assert_array_equal(selected["blocks/norm1/scale"], scales[6:11])

    changed = jax.tree.map(
        lambda array: -array - 1, part.select(jax.tree.map(jax.numpy.asarray, PARAMS))
    )
    inserted = by_name(part.insert(changed, jax.tree.map(jax.numpy.asarray, PARAMS)))
    np.testing.assert_array_equal(inserted["head/bias"], -PARAMS["head"]["bias"] - 1)
    found = inserted["blocks/norm1/scale"]
    np.testing.assert_array_equal(found[6:11], -scales[6:11] - 1)
    np.testing.assert_array_equal(found[:6], scales[:6])
    np.testing.assert_array_equal(found[11], scales[11])


def test_pruned_trees_have_the_structure_of_the_trained_part():
    part = trainable_part(r"^embedding|blocks/.*/mlp|blocks/03", PARAMS)
    places = jax.tree.map(lambda _: "place", PARAMS)
    selected = part.select(PARAMS)
    assert jax.tree.structure(part.prune(places)) == jax.tree.structure(selected)
    assert by_name(selected).keys() == {"blocks/norm1/scale", "head/kernel", "head/bias"}


@pytest.mark.parametrize(
    "name",
    ["ViT-Ti/16", "R26+ViT-S/32", "BiT-R50x1", "Axial-ViT-B/32", "AxialResNet50", "Mixer-B/32"],
)
def test_every_family_can_be_probed_linearly(name):
    params = nnx.to_pure_dict(nnx.split(registry.abstract_model(name, num_classes=3))[1])
    part = trainable_part("^(?!head/)", params).select(params)
    assert [name for name, _ in named_leaves(part)] == ["head/bias", "head/kernel"]
