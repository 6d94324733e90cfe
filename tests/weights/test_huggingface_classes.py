"""`config.json` as it is written, key by key: no two numbers of these models are alike.

That the library builds the same models from them is tested in `test_libraries.py`, where it is
installed; what each key is called and means is its configuration classes'.
"""

import numpy as np
import pytest

from vit_jax.errors import WeightsError
from vit_jax.model_file import ModelFile
from vit_jax.models import model_options
from vit_jax.weights import huggingface
from vit_jax.weights.layouts import KEY_BIAS
from vit_jax.weights.saving import find_layout

SIZES = {
    **{"width": 24, "depth": 3, "mlp_width": 40, "num_heads": 2, "channels": 5, "num_classes": 7},
    **{"patch_size": (4, 2), "image_size": (12, 8), "gelu": "erf", "norm_epsilon": 1e-4},
}
SQUARE = {"patch_size": 4, "image_size": 12}
ROTARY = {"positions": "rotary_2d", "rotary_coordinates": "centred", "width": 48, "num_classes": 0}
CLIP = {"pre_norm": True, "gelu": "quick", **SQUARE}
SCALED = {"layer_scale": 0.25}
AVERAGED = {"pooling": "average", "class_token": True, "norm_after_pooling": True}
# Options beyond SIZES -> the class, its model_type, and what the keys are beyond COMMON.
WRITTEN = (
    ({"qkv_bias": False}, "ViTForImageClassification", "vit", {"qkv_bias": False}),
    (
        {"num_classes": 0, "representation_size": 11},
        *("ViTModel", "vit", {"pooler_output_size": 11}),
    ),
    ({"pooling": "average", "gelu": "tanh"}, "IJepaForImageClassification", "ijepa", {}),
    ({"num_registers": 1}, "DeiTForImageClassification", "deit", {}),
    ({"distillation_token": True}, "DeiTForImageClassificationWithTeacher", "deit", {}),
    (
        {**SQUARE, **SCALED, "mlp_width": 24 * 32},
        *("Dinov2ForImageClassification", "dinov2", {"mlp_ratio": 32, "use_swiglu_ffn": False}),
    ),
    (
        {**SQUARE, **SCALED, "mlp_width": 24 * 3, "num_classes": 0, "qkv_bias": False},
        *("Dinov2Model", "dinov2"),
        {"mlp_ratio": 3, "use_swiglu_ffn": False, "qkv_bias": False},
    ),
    (  # Two thirds of 3 times 24, which is a multiple of 8 already.
        {**SQUARE, **SCALED, "mlp": "swiglu", "mlp_width": 48, "num_registers": 4}
        | {"prefix_positions": False},
        *("Dinov2WithRegistersForImageClassification", "dinov2_with_registers"),
        {"mlp_ratio": 3, "use_swiglu_ffn": True, "num_register_tokens": 4},
    ),
    (  # Two thirds of 2 times 20 are 26.7, of which int takes 26, and the next multiple is 32.
        {**SQUARE, **SCALED, "mlp": "swiglu", "mlp_width": 32, "width": 20, "num_classes": 0},
        *("Dinov2Model", "dinov2", {"mlp_ratio": 2, "use_swiglu_ffn": True}),
    ),
    (
        {**ROTARY, **SCALED, "mlp": "swiglu", "rotary_temperature": 50.0, "num_registers": 3},
        *("DINOv3ViTModel", "dinov3_vit"),
        {"use_gated_mlp": True, "rope_theta": 50.0, "num_register_tokens": 3}
        | {"query_bias": True, "key_bias": True, "value_bias": True, "hidden_act": "silu"},
    ),
    (
        {**ROTARY, **SCALED, "qkv_bias": False},
        *("DINOv3ViTModel", "dinov3_vit"),
        {"use_gated_mlp": False, "rope_theta": 10_000.0, "num_register_tokens": 0}
        | {"query_bias": False, "key_bias": False, "value_bias": False},
    ),
    (
        {**SQUARE, **SCALED, "relative_position_bias": "every_layer", "positions": "none"},
        *("BeitForImageClassification", "beit"),
        {"layer_scale_init_value": 0.25, "use_relative_position_bias": True},
    ),
    (
        {**SQUARE, **AVERAGED, "relative_position_bias": "every_layer_shared", "num_classes": 0},
        *("BeitModel", "beit"),
        {"use_mean_pooling": True, "use_absolute_position_embeddings": True}
        | {"use_shared_relative_position_bias": True},
    ),
    (CLIP, "CLIPVisionModelWithProjection", "clip_vision_model", {"projection_dim": 7}),
    ({**CLIP, "num_classes": 0}, "CLIPVisionModel", "clip_vision_model", {}),
    (
        {**SQUARE, "pooling": "attention", "num_classes": 0},
        *("SiglipVisionModel", "siglip_vision_model", {}),
    ),
)
ACTIVATIONS = {"erf": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DEFAULTS_OF = {  # model_type -> its keys besides those of all, but for what WRITTEN says
    **{
        model_type: {"qkv_bias": True, **NO_DROPOUT}
        for model_type in ("vit", "ijepa", "deit", "dinov2", "dinov2_with_registers")
    },
    "beit": {
        **NO_DROPOUT,
        **{"drop_path_rate": 0.0, "layer_scale_init_value": 0.0, "use_mean_pooling": False},
        **{"use_absolute_position_embeddings": False, "use_relative_position_bias": False},
        "use_shared_relative_position_bias": False,
    },
}


def one(size):
    return size[0] if size[0] == size[1] else size


def common(options, name, model_type, names):
    """The keys of every class."""
    classes = {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
    return {
        "architectures": [name],
        "model_type": model_type,
        "hidden_size": options.width,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_channels": 5,
        "patch_size": one(options.patch_size),
        "image_size": one(options.image_size),
        "hidden_act": ACTIVATIONS[options.gelu],
        "layer_norm_eps": 1e-4,
        **({} if "dinov2" in model_type else {"intermediate_size": 40}),
        **(classes if options.num_classes else {}),
        **DEFAULTS_OF.get(model_type, {}),
    }


@pytest.mark.parametrize(("changes", "name", "model_type", "keys"), WRITTEN)
def test_every_key_is_written(changes, name, model_type, keys):
    options = model_options("ViT-Ti/16", **{**SIZES, **changes})
    kind = find_layout("huggingface", options).files.keywords["kind"]
    names = tuple("gabcdef")[: options.num_classes]
    parameters = {KEY_BIAS: np.ones(1)} if options.qkv_bias else {}
    written = {
        **huggingface.common_keys(options, ModelFile("x", {}, class_names=names), kind),
        **kind.keys(options, parameters),
    }
    assert written == {**common(options, name, model_type, names), **keys}


def test_classes_without_names_are_called_as_the_library_does():
    options = model_options("ViT-Ti/16", **SIZES)
    kind = find_layout("huggingface", options).files.keywords["kind"]
    written = huggingface.common_keys(options, ModelFile("x", {}), kind)
    assert written["id2label"]["6"] == "LABEL_6"
    assert written["label2id"]["LABEL_6"] == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({**SCALED, "patch_size": 4}, r"no DINOv2 with model.image_size=\(12, 8\)"),
        ({**SCALED, "image_size": 8}, r"no DINOv2 with model.patch_size=\(4, 2\)"),
        ({**SQUARE, **SCALED, "mlp_width": 24 * 33}, "mlp_width=792: it is the width 24 times an"),
        ({**SQUARE, **SCALED, "mlp_width": 40}, "mlp_width=40"),
        ({**SQUARE, **SCALED, "mlp_width": 50, "mlp": "swiglu"}, "mlp_width=50"),
        ({**CLIP, "image_size": (12, 8)}, r"no CLIP or SigLIP with model.image_size=\(12, 8\)"),
        (
            {"relative_position_bias": "every_layer", "positions": "none"},
            r"no BEiT with a relative position bias with model.image_size=\(12, 8\)",
        ),
        (
            {"relative_position_bias": "every_layer_shared", "image_size": 8},
            r"no BEiT with a relative position bias with model.patch_size=\(4, 2\)",
        ),
    ],
)
def test_sizes_that_the_library_does_not_have(changes, message):
    options = model_options("ViT-Ti/16", **{**SIZES, **changes})
    kind = find_layout("huggingface", options).files.keywords["kind"]
    with pytest.raises(WeightsError, match=message):
        kind.keys(options, {})


def test_a_beit_without_a_bias_may_be_a_rectangle():
    changes = {**AVERAGED, "layer_scale": 0.25}
    options = model_options("ViT-Ti/16", **{**SIZES, **changes})
    kind = find_layout("huggingface", options).files.keywords["kind"]
    assert (kind.model_type, kind.keys(options, {})["use_mean_pooling"]) == ("beit", True)


NEAREST = ""  # Two options are too many for any class: which is named depends on the nearest.
OF_NO_CLASS = (  # Options -> the first that no class of the library has, as the message says it.
    ({"pooling": "average", "class_token": True}, "pooling='average'"),
    ({"num_registers": 2}, "num_registers=2"),
    ({**SCALED, "num_registers": 2}, "num_registers=2"),
    ({"pre_norm": True, "qkv_bias": False}, NEAREST),
    ({"attention_norm": True}, "attention_norm=True"),
    ({"mlp_norm": True}, "mlp_norm=True"),
    ({"final_norm": False}, "final_norm=False"),
    ({"query_key_norm": True}, "query_key_norm=True"),
    ({"mlp": "swiglu"}, "mlp='swiglu'"),
    ({"pooling": "attention", "num_classes": 0, "qkv_bias": False}, NEAREST),
    ({**ROTARY, **SCALED, "rotary_coordinates": "indices"}, NEAREST),
    ({**ROTARY, "layer_scale": 0.0}, NEAREST),
    ({**SCALED, "positions": "none", "qkv_bias": False}, NEAREST),
)


@pytest.mark.parametrize(("changes", "message"), OF_NO_CLASS)
def test_what_no_class_has_is_named(changes, message):
    options = model_options("ViT-Ti/16", **{**SIZES, **changes})
    with pytest.raises(WeightsError, match=f"cannot express model.{message}"):
        find_layout("huggingface", options)
