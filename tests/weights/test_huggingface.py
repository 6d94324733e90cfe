"""Hugging Face folders, against the library's own outputs."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy

import vit_jax
from tests.published import (
    GOLDEN,
    assert_same_tensors,
    golden,
    logits,
    parameters,
    random_model,
    write_npz,
)
from vit_jax.errors import WeightsError
from vit_jax.model_file import Preprocessing
from vit_jax.weights.huggingface import stated_by_config
from vit_jax.weights.huggingface_config import options_of

NAMES = ("hf_gelu", "hf_gelu_pytorch_tanh")
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


@pytest.fixture
def folder(tmp_path):
    """A copy of a golden folder, to change."""
    return shutil.copytree(GOLDEN / "hf_gelu", tmp_path / "folder")


def change_config(folder, name="config.json", **changes):
    place = folder / name
    content = json.loads(place.read_text()) if place.exists() else {}
    place.write_text(json.dumps({**content, **changes}))


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_names_are_the_librarys(name):
    expected = golden(f"{name}/expected")
    model = vit_jax.load_model(GOLDEN / name)
    outputs = logits(model, expected["images"])
    np.testing.assert_allclose(outputs, expected["logits"], rtol=0, atol=1e-5)
    assert model.class_names == CLASSES
    assert model.options.gelu == ("erf" if name == "hf_gelu" else "tanh")


@pytest.mark.parametrize(
    ("name", "gelu"),
    [
        ("gelu", "erf"),
        ("gelu_new", "tanh"),  # All three are 0.5 x (1 + tanh(√(2 / π) (x + 0.044715 x³))).
        ("gelu_pytorch_tanh", "tanh"),
        ("gelu_fast", "tanh"),
    ],
)
def test_activations_by_the_librarys_names(name, gelu):
    assert stated_by_config({"hidden_act": name}, classifies=True).options["gelu"] == gelu


@pytest.mark.parametrize("name", NAMES)
def test_a_round_trip_gives_the_folder_back(name, tmp_path):
    vit_jax.save_model(vit_jax.load_model(GOLDEN / name), tmp_path / "out", "huggingface")
    written = safetensors.numpy.load_file(tmp_path / "out/model.safetensors")
    assert_same_tensors(written, safetensors.numpy.load_file(GOLDEN / name / "model.safetensors"))
    old, new = (
        json.loads((f / "config.json").read_text()) for f in (GOLDEN / name, tmp_path / "out")
    )
    assert {key: old[key] for key in new} == new  # Nothing that the library would not write.
    card = (tmp_path / "out/README.md").read_text()
    assert "library_name: transformers" in card
    assert "10\nclasses of 32×32 images" in card


def test_the_prefix_of_a_bare_model_may_be_missing(folder):
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    expected = parameters(vit_jax.load_model(folder))
    bare = {name.removeprefix("vit."): array for name, array in tensors.items()}
    safetensors.numpy.save_file(bare, folder / "model.safetensors")
    assert_same_tensors(parameters(vit_jax.load_model(folder)), expected)


def test_a_pooler_is_the_representation_of_a_model_without_a_head(folder):
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    pooler = {
        "vit.pooler.dense.weight": np.eye(32, dtype="f4"),
        "vit.pooler.dense.bias": np.ones(32, "f4"),
    }
    safetensors.numpy.save_file({**tensors, **pooler}, folder / "model.safetensors")
    assert vit_jax.load_model(folder).options.representation_size == 0  # The head ignores it.
    headless = {k: v for k, v in {**tensors, **pooler}.items() if not k.startswith("classifier")}
    safetensors.numpy.save_file(headless, folder / "model.safetensors")
    model = vit_jax.load_model(folder)  # Its config.json still has ten names in id2label.
    assert (model.options.representation_size, model.options.num_classes) == (32, 0)
    assert model.class_names == ()
    bare = {name.removeprefix("vit."): array for name, array in headless.items()}
    safetensors.numpy.save_file(bare, folder / "model.safetensors")
    assert vit_jax.load_model(folder).options == model.options


def test_preprocessing_is_written_as_the_library_calls_it(folder, tmp_path):
    preprocessing = Preprocessing(mean=(0.4,), std=(0.2,), crop="center", resize=36)
    model = vit_jax.load_model(folder)
    vit_jax.save_model(model, tmp_path / "out", "huggingface", preprocessing=preprocessing)
    content = json.loads((tmp_path / "out/preprocessor_config.json").read_text())
    assert content["image_mean"] == [0.4, 0.4, 0.4]
    assert content["image_std"] == [0.2, 0.2, 0.2]
    assert content["size"] == {"shortest_edge": 36}
    assert content["crop_size"] == {"height": 32, "width": 32}
    vit_jax.save_model(model, tmp_path / "plain", "huggingface")
    content = json.loads((tmp_path / "plain/preprocessor_config.json").read_text())
    assert content["size"] == {"height": 32, "width": 32}
    assert "do_center_crop" not in content


@pytest.mark.parametrize(
    ("loss", "problem", "read"),
    [
        ("sigmoid", "multi_label_classification", "sigmoid"),
        ("binary", "multi_label_classification", "sigmoid"),
        ("huber", "regression", "l2"),
        ("softmax", None, "softmax"),
    ],
)
def test_the_library_is_told_what_logits_mean(folder, tmp_path, loss, problem, read):
    model = vit_jax.load_model(folder)
    model.loss = loss
    vit_jax.save_model(model, tmp_path / "out", "huggingface")
    content = json.loads((tmp_path / "out/config.json").read_text())
    assert content.get("problem_type") == problem
    assert vit_jax.load_model(tmp_path / "out").loss == read


@pytest.mark.parametrize(
    ("model_type", "epsilon"),
    [
        *(("vit", 1e-12), ("deit", 1e-12), ("vit_mae", 1e-12), ("vit_msn", 1e-6)),
        *(("dinov2", 1e-6), ("dinov3_vit", 1e-5), ("clip", 1e-5), ("siglip", 1e-6)),
    ],
)
def test_an_epsilon_that_is_not_said_is_the_librarys(model_type, epsilon):
    """The defaults of transformers' configuration classes."""
    assert options_of({"model_type": model_type}, classifies=False)["norm_epsilon"] == epsilon


def test_classes_are_in_the_order_of_their_numbers(folder):
    names = {str(number): f"class {number}" for number in (9, 3, 0, 1, 2, 4, 5, 6, 7, 8)}
    change_config(folder, id2label=names)
    expected = tuple(f"class {number}" for number in range(10))
    assert vit_jax.load_model(folder).class_names == expected


def test_the_epsilon_is_the_files(folder, tmp_path):
    change_config(folder, layer_norm_eps=1e-12)
    model = vit_jax.load_model(folder)
    assert model.options.norm_epsilon == 1e-12
    vit_jax.save_model(model, tmp_path / "out", "huggingface")
    assert vit_jax.load_model(tmp_path / "out").options == model.options


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "swin"}, "model_type='swin'"),
        ({"hidden_act": "relu"}, "hidden_act='relu'"),
        ({"num_hidden_layers": 12}, "says depth=12, but its tensors have 3"),
        ({"id2label": {"0": "cat", "1": "dog"}}, "names 2 classes, but its head has 10"),
        ({"id2label": {"0": "cat", "2": "dog"}}, "does not number its classes from 0"),
        ({"num_attention_heads": 5}, "width 32 is no multiple of num_heads=5"),
        ({"num_attention_heads": -2}, "width 32 is no multiple of num_heads=-2"),
        ({"hidden_size": "32"}, "says width='32', but its tensors have 32"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(folder, changes, message):
    change_config(folder, **changes)
    with pytest.raises(WeightsError, match=f"folder: .*{message}"):
        vit_jax.load_model(folder)


def test_a_missing_or_broken_config_is_named(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(WeightsError, match=r"folder/config\.json is not JSON"):
        vit_jax.load_model(folder)
    (folder / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"folder/config\.json is missing"):
        vit_jax.load_model(folder)


def test_npz_to_hugging_face_keeps_the_logits(tmp_path):
    expected = golden("vit_token")
    path = write_npz(tmp_path / "in.npz", expected["params"])
    vit_jax.save_model(vit_jax.load_model(path), tmp_path / "out", "huggingface")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["hidden_act"] == "gelu_pytorch_tanh"
    assert config["layer_norm_eps"] == 1e-6
    outputs = logits(vit_jax.load_model(tmp_path / "out"), expected["images"])
    np.testing.assert_allclose(outputs, expected["logits"], rtol=0, atol=1e-5)


def test_positions_without_a_row_for_the_class_token_get_one(tmp_path):
    tiny = {"width": 32, "depth": 1, "mlp_width": 64, "num_heads": 2, "patch_size": 8}
    model = random_model("ViT-Ti/16", **tiny, image_size=32, num_classes=3, prefix_positions=False)
    vit_jax.save_model(model, tmp_path / "out", "huggingface")
    loaded = vit_jax.load_model(tmp_path / "out")
    table = parameters(loaded)["position_embedding"]
    assert not table[:, 0].any()
    np.testing.assert_array_equal(table[:, 1:], parameters(model)["position_embedding"])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"pooling": "average", "class_token": True}, "pooling='average'"),
        ({"pooling": "attention"}, "pooling='attention'"),
        ({"representation_size": 8}, "representation_size=8"),
        ({"num_registers": 4}, "num_registers=4"),
        ({"layer_scale": 0.1, "num_registers": 4}, "num_registers=4"),
        ({"query_key_norm": True}, "query_key_norm=True"),
        ({"norm_after_pooling": True}, "norm_after_pooling=True"),
        ({"pooling": "average", "norm_after_pooling": True}, "norm_after_pooling=True"),
        ({"positions": "relative"}, "positions='relative'"),
    ],
)
def test_what_the_library_cannot_express_is_named(options, named, tmp_path):
    tiny = {"width": 32, "depth": 1, "mlp_width": 64, "num_heads": 2, "image_size": 32}
    model = random_model("ViT-Ti/16", **tiny, **options)
    message = f"huggingface files cannot express model.{named} in an? .*; these can: .*vit_jax"
    with pytest.raises(WeightsError, match=message):
        vit_jax.save_model(model, tmp_path / "out", "huggingface")
    assert not (tmp_path / "out").exists()


def test_hybrids_are_refused(tmp_path):
    path = write_npz(tmp_path / "in.npz", golden("hybrid_stem")["params"])
    with pytest.raises(WeightsError, match="huggingface files have no Hybrid models"):
        vit_jax.save_model(vit_jax.load_model(path), tmp_path / "out", "huggingface")
