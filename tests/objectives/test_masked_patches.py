"""Masked patch prediction against the paper's shares, hand-computed targets and its own seed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny
from tests.stages import Setup, mesh_of, without_branches
from vit_jax import train
from vit_jax.errors import ConfigError
from vit_jax.objectives.masked_patches import Colors, Pixels, corruption, exchanged


def make_config(**objective):
    config = tiny.get_config()
    config.objective.name = "masked_patches"
    config.total_steps, config.eval_every_steps = 6, 2
    for key, value in objective.items():
        config.objective[key] = value
    return config


def test_the_shares_of_the_corruption_are_the_papers():
    rows, count, chosen = 4096, 16, 8
    positions, sources = map(np.asarray, corruption(jax.random.key(1), (rows, count), chosen))
    assert all(len(set(row)) == chosen for row in positions)
    at = np.take_along_axis(sources, positions, axis=1)
    others = ~np.isin(np.arange(rows * count), (np.arange(rows)[:, None] * count + positions))
    assert (sources.ravel()[others] == np.tile(np.arange(count), rows)[others]).all()

    def near(found, share, draws):
        assert abs(found - share) < 3 * np.sqrt(share * (1 - share) / draws)

    near((at == count).mean(), 0.8, at.size)
    near((at == positions).mean(), 0.1, at.size)
    exchanged_to = (at - positions)[(at != count) & (at != positions)] % count
    for step in range(1, count):  # Every other patch alike.
        near((exchanged_to == step).mean(), 1 / (count - 1), exchanged_to.size)
    for position in range(count):
        near((positions == position).sum() / rows, chosen / count, rows)


def test_the_corruption_follows_from_seed_and_step():
    objective = Setup(make_config(), mesh_of(1)).experiment.objective
    batch = {"image": np.zeros((4, 8, 8, 1), np.uint8)}
    drawn = [
        np.asarray(objective.prepare(batch, seed, step)["sources"])
        for seed, step in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()
    assert (drawn[0] != drawn[3]).any()
    assert (drawn[2] != drawn[3]).any(), "the seed is no step"
    assert (drawn[0][0] != drawn[0][1]).any(), "each image has its own"


def test_a_patch_takes_the_embedding_of_its_source():
    patches = jnp.arange(6.0).reshape(1, 3, 2)
    mask, sources = jnp.array([-1.0, -2.0]), jnp.array([[2, 1, 3]])
    np.testing.assert_array_equal(exchanged(patches, mask, sources), [[[4, 5], [2, 3], [-1, -2]]])


@pytest.mark.parametrize(
    ("colour", "expected"),
    [
        ((0, 0, 0), 0),
        ((255, 255, 255), 511),
        ((255, 0, 0), 7 * 64),
        ((0, 32, 0), 8),  # 32 / 255 · 8 is a little above 1,
        ((0, 31, 0), 0),  # 31 / 255 · 8 a little below.
        ((0, 0, 224), 7),
        ((0, 0, 223), 6),
    ],
)
def test_mean_colours_at_the_edges(colour, expected):
    patch = jnp.broadcast_to(jnp.array(colour, jnp.uint8), (1, 1, 16, 16, 3))
    assert Colors(1, 3).colors(patch).item() == expected


def test_the_mean_colour_is_that_of_all_pixels():
    patch = np.zeros((1, 1, 2, 2, 3), np.uint8)
    patch[0, 0, 0] = 255  # Half of it white: 0.5 is the lower edge of level 4.
    assert Colors(1, 3).colors(patch).item() == 4 * 64 + 4 * 8 + 4


@pytest.mark.parametrize("side", [16, 7, 2])
def test_downsized_colours_are_means_over_sixteen_equal_parts(side):
    rng = np.random.default_rng(side)
    patch = rng.integers(0, 256, (side, side, 3), np.uint8)
    fine = patch.repeat(4, axis=0).repeat(4, axis=1).astype(np.float64)  # Divisible by four.
    cells = fine.reshape(4, side, 4, side, 3).mean(axis=(1, 3)) / 255
    levels = np.minimum(np.floor(8 * cells), 7).reshape(16, 3)
    found = Colors(4, 3).colors(patch[None, None])[0, 0]
    np.testing.assert_array_equal(found, levels @ [64, 8, 1])


def test_losses_against_numpy():
    rng = np.random.default_rng(0)
    patches = rng.integers(0, 256, (2, 3, 4, 4, 1), np.uint8)
    logits = rng.normal(size=(2, 3, 16 * 8)).astype(np.float32)
    loss, values = Colors(4, 1).loss(logits, patches)
    classes = np.floor(patches.reshape(2, 3, 16) / 255 * 8).clip(max=7).astype(int)
    by_cell = logits.reshape(2, 3, 16, 8).astype(np.float64)
    log_sum = np.log(np.exp(by_cell).sum(-1))
    picked = np.take_along_axis(by_cell, classes[..., None], -1)[..., 0]
    np.testing.assert_allclose(loss, (log_sum - picked).mean((1, 2)), rtol=1e-5)
    right = (by_cell.argmax(-1) == classes).mean((1, 2))
    np.testing.assert_allclose(values["accuracy"], right, rtol=1e-6)

    predicted = rng.normal(size=(2, 3, 16)).astype(np.float32)
    loss, _ = Pixels((4, 4), 1).loss(predicted, patches)
    expected = ((predicted - patches.reshape(2, 3, 16) / 255.0) ** 2).mean((1, 2))
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_drawn_pixels_are_the_predictions_cut_to_what_can_be_shown():
    predicted = jnp.array([[[-0.5, 0.5, 0.2, 2.0]]])
    drawn = Pixels((2, 2), 1).draw(predicted, jnp.zeros((1, 1, 2, 2, 1)))
    np.testing.assert_allclose(drawn[0, 0, ..., 0], [[0, 127.5], [51, 255]], rtol=1e-6)


def test_a_drawn_colour_is_of_its_own_class():
    colors = Colors(4, 3)
    wanted = np.random.default_rng(0).integers(0, 512, (1, 2, 16))
    logits = jax.nn.one_hot(wanted, 512).reshape(1, 2, -1)
    drawn = colors.draw(logits, jnp.zeros((1, 2, 8, 8, 3)))
    np.testing.assert_array_equal(colors.colors(drawn), wanted)


def test_gradients_reach_the_mask_and_no_prediction_elsewhere():
    setup = Setup(make_config(), mesh_of(1))
    objective, params = setup.experiment.objective, setup.state.params
    batch, predictions = setup.prepared(), jax.jit(objective._predictions)
    sources, positions = np.asarray(batch["sources"]), np.asarray(batch["positions"])
    assert (sources == 16).any()

    def total(params, image):
        return objective.loss(params, {}, {**batch, "image": image}, None)[0].sum()

    gradient = jax.jit(jax.grad(total))(params, batch["image"])
    assert np.abs(gradient["objective"]["mask"]).max() > 0
    assert np.abs(gradient["embedding"]["kernel"]).max() > 0
    assert not any("head/" in name for name in gradient), "the model has no head"

    # Only corrupted positions are compared with pixels: those elsewhere are input alone. So an image
    # whose corrupted patches all became [mask] has the loss of its targets, whatever they show.
    masked = jnp.full_like(batch["sources"], 16)
    blind = predictions(params, {**batch, "sources": masked}, None)[0]
    other = {**batch, "sources": masked, "image": 255 - batch["image"]}
    np.testing.assert_array_equal(blind, predictions(params, other, None)[0])
    assert blind.shape[1] == positions.shape[1] == 8

    loss = jax.jit(lambda params, batch: objective.loss(params, {}, batch, None)[0])

    # Blind, its loss says which pixels are targets: those of the corrupted positions alone.
    def loss_of(changed):
        image = np.array(batch["image"][:1])
        for row, column in zip(*divmod(changed, 4), strict=True):
            patch = image[0, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            patch[...] = np.where(patch > 127, 0, 255)
        one = {"image": image, "sources": masked[:1], "positions": positions[:1]}
        return loss(params, one).item()

    uncorrupted = np.setdiff1d(np.arange(16), positions[0])
    assert loss_of(uncorrupted) == loss_of(np.array([], int))
    assert loss_of(positions[0]) != loss_of(uncorrupted)


def test_a_prediction_is_of_its_own_position():
    """With blocks that change nothing, [mask] has its position's embedding and no other."""
    setup = Setup(make_config(), mesh_of(1))
    objective, batch = setup.experiment.objective, setup.prepared()
    params = without_branches(setup.state.params)
    head = params["objective"]["head"]  # As if it was trained.
    head = {**head, "bias": np.linspace(-1, 1, len(head["bias"]), dtype=np.float32)}
    params = {**params, "objective": {**params["objective"], "head": head}}
    masked = {**batch, "sources": jnp.full_like(batch["sources"], 16)}
    found = np.asarray(jax.jit(objective._predictions)(params, masked, None)[0])
    own, norm = params["objective"], params["norm"]
    tokens = np.float64(
        own["mask"] + params["position_embedding"][0, 1:]
    )  # After the class token's.
    tokens -= tokens.mean(-1, keepdims=True)
    tokens = tokens / np.sqrt(tokens.var(-1, keepdims=True) + 1e-6) * norm["scale"] + norm["bias"]
    every = tokens @ np.float64(own["head"]["kernel"]) + own["head"]["bias"]
    np.testing.assert_allclose(found, every[np.asarray(batch["positions"])], rtol=1e-3, atol=1e-4)


def test_pictures_show_the_image_its_corruption_and_the_predictions():
    setup = Setup(make_config(), mesh_of(1))
    objective, params = setup.experiment.objective, setup.state.params
    batch = setup.prepared()
    pictures = np.asarray(jax.jit(objective.pictures)(params, {}, batch))
    image, corrupted, predicted = np.split(pictures, 3, axis=2)
    np.testing.assert_array_equal(image, batch["image"])
    np.testing.assert_array_equal(corrupted, objective.show(batch)[0])
    at = np.zeros((len(image), 16), bool)
    np.put_along_axis(at, np.asarray(batch["positions"]), True, axis=1)
    corrupted_pixels = at.reshape(-1, 4, 4).repeat(2, axis=1).repeat(2, axis=2)[..., None]
    assert (predicted == image)[~corrupted_pixels].all()
    drawn = predicted[corrupted_pixels]
    assert np.isin(drawn, (np.arange(8) + 0.5) * 255 / 8).all(), "the middles of eight levels"


@pytest.mark.parametrize(("target", "size"), [("downsized", 16 * 8), ("pixels", 4)])
def test_each_target_has_its_head_and_its_loss(target, size):
    experiment = Setup(make_config(target=target, corruption_rate=0.25), mesh_of(1)).experiment
    objective, batch = experiment.objective, experiment.batch

    def loss(params, batch):
        return objective.loss(params, {}, objective.prepare(batch, 0, 0), None)

    losses, values = jax.eval_shape(loss, experiment.state.params, batch)
    assert losses.shape == (32,)
    assert set(values) == set(objective.values)
    assert experiment.state.params["objective"]["head"]["kernel"].shape == (32, size)
    assert objective.num_corrupted == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.patch_dropout_rate": 0.5}, "patch_dropout_rate=0"),
        ({"model.name": "BiT-R50x1", "model.width": None}, "tokens are patches"),
        ({"objective.target": "median"}, "mean_color"),
    ],
)
def test_what_does_not_fit_is_refused(change, message, tmp_path):
    config = make_config()
    if "model.name" in change:
        for key in list(config.model):
            if key not in ("name", "image_size", "channels", "num_classes"):
                config.model[key] = None
    config.update_from_flattened_dict(change)
    with pytest.raises(ConfigError, match=message):
        train.run(config, tmp_path, dry_run=True)


def test_registers_are_no_patches():
    objective = Setup(make_config(), mesh_of(1)).experiment.objective
    model = dataclasses.replace(objective.network.options, num_registers=2)
    network = dataclasses.replace(objective.network, options=model)
    found = type(objective)(objective.options, network, objective.labels)
    assert (found.num_prefix, found.num_patches) == (objective.num_prefix + 2, 16)
