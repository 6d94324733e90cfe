"""Optimisers against their formulas in NumPy, and on stacked against separate arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from vit_jax.config import default_config
from vit_jax.models import registry
from vit_jax.optimizer import OPTIMIZERS, build_optimizer, decay_mask
from vit_jax.parameters import path_name
from vit_jax.schedules import make_schedule

SHAPES = {
    "embedding/kernel": (2, 2, 3, 4),
    "class_token": (1, 1, 4),
    "blocks/mlp/kernel": (3, 4, 6),
    "blocks/norm/scale": (3, 4),
    "head/bias": (4,),
}
STEPS = 5
SCHEDULE = make_schedule("cosine", base=0.1, total_steps=STEPS, warmup_steps=2)


def settings(**values):
    config = default_config().optimizer
    config.update(values)
    return config


def random_tree(seed, scale=1.0):
    """A nested dict of the shapes above."""
    generator = np.random.default_rng(seed)
    tree = {}
    for name, shape in SHAPES.items():
        *parents, last = name.split("/")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = np.float32(scale * generator.normal(size=shape))
    return tree


def update_all(config, params, gradients):
    """Applies all gradients: the parameters and the optimiser's state at the end."""
    optimizer = build_optimizer(config, SCHEDULE)
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = jax.jit(optimizer.update)(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def leaves(tree):
    return {path_name(p): np.asarray(x) for p, x in jax.tree_util.tree_leaves_with_path(tree)}


def reference(name, params, gradients, *, weight_decay=0.0, clip=0.0):
    """AdamW and momentum SGD in double precision, one array after another."""
    params = {k: np.float64(v) for k, v in leaves(params).items()}
    first = {k: np.zeros_like(v) for k, v in params.items()}
    second = {k: np.zeros_like(v) for k, v in params.items()}
    for step, gradient in enumerate(gradients):
        gradient = {k: np.float64(v) for k, v in leaves(gradient).items()}
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        warmup, progress = min(1, step / 2), max(0, (step - 2) / 3)
        rate = 0.1 * warmup * (1 + np.cos(np.pi * progress)) / 2
        for key, g in gradient.items():
            g = g * min(1, clip / norm) if clip else g
            if name == "adamw":
                first[key] = 0.9 * first[key] + 0.1 * g
                second[key] = 0.999 * second[key] + 0.001 * g**2
                mean = first[key] / (1 - 0.9 ** (step + 1))
                variance = second[key] / (1 - 0.999 ** (step + 1))
                direction = mean / (np.sqrt(variance) + 1e-8)
            else:
                direction = first[key] = 0.9 * first[key] + g
            decay = weight_decay * params[key] if key.endswith("/kernel") else 0
            params[key] = params[key] - rate * (direction + decay)
    return params


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.3}, {"clip": 1.0}, {"weight_decay": 0.1, "clip": 0.5}]
)
def test_five_updates_are_the_formulas(name, options):
    params, gradients = random_tree(0), [random_tree(seed) for seed in range(1, STEPS + 1)]
    config = settings(
        name=name,
        weight_decay=options.get("weight_decay", 0.0),
        grad_clip_norm=options.get("clip", 0.0),
    )
    found = leaves(update_all(config, params, gradients)[0])
    for key, expected in reference(name, params, gradients, **options).items():
        # Float32 has 1 - 0.999 to 6e-5 only.
        np.testing.assert_allclose(found[key], expected, rtol=1e-5, atol=3e-6, err_msg=key)
        assert found[key].dtype == np.float32


def test_a_small_gradient_is_not_clipped():
    params, small = random_tree(0), [random_tree(1, scale=1e-3)] * STEPS
    clipped, _ = update_all(settings(name="sgd", grad_clip_norm=1.0), params, small)
    free, _ = update_all(settings(name="sgd"), params, small)
    jax.tree.map(np.testing.assert_array_equal, clipped, free)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_zero_gradient_shrinks_kernels_and_nothing_else(name):
    params = random_tree(0)
    zeros = jax.tree.map(np.zeros_like, params)
    optimizer = build_optimizer(settings(name=name, weight_decay=0.3), lambda step: 0.5)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    after = leaves(optax.apply_updates(params, updates))
    for key, before in leaves(params).items():
        if key.endswith("kernel"):
            np.testing.assert_allclose(after[key], before * (1 - 0.5 * 0.3), rtol=1e-6)
        else:
            np.testing.assert_array_equal(after[key], before, err_msg=key)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "ViT-Ti/16", "representation_size": 8, "num_registers": 2, "layer_scale": 0.1},
        {"name": "ViT-Ti/16", "pooling": "attention", "positions": "relative"},
        {"name": "R+ViT-Ti/16"},
        {"name": "BiT-R50x1"},
    ],
)
def test_decayed_are_the_matrices_and_filters_of_a_model(options):
    model = registry.abstract_model(**options, num_classes=3)
    params = nnx.to_pure_dict(nnx.split(model)[1])
    decayed = leaves(decay_mask(params))
    shapes = {path_name(p): x.shape for p, x in jax.tree_util.tree_leaves_with_path(params)}
    for key, is_decayed in decayed.items():
        last = key.rpartition("/")[2]
        rank = len(shapes[key]) - key.startswith("blocks/")
        assert bool(is_decayed) == (last == "kernel"), key
        assert rank >= 2 if is_decayed else True, key
        if last in ("bias", "scale", "class_token", "position_embedding", "probe", "registers"):
            assert not is_decayed, key
    assert decayed["head/kernel"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bfloat16_momentum_is_close_and_half_as_large(name):
    params, gradients = random_tree(0), [random_tree(seed) for seed in range(1, STEPS + 1)]
    exact, _ = update_all(settings(name=name), params, gradients)
    rounded, state = update_all(settings(name=name, momentum_dtype="bfloat16"), params, gradients)
    half = [x for x in jax.tree.leaves(state) if x.dtype == jnp.bfloat16]
    assert len(half) == len(SHAPES)
    differences = [
        np.abs(a - b).max()
        for a, b in zip(jax.tree.leaves(exact), jax.tree.leaves(rounded), strict=True)
    ]
    assert 0 < max(differences) < 5e-3
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(rounded))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stacked_blocks_are_updated_as_separate_ones(name):
    def separate(tree):
        layers = {f"block{i}": jax.tree.map(lambda x, i=i: x[i], tree["blocks"]) for i in range(3)}
        return {**{k: v for k, v in tree.items() if k != "blocks"}, **layers}

    config = settings(name=name, weight_decay=0.1, grad_clip_norm=1.0)
    params, gradients = random_tree(0), [random_tree(seed) for seed in range(1, STEPS + 1)]
    stacked, _ = update_all(config, params, gradients)
    alone, _ = update_all(config, separate(params), [separate(g) for g in gradients])
    expected = leaves(alone)
    for key, value in leaves(separate(stacked)).items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-6, atol=1e-7, err_msg=key)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_states_names_do_not_depend_on_clip_and_decay(name):
    params = random_tree(0)
    names = {
        tuple(leaves(build_optimizer(settings(name=name, **options), SCHEDULE).init(params)))
        for options in ({}, {"weight_decay": 0.1}, {"grad_clip_norm": 1.0, "weight_decay": 0.1})
    }
    assert len(names) == 1
    assert "rate/count" in next(iter(names))
