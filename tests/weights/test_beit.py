"""BEiT and its relative position bias, in files of timm and of the transformers library.

The golden folders are written by `tests/campaigns/timm_names.py` and `huggingface_names.py`; what all
families have in common is tested in `test_families.py`.
"""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy

import vit_jax
from tests import tiny
from tests.published import GOLDEN, golden, logits, parameters, random_model
from vit_jax import train
from vit_jax.checkpoint import restore_params
from vit_jax.errors import WeightsError
from vit_jax.weights.loading import fit_weights, read_initial_weights
from vit_jax.weights.resampling import resize_bias, resize_matrix

HUGGINGFACE, TIMM = GOLDEN / "huggingface", GOLDEN / "timm"
TINY = {
    **{"width": 16, "depth": 2, "mlp_width": 24, "num_heads": 2, "patch_size": 4, "image_size": 12},
    **{"num_classes": 3, "gelu": "erf", "positions": "none", "layer_scale": 0.1},
}
AVERAGED = {"pooling": "average", "norm_after_pooling": True, "class_token": True}
EACH, SHARED = ({"relative_position_bias": kind} for kind in ("every_layer", "every_layer_shared"))
BIAS = "blocks/relative_position_bias"
TABLE = "blocks.{}.attn.relative_position_bias_table"
IMAGES = np.random.default_rng(0).uniform(-1, 1, (2, 12, 12, 3)).astype(np.float32)


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", sorted(path.name for path in HUGGINGFACE.glob("Beit*")))
def test_at_another_size_as_transformers_does(name):
    """A grid of 3×3 for one of 5×6: the library resizes in each call."""
    expected = golden(f"huggingface/{name}/larger")
    model = vit_jax.load_model(HUGGINGFACE / name, image_size=expected["images"].shape[1:3])
    assert_close(logits(model, expected["images"]), expected["logits"])


@pytest.mark.parametrize(
    ("asked", "taken"),
    [("auto", ("bicubic_torch", "bilinear")), ("bicubic", ("bicubic", "bicubic"))],
)
def test_the_way_of_resizing_is_said(asked, taken, caplog):
    """Of positions, and of the bias."""
    vit_jax.load_model(HUGGINGFACE / "BeitModel_shared", image_size=20, position_resize=asked)
    lines = [line for line in caplog.text.splitlines() if line.startswith("  resized")]
    assert [line.split()[-1] for line in lines] == list(taken)


@pytest.mark.parametrize(("old", "new"), [(27, 47), (27, 15), (3, 13), (1, 5), (27, 27)])
def test_near_offsets_are_kept_and_far_ones_are_stretched(old, new):
    """timm's own values are in `test_families.py`."""
    matrix = resize_matrix(old, new, "geometric")
    assert matrix.shape == (new, old)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(matrix, matrix[::-1, ::-1], atol=1e-6)
    middle = np.eye(old)[old // 2]
    np.testing.assert_allclose(matrix[new // 2], middle, atol=1e-6)
    if old > 1:
        np.testing.assert_allclose(matrix[new // 2 + 1], np.roll(middle, 1), atol=1e-6)
    if new > old > 3:  # The last offset becomes the last.
        np.testing.assert_allclose(matrix[-1], np.eye(old)[-1], atol=1e-4)


def test_the_rows_of_other_tokens_are_not_resized():
    table = np.random.default_rng(0).normal(size=(2, 15 + 3, 4)).astype(np.float32)
    resized = resize_bias(table, (2, 3), (4, 5), "geometric")
    assert resized.shape == (2, 63 + 3, 4)
    np.testing.assert_array_equal(resized[:, 63:], table[:, 15:])
    np.testing.assert_allclose(resized[:, 31], table[:, 7], atol=1e-6)  # No offset.


def bare_file(path, model, changes=lambda tensors: tensors):
    """The model in timm's form, without a word about it."""
    vit_jax.save_model(model, path, "timm")
    tensors = changes(safetensors.numpy.load_file(path))
    safetensors.numpy.save_file(tensors, path)
    return path


@pytest.mark.parametrize("bias", [EACH, SHARED], ids=["each", "shared"])
def test_a_file_alone_shows_its_heads_and_its_square(bias, tmp_path, caplog):
    model = random_model("ViT-Ti/16", **TINY, **AVERAGED, **bias)
    loaded = vit_jax.load_model(bare_file(tmp_path / "beit.safetensors", model))
    assert loaded.options.num_heads == 2
    assert loaded.options.image_size == (12, 12)
    assert_close(logits(loaded, IMAGES), logits(model, IMAGES))
    assert "num_heads" not in caplog.text  # It is not assumed.


def test_a_rectangle_is_asked_for(tmp_path):
    model = random_model("ViT-Ti/16", **TINY | {"image_size": (12, 16)}, **AVERAGED, **EACH)
    path = bare_file(tmp_path / "beit.safetensors", model)
    with pytest.raises(WeightsError, match=r"38 rows of relative positions .* source_grid="):
        vit_jax.load_model(path)
    assert vit_jax.load_model(path, source_grid=(3, 4)).options.image_size == (12, 16)


def test_a_bias_of_each_layer_and_one_of_all_add_up(tmp_path):
    """Both at once are possible in either library, and the same as their sum."""
    folder = shutil.copytree(TIMM / "beit_base_patch16_224", tmp_path / "folder")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    common = np.random.default_rng(0).normal(size=tensors[TABLE.format(0)].shape)
    for layer in (0, 1):
        tensors[TABLE.format(layer)] -= common.astype(np.float32)
    tensors["rel_pos_bias.relative_position_bias_table"] = common.astype(np.float32)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["model_args"]["use_shared_rel_pos_bias"] = True
    (folder / "config.json").write_text(json.dumps(config))
    expected = golden("timm/beit_base_patch16_224/expected")
    model = vit_jax.load_model(folder)
    assert model.options.relative_position_bias == "every_layer"
    assert_close(logits(model, expected["images"]), expected["logits"])


def test_a_config_that_the_tables_contradict_is_refused(tmp_path):
    folder = shutil.copytree(HUGGINGFACE / "BeitModel_shared", tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text())

    def changed(**changes):
        (folder / "config.json").write_text(json.dumps(config | changes))
        return folder

    with pytest.raises(WeightsError, match="tensors have 'every_layer_shared'"):
        vit_jax.load_model(changed(use_shared_relative_position_bias=False))
    with pytest.raises(WeightsError, match=r"image_size=\(12, 8\) of a BEiT with relative pos"):
        vit_jax.load_model(changed(image_size=[12, 8]))


@pytest.mark.parametrize("format", ["timm", "huggingface"])
@pytest.mark.parametrize(
    "options",
    [
        {**AVERAGED, **EACH},
        {**AVERAGED, **SHARED, "positions": "learned_1d", "layer_scale": 0.0},
        {**EACH, "layer_scale": 0.0},
    ],
    ids=["averaged", "with a table", "class token"],
)
def test_a_trained_model_is_written_without_the_keys_bias(format, options, tmp_path):
    """Which softmax takes out again, so the logits are the same."""
    model = random_model("ViT-Ti/16", **TINY | options)
    assert parameters(model)["blocks/attention/key/bias"].all()
    vit_jax.save_model(model, tmp_path / "out", format)
    loaded = vit_jax.load_model(tmp_path / "out")
    assert not parameters(loaded)["blocks/attention/key/bias"].any()
    assert_close(logits(loaded, IMAGES), logits(model, IMAGES))


@pytest.mark.parametrize(
    ("format", "options", "message"),
    [
        ("npz", {"layer_scale": 0.0}, "bias='every_layer', only 'none'; these can: .*vit_jax"),
        ("timm", {"num_registers": 1}, "num_registers=1 in a Beit, only 0"),
        ("timm", {"gelu": "tanh"}, "gelu='tanh' in a Beit"),
        ("huggingface", {"mlp": "swiglu"}, "mlp='swiglu' in a Beit"),
        ("huggingface", {"class_token": False}, "class_token=False in a Beit"),
        ("huggingface", {"image_size": (12, 16)}, "no BEiT with a relative position bias with"),
        ("timm", {"positions": "rotary_2d"}, "positions='rotary_2d' in a Beit"),
    ],
)
def test_what_the_libraries_do_not_have_is_refused_by_name(format, options, message, tmp_path):
    model = random_model("ViT-Ti/16", **{**TINY, **AVERAGED, **EACH, **options})
    path = tmp_path / ("out.npz" if format == "npz" else "out")
    with pytest.raises(WeightsError, match=message):
        vit_jax.save_model(model, path, format)


def test_what_pretraining_shared_is_spread_and_resized_for_a_run():
    """As BEiT is fine-tuned: a table for each layer, of a larger grid; by a class token or without."""
    weights = read_initial_weights(
        HUGGINGFACE / "BeitModel_shared", vit_jax.models.model_options("ViT-Ti/16", **TINY)
    )
    options = vit_jax.models.model_options(
        weights.model_file.name, **{**weights.model_file.options, **EACH, "image_size": 20}
    )
    shapes = {BIAS: np.zeros((2, 81 + 3, 2))}
    params, report = fit_weights(
        weights, options, {"blocks": {"relative_position_bias": shapes[BIAS]}}
    )
    shared = weights.parameters["relative_position_bias"]
    for table in params["blocks"]["relative_position_bias"]:
        np.testing.assert_array_equal(table, resize_bias(shared, (3, 3), (5, 5), "bilinear"))
    assert "each layer's is what they shared, grid 3×3 → 5×5, bilinear" in str(report)


def test_without_a_class_token_its_rows_go(tmp_path, caplog):
    model = random_model("ViT-Ti/16", **TINY, **AVERAGED, **EACH)
    vit_jax.save_model(model, tmp_path / "out", "vit_jax")
    other = vit_jax.load_model(tmp_path / "out", class_token=None)
    np.testing.assert_array_equal(parameters(other)[BIAS], parameters(model)[BIAS][:, :-3])
    assert "rows of the tokens before the patches 3 → 0" in caplog.text


@pytest.mark.slow
def test_a_run_starts_from_a_file_and_trains_its_bias(tmp_path):
    config = tiny.get_config()
    config.model.update(dict.fromkeys(config.model, None) | {"num_classes": 0, "channels": 1})
    config.model.image_size = 8
    config.init = str(HUGGINGFACE / "BeitForImageClassification")
    config.total_steps, config.warmup_steps = 2, 0
    train.run(config, str(tmp_path))
    table = restore_params(tmp_path)["blocks"]["relative_position_bias"]
    start = read_initial_weights(config.init, vit_jax.models.model_options("ViT-B/16"))
    expected = resize_bias(start.parameters[BIAS], (3, 3), (2, 2), "bilinear")
    assert table.shape == expected.shape
    moved = table != expected
    assert moved[0].all()
    assert moved[1, :-3].all()  # The last block's class token is not pooled.
    np.testing.assert_allclose(table, expected, atol=0.05)
