"""What a loaded model is said to be, and what is told of how it was loaded."""

import dataclasses

import pytest

from vit_jax.model_file import ModelFile, Preprocessing
from vit_jax.models import model_options
from vit_jax.weights import huggingface, loading, npz
from vit_jax.weights.adapt import Report, Row
from vit_jax.weights.content import Weights
from vit_jax.weights.huggingface_table import has_norm_after_pooling

VIT = {"width": 24, "depth": 3, "mlp_width": 40, "num_heads": 2, "patch_size": (4, 2)}
FILE = Preprocessing((0.1, 0.2, 0.3), (0.4,), "center", 20)


def described(**changes):
    there = model_options("ViT-Ti/16", **VIT, image_size=(16, 20), num_classes=2)
    file = ModelFile("ViT-Ti/16", dataclasses.asdict(there), FILE, ("b", "a"), "huber")
    here = dataclasses.replace(there, **changes)
    found = loading.describe(Weights("x", {}, file), here)
    assert found.options == dataclasses.asdict(here)
    return found


def test_a_model_as_it_is_in_the_file():
    found = described()
    assert (found.name, found.preprocessing, found.class_names) == ("ViT-Ti/16", FILE, ("b", "a"))
    assert found.loss == "huber"


@pytest.mark.parametrize(
    ("changes", "resize"),
    [({"image_size": (32, 20)}, 25), ({"image_size": (20, 8)}, 10), ({"image_size": 16}, 20)],
)
def test_a_crop_keeps_its_share_of_the_smaller_side(changes, resize):
    assert described(**changes).preprocessing.resize == resize


def test_other_classes_and_channels():
    found = described(num_classes=3)
    assert (found.class_names, found.loss) == ((), "softmax")
    mean, std = described(channels=1).preprocessing.mean, described(channels=1).preprocessing.std
    assert (mean, std) == (pytest.approx((0.2,)), (0.4,))


@pytest.mark.parametrize(
    ("statuses", "notes", "lines"),
    [
        (("loaded", "loaded"), (), []),
        (("loaded", "loaded"), ("One.", "Two."), ["Weights from FILE. One. Two."]),
        (("loaded", "fresh"), ("One.",), ["REPORT"]),
        (("resized", "fresh"), (), ["REPORT"]),
    ],
)
def test_a_report_is_printed_where_something_is_new(statuses, notes, lines, caplog):
    rows = tuple(Row(status, "a", (1,), (1,)) for status in statuses)
    report = Report("FILE", rows, notes)
    loading.announce(report)
    assert caplog.messages == [line.replace("REPORT", str(report)) for line in lines]


def test_what_is_known_of_published_files():
    assert npz.DEFAULTS == {
        **{"gelu": "tanh", "pooling": "token", "positions": "sincos_2d", "pool_padding": "zeros"}
    }
    assert Preprocessing(antialias=False) == npz.REFERENCE_PIXELS
    assert Preprocessing(crop="center", resize=256, interpolation="area") == npz.BIG_VISION_PIXELS
    assert (npz.MOST_LAYERS, npz.MOST_EXPANSION, npz.ALWAYS_ALLOWED) == (10_000, 100, 2**30)


@pytest.mark.parametrize(
    ("names", "is_theirs"),
    [
        (("Transformer/encoder_norm/scale", "pos_embedding"), True),
        (("Transformer/encoder_norm/scale",), True),
        (("Transformer/encoder_norm/scale", npz.POSITIONS), False),
        (("root_block/conv_root/kernel",), True),
        (("resnet/root_block/standardized_conv2d/kernel",), False),
        (("conv_root/kernel",), False),
    ],
)
def test_whose_published_files_they_are(names, is_theirs):
    assert npz.is_big_visions(dict.fromkeys(names, 0)) == is_theirs


@pytest.mark.parametrize(
    ("problem", "loss"),
    [
        ("multi_label_classification", "sigmoid"),
        ("regression", "l2"),
        ("single_label_classification", "softmax"),
        (None, "softmax"),
    ],
)
def test_what_a_config_of_transformers_states(problem, loss):
    names = {"0": "LABEL_0", "1": "b"}
    stated = huggingface.stated_by_config({"problem_type": problem, "id2label": names}, True)
    assert (stated.loss, stated.class_names) == (loss, ("LABEL_0", "b"))
    assert (stated.position_resize, stated.bias_resize) == ("bicubic_torch", "bilinear")
    names = {"1": "LABEL_1", "0": "LABEL_0"}  # The library's own for want of others.
    assert huggingface.stated_by_config({"id2label": names}, True).class_names == ()


def test_losses_in_the_librarys_words():
    several = "multi_label_classification"
    expected = {"sigmoid": several, "binary": several, "l2": "regression", "huber": "regression"}
    assert expected == huggingface.PROBLEMS


@pytest.mark.parametrize(
    ("names", "stated", "count"),
    [
        (("embeddings.cls_token",), {}, 1),
        (("embeddings.class_embedding",), {}, 1),
        (("embeddings.cls_token", "embeddings.distillation_token"), {}, 2),
        (("embeddings.cls_token",), {"prefix_positions": False}, 0),
        ((), {}, 0),
    ],
)
def test_rows_before_the_patches(names, stated, count):
    assert huggingface.prefix_choices(dict.fromkeys(names, 0), stated) == (count,)


def test_names_of_trunks_and_heads():
    for prefix in ("vit.", "data2vec_vision.", "dinov2_with_registers.", "vision_model."):
        assert huggingface.trunk_name(f"{prefix}layernorm.bias") == "layernorm.bias"
        assert huggingface.full_name("layernorm.bias", prefix) == f"{prefix}layernorm.bias"
    heads = ("classifier", "cls_classifier", "distillation_classifier", "visual_projection")
    for head in heads:
        assert huggingface.full_name(f"{head}.bias", "vit.") == f"{head}.bias"
    after = model_options("ViT-Ti/16", norm_after_pooling=True, pooling="average")
    assert has_norm_after_pooling(after)


def test_a_card_names_the_models_own_numbers():
    options = model_options("ViT-Ti/16", **VIT, image_size=(16, 20), num_classes=7)
    card = huggingface.model_card(options)
    assert "3 blocks of width 24 with 2 heads and an MLP of 40, for 7\nclasses of 16×20" in card
    assert "in patches of 4×2" in card
    assert card.count("image-classification") == 2
    trunk = huggingface.model_card(dataclasses.replace(options, num_classes=0))
    assert "for\nfeatures of 16×20" in trunk
    assert "image-classification" not in trunk
