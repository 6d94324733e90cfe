"""Fitting weights to another model: what is loaded, resized, fresh, skipped; and that it is said."""

import dataclasses

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

import vit_jax
from tests.published import GOLDEN, golden, logits, parameters, random_model, write_npz
from vit_jax.class_mapping import BY_NAME, ClassMapping, chosen_mapping
from vit_jax.errors import ConfigError, WeightsError
from vit_jax.model_file import ModelFile, Preprocessing
from vit_jax.models import model_options
from vit_jax.weights.adapt import Adaptation
from vit_jax.weights.architecture import abstract_parameters
from vit_jax.weights.content import Weights
from vit_jax.weights.equivalence import Form
from vit_jax.weights.loading import fit_weights, read_initial_weights
from vit_jax.weights.resampling import resize_channels, resize_patches, resize_positions

TINY = {"width": 32, "depth": 3, "mlp_width": 64, "num_heads": 2, "patch_size": 8, "image_size": 32}


@pytest.fixture
def path(tmp_path):
    return write_npz(tmp_path / "weights.npz", golden("vit_token")["params"])


def options_of(**changes):
    return model_options("ViT-Ti/16", **{**TINY, "num_classes": 10, **changes})


def initialize(path, skip="", class_names=(), head_map=None, **changes):
    """Stand-ins for fresh parameters, those made of them, and the report's rows by name."""
    options = options_of(**changes)
    _, shapes = abstract_parameters("ViT-Ti/16", options)
    fresh = {name: np.full(shape, 7, np.float32) for name, shape in shapes.items()}
    params, report = fit_weights(
        read_initial_weights(path, options),
        options,
        unflatten_dict(fresh, sep="/"),
        skip=skip,
        class_names=class_names,
        head_map=head_map,
    )
    rows = {row.name: row for row in report.rows}
    return fresh, flatten_dict(params, sep="/"), rows, report


def statuses(rows):
    return {name: row.status for name, row in rows.items() if row.status != "loaded"}


def test_the_same_model_is_loaded_whole(path):
    _, params, rows, report = initialize(path)
    assert statuses(rows) == {}
    assert report.count("loaded") == len(params) == 24
    expected = parameters(vit_jax.load_model(path))
    for name, array in expected.items():
        np.testing.assert_array_equal(params[name], array)


def test_a_head_for_other_classes_is_fresh_and_zero(path):
    fresh, params, rows, _ = initialize(path, num_classes=7)
    assert statuses(rows) == {"head/kernel": "fresh", "head/bias": "fresh"}
    assert rows["head/kernel"].note == "num_classes=10 in the file"
    assert params["head/kernel"] is fresh["head/kernel"]
    model = vit_jax.load_model(path, num_classes=7)
    assert parameters(model)["head/kernel"].shape == (32, 7)
    assert not parameters(model)["head/kernel"].any()


def test_the_head_follows_the_class_names(tmp_path, path):
    letters, others = tuple("abcdefghij"), tuple("abcdefghik")
    vit_jax.save_model(vit_jax.load_model(path), tmp_path / "out.npz", class_names=letters)
    assert statuses(initialize(tmp_path / "out.npz", class_names=letters)[2]) == {}
    assert statuses(initialize(path, class_names=others)[2]) == {}  # The file names none.
    rows = initialize(tmp_path / "out.npz", class_names=others)[2]
    assert set(statuses(rows)) == {"head/kernel", "head/bias"}
    assert rows["head/bias"].note == "other class names in the file"


@pytest.mark.parametrize(
    "order",
    [range(9, -1, -1), [*range(8), 9, 8], [*range(3, 10), 0, 1, 2]],
    ids=["turned", "swapped", "moved on"],  # The last is not its own inverse.
)
def test_the_heads_columns_follow_the_order_of_the_data(tmp_path, path, order):
    """Otherwise column 0 of the file's head would answer for another class."""
    letters = list("abcdefghij")
    tensors = golden("vit_token")["params"]
    vit_jax.save_model(vit_jax.load_model(path), tmp_path / "out.npz", class_names=letters)
    names = tuple(letters[i] for i in order)
    _, params, rows, _ = initialize(tmp_path / "out.npz", class_names=names)
    assert statuses(rows) == {"head/kernel": "rewritten", "head/bias": "rewritten"}
    np.testing.assert_array_equal(params["head/kernel"], tensors["head/kernel"][:, list(order)])
    np.testing.assert_array_equal(params["head/bias"], tensors["head/bias"][list(order)])


def test_a_single_other_name_makes_other_classes(tmp_path, path):
    letters = list("abcdefghij")
    vit_jax.save_model(vit_jax.load_model(path), tmp_path / "out.npz", class_names=letters)
    for others in ([*letters[:9], "J"], [*letters[:9], "a"]):
        _, params, rows, _ = initialize(tmp_path / "out.npz", class_names=tuple(others))
        assert statuses(rows) == {"head/kernel": "fresh", "head/bias": "fresh"}
        assert (params["head/kernel"] == 7).all(), "the fresh one"
    _, params, rows, _ = initialize(tmp_path / "out.npz", class_names=letters)  # A list of them.
    assert statuses(rows) == {}
    np.testing.assert_array_equal(
        params["head/kernel"], golden("vit_token")["params"]["head/kernel"]
    )


def test_rows_of_a_larger_heads_classes_are_kept_by_name(tmp_path, path):
    """ImageNet's of ImageNet-21k's; what the larger set lacks starts fresh."""
    tensors = golden("vit_token")["params"]
    vit_jax.save_model(vit_jax.load_model(path), tmp_path / "out.npz", class_names=[*"abcdefghij"])
    by_name = chosen_mapping(BY_NAME, "config.init_head_map")
    both = {"head/kernel": "rewritten", "head/bias": "rewritten"}
    fresh = {"head/kernel": "fresh", "head/bias": "fresh"}
    for head_map, expected in ((None, fresh), (by_name, both)):
        names = ("j", "b", "c")
        found = initialize(tmp_path / "out.npz", "", names, head_map, num_classes=3)
        assert statuses(found[2]) == expected
    np.testing.assert_array_equal(found[1]["head/kernel"], tensors["head/kernel"][:, [9, 1, 2]])
    np.testing.assert_array_equal(found[1]["head/bias"], tensors["head/bias"][[9, 1, 2]])
    assert found[2]["head/bias"].note == "3 of 3 classes kept"

    head_map = ClassMapping({"cat": "c", "kitten": "c"}, "config.init_head_map=FILE")
    names = ("kitten", "b", "yeti", "cat")
    _, params, rows, _ = initialize(tmp_path / "out.npz", "", names, head_map, num_classes=4)
    kernel, bias = params["head/kernel"], params["head/bias"]
    np.testing.assert_array_equal(kernel.mask, np.broadcast_to([0, 0, 1, 0], (32, 4)))
    np.testing.assert_array_equal(bias.mask, [0, 0, 1, 0])
    np.testing.assert_array_equal(kernel.data[:, [0, 1, 3]], tensors["head/kernel"][:, [2, 1, 2]])
    assert rows["head/kernel"].note == "3 of 4 classes kept, the others fresh: 'yeti', ..."


def test_rows_of_a_head_without_names_are_kept_by_number(path):
    head_map = ClassMapping({"x": "7", "y": "0"}, "config.init_head_map=FILE")
    _, params, *_ = initialize(path, "", ("x", "y"), head_map, num_classes=2)
    expected = golden("vit_token")["params"]["head/kernel"][:, [7, 0]]
    np.testing.assert_array_equal(params["head/kernel"], expected)


def test_rows_that_cannot_be_kept_are_an_error(tmp_path, path):
    by_name = chosen_mapping(BY_NAME, "config.init_head_map")
    origin = "config.init_head_map=names"
    none = rf"^{origin}: the file has none of the data's classes, which are x, y; it has no names: give"
    with pytest.raises(WeightsError, match=none):
        initialize(path, "", ("x", "y"), by_name, num_classes=2)
    fresh = (
        rf"^{path}: {origin} keeps the head's rows, .* fit \(representation_size=0 in the file\)"
    )
    with pytest.raises(WeightsError, match=fresh):
        initialize(path, "", ("0",), by_name, num_classes=1, representation_size=32)
    tensors = {k: v for k, v in golden("vit_token")["params"].items() if not k.startswith("head")}
    with pytest.raises(WeightsError, match=f"^{origin}: the file has no head whose rows could be"):
        initialize(write_npz(tmp_path / "a.npz", tensors), "", ("0",), by_name, num_classes=1)


def test_a_file_without_a_head(tmp_path):
    tensors = {k: v for k, v in golden("vit_token")["params"].items() if not k.startswith("head")}
    path = write_npz(tmp_path / "trunk.npz", tensors)
    assert vit_jax.load_model(path).options.num_classes == 0
    assert statuses(initialize(path, num_classes=3)[2]) == {
        "head/kernel": "fresh",
        "head/bias": "fresh",
    }
    model = vit_jax.load_model(path, num_classes=3)
    assert parameters(model)["head/kernel"].shape == (32, 3)


def test_the_representation_layer_is_dropped_for_fine_tuning(tmp_path):
    path = write_npz(tmp_path / "in.npz", golden("vit_token_representation")["params"])
    rows = initialize(path, num_classes=10)[2]
    assert statuses(rows) == {
        "head/kernel": "fresh",
        "head/bias": "fresh",
        "pre_logits/kernel": "skipped",
        "pre_logits/bias": "skipped",
    }
    assert rows["head/bias"].note == "representation_size=24 in the file"
    row = rows["pre_logits/kernel"]
    assert (row.source, row.target, row.note) == ((32, 24), None, "the model has none")
    assert (rows["head/kernel"].source, rows["head/kernel"].target) == ((24, 10), (32, 10))


def test_a_head_on_another_representation_of_the_same_size_is_of_no_use(tmp_path):
    path = write_npz(tmp_path / "in.npz", golden("bv_vit_sincos_gap_rep")["params"])
    rows = initialize(path, depth=2, pooling="average", positions="sincos_2d")[2]
    assert rows["head/kernel"].source == rows["head/kernel"].target == (32, 10)
    assert rows["head/kernel"].status == "fresh"


@pytest.mark.parametrize(
    ("changes", "grid"),
    [
        ({"image_size": 64}, (8, 8)),
        ({"image_size": 24}, (3, 3)),
        ({"image_size": (16, 64)}, (2, 8)),  # as many patches as before
        ({"patch_size": 4}, (8, 8)),
    ],
)
def test_positions_are_resized_to_any_grid(path, changes, grid):
    _, params, rows, _ = initialize(path, **changes)
    assert rows["position_embedding"].status == "resized"
    assert f"grid 4×4 → {grid[0]}×{grid[1]}" in rows["position_embedding"].note
    table = parameters(vit_jax.load_model(path))["position_embedding"]
    expected = resize_positions(table, (4, 4), grid)
    np.testing.assert_array_equal(params["position_embedding"], expected)
    row = rows["position_embedding"]
    assert (row.source, row.target) == (table.shape, expected.shape)


def test_rectangular_images_need_the_files_grid_once(tmp_path):
    tensors = golden("vit_token")["params"]
    table = np.random.default_rng(0).normal(size=(1, 1 + 14 * 20, 32)).astype(np.float32)
    tensors["Transformer/posembed_input/pos_embedding"] = table
    expected = resize_positions(table, (14, 20), (10, 16))
    path = write_npz(tmp_path / "in.npz", tensors)
    with pytest.raises(
        WeightsError, match="281 position embeddings is not known: give source_grid"
    ):
        vit_jax.load_model(path, image_size=(80, 128))
    model = vit_jax.load_model(path, image_size=(80, 128), source_grid=(14, 20))
    np.testing.assert_array_equal(parameters(model)["position_embedding"], expected)
    vit_jax.save_model(vit_jax.load_model(path, source_grid=(14, 20)), tmp_path / "out.npz")
    model = vit_jax.load_model(tmp_path / "out.npz", image_size=(80, 128))  # by the sidecar
    np.testing.assert_array_equal(parameters(model)["position_embedding"], expected)
    _, params, _, _ = initialize(path, image_size=(112, 160))  # Those of the run, if they fit.
    np.testing.assert_array_equal(params["position_embedding"], table)


def test_another_patch_size_and_grid_at_once(tmp_path):
    """14×14 patches of 8 pixels -> 8×8 of 4, for images of 32."""
    tensors = golden("vit_token")["params"]
    table = np.random.default_rng(0).normal(size=(1, 197, 32)).astype(np.float32)
    tensors["Transformer/posembed_input/pos_embedding"] = table
    path = write_npz(tmp_path / "in.npz", tensors)
    model = vit_jax.load_model(path, image_size=32, patch_size=4)
    found = parameters(model)
    expected = resize_positions(table, (14, 14), (8, 8))
    np.testing.assert_array_equal(found["position_embedding"], expected)
    kernel = resize_patches(tensors["embedding/kernel"], (4, 4))
    np.testing.assert_array_equal(found["embedding/kernel"], kernel)
    assert np.isfinite(logits(model, np.zeros((1, 32, 32, 3), np.float32))).all()


@pytest.mark.parametrize(
    ("name", "tokens", "size", "grid"),
    [
        ("vit_token", 197, 192, (24, 24)),
        ("vit_gap", 196, 192, (24, 24)),
        ("vit_token", 197, 64, (8, 8)),
        ("vit_gap", 196, (56, 224), (7, 28)),
        ("vit_token", 197, (56, 224), (7, 28)),
    ],
)
def test_196_patches_with_and_without_a_class_token(name, tokens, size, grid, tmp_path):
    tensors = golden(name)["params"]
    table = np.random.default_rng(0).normal(size=(1, tokens, 32)).astype(np.float32)
    tensors["Transformer/posembed_input/pos_embedding"] = table
    model = vit_jax.load_model(write_npz(tmp_path / "in.npz", tensors), image_size=size)
    assert model.options.grid == grid
    expected = resize_positions(table, (14, 14), grid)
    np.testing.assert_array_equal(parameters(model)["position_embedding"], expected)


def test_the_method_of_resizing_can_be_chosen(path):
    model = vit_jax.load_model(path, image_size=64, position_resize="bicubic")
    table = parameters(vit_jax.load_model(path))["position_embedding"]
    np.testing.assert_array_equal(
        parameters(model)["position_embedding"], resize_positions(table, (4, 4), (8, 8), "bicubic")
    )


def test_odd_grids_and_methods_are_refused(path):
    with pytest.raises(WeightsError, match="position_resize='nearest': must be one of"):
        vit_jax.load_model(path, position_resize="nearest")  # though nothing is resized
    for grid in ((-4, -4), (16,), (4, 4, 1), (4.0, 4.0), ("4", "4"), 4):
        with pytest.raises(ConfigError, match=r"source_grid=.*: must be \(rows, columns\)"):
            vit_jax.load_model(path, source_grid=grid)


@pytest.mark.parametrize("placement", ["stem", "every_layer"])
def test_learned_2d_positions_are_resized_too(placement, tmp_path):
    options = {**TINY, "positions": "learned_2d", "position_placement": placement}
    model = random_model("ViT-Ti/16", **options, position_std=1.0)
    vit_jax.save_model(model, tmp_path / "out", "vit_jax")
    larger = vit_jax.load_model(tmp_path / "out", image_size=(64, 24))
    place = "position_embedding" if placement == "stem" else "blocks/position_embedding"
    rows = parameters(larger)[f"{place}/rows"]
    assert rows.shape[-2:] == (8, 16)
    np.testing.assert_allclose(
        rows[..., (0, -1), :], parameters(model)[f"{place}/rows"][..., (0, -1), :], rtol=1e-6
    )
    assert parameters(larger)[f"{place}/columns"].shape[-2:] == (3, 16)


def test_the_class_tokens_row_is_dropped_with_it(path):
    _, params, rows, report = initialize(path, pooling="average")
    assert statuses(rows) == {"position_embedding": "resized", "class_token": "skipped"}
    table = parameters(vit_jax.load_model(path))["position_embedding"]
    np.testing.assert_array_equal(params["position_embedding"], table[:, 1:])
    assert report.notes[-1] == (
        "Note: the weights are for pooling='token'; the model has pooling='average'."
    )


@pytest.mark.parametrize(
    ("family", "option", "there", "here"),
    [
        ("ViT-Ti/16", "gelu", "tanh", "erf"),
        ("ViT-Ti/16", "pooling", "average", "token"),
        ("ViT-Ti/16", "norm_after_pooling", True, False),
        ("ViT-Ti/16", "positions", "sincos_2d", "none"),
        ("ViT-Ti/16", "position_placement", "stem", "every_layer_shared"),
        ("BiT-R50x1", "pool_padding", "zeros", "infinity"),
    ],
)
def test_what_changes_the_function_and_no_shape_is_said(family, option, there, here):
    """Whatever else differs between the two models."""
    sizes = {} if family != "ViT-Ti/16" else {**TINY, "pooling": "average"}
    of_file, of_model = (
        model_options(family, **{**sizes, option: value}) for value in (there, here)
    )
    file = ModelFile(family, dataclasses.asdict(of_file))
    adaptation = Adaptation(weights=Weights("x", {}, file), options=of_model)
    notes = list(adaptation.notes(Form({}, of_file)))
    said = f"Note: the weights are for {option}={there!r}; the model has {option}={here!r}."
    assert notes == [said]


def test_rows_follow_their_tokens(tmp_path):
    """Not their number: without a class token the first row is the first register's."""
    model = random_model("ViT-Ti/16", **{**TINY, "num_classes": 10}, num_registers=2)
    vit_jax.save_model(model, tmp_path / "out", "vit_jax")
    _, params, _, _ = initialize(tmp_path / "out", num_registers=2, pooling="average")
    table = parameters(model)["position_embedding"]
    np.testing.assert_array_equal(params["position_embedding"], table[:, 1:])


def test_new_prefix_tokens_get_a_zero_row(path):
    _, params, rows, _ = initialize(path, num_registers=4)
    table = parameters(vit_jax.load_model(path))["position_embedding"]
    np.testing.assert_array_equal(params["position_embedding"][:, :1], table[:, :1])
    assert not params["position_embedding"][:, 1:5].any()
    np.testing.assert_array_equal(params["position_embedding"][:, 5:], table[:, 1:])
    assert rows["registers"].status == "fresh"


def test_channels_and_patches_are_resized(path):
    kernel = parameters(vit_jax.load_model(path))["embedding/kernel"]
    _, params, rows, _ = initialize(path, channels=1)
    assert rows["embedding/kernel"].note == "channels 3 → 1"
    np.testing.assert_array_equal(params["embedding/kernel"], resize_channels(kernel, 1))
    _, params, rows, _ = initialize(path, channels=5, patch_size=(16, 8), image_size=(64, 32))
    assert rows["embedding/kernel"].note == "patches 8×8 → 16×8, channels 3 → 5"
    expected = resize_channels(resize_patches(kernel, (16, 8)), 5)
    np.testing.assert_array_equal(params["embedding/kernel"], expected)


def test_a_gray_picture_gives_the_logits_of_its_rgb_copy(path):
    gray = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 1)).astype(np.float32)
    expected = logits(vit_jax.load_model(path), np.repeat(gray, 3, axis=-1))
    outputs = logits(vit_jax.load_model(path, channels=1), gray)
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5)


def test_a_gray_picture_through_a_standardised_stem_is_another_picture(tmp_path, caplog):
    """The kernel's deviation is taken over the channels too, and their sum has another one."""
    tiny = {"width": 32, "depth": 1, "mlp_width": 32, "num_heads": 2, "image_size": 32}
    model = random_model("R+ViT-Ti/16", num_classes=5, **tiny)  # Its norms have groups of two.
    vit_jax.save_model(model, tmp_path / "out.npz")
    gray = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 1)).astype(np.float32)
    expected = logits(model, np.repeat(gray, 3, axis=-1))
    outputs = logits(vit_jax.load_model(tmp_path / "out.npz", channels=1), gray)
    assert abs(outputs - expected).max() > 1e-3
    note = "Note: the first convolution is standardised over its channels too"
    assert note in caplog.text
    path = write_npz(tmp_path / "bit.npz", golden("bit_v2_preact")["params"])
    caplog.clear()
    vit_jax.load_model(path)
    assert note not in caplog.text
    vit_jax.load_model(path, channels=1)
    assert note in caplog.text


def test_the_pixels_of_other_channels_are_normalised_by_an_average(tmp_path, caplog):
    path = write_npz(tmp_path / "in.npz", golden("vit_token")["params"])
    for mean, noted in (((0.4, 0.5, 0.6), True), ((0.5,), False)):
        preprocessing = Preprocessing(mean=mean, std=(0.2, 0.2, 0.5) if noted else (0.3,))
        vit_jax.save_model(
            vit_jax.load_model(path), tmp_path / "out.npz", preprocessing=preprocessing
        )
        model = vit_jax.load_model(tmp_path / "out.npz", channels=1)
        assert model.preprocessing.mean == pytest.approx((0.5,))
        assert model.preprocessing.std == pytest.approx((0.3,))
        assert ("for pixels' average mean and std" in caplog.text) == noted
        caplog.clear()


def test_image_sizes_that_are_rounded_up_survive_their_sidecar(tmp_path):
    """A stem's map is rounded up: 33 pixels and 40 have the same grid."""
    path = write_npz(tmp_path / "in.npz", golden("hybrid_r_1_2")["params"])
    model = vit_jax.load_model(path, image_size=33)
    assert model.options.image_size == (33, 33)
    vit_jax.save_model(model, tmp_path / "out.npz")
    assert vit_jax.load_model(tmp_path / "out.npz").options == model.options


def test_a_hybrids_channels_are_those_of_its_stem(tmp_path):
    path = write_npz(tmp_path / "in.npz", golden("hybrid_stem")["params"])
    model = vit_jax.load_model(path, channels=1)
    assert parameters(model)["stem/conv_root/kernel"].shape[2] == 1
    assert parameters(model)["embedding/kernel"].shape[2] == 32


@pytest.mark.parametrize("skip", ["pos_embedding|head", "^(position_embedding|head)"])
def test_init_skip_takes_our_names_and_the_files(path, skip):
    fresh, params, rows, _ = initialize(path, skip=skip)
    assert set(statuses(rows)) == {"position_embedding", "head/kernel", "head/bias"}
    assert params["position_embedding"] is fresh["position_embedding"]


def test_init_skip_of_single_layers(path):
    _, params, rows, _ = initialize(path, skip=r"blocks/02/|encoderblock_1/MlpBlock")
    loaded = parameters(vit_jax.load_model(path))
    for name, changed in {"blocks/mlp/dense1/kernel": (1, 2), "blocks/norm1/scale": (2,)}.items():
        for layer in range(3):
            assert params[name].mask[layer].all() == params[name].mask[layer].any()
            assert params[name].mask[layer].all() == (layer in changed)  # to be filled in
            np.testing.assert_array_equal(params[name].data[layer], loaded[name][layer])
    assert rows["blocks/norm1/scale"].note.startswith("1 of 3 layers fresh")
    assert rows["blocks/mlp/dense1/kernel"].note.startswith("2 of 3 layers fresh")


def test_a_pattern_that_matches_nothing_is_refused(path):
    with pytest.raises(
        WeightsError,
        match=r"init_skip='haed' matches no parameter; the first names are \S+, \S+, \S+\.$",
    ):
        initialize(path, skip="haed")
    with pytest.raises(WeightsError, match=rf"^{path}: not one parameter of the model is in it"):
        initialize(path, skip=".")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": 2}, "depth=3, the model depth=2"),
        ({"width": 64}, "width=32, the model width=64"),
        ({"mlp_width": 32}, "mlp_width=64, the model mlp_width=32"),
        ({"num_heads": 4}, "num_heads=2, the model num_heads=4"),
    ],
)
def test_another_architecture_is_refused(path, changes, message):
    with pytest.raises(WeightsError, match=rf"weights\.npz has {message}: set model\."):
        initialize(path, **changes)


def test_another_family_is_refused(tmp_path):
    path = write_npz(tmp_path / "in.npz", golden("hybrid_stem")["params"])
    with pytest.raises(WeightsError, match=r"in\.npz holds a Hybrid, not a ViT"):
        initialize(path)


def test_a_different_gelu_is_noted():
    rows = initialize(GOLDEN / "timm_token.safetensors")
    assert "gelu='erf'" in rows[3].notes[0]  # What was assumed.
    assert rows[3].notes[1] == "Note: the weights are for gelu='erf'; the model has gelu='tanh'."


def test_unknown_tensors_are_skipped_when_training_starts_from_them(tmp_path):
    tensors = {**golden("vit_token")["params"], "extra/kernel": np.ones(3), "more": np.ones(2)}
    rows = initialize(write_npz(tmp_path / "in.npz", tensors))[2]
    for name in ("extra/kernel", "more"):
        assert rows[name] == ("skipped", name, None, None, "unknown")


def test_the_report_is_a_table(path):
    text = str(initialize(path, num_classes=7, image_size=64)[3])
    lines = text.splitlines()
    assert (
        lines[0] == f"Weights from {path}: 21 loaded, 0 rewritten, 1 resized, 2 fresh, 0 skipped."
    )
    assert lines[1].split() == ["parameter", "in", "the", "file", "in", "the", "model"]
    assert len(lines) == 2 + 24 + 1
    assert lines[-1] == (
        "Assumed, as nothing says it: gelu='tanh', pooling='token', "
        "pixels are normalised to [-1, 1], of whole pictures resized (bilinear, not antialiased)."
    )
    assert "  fresh    head/kernel                    32×10        32×7" in text


def test_only_what_is_fresh_is_computed(path, monkeypatch):
    """A large model's new head does not cost its whole initialisation."""
    compiled = []
    original = jax.jit

    def spy(function):
        compiled.append(original(function).lower().as_text())
        return original(function)

    monkeypatch.setattr("vit_jax.weights.loading.jax.jit", spy)
    vit_jax.load_model(path, num_classes=7)
    assert len(compiled) == 2  # head/kernel and head/bias
    assert all("32x7" in text or "7xf32" in text for text in compiled)
    assert all("stablehlo.dot" not in text and "threefry" not in text for text in compiled)
