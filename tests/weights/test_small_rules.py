"""Rules of reading, rewriting and describing weights, each where it alone decides."""

import dataclasses
import math
import types

import numpy as np
import pytest

from vit_jax.class_mapping import ABSENT
from vit_jax.errors import WeightsError
from vit_jax.model_file import ModelFile, Preprocessing
from vit_jax.models import model_options
from vit_jax.weights import (
    equivalence,
    huggingface,
    huggingface_classes,
    huggingface_config,
    layouts,
    native,
    npz,
    state_dict,
    timm,
)
from vit_jax.weights.content import Hints, Stated, Weights
from vit_jax.weights.equivalence import Form
from vit_jax.weights.layouts import Layout
from vit_jax.weights.mapping import Reading, write_table
from vit_jax.weights.timm_arguments import exact_ratio
from vit_jax.weights.translation import article

TINY = {
    **{"width": 16, "depth": 1, "mlp_width": 24, "num_heads": 2, "num_classes": 2},
    **{"patch_size": 4, "image_size": (8, 12)},
}
OPTIONS = model_options("ViT-B/16", **TINY)
STATED = Stated({"num_heads": 2}, class_names=("a", "b"), remarks=("said before",))


# --------------------------------------------------------------------------------- equivalence


@pytest.mark.parametrize(("pooling", "after"), [("token", True), ("average", False)])
def test_a_norm_of_each_token_is_that_of_the_class_token_wherever_it_is(pooling, after):
    there = dataclasses.replace(OPTIONS, pooling=pooling)
    here = dataclasses.replace(there, norm_after_pooling=True)
    weights = types.SimpleNamespace(
        parameters={}, options=there, model_file=ModelFile("ViT-B/16", TINY)
    )
    form = equivalence.rewrite(weights, here, {})
    assert form.options.norm_after_pooling is after


def test_pixels_are_averaged_only_in_a_layer_that_sees_them():
    pixels = Preprocessing(mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7))
    weights = types.SimpleNamespace(model_file=ModelFile("ViT-B/16", TINY, pixels))
    here = dataclasses.replace(OPTIONS, channels=1)
    for channels, averaged in ((3, True), (8, False)):  # Eight are of a stem's map.
        kernel = np.ones((4, 4, channels, 2), np.float32)
        form = Form({"embedding/kernel": kernel, "embedding/bias": np.zeros(2)}, OPTIONS)
        changed = equivalence.average_pixels(form, here, weights)
        assert (changed is not form) == averaged
    assert equivalence.average_pixels(form._replace(parameters={}), here, weights).changes == {}


def test_rows_of_tokens_are_folded_for_a_model_with_a_learned_table():
    form = Form(
        {"position_embedding": np.ones((1, 7, 16)), "class_token": np.ones((1, 1, 16))}, OPTIONS
    )
    for positions, folded in (("learned_1d", True), ("sincos_2d", False), ("none", False)):
        here = dataclasses.replace(OPTIONS, positions=positions, prefix_positions=False)
        assert (equivalence.fold_position_rows(form, here) is not form) == folded


def test_a_mapping_names_the_first_class_that_is_not_there():
    form = Form({"head/kernel": np.ones((4, 2)), "head/bias": np.arange(2.0)}, OPTIONS, ("x", "y"))
    mapping = types.SimpleNamespace(
        origin="m.tsv", find=lambda names, there, count: np.array([1, 0, ABSENT])
    )
    kept = equivalence.keep_rows(form, ("y", "x", "new"), mapping)
    assert kept.changes["head/bias"] == "2 of 3 classes kept, the others fresh: 'new', ..."
    assert kept.parameters["head/bias"].tolist() == [1, 0, None]
    assert kept.options.num_classes == 3
    mapping.find = lambda names, there, count: np.full(7, ABSENT)
    form = form._replace(class_names=(*"abcdefg",))
    with pytest.raises(WeightsError, match="which are z, y, x, w, v; it has a, b, c, d, e: give"):
        equivalence.keep_rows(form, (*"zyxwvut",), mapping)


def test_a_ratio_gives_back_the_width_that_it_is_of():
    for hidden, width in ((244, 56), (120, 88), (196, 88), (96, 24)):
        assert int(width * exact_ratio(hidden, width)) == hidden


# --------------------------------------------------------------------------------- our own format


def test_a_mean_of_checkpoints_is_taken_in_float64(monkeypatch):
    monkeypatch.setattr(native.digests, "steps", lambda folder: [1, 2, 3, 4])
    values = {1: 5, 2: 2.0**24, 3: 1, 4: -(2.0**24)}  # float32 has no 2^24 + 1.
    monkeypatch.setattr(
        native, "read_checkpoint", lambda path, step, ema: {"a": np.float32([values[step]])}
    )
    mean = native.mean_of_last("DIR", 3, False)["a"]
    assert (mean.dtype, mean.tolist()) == (np.float32, [np.float32(1 / 3)])


def test_a_digest_is_of_shapes_names_and_numbers():
    ones = np.ones((2, 3), np.float32)
    others = {"b": ones}, {"a": ones.reshape(3, 2)}, {"a": ones * 2}, {"a": ones, "b": ones}
    assert native.digest_of({"a": ones}) == native.digest_of({"a": ones.astype(np.float16)})
    assert len({native.digest_of(tensors) for tensors in ({"a": ones}, *others)}) == 5


# --------------------------------------------------------------------------------- .npz


def test_big_visions_files_show_themselves():
    norm, stem = "Transformer/encoder_norm/scale", "root_block/conv_root/kernel"
    assert npz.is_big_visions({norm: 0, "pos_embedding": 0})
    assert npz.is_big_visions({stem: 0})
    assert not npz.is_big_visions({norm: 0, npz.POSITIONS: 0})
    assert not npz.is_big_visions({"embedding/kernel": 0})


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, npz.POSITIONS),
        ({"prefix_positions": False}, "pos_embedding"),
        ({"pooling": "average"}, npz.POSITIONS),
        ({"pooling": "average", "prefix_positions": False}, npz.POSITIONS),
    ],
)
def test_a_table_is_called_by_whether_the_class_token_has_a_row(changes, name):
    options = dataclasses.replace(OPTIONS, **changes)
    table = {"position_embedding": np.ones((1, 2, 3))}
    assert [*write_table(npz.VIT_TABLE, table, options)] == [name]


def test_as_many_layers_as_a_name_has_digits_for(monkeypatch):
    name, array = "Transformer/encoderblock/x/y", np.arange(6.0).reshape(3, 2)
    monkeypatch.setattr(npz, "MOST_LAYERS", 3)
    found = dict(npz.unstacked(name, array))
    assert {key: part.tolist() for key, part in found.items()} == {
        f"Transformer/encoderblock_{n}/x/y": [2 * n, 2 * n + 1] for n in range(3)
    }
    monkeypatch.setattr(npz, "MOST_LAYERS", 2)
    with pytest.raises(WeightsError, match=rf"^{name} has 3 layers; 2 is the most"):
        list(npz.unstacked(name, array))


def test_an_archive_may_unpack_to_the_larger_of_both_limits(monkeypatch, tmp_path):
    np.savez(tmp_path / "stored.npz", a=np.zeros(2000, np.uint8))
    np.savez_compressed(tmp_path / "packed.npz", a=np.zeros(100_000, np.uint8))
    monkeypatch.setattr(npz, "ALWAYS_ALLOWED", 1000)
    npz.check_expansion(tmp_path / "stored.npz")
    with pytest.raises(WeightsError, match="these are no weights"):
        npz.check_expansion(tmp_path / "packed.npz")
    monkeypatch.setattr(npz, "ALWAYS_ALLOWED", 200_000)
    npz.check_expansion(tmp_path / "packed.npz")


# --------------------------------------------------------------------------------- timm


def test_dinov2s_registers_have_no_rows_of_positions(monkeypatch):
    tensors = {
        "cls_token": np.full((1, 1, 4), 10.0),
        "pos_embed": np.arange(28.0).reshape(1, 7, 4),
        "register_tokens": np.ones((1, 2, 4)),
        "decoder.x": np.ones(1),
    }
    read = []
    monkeypatch.setattr(timm.tensor_file, "read_tensors", lambda path, prefix: (dict(tensors), {}))
    monkeypatch.setattr(timm, "read_stated", lambda *given: STATED)
    monkeypatch.setattr(timm, "read_table", lambda rows, tensors, heads: read.append(tensors))
    monkeypatch.setattr(timm, "make_weights", lambda path, reading, **given: given)
    given = timm.read("x.safetensors", Hints())
    np.testing.assert_array_equal(read[0]["cls_token"][0, 0], 10 + np.arange(4))
    np.testing.assert_array_equal(read[0]["pos_embed"], tensors["pos_embed"][:, 1:])
    assert given["prefix_choices"] == (0,)
    assert given["stated"].options == {"num_heads": 2, "prefix_positions": False}
    first, unused = given["stated"].remarks
    assert (first, "decoder.x" in unused) == ("said before", True)


def test_what_timms_config_says_of_pixels():
    for side in range(16, 200, 16):
        for resize in range(side, 2 * side):
            share = timm.crop_percentage(Preprocessing(crop="center", resize=resize), side)
            assert math.floor(side / share) == resize, (side, resize)
    options = dataclasses.replace(OPTIONS, channels=1)
    pixels = Preprocessing(mean=(0.4,), std=(0.2,), crop="center", resize=9)
    kind = types.SimpleNamespace(
        fixed_input_size=True, first_conv=lambda options: "conv", classifier=lambda options: "head"
    )
    for fixed in (True, False):
        kind.fixed_input_size = fixed
        said = timm.common_config(options, ModelFile("ViT-B/16", TINY, pixels), kind)
        pretrained = said["pretrained_cfg"]
        assert (pretrained["fixed_input_size"], pretrained["input_size"]) == (fixed, (1, 8, 12))
        assert math.floor(8 / pretrained["crop_pct"]) == 9
        assert (*pretrained["mean"], *pretrained["std"]) == (0.4, 0.2)
        assert (pretrained["first_conv"], pretrained["classifier"]) == ("conv", "head")
        assert (said["num_classes"], said["num_features"], said["global_pool"]) == (2, 16, "token")


def test_what_timm_does_where_nothing_says():
    wide = {"norm_pre.weight": np.ones(1)}
    assert timm.defaults_of(wide, True)["norm_epsilon"] == 1e-5
    assert "norm_epsilon" not in timm.defaults_of({}, True)
    bit = {"stem.conv.weight": np.ones(1)}
    assert timm.defaults_of(bit, False).keys() >= {"group_norm_epsilon", "kernel_epsilon"}
    assert "kernel_epsilon" not in timm.defaults_of(bit, True)
    stem = {f"{timm.BACKBONE}stem.conv.weight": np.ones(1)}
    assert timm.defaults_of(stem, False).keys() >= {"stem_kernel_epsilon"}
    assert timm.defaults_of({"fc_norm.weight": np.ones(1)}, False)["pooling"] == "average"
    first, second = "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight"
    assert timm.is_packed({first: np.ones((8, 2)), second: np.ones((2, 4))})
    assert not timm.is_packed({first: np.ones((4, 2)), second: np.ones((2, 4))})
    assert not timm.is_packed({})


def test_a_file_alone_says_how_timm_resizes(tmp_path):
    assert timm.read_stated(tmp_path / "x.safetensors", {}, False) == Stated(
        position_resize="bicubic"
    )


# --------------------------------------------------------------------------------- Hugging Face


def read(monkeypatch, tensors, stated):
    """What `huggingface.read` hands to `make_weights`, of such tensors and statements."""
    monkeypatch.setattr(huggingface.tensor_file, "read_tensors", lambda path, prefix: (tensors, {}))
    monkeypatch.setattr(huggingface, "read_stated", lambda folder, classifies: stated)
    monkeypatch.setattr(huggingface.metadata, "read_json", lambda path: {})
    read = []

    def read_table(rows, tensors, num_heads):
        read.append(tensors)
        return Reading({}, {name: name for name in tensors}, ())

    monkeypatch.setattr(huggingface, "read_table", read_table)
    monkeypatch.setattr(
        huggingface, "make_weights", lambda path, reading, **given: (reading, given)
    )
    reading, given = huggingface.read("x/model.safetensors", Hints())
    return read[0], reading, given


def test_a_folder_with_a_classifier(monkeypatch):
    names = (
        *("vit.pooler.dense.weight", "vit.layernorm.weight", "vit.post_layernorm.bias"),
        *("vit.head.probe", "vit.head.mlp", "classifier.weight"),
    )
    tensors = {name: np.ones((4, 4), np.float32) for name in names}
    found, reading, given = read(monkeypatch, tensors, STATED)
    # SigLIP's classifier is behind the norm.
    assert set(found) == {
        *("pooler.dense.weight", "layernorm.weight", "post_layernorm.bias", "classifier.weight"),
    }
    assert reading.file_names["layernorm.weight"] == "vit.layernorm.weight"
    assert reading.file_names["classifier.weight"] == "classifier.weight"
    assert given["stated"].class_names == ("a", "b")
    first, unused = given["stated"].remarks
    assert (first, "head.probe" in unused) == ("said before", True)
    assert given["stated"].options["norm_after_pooling"] is False
    del tensors["vit.head.probe"]
    found, *_ = read(monkeypatch, tensors, STATED)
    assert set(found) == {"layernorm.weight", "classifier.weight"}


def test_a_classifier_beside_its_teachers_is_one(monkeypatch):
    tensors = {name: np.ones((4, 4), "f4") for name in ("cls_classifier.weight", "pooler.dense.a")}
    found, _, given = read(monkeypatch, tensors, STATED)
    assert set(found) == {"cls_classifier.weight"}
    assert given["stated"].class_names == ("a", "b")


def test_a_folder_without_one_has_no_names_of_classes(monkeypatch):
    tensors = {"pooler.layernorm.weight": np.ones(4, np.float32)}
    found, _, given = read(monkeypatch, tensors, STATED)
    assert set(found) == set(tensors)
    assert given["stated"].class_names == ()
    assert given["stated"].options["norm_after_pooling"] is True
    assert given["stated"].remarks == ("said before",)


def test_a_classifier_of_the_class_token_alone():
    name = "embeddings.patch_embeddings.projection.weight"
    kernel, wide = np.ones((4, 3, 2, 2)), np.zeros((2, 8))
    wide[:, :4] = np.arange(8).reshape(2, 4)
    narrow = huggingface.with_narrow_classifier({name: kernel, "classifier.weight": wide})
    np.testing.assert_array_equal(narrow["classifier.weight"], wide[:, :4])
    wide[1, 6] = 1
    with pytest.raises(WeightsError, match="the average of the patches together"):
        huggingface.with_narrow_classifier({name: kernel, "classifier.weight": wide})


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (["LABEL_0", "LABEL_1"], ()),
        (["LABEL_1", "LABEL_0"], ("LABEL_1", "LABEL_0")),
        (["LABEL_0", "cat"], ("LABEL_0", "cat")),
    ],
)
def test_names_that_are_the_librarys_default_are_none(names, known):
    config = {"id2label": {str(index): name for index, name in enumerate(names)}}
    assert huggingface.stated_by_config(config, True).class_names == known


def test_what_a_config_states_beside_options():
    stated = huggingface.stated_by_config({"problem_type": "regression"}, False)
    assert (stated.loss, stated.bias_resize) == ("l2", "bilinear")
    assert stated.position_resize == "bicubic_torch"


def test_what_is_written_of_sizes():
    assert [huggingface.one_or_pair(size) for size in ((4, 4), (4, 6), 5)] == [4, (4, 6), 5]
    card = huggingface.model_card(OPTIONS)
    assert "8×12 images in patches of 4×4" in card
    kind = huggingface.CLASSES[0]
    keys = huggingface.common_keys(
        dataclasses.replace(OPTIONS, gelu="quick"), ModelFile("ViT-B/16", TINY, loss="l2"), kind
    )
    assert (keys["hidden_act"], keys["problem_type"]) == ("quick_gelu", "regression")
    assert keys["image_size"] == (8, 12)
    assert keys["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}


def test_remarks_of_both_files_are_kept(monkeypatch, tmp_path):
    stated = Stated({"image_size": (8, 12)}, remarks=("of config.json",))
    given = []

    def read(config, size):
        given.append((config, size))
        return "PREPROCESSING", ("of the other",)

    monkeypatch.setattr(huggingface, "stated_by_config", lambda config, classifies: stated)
    monkeypatch.setattr(huggingface.preprocessor, "read", read)
    (tmp_path / "config.json").write_text("{}")
    assert huggingface.read_stated(tmp_path, True) is stated
    (tmp_path / "preprocessor_config.json").write_text('{"a": 1}')
    both = huggingface.read_stated(tmp_path, True)
    assert both.remarks == ("of config.json", "of the other")
    assert both.preprocessing == "PREPROCESSING"
    assert given == [({"a": 1}, (8, 12))]
    monkeypatch.setattr(huggingface, "stated_by_config", lambda config, classifies: Stated())
    huggingface.read_stated(tmp_path, True)
    assert given[1:] == [({"a": 1}, (224, 224))], "the library's default"


@pytest.mark.parametrize("kind", huggingface.CLASSES, ids=lambda kind: kind.name)
def test_a_mask_token_has_the_shape_that_the_class_gives_it(monkeypatch, kind):
    written = []
    monkeypatch.setattr(huggingface, "write_table", lambda rows, parameters, options: {})
    monkeypatch.setattr(huggingface.tensor_file, "writer", lambda *given: written.append(given))
    kind = dataclasses.replace(kind, prepare=lambda p: p, keys=lambda options, parameters: {})
    huggingface.files("DIR", {}, OPTIONS, ModelFile("ViT-B/16", TINY), kind=kind)
    ((tensors, metadata),) = written
    shapes = {name: array.shape for name, array in tensors.items()}
    shape = kind.mask_token
    name = f"{kind.prefix}embeddings.mask_token"
    assert shapes == ({} if shape is None else {name: (*shape, 16)})
    assert metadata == {"format": "pt"}


def test_each_class_of_hugging_face_has_its_librarys_model_type():
    """By transformers: the `model_type` of the configuration that each class names."""
    types_of = {"CLIPVisionModel": "clip_vision_model", "SiglipVisionModel": "siglip_vision_model"}
    types_of |= {
        "CLIPVisionModelWithProjection": "clip_vision_model",
        "DINOv3ViTModel": "dinov3_vit",
    }
    for task in ("ForImageClassification", "Model"):
        types_of |= {f"ViT{task}": "vit", f"IJepa{task}": "ijepa", f"DeiT{task}": "deit"}
        types_of |= {f"Dinov2{task}": "dinov2", f"Beit{task}": "beit"}
        types_of[f"Dinov2WithRegisters{task}"] = "dinov2_with_registers"
    types_of["DeiTForImageClassificationWithTeacher"] = "deit"
    assert {each.name: each.model_type for each in huggingface_classes.CLASSES} == types_of


def test_tables_are_resized_geometrically_where_no_library_is_said():
    stated = Stated()
    weights = Weights("x", {}, ModelFile("ViT-B/16", TINY))
    for found in (stated, weights):
        assert (found.position_resize, found.bias_resize) == ("bilinear_corner", "geometric")


@pytest.mark.parametrize(
    ("family", "words"),
    [
        *(("AIMv2", "an AIMv2"), ("EVA", "an EVA"), ("I-JEPA", "an I-JEPA"), ("XCiT", "an XCiT")),
        *(("ViT", "a ViT"), ("UNet", "a UNet"), ("hybrid", "a hybrid"), ("Octave", "an Octave")),
        *(("MLP-Mixer", "an MLP-Mixer"), ("MAE", "an MAE"), ("MaxViT", "a MaxViT")),
    ],
)
def test_the_article_of_a_family(family, words):
    assert article(family) == words


# A library -> its module, a class of it, how it is called, and how it rounds sides of pictures.
LIBRARIES = {
    "timm": (timm, "VisionTransformer", "timm's transforms", "torchvision"),
    "huggingface": (
        huggingface,
        "ViTForImageClassification",
        "Hugging Face's image processors",
        "huggingface",
    ),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_who_sees_other_pictures_is_told_where_pictures_are_described(library, caplog, monkeypatch):
    module, name, words, own_rounding = LIBRARIES[library]
    (kind,) = (each for each in module.CLASSES if each.name == name)
    monkeypatch.setattr(module, "write_table", lambda *given: {})

    def told(path="FOLDER", **preprocessing):
        caplog.clear()
        model_file = ModelFile("ViT-B/16", TINY, Preprocessing(**preprocessing))
        module.files(path, {}, OPTIONS, model_file, kind=kind)
        return caplog.text

    assert told() == ""
    assert f"which {words} cannot do" in told(antialias=False)
    for rounding in ("torchvision", "huggingface"):
        text = told(crop="center", rounding=rounding)
        assert (f"{words} round the sides" in text) == (rounding != own_rounding)


def test_a_file_of_timms_describes_no_pictures(caplog, monkeypatch):
    (kind,) = (each for each in timm.CLASSES if each.name == "VisionTransformer")
    monkeypatch.setattr(timm, "write_table", lambda *given: {})
    model_file = ModelFile("ViT-B/16", TINY, Preprocessing(antialias=False))
    timm.files("a.safetensors", {}, OPTIONS, model_file, kind=kind)
    assert not caplog.text


def test_layer_scale_is_folded_into_both_layers_that_it_scales():
    options = dataclasses.replace(OPTIONS, layer_scale=0.1, depth=2)
    rng = np.random.default_rng(0)
    shapes = {
        **{"blocks/attention/out/kernel": (2, 2, 8, 16), "blocks/attention/out/bias": (2, 16)},
        **{"blocks/mlp/dense2/kernel": (2, 24, 16), "blocks/layer_scale1": (2, 16)},
        **{"blocks/layer_scale2": (2, 16), "norm/scale": (16,)},
    }
    given = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    form = equivalence.fold_layer_scale(Form(given, options), dataclasses.replace(OPTIONS, depth=2))
    first, second = given["blocks/layer_scale1"], given["blocks/layer_scale2"]
    expected = {
        "blocks/attention/out/kernel": given["blocks/attention/out/kernel"] * first[:, None, None],
        "blocks/attention/out/bias": given["blocks/attention/out/bias"] * first,
        "blocks/mlp/dense2/kernel": given["blocks/mlp/dense2/kernel"] * second[:, None],
        "norm/scale": given["norm/scale"],
    }
    assert form.parameters.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(form.parameters[name], array)
    assert form.changes == {
        "blocks/attention/out/kernel": "times blocks/layer_scale1",
        "blocks/attention/out/bias": "times blocks/layer_scale1",
        "blocks/mlp/dense2/kernel": "times blocks/layer_scale2",
    }
    assert form.options.layer_scale == 0


def test_our_own_metadata_is_before_the_callers_number_of_heads(monkeypatch):
    width, heads = 24, []
    monkeypatch.setattr(
        state_dict.tensor_file,
        "read_tensors",
        lambda path, prefix: ({"conv1.weight": np.zeros((width, 3, 4, 4))}, {"own": ""}),
    )
    own = ModelFile("ViT-B/16", {**TINY, "num_heads": 6})
    monkeypatch.setattr(state_dict.metadata, "read_entries", lambda entries: own)
    reading = Reading({}, {}, ())
    monkeypatch.setattr(
        state_dict, "read_table", lambda rows, tensors, count: heads.append(count) or reading
    )
    monkeypatch.setattr(state_dict, "make_weights", lambda path, reading, **given: given)
    given = state_dict.read("x", Hints({"num_heads": 4}), library=state_dict.CLIP)
    assert heads == [6]
    assert given["stated"].assumed == ()
    assert given["stated"].options["num_heads"] == 6
    assert reading.parameters == {}, "without a head there is no bias of one"


@pytest.mark.parametrize(
    ("pattern", "unused", "used"),
    [
        (
            timm.UNUSED,
            [
                *("mask_token", "mask_embed", "decoder.0.weight", "decoder_pos_embed"),
                *("norm_pix_loss", "rope.periods", "blocks.3.attn.rel_pos_index", "rel_pos_index"),
                *("blocks.3.attn.relative_position_index", "norm.num_batches_tracked"),
                *("lm_head.weight", "cls_pt_layers.0.bias"),
            ],
            ["norm.weight", "blocks.0.mask_token", "lm_heads", "rope.freqs", "decoders.0"],
        ),
        (
            huggingface.UNUSED,
            [
                *("embeddings.mask_token", "decoder.mask_token", "text_model.x.weight"),
                *("text_projection.weight", "logit_scale", "logit_bias", "lm_head.bias"),
                *("embeddings.position_ids", "encoder.layer.3.x.relative_position_index"),
            ],
            ["mask_token", "logit_scales", "embeddings.cls_token", "visual_projection.weight"],
        ),
    ],
    ids=["timm", "huggingface"],
)
def test_tensors_that_inference_has_no_use_for(pattern, unused, used):
    assert [name for name in (*unused, *used) if pattern.fullmatch(name)] == unused


@pytest.mark.parametrize(
    "name", ["gamma_1", "attn.q_bias", "attn.q_proj.weight", "attn.q_proj.bias", "mlp.fc1_g.weight"]
)
def test_tensors_of_eva_do_not_show_its_positions(name):
    first = f"blocks.0.{name}"
    with pytest.raises(WeightsError, match=rf"^{first} is a tensor of timm's EVA, .* beside the f"):
        timm.check_is_stated({"x": 0, first: 0}, {})
    timm.check_is_stated({first: 0}, {"num_heads": 2})
    timm.check_is_stated({f"blocks.1.{name}": 0, "blocks.0.attn.qkv.weight": 0}, {})


def test_a_patch_embedding_without_blocks_of_ours():
    tensors = {"patch_embed.proj.weight": 0, "stages.x": 0, "stages.y": 0}
    with pytest.raises(WeightsError, match=r"does not know: \['stages\.x'\]\.$"):
        timm.check_names(tensors)
    timm.check_names({**tensors, "blocks.0.norm1.weight": 0})


KERNEL, NORM = "patch_embed.proj.weight", "blocks.0.norm1.weight"
TABLE = "blocks.0.attn.relative_position_bias_table"


@pytest.mark.parametrize(
    ("more", "stated", "hints", "heads"),
    [
        ({}, {}, {}, (3, ("num_heads=3",))),  # Of the registered model of that width.
        ({}, {}, {"num_heads": 6}, (6, ())),
        ({}, {"num_heads": 4}, {"num_heads": 6}, (4, ())),
        ({TABLE: (9, 12)}, {}, {"num_heads": 6}, (12, ())),
        ({TABLE: (9, 12)}, {"num_heads": 4}, {}, (4, ())),  # Which is told to contradict it.
        ({"fc_norm.weight": (192,)}, {"width": 192}, {}, (3, ("num_heads=3",))),
        ({}, {}, {"num_heads": 0}, "width 192 is no multiple of num_heads=0"),
        ({}, {"width": 384}, {"num_heads": 6}, "says width=384, but its tensors have 192"),
    ],
)
def test_the_number_of_heads_of_a_timm_file(more, stated, hints, heads, monkeypatch):
    shapes = {KERNEL: (192, 3, 4, 2), NORM: (192,), **more}
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    monkeypatch.setattr(timm.tensor_file, "read_tensors", lambda path, prefix: (tensors, {}))
    monkeypatch.setattr(timm, "read_stated", lambda *given: Stated(stated))
    read = []
    monkeypatch.setattr(timm, "read_table", lambda rows, tensors, heads: read.append(heads))
    monkeypatch.setattr(timm, "make_weights", lambda path, reading, **given: given)
    if isinstance(heads, str):
        with pytest.raises(WeightsError, match=heads):
            timm.read("x", Hints(hints))
        return
    given = timm.read("x", Hints(hints))
    assert (read, given["stated"].assumed) == ([heads[0]], heads[1])
    after = "fc_norm.weight" in more
    expected = {**stated, "num_heads": heads[0], "norm_after_pooling": after}
    assert given["stated"].options == expected
    assert given["hints"] == Hints(hints)
    assert given["defaults"]["pooling"] == ("average" if after else "token")


def test_biases_of_keys_that_hugging_faces_files_do_not_have():
    names = ("encoder.layer.3.attention.attention.query.bias", "layer.12.attention.q_proj.bias")
    others = ("encoder.layers.3.self_attn.q_proj.bias", "layer.12.attention.q_proj.weight")
    tensors = {name: np.full(4, 2.0) for name in (*names, *others)}
    found = huggingface.with_key_biases(tensors)
    added = ("encoder.layer.3.attention.attention.key.bias", "layer.12.attention.k_proj.bias")
    assert set(found) - set(tensors) == {*added}
    assert not any(found[name].any() for name in added)
    own = {**tensors, added[0]: np.ones(4)}
    assert huggingface.with_key_biases(own)[added[0]].all()


@pytest.mark.parametrize(("model_type", "has"), [("vit", False), ("beit", True), ("clip", False)])
def test_only_some_kinds_have_keys_without_a_bias(model_type, has, monkeypatch):
    query = "encoder.layer.0.attention.attention.query.bias"
    monkeypatch.setattr(huggingface, "kind_of", lambda config: huggingface_config.KINDS[model_type])
    found, *_ = read(monkeypatch, {query: np.ones(4, np.float32)}, STATED)
    assert (query.replace("query", "key") in found) == has


# By transformers: the name of the trunk in each class (its `base_model_prefix`, "" for the trunk alone).
CLASSES = {
    "ViTForImageClassification": ("vit.", "num_classes"),
    "ViTModel": ("", ""),
    "IJepaForImageClassification": ("ijepa.", "num_classes"),
    "IJepaModel": ("", ""),
    "DeiTForImageClassification": ("deit.", "num_classes"),
    "DeiTForImageClassificationWithTeacher": ("deit.", "num_classes"),
    "DeiTModel": ("", ""),
    "Dinov2ForImageClassification": ("dinov2.", "num_classes layer_scale"),
    "Dinov2Model": ("", "layer_scale"),
    "Dinov2WithRegistersForImageClassification": (
        *("dinov2_with_registers.", "num_classes layer_scale num_registers"),
    ),
    "Dinov2WithRegistersModel": ("", "layer_scale num_registers"),
    "DINOv3ViTModel": ("", "layer_scale"),
    "CLIPVisionModelWithProjection": ("vision_model.", "num_classes"),
    "CLIPVisionModel": ("vision_model.", ""),
    "SiglipVisionModel": ("vision_model.", ""),
    "BeitForImageClassification": ("beit.", "num_classes"),
    "BeitModel": ("", ""),
}


def test_what_each_class_of_hugging_face_calls_its_trunk_and_needs():
    found = {kind.name: (kind.prefix, " ".join(kind.needs)) for kind in huggingface.CLASSES}
    assert found == CLASSES
    for kind in huggingface.CLASSES:  # All others are trunks alone.
        heads = kind.values.get("num_classes")
        assert heads == (None if "num_classes" in kind.needs else (0,)), kind.name


def test_what_a_layout_cannot_express_in_words():
    layout = Layout(files=None, values={"a": (1, "x"), "c": (2,), "d": (5,)}, needs=("b", "e"))
    options = types.SimpleNamespace(
        a=3, b=0, c=2, e=1
    )  # One that it does not have is as it may be.
    assert layout.misfits(options) == {"a": "only 1, 'x'", "b": "it has one"}


def test_an_export_beside_a_published_file_without_a_description(tmp_path):
    (tmp_path / "model.npz").touch()
    files = native.files(str(tmp_path), {}, OPTIONS, ModelFile("ViT-B/16", TINY))
    assert {path.name for path in files} == {"params.safetensors", "model.json"}
    (tmp_path / "model.json").touch()
    with pytest.raises(WeightsError, match=r"model\.json describes model\.npz there: name another"):
        native.files(str(tmp_path), {}, OPTIONS, ModelFile("ViT-B/16", TINY))


def test_biases_that_a_library_has_not():
    others = {"blocks/attention/key/bias": np.ones(2), "head/kernel": np.ones(2)}
    zero, one = np.zeros(2), np.array([0, 0.1])
    assert layouts.without_head_bias({**others, "head/bias": zero}).keys() == others.keys()
    assert layouts.without_head_bias(others) == others
    with pytest.raises(WeightsError, match=r"head/bias is not 0, and CLIP's projection has none"):
        layouts.without_head_bias({**others, "head/bias": one})
    assert layouts.without_key_bias({**others, "head/bias": one}).keys() == {
        *("head/kernel", "head/bias")
    }
