"""Rules of regular expressions: freezing, rates and decays, layer by layer."""

import numpy as np
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from vit_jax.config import default_config
from vit_jax.errors import ConfigError
from vit_jax.models import registry
from vit_jax.optimizer.groups import Match, parameter_groups

SHAPES = {
    "embedding/kernel": (2, 3),
    "position_embedding": (1, 5, 3),
    "blocks/mlp/dense1/kernel": (12, 2, 2),
    "blocks/norm1/scale": (12, 2),
    "norm/scale": (2,),
    "head/kernel": (3, 2),
    "head/bias": (2,),
}
PARAMS = unflatten_dict({name: np.ones(shape) for name, shape in SHAPES.items()}, sep="/")


def groups(params=PARAMS, **values):
    config = default_config().optimizer
    config.update(values)
    return parameter_groups(config, params)


def by_name(tree):
    return flatten_dict(tree, sep="/")


def model_params(name, **options):
    return nnx.to_pure_dict(nnx.split(registry.abstract_model(name, num_classes=3, **options))[1])


def test_by_default_all_learn_at_one_rate_and_kernels_decay():
    found = groups()
    assert by_name(found.factors(found.rates)) == dict.fromkeys(SHAPES, 1.0)
    assert by_name(found.factors(found.decays)) == {
        name: float(name.endswith("kernel")) for name in SHAPES
    }
    assert found.trainable.layers == dict.fromkeys(SHAPES)


def test_the_first_rule_that_matches_wins():
    found = groups(rate_multipliers=((r"blocks/0[0-2]/", 0.5), ("^blocks/.*kernel$", 2.0)))
    np.testing.assert_array_equal(found.rates["blocks/norm1/scale"], [0.5] * 3 + [1] * 9)
    np.testing.assert_array_equal(found.rates["blocks/mlp/dense1/kernel"], [0.5] * 3 + [2] * 9)
    np.testing.assert_array_equal(found.rates["head/kernel"], [1])
    factors = by_name(found.factors(found.rates))
    assert factors["blocks/mlp/dense1/kernel"].shape == (12, 1, 1)
    assert factors["blocks/norm1/scale"].shape == (12, 1)


def test_the_heads_decay_may_be_a_hundred_times_the_bodys():
    found = groups(decay_multipliers=(("^head/kernel$", 100.0), ("kernel$", 1.0)))
    assert {name: decay[0] for name, decay in found.decays.items() if decay[0]} == {
        "embedding/kernel": 1,
        "blocks/mlp/dense1/kernel": 1,
        "head/kernel": 100,
    }


def test_layers_decay_from_the_head_down():
    """BEiT's `get_layer_id_for_vit`: embeddings are layer 0, block k is k + 1, the rest 13."""
    found = groups(layer_decay=0.75)
    expected = {0: 0.75**13, 13: 1.0}
    blocks = [0.75 ** (13 - layer) for layer in range(1, 13)]
    for name, rates in found.rates.items():
        if name.startswith("blocks/"):
            np.testing.assert_allclose(rates, blocks, rtol=1e-12)
        else:
            layer = 0 if "embedding" in name else 13
            np.testing.assert_allclose(rates, [expected[layer]], rtol=1e-12)


def test_layer_decay_and_multipliers_multiply():
    found = groups(layer_decay=0.5, rate_multipliers=(("^head/", 10.0), ("norm1", 3.0)))
    np.testing.assert_array_equal(found.rates["head/kernel"], [10])
    np.testing.assert_allclose(found.rates["blocks/norm1/scale"][-2:], [0.75, 1.5])


@pytest.mark.parametrize(
    ("model", "options", "below", "above"),
    [
        (
            "ViT-Ti/16",
            {"representation_size": 8, "num_registers": 2},
            {"embedding", "class_token", "position_embedding", "registers"},
            {"norm", "pre_logits", "head"},
        ),
        (
            "ViT-Ti/16",
            {"distillation_token": True},
            {"embedding", "class_token", "distillation_token", "position_embedding"},
            {"norm", "head", "distillation_head"},
        ),
        (
            "ViT-Ti/16",
            {"pooling": "attention"},
            {"embedding", "position_embedding"},
            {"norm", "attention_pooling", "head"},
        ),
        (
            "R26+ViT-S/32",
            {},
            {"stem", "embedding", "class_token", "position_embedding"},
            {"norm", "head"},
        ),
        ("Mixer-B/32", {}, {"embedding"}, {"norm", "head"}),
    ],
)
def test_what_is_below_and_above_the_blocks(model, options, below, above):
    found = groups(model_params(model, **options), layer_decay=0.5)
    tops = {name.split("/")[0]: rates for name, rates in found.rates.items()}
    assert tops.keys() == below | above | {"blocks"}
    assert {name for name, rates in tops.items() if rates[0] == 1} == above
    assert {name for name, rates in tops.items() if rates[0] == 0.5**13} == below


def test_layer_decay_needs_blocks():
    with pytest.raises(ConfigError, match=r"layer_decay=0\.9.*no blocks.*rate_multipliers"):
        groups(model_params("BiT-R50x1"), layer_decay=0.9)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("freeze", "haed"),
        ("rate_multipliers", (("haed", 2.0),)),
        ("decay_multipliers", (("kernel$", 1.0), ("haed", 2.0))),
    ],
)
def test_an_expression_that_matches_nothing_is_an_error(key, value):
    message = rf"optimizer\.{key}: 'haed' matches no parameter.*blocks/11/mlp/dense1/kernel"
    with pytest.raises(ConfigError, match=message):
        groups(**{key: value})


def test_a_rule_after_one_that_matches_the_same_is_an_error():
    with pytest.raises(ConfigError, match=r"'\^head/' matches no parameter that an earlier"):
        groups(rate_multipliers=(("head", 2.0), ("^head/", 3.0)))


@pytest.mark.parametrize("freeze", [".", "^(?!hed/)"])
def test_freezing_everything_is_an_error(freeze):
    with pytest.raises(ConfigError, match="nothing is left to train"):
        groups(freeze=freeze)


def test_factors_are_of_the_trained_layers():
    found = groups(freeze="blocks/0|^embedding", layer_decay=0.5)
    factors = by_name(found.factors(found.rates))
    assert "embedding/kernel" not in factors
    np.testing.assert_array_equal(factors["blocks/norm1/scale"], [[0.25], [0.5]])


def test_the_table_lists_every_group_and_every_rule():
    found = groups(freeze="blocks/0|^embedding", rate_multipliers=(("^head/", 10.0),))
    lines = found.describe(weight_decay=0.3).splitlines()
    assert lines == [
        "freeze 'blocks/0|^embedding': 21 names, blocks/00/mlp/dense1/kernel, "
        "blocks/01/mlp/dense1/kernel, blocks/02/mlp/dense1/kernel, ...",
        "rate_multipliers '^head/' x 10: 2 names, head/bias, head/kernel",
        "decay_multipliers 'kernel$' x 1: 14 names, blocks/00/mlp/dense1/kernel, "
        "blocks/01/mlp/dense1/kernel, blocks/02/mlp/dense1/kernel, ...",
        "parameters  learning rate  weight decay  names",
        "6           x 10           0.3           head/kernel",
        "2           x 10           0             head/bias",
        "8           x 1            0.3           blocks/10/mlp/dense1/kernel and 1 more",
        "21          x 1            0             blocks/10/norm1/scale and 3 more",
        "66          frozen                       blocks/00/mlp/dense1/kernel and 20 more",
    ]


@pytest.mark.parametrize(
    ("value", "names", "text"),
    [
        (True, "a", "freeze 'x': 1 name, a"),
        (0.5, "abc", "freeze 'x' x 0.5: 3 names, a, b, c"),
        (1.0, "abcd", "freeze 'x' x 1: 4 names, a, b, c, ..."),
        (0.0, "ab", "freeze 'x' x 0: 2 names, a, b"),
    ],
)
def test_a_rules_line_names_the_first_three(value, names, text):
    assert str(Match("freeze", "x", value, tuple(names))) == text


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("ViT-Ti/16", {"representation_size": 8, "num_registers": 2, "layer_scale": 0.1}),
        ("ViT-Ti/16", {"pooling": "attention", "positions": "relative"}),
        ("R+ViT-Ti/16", {}),
        ("BiT-R50x1", {}),
    ],
)
def test_decayed_are_the_matrices_and_filters_of_a_model(model, options):
    params = model_params(model, **options)
    decayed = groups(params).decays
    for key, leaf in by_name(params).items():
        last = key.rpartition("/")[2]
        rank = len(leaf.shape) - key.startswith("blocks/")
        is_decayed = bool(decayed[key].all())
        assert is_decayed == (last == "kernel"), key
        assert rank >= 2 if is_decayed else True, key
        if last in ("bias", "scale", "class_token", "position_embedding", "probe", "registers"):
            assert not is_decayed, key
    assert decayed["head/kernel"].all()
