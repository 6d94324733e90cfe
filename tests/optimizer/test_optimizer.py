"""Optimisers against their formulas in NumPy, and on stacked against separate arrays."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.optimizer.trees import SHAPES, leaves, random_tree, separate, settings, update_all
from vit_jax.optimizer import OPTIMIZERS, build_optimizer
from vit_jax.optimizer.groups import parameter_groups
from vit_jax.optimizer.schedules import make_schedule

STEPS = 5
SCHEDULE = make_schedule("cosine", base=0.1, total_steps=STEPS, warmup_steps=2)
# Both, with the default decays, and neither, with others, are fast: they see what each alone does.
EACH_ALONE = [{}, {"weight_decay": 0.3}, {"clip": 1.0}]
OPTIONS = [{"weight_decay": 0.1, "clip": 0.5}, "own"]
OPTIONS += [pytest.param(options, marks=pytest.mark.slow) for options in EACH_ALONE]
OWN = {"sgd": {"momentum": 0.5}, "lars": {"momentum": 0.5}}  # Others have two decays.


def trust_ratio(param, direction):
    """LAMB's, of one array or of each layer of a stacked one."""
    axes = tuple(range(param.ndim == 3 and len(param) == 3, param.ndim))
    norms = [np.sqrt((x**2).sum(axes, keepdims=True)) for x in (param, direction)]
    return norms[0] / norms[1]


def reference(
    name, params, gradients, *, weight_decay=0.0, clip=0.0, momentum=0.9, b1=0.9, b2=None
):
    """Five updates in double precision, one array after another."""
    b2 = b2 or (0.99 if name == "lion" else 0.999)
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
            decayed = key.endswith("/kernel")
            if name in ("adamw", "lamb"):
                first[key] = b1 * first[key] + (1 - b1) * g
                second[key] = b2 * second[key] + (1 - b2) * g**2
                mean = first[key] / (1 - b1 ** (step + 1))
                variance = second[key] / (1 - b2 ** (step + 1))
                direction = mean / (np.sqrt(variance) + 1e-8)
            elif name == "lion":
                direction = np.sign(b1 * first[key] + (1 - b1) * g)
                first[key] = b2 * first[key] + (1 - b2) * g
            else:
                if name == "lars" and decayed:
                    g = g + weight_decay * params[key]
                    g = g * 0.001 * trust_ratio(params[key], g)
                direction = first[key] = momentum * first[key] + g
            if name != "lars":
                direction = direction + weight_decay * params[key] * decayed
            if name == "lamb" and decayed:
                direction = direction * trust_ratio(params[key], direction)
            params[key] = params[key] - rate * direction
    return params


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion", "lamb", "lars"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_five_updates_are_the_formulas(name, options):
    params, gradients = random_tree(0), [random_tree(seed) for seed in range(1, STEPS + 1)]
    options = OWN.get(name, {"b1": 0.5, "b2": 0.8}) if options == "own" else options
    own = {key: value for key, value in options.items() if key not in ("weight_decay", "clip")}
    config = settings(
        name=name,
        weight_decay=options.get("weight_decay", 0.0),
        grad_clip_norm=options.get("clip", 0.0),
        **own,
    )
    found = leaves(update_all(config, SCHEDULE, params, gradients)[0])
    for key, expected in reference(name, params, gradients, **options).items():
        # Float32 has 1 - 0.999 to 6e-5 only.
        np.testing.assert_allclose(found[key], expected, rtol=1e-5, atol=3e-6, err_msg=key)
        assert found[key].dtype == np.float32


def test_a_small_gradient_is_not_clipped():
    params, small = random_tree(0), [random_tree(1, scale=1e-3)] * STEPS
    clipped, _ = update_all(settings(name="sgd", grad_clip_norm=1.0), SCHEDULE, params, small)
    free, _ = update_all(settings(name="sgd"), SCHEDULE, params, small)
    jax.tree.map(np.testing.assert_array_equal, clipped, free)


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n not in ("lamb", "lars")])
def test_a_zero_gradient_shrinks_kernels_and_nothing_else(name):
    params = random_tree(0)
    zeros = [jax.tree.map(np.zeros_like, params)]
    config = settings(name=name, weight_decay=0.3)
    after = leaves(update_all(config, lambda step: 0.5, params, zeros)[0])
    for key, before in leaves(params).items():
        if key.endswith("kernel"):
            np.testing.assert_allclose(after[key], before * (1 - 0.5 * 0.3), rtol=1e-6)
        else:
            np.testing.assert_array_equal(after[key], before, err_msg=key)


def test_decay_follows_the_rules_and_the_rates():
    params = random_tree(0)
    zeros = [jax.tree.map(np.zeros_like, params)]
    config = settings(
        weight_decay=0.1,
        decay_multipliers=(("^head", 4.0), ("^blocks/01/", 2.0), (r"^blocks/.*kernel", 1.0)),
        rate_multipliers=((r"^blocks/0[12]/", 0.5),),
    )
    after = leaves(update_all(config, lambda step: 0.5, params, zeros)[0])
    before = leaves(params)
    shrunk = {name: 1 - after[name] / before[name] for name in before}
    np.testing.assert_allclose(shrunk["head/bias"], 0.5 * 0.1 * 4, rtol=1e-4)
    for layer, expected in enumerate((0.05, 0.5 * 0.05 * 2, 0.5 * 0.05)):
        np.testing.assert_allclose(shrunk["blocks/mlp/kernel"][layer], expected, rtol=1e-4)
    np.testing.assert_allclose(shrunk["blocks/norm/scale"][1], 0.05, rtol=1e-4)
    for name in ("embedding/kernel", "class_token"):
        np.testing.assert_array_equal(after[name], before[name])
    np.testing.assert_array_equal(after["blocks/norm/scale"][0], before["blocks/norm/scale"][0])


def test_layers_still_learn_at_their_own_rates_after_100_updates():
    """The decay multiplies the base rate, not the last update's."""
    params, ones = random_tree(0), jax.tree.map(np.ones_like, random_tree(0))
    config = settings(name="sgd", layer_decay=0.5, momentum=0.0)
    optimizer = build_optimizer(config, lambda step: 0.1, parameter_groups(config, params))
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for _ in range(101):
        updates, state = update(ones, state, params)
    moved = leaves(updates)
    for layer in range(3):
        expected = -0.1 * 0.5 ** (3 - layer)
        np.testing.assert_allclose(moved["blocks/mlp/kernel"][layer], expected, rtol=1e-6)
        np.testing.assert_allclose(moved["blocks/norm/scale"][layer], expected, rtol=1e-6)
    np.testing.assert_allclose(moved["head/bias"], -0.1, rtol=1e-6)
    np.testing.assert_allclose(moved["class_token"], -0.1 * 0.5**4, rtol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bfloat16_momentum_is_close_and_half_as_large(name):
    params, gradients = random_tree(0), [random_tree(seed) for seed in range(1, STEPS + 1)]
    exact, rounded = (settings(name=name, momentum_dtype=d) for d in ("float32", "bfloat16"))
    exact, _ = update_all(exact, SCHEDULE, params, gradients)
    rounded, state = update_all(rounded, SCHEDULE, params, gradients)
    half = [x for x in jax.tree.leaves(state) if x.dtype == jnp.bfloat16]
    assert len(half) == len(SHAPES)
    differences = [
        np.abs(a - b).max()
        for a, b in zip(jax.tree.leaves(exact), jax.tree.leaves(rounded), strict=True)
    ]
    assert max(differences) < 6e-3
    assert max(differences) > 0 or name == "lion"  # Only a sign could tell.
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(rounded))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stacked_blocks_are_updated_as_separate_ones(name, monkeypatch):
    """Adafactor factors even these small sizes: the 3 layers must not count as a dimension."""
    module = importlib.import_module("vit_jax.optimizer.adafactor")
    monkeypatch.setattr(module, "MIN_FACTORED_SIZE", 3)
    shapes = {
        "blocks/attention/query/kernel": (3, 6, 2, 5),
        "blocks/attention/out/bias": (3, 7),
        "head/kernel": (3, 4),
    }
    # In bfloat16, rounding could fall either way.
    config = settings(name=name, weight_decay=0.1, grad_clip_norm=1.0, momentum_dtype="float32")
    params = random_tree(0, shapes=shapes)
    gradients = [random_tree(seed, shapes=shapes) for seed in range(1, STEPS + 1)]
    stacked, _ = update_all(config, SCHEDULE, params, gradients)
    alone, _ = update_all(config, SCHEDULE, separate(params), [separate(g) for g in gradients])
    expected = leaves(alone)
    for key, value in leaves(separate(stacked)).items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-6, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_states_names_do_not_depend_on_clip_and_decay(name):
    params = random_tree(0)
    names = set()
    for options in ({}, {"weight_decay": 0.1}, {"grad_clip_norm": 1.0, "weight_decay": 0.1}):
        config = settings(name=name, **options)
        optimizer = build_optimizer(config, SCHEDULE, parameter_groups(config, params))
        names.add(tuple(leaves(optimizer.init(params))))
    assert len(names) == 1
    assert "rate/count" in next(iter(names))


def test_lambs_trust_ratio_is_of_decayed_parameters_even_without_decay():
    params, gradients = random_tree(0), [random_tree(1)]
    multipliers = (("^embedding", 4.0), ("kernel$", 1.0))  # How much is no matter.
    config = settings(name="lamb", weight_decay=0.0, decay_multipliers=multipliers)
    after = leaves(update_all(config, lambda step: 0.1, params, gradients)[0])
    for key, before in leaves(params).items():
        moved = after[key] - before
        if key.endswith("kernel"):
            norm = np.linalg.norm(before[0] if key.startswith("blocks") else before)
            moved = moved[0] if key.startswith("blocks") else moved
            np.testing.assert_allclose(np.linalg.norm(moved), 0.1 * norm, rtol=1e-4)
        else:  # Adam's first update is the sign.
            np.testing.assert_allclose(np.abs(moved), 0.1, rtol=1e-3)


def test_lamb_moves_a_kernel_of_zeros():
    """A zero-initialised head has no norm to be scaled to."""
    params = random_tree(0)
    params["embedding"]["kernel"][...] = 0
    config = settings(name="lamb", weight_decay=0.1)
    after, _ = update_all(config, lambda step: 0.1, params, [random_tree(1)])
    moved = np.abs(after["embedding"]["kernel"])
    np.testing.assert_allclose(moved, 0.1, rtol=1e-3)


def test_lion_and_adam_have_the_defaults_of_their_papers():
    params = random_tree(0)  # Of gradients so small that an epsilon counts.
    gradients = [random_tree(seed, scale=1e-4) for seed in range(1, STEPS + 1)]
    for name, expected in {
        "adamw": optax.adamw(SCHEDULE, weight_decay=0.0),
        "lion": optax.lion(SCHEDULE, weight_decay=0.0),
        "sgd": optax.sgd(SCHEDULE, momentum=0.9),
    }.items():
        found, _ = update_all(settings(name=name), SCHEDULE, params, gradients)
        state, reference_params = expected.init(params), params
        for gradient in gradients:
            updates, state = expected.update(gradient, state, reference_params)
            reference_params = optax.apply_updates(reference_params, updates)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), found, reference_params
        )
