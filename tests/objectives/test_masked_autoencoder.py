"""MAE against a plain numpy form of its loss; what the encoder sees, and what it costs."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny
from tests.stages import Setup, mesh_of, without_branches
from vit_jax import train
from vit_jax.errors import ConfigError
from vit_jax.models.positions import sincos_2d
from vit_jax.objectives import masked_autoencoder, patch_pixels


def make_config(**values):
    config = tiny.get_config()
    config.objective.name = "masked_autoencoder"
    config.objective.update(decoder_width=16, decoder_depth=1, decoder_heads=2)
    config.data.mean, config.data.std, config.model.gelu = (0.4,), (0.3,), "erf"
    config.update_from_flattened_dict(values)
    return config


@pytest.fixture(scope="module")
def setup():
    return Setup(make_config(), mesh_of(1))


@pytest.fixture(scope="module")
def batch(setup):
    return setup.prepared()


@pytest.fixture(scope="module")
def predictions(setup):
    return jax.jit(setup.experiment.objective._predictions)


def test_kept_and_masked_patches_partition_the_image(batch):
    assert batch["kept"].shape[1] == 4, "a quarter of 16"
    together = np.concatenate([batch["kept"], batch["masked"]], axis=1)
    np.testing.assert_array_equal(np.sort(together), np.tile(np.arange(16), (32, 1)))
    assert len(np.unique(np.asarray(batch["kept"]), axis=0)) > 16, "each image has its own"


def test_what_is_left_out_follows_from_seed_and_step(setup):
    batch = {"image": np.zeros((4, 8, 8, 1), np.uint8)}
    prepare = setup.experiment.objective.prepare
    drawn = [
        np.asarray(prepare(batch, seed, step)["kept"])
        for seed, step in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    assert (drawn[0] == drawn[1]).all()
    assert (drawn[0] != drawn[2]).any()
    assert (drawn[0] != drawn[3]).any()
    assert (drawn[2] != drawn[3]).any(), "the seed is no step"


def test_the_share_that_is_left_out_is_rounded_and_leaves_one(setup):
    objective = setup.experiment.objective
    for ratio, expected in ((0.99, 15), (0.01, 1), (0.72, 12), (0.7, 11)):  # Of 16: 11.5 and 11.2.
        options = dataclasses.replace(objective.options, mask_ratio=ratio)
        made = type(objective)(options, objective.network, objective.labels)
        assert made.num_masked == expected


def test_the_decoder_is_of_the_models_kind(setup):
    found = setup.experiment.objective.decoder_options
    assert (found.width, found.mlp_width, found.num_heads, found.depth) == (16, 64, 2, 1)
    assert (found.gelu, found.positions, found.grid) == ("erf", "sincos_2d", (4, 4))
    assert setup.experiment.model_file.class_names == (), "a model without a head has no classes"


@pytest.mark.parametrize(
    ("encoder", "heads", "decoder"),
    [
        ({"attention": "joint", "scan_unroll": 3, "remat": "full"}, 2, "joint"),
        ({"attention": "cudnn", "dtype": "bfloat16"}, 2, "cudnn"),
        ({"attention": "cudnn", "dtype": "bfloat16"}, 4, "xla"),  # Heads of 4: no multiple of 8.
    ],
)
def test_the_decoder_is_executed_as_the_encoder_where_it_can_be(setup, encoder, heads, decoder):
    objective = setup.experiment.objective
    model = dataclasses.replace(objective.model, **encoder)
    options = dataclasses.replace(objective.options, decoder_heads=heads)
    network = dataclasses.replace(objective.network, options=model)
    found = type(objective)(options, network, objective.labels).decoder_options
    assert found.attention == decoder
    assert (found.scan_unroll, found.remat) == (model.scan_unroll, model.remat)


def test_pictures_show_the_image_what_is_seen_of_it_and_the_whole_predicted(
    setup, batch, predictions
):
    objective = setup.experiment.objective
    pictures = np.asarray(jax.jit(objective.pictures)(setup.state.params, {}, batch))
    image, seen, predicted = np.split(pictures, 3, axis=2)
    np.testing.assert_array_equal(image, batch["image"])
    np.testing.assert_array_equal(seen, objective.show(batch)[0])
    known = seen != 128  # Some pixels of digits have this very grey.
    np.testing.assert_array_equal(predicted[known], image[known])
    assert 0.2 < known.mean() <= 0.25

    # What was left out: pixels as they are normalised in the patch, and in the model, undone.
    pixels = np.asarray(patch_pixels.cut(np.float64(image), (4, 4))).reshape(32, 16, -1)
    pixels = (pixels / 255 - 0.4) / 0.3
    deviation = np.sqrt(pixels.var(-1, ddof=1, keepdims=True) + 1e-6)
    drawn = np.float64(predictions(setup.state.params, batch, None)) * deviation
    drawn = ((drawn + pixels.mean(-1, keepdims=True)) * 0.3 + 0.4) * 255
    found = np.asarray(patch_pixels.cut(predicted, (4, 4))).reshape(32, 16, -1)
    for row, masked in enumerate(np.asarray(batch["masked"])):
        expected = drawn[row, masked].clip(0, 255)
        np.testing.assert_allclose(found[row, masked], expected, atol=0.1)


def test_pictures_of_oblong_images_have_their_rows_and_columns(setup):
    """Of 3 x 5 patches of 2 x 4 pixels; what is predicted is given: a number for each patch."""
    made = setup.experiment.objective
    model = dataclasses.replace(made.model, image_size=(6, 20), patch_size=(2, 4), channels=3)
    preprocessing = dataclasses.replace(
        made.network.preprocessing, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)
    )
    network = dataclasses.replace(made.network, options=model, preprocessing=preprocessing)
    options = dataclasses.replace(made.options, normalize_patches=False)
    objective = type(made)(options, network, made.labels)
    assert objective.num_masked == 11
    predicted = np.linspace(-0.2, 1.1, 15, dtype=np.float32)
    objective._predictions = lambda params, batch, key: jnp.broadcast_to(
        predicted[None, :, None], (2, 15, 24)
    )
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 6, 20, 3), np.uint8)
    order = rng.permuted(np.arange(15)[None].repeat(2, 0), axis=1).astype(np.int32)
    batch = {"image": images, "kept": order[:, 11:], "masked": order[:, :11]}
    image, seen, drawn = np.split(np.asarray(jax.jit(objective.pictures)({}, {}, batch)), 3, axis=2)
    np.testing.assert_array_equal(image, images)
    for row in range(2):
        for patch in range(15):
            y, x = divmod(patch, 5)
            place = np.s_[row, 2 * y : 2 * y + 2, 4 * x : 4 * x + 4]
            if patch in batch["masked"][row]:
                assert (seen[place] == 128).all()
                color = predicted[patch] * np.float64([0.4, 0.5, 0.6]) + [0.1, 0.2, 0.3]
                expected = np.broadcast_to((255 * color).clip(0, 255), (2, 4, 3))
                np.testing.assert_allclose(drawn[place], expected, rtol=1e-5)
            else:
                np.testing.assert_array_equal(seen[place], images[place])
                np.testing.assert_array_equal(drawn[place], images[place])


@pytest.mark.parametrize("normalized", [True, False])
def test_the_loss_against_numpy(setup, batch, predictions, normalized):
    config = make_config(**{"objective.normalize_patches": normalized})
    objective = Setup(config, mesh_of(1)).experiment.objective
    params = setup.state.params
    predicted = np.float64(predictions(params, batch, None))
    images = (np.float64(batch["image"]) / 255 - 0.4) / 0.3
    expected = []
    for image, masked, rows in zip(images, np.asarray(batch["masked"]), predicted, strict=True):
        errors = []
        for position in masked:
            row, column = divmod(position, 4)
            patch = image[2 * row : 2 * row + 2, 2 * column : 2 * column + 2].ravel()
            if normalized:
                patch = (patch - patch.mean()) / np.sqrt(patch.var(ddof=1) + 1e-6)
            errors.append(np.mean((rows[position] - patch) ** 2))
        expected.append(np.mean(errors))
    loss, _ = jax.jit(objective.loss)(params, {}, batch, None)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_the_model_sees_the_kept_patches_only(setup, batch, predictions):
    objective, params = setup.experiment.objective, setup.state.params
    before = predictions(params, batch, None)
    pixels = np.array(batch["image"])
    for image, masked in zip(pixels, np.asarray(batch["masked"]), strict=True):
        for row, column in zip(*divmod(masked, 4), strict=True):
            image[2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = 255
    after = predictions(params, {**batch, "image": jnp.asarray(pixels)}, None)
    np.testing.assert_array_equal(before, after)
    assert (objective.show(batch)[0] == objective.show({**batch, "image": pixels})[0]).all()


def test_the_order_of_the_kept_patches_does_not_matter(setup, batch, predictions):
    turned = {**batch, "kept": batch["kept"][:, ::-1], "masked": batch["masked"][:, ::-1]}
    found, expected = (predictions(setup.state.params, b, None) for b in (turned, batch))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def linear(x, layer):
    return x @ np.float64(layer["kernel"]) + layer["bias"]


def normed(tokens, norm):
    tokens = tokens - tokens.mean(-1, keepdims=True)
    tokens = tokens / np.sqrt(tokens.var(-1, keepdims=True) + 1e-6)
    return tokens * norm["scale"] + norm["bias"]


def test_each_patch_is_predicted_by_its_pixels_or_mask_and_by_its_position(
    setup, batch, predictions
):
    """With blocks that change nothing, the model's and the decoder's, a token is known."""
    params = without_branches(setup.state.params)
    scale = np.linspace(0.5, 2, 32, dtype=np.float32)  # Of a norm that was trained.
    params = {**params, "norm": {"scale": scale, "bias": scale - 1}}
    params = {**params, "objective": without_branches(params["objective"])}
    found = np.asarray(predictions(params, batch, None))
    own, positions = params["objective"], sincos_2d(4, 4, 16)[0]
    every = linear(normed(np.float64(own["mask"]) + positions, own["norm"]), own["head"])
    pixels = np.asarray(patch_pixels.cut(np.float64(batch["image"]), (4, 4))).reshape(32, 16, -1)
    kernel = np.float64(params["embedding"]["kernel"]).reshape(4, 32)
    tokens = (pixels / 255 - 0.4) / 0.3 @ kernel + params["embedding"]["bias"]
    tokens = normed(tokens + params["position_embedding"][:, 1:], params["norm"])
    seen = linear(tokens, own["embedding"]) + positions
    seen = linear(normed(seen, own["norm"]), own["head"])
    for row, (masked, kept) in enumerate(
        zip(np.asarray(batch["masked"]), np.asarray(batch["kept"]), strict=True)
    ):
        np.testing.assert_allclose(found[row, masked], every[masked], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(found[row, kept], seen[row, kept], rtol=1e-3, atol=1e-3)


def test_the_decoders_tokens_and_positions_are_those_of_the_patches(monkeypatch):
    """Of 2 x 3 patches, with nothing but the embedding: one token before them, two are kept."""
    rng = np.random.default_rng(0)
    tokens, mask = rng.normal(size=(2, 3, 8)).astype(np.float32), rng.normal(size=8)
    kept, masked = np.int32([[4, 1], [0, 5]]), np.int32([[0, 5, 2, 3], [3, 1, 4, 2]])
    own = types.SimpleNamespace(
        options=types.SimpleNamespace(width=8, grid=(2, 3)),
        embedding=lambda x: 2 * x,
        mask=jnp.float32(mask),
        **dict.fromkeys(("norm", "head"), lambda x: x),
        blocks=None,
    )
    monkeypatch.setattr(
        masked_autoencoder, "scan_blocks", lambda blocks, x, keys, apply, options: (x, None)
    )
    found = masked_autoencoder.Decoder.__call__(own, tokens, kept, masked, lambda x: x)
    positions = np.asarray(sincos_2d(2, 3, 8))[0]
    for row in range(2):
        for number, place in enumerate(kept[row]):
            expected = 2 * tokens[row, 1 + number] + positions[place]
            np.testing.assert_allclose(found[row, place], expected, rtol=1e-5)
        for place in masked[row]:
            np.testing.assert_allclose(found[row, place], mask + positions[place], rtol=1e-5)


def flops_of(mask_ratio):
    config = make_config(
        **{"objective.mask_ratio": mask_ratio, "model.depth": 8, "model.scan_unroll": 8}
    )
    experiment = Setup(config, mesh_of(1)).experiment

    def loss(params, batch):
        prepared = experiment.objective.prepare(batch, 0, 0)
        return experiment.objective.loss(params, {}, prepared, None)[0]

    lowered = jax.jit(loss).lower(experiment.state.params, experiment.batch)
    return lowered.cost_analysis()["flops"]


def test_the_encoders_cost_falls_with_the_share_that_is_left_out():
    """Of 1 + 16 tokens remain 1 + 4 or 1 + 12; an encoder of eight blocks is most of the cost."""
    assert 0.4 < flops_of(0.75) / flops_of(0.25) < 0.6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.positions": "relative"}, "needs all of them"),
        ({"model.relative_position_bias": "every_layer"}, "bias='every_layer' needs all of them"),
        ({"model.name": "Axial-ViT-B/16", "model.patch_size": 2}, "rows and columns"),
        ({"model.image_size": 2}, "one patch"),
        ({"objective.decoder_heads": 3}, "divisible"),
    ],
)
def test_what_does_not_fit_is_refused(change, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train.run(make_config(**change), tmp_path, dry_run=True)
