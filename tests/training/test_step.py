"""One update, by its properties: what it draws anew, what it weighs, what it reports.

The update is plain SGD at rate 1, so that it subtracts the gradient. The head's kernel is 0 at
first: then the gradient of its bias is the mean of 1 / K less the targets, which shows these.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.stages import Setup, config_with, mesh_of
from vit_jax.objectives import masked_autoencoder, masked_patches, mixing, self_distillation
from vit_jax.training.state import OBJECTIVE_STREAM
from vit_jax.training.step import STEP_STREAM, ema_keep, step_key, update_ema, with_weights

GRADIENT = {
    "optimizer.name": "sgd",
    "optimizer.learning_rate": 1.0,
    "optimizer.weight_decay": 0.0,
    "optimizer.grad_clip_norm": 0.0,
    "schedule.name": "constant",
    "warmup_steps": 0,
    "total_steps": 1,
    "batch_size": 4,
    "model.depth": 1,
    "model.width": 16,
    "model.mlp_width": 16,
}
CLASSES = 10


@functools.cache
def setup_of(**values):
    """What makes an update on one device; compiled once for each set of values."""
    return Setup(config_with(**{**GRADIENT, **values}), mesh_of(1))


def images_of(*greys):
    """One noisy 8x8 image a value, uint8."""
    noise = np.random.default_rng(0).integers(0, 100, (8, 8, 1))
    return np.stack([noise + grey for grey in greys]).astype(np.uint8)


def random_params(setup):
    """Parameters of which none is 0, near the initial ones."""
    rng = np.random.default_rng(0)

    def moved(p):
        return np.float32(np.asarray(p) + rng.normal(0, 0.3, p.shape))

    return jax.tree.map(moved, setup.state.params)


def update(setup, images, labels, mask=None, *, step=0, params=None):
    """The gradient of an update after `step` others, and its metrics."""
    start = jax.tree.map(np.array, setup.state.params) if params is None else params
    state = setup.state._replace(step=np.int32(step), params=start)
    state = jax.tree.map(lambda x: jnp.array(np.asarray(x)), state)  # A copy, which is donated.
    mask = np.ones(len(images), bool) if mask is None else np.array(mask, bool)
    batch = {"image": images, "label": np.asarray(labels), "mask": mask}
    state, metrics = setup.step(state, jax.tree.map(jnp.asarray, batch))
    gradient = jax.tree.map(lambda a, b: a - np.asarray(b), start, state.params)
    return gradient, {name: float(value) for name, value in metrics.items()}


def assert_equal(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)


# ------------------------------------------------------------------------------- what is weighed


MICRO = {1: {}, 2: {"optimizer.accumulation_steps": 2}}


@pytest.mark.parametrize("micro", MICRO)
def test_rows_that_are_skipped_count_for_nothing(micro):
    """Two of four rows weigh as much as these twice, in whose micro-batch they may be."""
    setup = setup_of(**MICRO[micro])
    params = random_params(setup)
    kept, labels = images_of(10, 90), [3, 7]
    twice, whole = update(setup_of(), kept[[0, 1, 1, 0]], [3, 7, 7, 3], params=params)
    assert whole["skipped"] == 0
    rest = np.full_like(kept, 255)
    for images, these, mask in (
        (np.concatenate([kept, rest]), [*labels, 0, 0], [1, 1, 0, 0]),
        (np.stack([rest[0], kept[0], rest[1], kept[1]]), [1, 3, 2, 7], [0, 1, 0, 1]),
    ):
        found, metrics = update(setup, images, these, mask, params=params)
        assert metrics["skipped"] == 2
        np.testing.assert_allclose(metrics["loss"], whole["loss"], rtol=1e-5)
        assert_equal(found, twice)
    one, metrics = update(setup, images, these, [0, 1, 0, 0])
    np.testing.assert_allclose(metrics["loss"], np.log(CLASSES), rtol=1e-5)
    np.testing.assert_allclose(one["head"]["bias"], 0.1 - np.eye(CLASSES)[3], atol=1e-6)


def test_a_batch_of_which_nothing_could_be_read_changes_nothing():
    setup = setup_of(**MICRO[2])
    params = random_params(setup)
    found, metrics = update(setup, images_of(1, 2, 3, 4), [0] * 4, [0] * 4, params=params)
    assert metrics["loss"] == metrics["grad_norm"] == 0
    assert metrics["skipped"] == 4
    # By the definition too: compilers make 0 of a bool that is divided by 0, but need not.
    assert not np.any(with_weights({"mask": jnp.zeros(4, bool)})["weight"])
    assert_equal(found, jax.tree.map(np.zeros_like, params))


def test_labels_may_be_given_as_targets():
    """Of several classes too; the softmax's gradient is Σ targets times the shares, less these."""
    targets = np.zeros((4, CLASSES), np.float32)
    targets[[0, 1, 2, 2], [3, 7, 3, 4]] = 1
    found, metrics = update(setup_of(), images_of(1, 2, 3, 4), targets)
    np.testing.assert_allclose(metrics["loss"], targets.sum() / 4 * np.log(CLASSES), rtol=1e-5)
    expected = 0.1 * targets.sum() / 4 - targets.mean(0)
    np.testing.assert_allclose(found["head"]["bias"], expected, atol=1e-6)


# ------------------------------------------------------------------------------- what is random

SMOOTHING = 0.2
DROPOUT = {"model.dropout_rate": 0.5, "optimizer.accumulation_steps": 2}
RANDOM = {  # All in one update, so that few are compiled; images and rows say which one shows.
    **DROPOUT,
    "optimizer.freeze": "^(?!head/bias)",  # Without a backward pass.
    "objective.mixing.mixup_alpha": 1.0,
    "objective.label_smoothing": SMOOTHING,
}
EQUAL = images_of(*[50] * 4), [3] * 4  # Mixed, they are what they were: dropout alone changes them.


def test_every_update_and_every_micro_batch_drops_something_else():
    """The loss of one of four equal images at a time; rows 0 and 2 are one micro-batch."""
    setup = setup_of(**RANDOM)
    params = random_params(setup)

    def loss(row, step):
        return update(setup, *EQUAL, np.arange(4) == row, step=step, params=params)[1]["loss"]

    losses = [loss(row, step) for row in range(4) for step in range(4)]
    assert len(set(losses)) == 16
    assert np.ptp(losses) > 1e-2, "not by rounding"
    assert loss(1, 2) == losses[4 + 2]  # A step that is repeated draws the same.


def test_runs_of_other_seeds_drop_mix_and_begin_with_something_else():
    setups = [setup_of(**RANDOM), setup_of(**RANDOM, seed=1)]
    params = random_params(setups[0])
    first, other = (update(setup, *EQUAL, params=params)[1]["loss"] for setup in setups)
    assert abs(first - other) > 1e-3
    # With the head's kernel of 0, dropout changes no answer: this is the proportion alone.
    rows = images_of(0, 50, 90, 0), [0, 3, 7, 0], [0, 1, 1, 0]
    first, other = (update(setup, *rows)[0]["head"]["bias"] for setup in setups)
    assert abs(first - other).max() > 1e-3
    kernels = [setup.state.params["embedding"]["kernel"] for setup in setups]
    assert (kernels[0] != kernels[1]).all()


def test_a_sharpness_aware_update_is_the_gradient_uphill_with_the_same_dropout():
    plain = setup_of(**DROPOUT)
    sharp = setup_of(**DROPOUT, **{"optimizer.sharpness.rho": 0.05})
    start, rows = random_params(plain), (images_of(1, 40, 80, 120), [3, 1, 4, 1])
    clean, metrics = update(plain, *rows, params=start)
    norm = np.sqrt(sum((g**2).sum() for g in jax.tree.leaves(clean)))
    moved = jax.tree.map(lambda p, g: p + 0.05 * g / norm, start, clean)
    expected, _ = update(plain, *rows, params=moved)
    found, of_sharp = update(sharp, *rows, params=start)
    assert_equal(found, expected)
    np.testing.assert_allclose(of_sharp["loss"], metrics["loss"], rtol=1e-5)
    assert not np.allclose(expected["head"]["kernel"], clean["head"]["kernel"], atol=1e-3)


def test_every_update_mixes_in_another_proportion():
    """A row's share with Beta(1, 1), folded at 1/2, is uniform in [1/2, 1]."""
    setup, shares = setup_of(**RANDOM), []
    for step in range(64):
        # Row 2 is mixed with row 1, whose own partner counts for nothing.
        found, _ = update(setup, images_of(0, 50, 90, 0), [0, 3, 7, 0], [0, 1, 1, 0], step=step)
        targets = 0.1 - found["head"]["bias"]
        share = 2 * (targets[7] - SMOOTHING / CLASSES) / (1 - SMOOTHING)
        expected = np.full(CLASSES, SMOOTHING / CLASSES)
        expected[[3, 7]] += (1 - SMOOTHING) * np.array([2 - share, share]) / 2
        np.testing.assert_allclose(targets, expected, atol=1e-5)
        shares.append(share)
    assert len(set(shares)) == 64
    assert 0.5 <= min(shares) < 0.55
    assert 0.95 < max(shares) <= 1 + 1e-5
    assert np.mean(shares) == pytest.approx(0.75, abs=4 * 0.5 / np.sqrt(12 * 64))


def test_the_images_are_mixed_as_well_as_the_targets():
    """Of equal labels, so that only the image can change the loss of row 2; dropout is the same."""
    setup = setup_of(**RANDOM)
    params = random_params(setup)

    def loss(*mask):
        images = images_of(0, 10, 150, 0)
        return sum(mask) * update(setup, images, [3] * 4, mask, params=params)[1]["loss"]

    mixed = loss(0, 1, 1, 0) - loss(0, 1, 0, 0)
    assert abs(mixed - loss(0, 0, 1, 0)) > 1e-3


# ------------------------------------------------------------------------------- what is reported


def test_the_gradients_norm_is_reported_before_it_is_clipped():
    values = {"optimizer.grad_clip_norm": 0.01, "optimizer.learning_rate": 0.5}
    setup = setup_of(**values, **{"optimizer.freeze": "^(?!head/bias)"})
    found, metrics = update(setup, images_of(1, 2, 3, 4), [0, 0, 0, 5])
    gradient = 0.1 - np.eye(CLASSES)[[0, 0, 0, 5]].mean(0)
    np.testing.assert_allclose(metrics["grad_norm"], np.linalg.norm(gradient), rtol=1e-5)
    expected = 0.5 * 0.01 * gradient / np.linalg.norm(gradient)
    np.testing.assert_allclose(found["head"]["bias"], expected, rtol=1e-4)
    assert metrics["learning_rate"] == 0.5


def test_an_update_has_the_rate_that_it_reports():
    """Up from 0.2 in 4 updates, then along a line to 0, in the last 2 times 1 and 1 / 2."""
    values = {"warmup_steps": 4, "total_steps": 10, "cooldown_steps": 2}
    values |= {"schedule.name": "linear", "schedule.end": 0.0, "schedule.warmup_start": 0.2}
    setup = setup_of(**values, **{"optimizer.freeze": "^(?!head/bias)"})
    state = jax.tree.map(jnp.copy, setup.state)
    bias = np.zeros(CLASSES)
    batch = {"image": images_of(1, 2, 3, 4), "label": np.int32([2] * 4), "mask": np.ones(4, bool)}
    momentum = np.zeros(CLASSES)
    for rate in (0.2, 0.4, 0.6, 0.8, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6 / 2):
        state, metrics = setup.step(state, jax.tree.map(jnp.asarray, batch))
        np.testing.assert_allclose(metrics["learning_rate"], rate, atol=1e-6)
        shares = np.exp(bias) / np.exp(bias).sum()
        momentum = 0.9 * momentum + shares - np.eye(CLASSES)[2]
        bias = bias - rate * momentum
        np.testing.assert_allclose(state.params["head"]["bias"], bias, atol=1e-4)
    assert state.step == 10


@pytest.mark.parametrize(("warmup", "age"), [(True, 1999), (False, 8646)])
def test_the_age_of_an_average_of_20000_updates(warmup, age):
    """Update n makes the parameter n, so that the average is n less its age."""

    def follow(average, step):
        keep = ema_keep(step, 0.9999, warmup=warmup)
        return update_ema(average, {"a": jnp.float32(step + 1)}, keep), None

    average, _ = jax.lax.scan(follow, {"a": jnp.float32(0)}, jnp.arange(20_000))
    np.testing.assert_allclose(20_000 - average["a"], age, atol=2)


def test_the_first_updates_of_an_average():
    kept = [float(ema_keep(jnp.int32(step), 0.25, warmup=True)) for step in range(4)]
    np.testing.assert_allclose(kept, [1 / 10, 2 / 11, 3 / 12, 0.25], rtol=1e-6)
    assert float(ema_keep(jnp.int32(0), 0.25, warmup=False)) == 0.25


def test_each_use_of_a_seed_has_keys_of_its_own():
    streams = (STEP_STREAM, OBJECTIVE_STREAM, mixing.STREAM, masked_patches.STREAM)
    streams += (masked_autoencoder.STREAM, self_distillation.STREAM)
    keys = [jax.random.key(0), *(jax.random.fold_in(jax.random.key(0), s) for s in (*streams, 0))]
    keys += [step_key(0, jnp.int32(0)), step_key(1, jnp.int32(0)), step_key(0, jnp.int32(1))]
    assert len({tuple(jax.random.key_data(key).tolist()) for key in keys}) == 11


def test_a_plain_average_starts_from_the_weights():
    """Their share after n updates is the decay to the nth."""
    values = {"ema_decay": 0.9, "ema_warmup": False, "total_steps": 3, "optimizer.freeze": "^norm/"}
    setup = setup_of(**values)
    state = jax.tree.map(jnp.copy, setup.state)
    weights = np.array([0.1, 0.1 * 0.9, 0.1 * 0.9**2])[::-1]
    expected = 0.9**3 * np.array(state.params["head"]["bias"])
    batch = {"image": images_of(1, 2, 3, 4), "label": np.int32([2] * 4), "mask": np.ones(4, bool)}
    for weight in weights:
        state, _ = setup.step(state, jax.tree.map(jnp.asarray, batch))
        expected += weight * np.array(state.params["head"]["bias"])
    np.testing.assert_allclose(state.ema["head"]["bias"], expected, atol=1e-6)
    np.testing.assert_array_equal(state.ema["norm"]["scale"], state.params["norm"]["scale"])


# ------------------------------------------------------------------------------- shares of a batch

SHARP = {"optimizer.sharpness.rho": 0.3, "optimizer.sharpness.alpha": 0.4}


@functools.cache
def worker(start):
    """GSAM's gradient of two rows on a device of their own."""
    setup = setup_of(**SHARP)
    params = random_params(setup)
    rows = images_of(*range(0, 160, 20))[start : start + 2]
    return update(setup, rows, [3, 1, 4, 1, 5, 9, 2, 6][start : start + 2], params=params)[0]


@pytest.mark.parametrize(
    ("size", "micro"),
    [
        pytest.param(1, 1, marks=pytest.mark.slow),
        (1, 2),
        pytest.param(2, 1, marks=pytest.mark.slow),
        (8, 1),
    ],
)
def test_four_shares_are_four_workers(size, micro):
    """Computed apart, each uphill by its own gradient, then averaged; on 8 devices two work on one.

    Fast are one device whose shares have micro-batches, and several devices; the slow ones lie between.
    """
    values = {**SHARP, "optimizer.sharpness.shares": 4, "batch_size": 8}
    if (size, micro) == (8, 1):
        values["batch_size"] = 32  # Of which the mesh needs eight rows a share.
    config = config_with(**{**GRADIENT, **values, "optimizer.accumulation_steps": micro})
    setup = Setup(config, mesh_of(size, data=size))
    images, labels = images_of(*range(0, 160, 20)), np.array([3, 1, 4, 1, 5, 9, 2, 6])
    repeats = values["batch_size"] // 8
    images, labels = (
        np.tile(x.reshape(4, 2, *x.shape[1:]), (1, repeats, *[1] * (x.ndim - 1))).reshape(
            -1, *x.shape[1:]
        )
        for x in (images, labels)
    )
    found, _ = update(setup, images, labels, params=random_params(setup_of(**SHARP)))
    expected = jax.tree.map(lambda *g: sum(g) / 4, *(worker(start) for start in (0, 2, 4, 6)))
    assert_equal(found, expected)
