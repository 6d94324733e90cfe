"""Adafactor in Scaling-ViT's form, against its formula in NumPy and against optax."""

import jax.numpy as jnp
import numpy as np
import optax

from tests.optimizer.trees import leaves, random_tree, settings, update_all

SHAPES = {
    "blocks/mlp/dense1/kernel": (2, 40, 33),
    "blocks/attention/query/kernel": (2, 40, 3, 32),  # Factored over 40 and 32.
    "blocks/mlp/dense1/bias": (2, 40),
    "embedding/kernel": (31, 100),  # 31 is too small.
    "head/kernel": (33, 40),
}
FACTORED = {  # Axis of one layer that rows lack (the largest), and that columns lack.
    "blocks/mlp/dense1/kernel": (0, 1),
    "blocks/attention/query/kernel": (0, 2),
    "head/kernel": (1, 0),
}
STEPS = 5


def second_moment(square, moment, decay, axes):
    """The moving average and what stands for it: an outer product of row and column means."""
    if axes is None:
        moment = decay * moment + (1 - decay) * square
        return moment, moment
    largest, second = axes
    row, column = moment
    row = decay * row + (1 - decay) * square.mean(largest, keepdims=True)
    column = decay * column + (1 - decay) * square.mean(second, keepdims=True)
    return (row, column), row * column / row.mean(second, keepdims=True)


def reference(gradients, *, cap, momentum):
    """The directions' average after all updates, in double precision, one layer after another."""
    average = {}
    for name in SHAPES:
        stacked = name.startswith("blocks/")
        layers = []
        for layer in range(2 if stacked else 1):
            total, moment = 0.0, 0.0
            if name in FACTORED:
                moment = (0.0, 0.0)
            for step, gradient in enumerate(gradients):
                array = np.float64(leaves(gradient)[name])
                array = array[layer] if stacked else array
                decay = min(cap, 1 - (step + 1) ** -0.8)
                moment, full = second_moment(array**2 + 1e-30, moment, decay, FACTORED.get(name))
                total = momentum * total + (1 - momentum) * array / np.sqrt(full)
            layers.append(total)
        average[name] = np.stack(layers) if stacked else layers[0]
    return average


def moved(config, gradients):
    """What SGD of rate 1 on the last direction would move: the direction, negated."""
    zeros = random_tree(0, scale=0.0, shapes=SHAPES)
    params, state = update_all(
        config, lambda step: jnp.float32(step == STEPS - 1), zeros, gradients
    )
    return leaves(params), state


def test_five_updates_are_the_formula():
    gradients = [random_tree(seed, shapes=SHAPES) for seed in range(STEPS)]
    for cap in (0.999, 0.5):
        config = settings(name="adafactor", b2=cap, momentum_dtype="float32")
        found, _ = moved(config, gradients)
        for name, expected in reference(gradients, cap=cap, momentum=0.9).items():
            np.testing.assert_allclose(found[name], -expected, rtol=1e-4, atol=1e-6, err_msg=name)


def test_unstacked_parameters_are_optaxs():
    shapes = {"a/kernel": (40, 33), "head/kernel": (64, 3, 48), "head/bias": (5,)}
    params = random_tree(0, shapes=shapes)
    gradients = [random_tree(seed, shapes=shapes) for seed in range(1, STEPS + 1)]
    config = settings(name="adafactor", momentum_dtype="float32")
    found, _ = update_all(config, lambda step: 0.1, params, gradients)
    expected = optax.chain(
        optax.scale_by_factored_rms(min_dim_size_to_factor=32),  # 0.999 is far after 5 updates.
        optax.ema(0.9, debias=False),
        optax.scale(-0.1),
    )
    state = expected.init(params)
    for gradient in gradients:
        updates, state = expected.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    for name, array in leaves(params).items():
        np.testing.assert_allclose(leaves(found)[name], array, atol=1e-5, err_msg=name)


def test_the_state_is_small():
    gradients = [random_tree(0, shapes=SHAPES)] * STEPS
    _, state = moved(settings(name="adafactor"), gradients)
    moments = leaves(state["direction"]["second_moment"])
    assert moments["v_row/head/kernel"].shape == (33,)
    assert moments["v_col/head/kernel"].shape == (40,)
    assert moments["v/head/kernel"].size == 1
    assert moments["v_row/blocks/mlp/dense1/kernel"].shape == (2, 33)
    assert moments["v/embedding/kernel"].shape == (31, 100)
    assert moments["v/blocks/mlp/dense1/bias"].shape == (2, 40)
    momentum = state["direction"]["momentum"].ema
    assert momentum["head"]["kernel"].dtype == jnp.bfloat16
