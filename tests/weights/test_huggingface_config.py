"""`config.json` of the transformers library in our options, against the library's own defaults."""

import pytest

from vit_jax.errors import ConfigError
from vit_jax.weights.huggingface_config import KINDS, options_of

VIT = {"pooling": "token", "num_heads": 12, "gelu": "erf", "norm_epsilon": 1e-12}
DINOV2 = {**VIT, "norm_epsilon": 1e-6}
CLIP = {"pooling": "token", "num_heads": 12, "gelu": "quick", "norm_epsilon": 1e-5}
SIGLIP = {"pooling": "attention", "num_heads": 12, "gelu": "tanh", "norm_epsilon": 1e-6}
BEIT = {**VIT, "pooling": "average", "positions": "none", "relative_position_bias": "none"}
# What the configuration classes of transformers 5.24 hold when nothing is given to them.
DEFAULTS = {
    "vit": VIT,
    "deit": VIT,
    "vit_mae": VIT,
    "vit_msn": {**VIT, "norm_epsilon": 1e-6},
    "ijepa": {**VIT, "pooling": "average"},
    "dinov2": DINOV2,
    "dinov2_with_registers": {**DINOV2, "prefix_positions": False},
    "dinov3_vit": {
        **{"pooling": "token", "num_heads": 6, "gelu": "erf", "norm_epsilon": 1e-5},
        **{"positions": "rotary_2d", "rotary_coordinates": "centred", "rotary_temperature": 100.0},
    },
    "beit": BEIT,
    "data2vec-vision": BEIT,
    "clip_vision_model": CLIP,
    "clip": CLIP,
    "siglip_vision_model": SIGLIP,
    "siglip": SIGLIP,
}


@pytest.mark.parametrize("model_type", KINDS)
def test_what_a_config_leaves_out_is_the_librarys_default(model_type):
    expected = DEFAULTS[model_type]
    assert options_of({"model_type": model_type}, classifies=False) == expected
    if "clip" in model_type or "siglip" in model_type:  # Their classifiers see the mean.
        expected = {**expected, "pooling": "average"}
    assert options_of({"model_type": model_type}, classifies=True) == expected


NAMES = {
    "vit": "a ViT",
    "deit": "a DeiT",
    "vit_mae": "an MAE",
    "vit_msn": "an MSN",
    "ijepa": "an I-JEPA",
    "dinov2": "a DINOv2",
    "dinov2_with_registers": "a DINOv2",
    "dinov3_vit": "a DINOv3",
    "beit": "a BEiT",
    "data2vec-vision": "a Data2VecVision",
    "clip_vision_model": "a CLIP",
    "clip": "a CLIP",
    "siglip_vision_model": "a SigLIP",
    "siglip": "a SigLIP",
}


@pytest.mark.parametrize("model_type", KINDS)
def test_messages_call_every_kind_as_its_paper_does(model_type):
    name = NAMES[model_type]
    with pytest.raises(ConfigError, match=rf"^new=1 of {name} is not known"):
        options_of({"model_type": model_type, "new": 1}, classifies=False)
    with pytest.raises(ConfigError, match=rf"^{name} with pooler_act=3 is not supported"):
        options_of({"model_type": model_type, "pooler_act": 3}, classifies=False)


def test_a_kind_that_is_not_known_is_refused_with_those_that_are():
    with pytest.raises(ConfigError, match=r"model_type='bert' is not .* knows .*\bbeit\b"):
        options_of({"model_type": "bert"}, classifies=False)


# Keys of the library's base class and of its classes for images, none of which inference depends on.
SILENT = (
    *("_attn_implementation_autoset", "_commit_hash", "_name_or_path", "add_cross_attention"),
    *("architectures", "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "dtype"),
    *("chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id"),
    *("diversity_penalty", "do_sample", "early_stopping", "encoder_no_repeat_ngram_size"),
    *("eos_token_id", "exponential_decay_length_penalty", "finetuning_task", "id2label"),
    *("forced_bos_token_id", "forced_eos_token_id", "initializer_factor", "initializer_range"),
    *("is_decoder", "is_encoder_decoder", "label2id", "length_penalty", "max_length"),
    *("min_length", "num_labels", "no_repeat_ngram_size", "num_beam_groups", "num_beams"),
    *("num_return_sequences", "output_attentions", "output_hidden_states", "output_scores"),
    *("pad_token_id", "prefix", "problem_type", "remove_invalid_values", "repetition_penalty"),
    *("return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens", "temperature"),
    *("task_specific_params", "tf_legacy_loss", "tie_encoder_decoder", "tie_word_embeddings"),
    *("tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "typical_p"),
    *("transformers_version", "use_bfloat16", "projection_dim", "logit_scale_init_value"),
    *("attention_dropout", "attention_probs_dropout_prob", "dropout", "drop_path_rate"),
    *("hidden_dropout_prob", "encoder_stride", "pooler_output_size", "layerscale_value"),
    *("num_register_tokens", "mlp_ratio", "qkv_bias", "use_mask_token", "mask_ratio"),
    *("norm_pix_loss", "decoder_hidden_size", "decoder_intermediate_size", "apply_layernorm"),
    *("decoder_num_attention_heads", "decoder_num_hidden_layers", "out_features", "out_indices"),
    *("stage_names", "reshape_hidden_states", "vision_use_head", "query_bias", "key_bias"),
    *("value_bias", "proj_bias", "mlp_bias", "pos_embed_jitter", "pos_embed_rescale"),
    *("pos_embed_shift", "use_gated_mlp"),
)
OF_BEIT = (
    *("layer_scale_init_value", "vocab_size", "add_fpn", "pool_scales", "use_auxiliary_head"),
    *("auxiliary_loss_weight", "auxiliary_channels", "auxiliary_num_convs"),
    *("auxiliary_concat_input", "semantic_loss_ignore_index"),
)


def test_keys_that_say_nothing_of_a_model_are_accepted():
    for key in SILENT:
        assert options_of({"model_type": "vit", key: "any"}, classifies=False) == VIT, key
    for key in OF_BEIT:
        assert options_of({"model_type": "beit", key: "any"}, classifies=True) == BEIT, key
        with pytest.raises(ConfigError, match=f"{key}='any' of a ViT is not known"):
            options_of({"model_type": "vit", key: "any"}, classifies=False)


@pytest.mark.parametrize(
    ("name", "gelu"),
    [
        ("gelu", "erf"),
        ("gelu_pytorch_tanh", "tanh"),
        ("gelu_new", "tanh"),
        ("gelu_fast", "tanh"),
        ("quick_gelu", "quick"),
    ],
)
def test_activations(name, gelu):
    assert options_of({"hidden_act": name}, classifies=False) == {**VIT, "gelu": gelu}


def test_what_a_config_says_is_before_the_defaults():
    config = {
        "model_type": "dinov3_vit",
        "hidden_size": 24,
        "num_hidden_layers": 5,
        "num_attention_heads": 3,
        "intermediate_size": 40,
        "num_channels": 2,
        "patch_size": [4, 2],
        "image_size": 18,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-3,
        "rope_theta": 7,
        "use_swiglu_ffn": True,
    }
    expected = {
        **{"width": 24, "depth": 5, "num_heads": 3, "mlp_width": 40, "channels": 2},
        **{"patch_size": (4, 2), "image_size": 18, "gelu": "tanh", "norm_epsilon": 1e-3},
        **{"pooling": "token", "positions": "rotary_2d", "rotary_coordinates": "centred"},
        **{"rotary_temperature": 7.0, "mlp": "swiglu"},
    }
    found = options_of(config, classifies=False)
    assert (found, type(found["rotary_temperature"])) == (expected, float)
    dense = options_of({**config, "use_swiglu_ffn": False}, classifies=False)
    assert dense == {**expected, "mlp": "dense"}
    named_otherwise = {**config, "rope_parameters": {"rope_theta": 9}}  # By later versions.
    found = options_of(named_otherwise, classifies=False)
    assert found == {**expected, "rotary_temperature": 9.0}
    assert type(found["rotary_temperature"]) is float


def test_the_vision_tower_of_a_model_of_images_and_texts_counts():
    """Both towers have keys of one name; those of the whole say nothing of a tower."""
    config = {
        "model_type": "clip",
        "hidden_size": 99,
        "projection_dim": 99,
        "text_config": {"num_attention_heads": 99, "unknown": 1},
        "vision_config": {"hidden_size": 24, "num_attention_heads": 3, "hidden_act": "gelu"},
    }
    found = options_of(config, classifies=False)
    assert found == {**CLIP, "width": 24, "num_heads": 3, "gelu": "erf"}
    with pytest.raises(ConfigError, match=r"text_config=.* of a CLIP is not known"):
        options_of({"model_type": "clip_vision_model", "text_config": {}}, classifies=False)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "vit", "pruned_heads": {"0": [1]}}, "a ViT with pruned_heads="),
        ({"model_type": "vit", "pooler_act": "gelu"}, "a ViT with pooler_act='gelu'"),
        ({"model_type": "data2vec-vision", "hidden_act": "relu"}, "a Data2VecVision with"),
        ({"model_type": "vit", "hidden_act": "silu"}, "a ViT with hidden_act='silu'"),
        ({"model_type": "vit_msn", "use_mean_pooling": True}, "of an MSN is not known"),
    ],
)
def test_what_changes_a_model_and_is_not_computed_here_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        options_of(config, classifies=False)


def test_what_changes_nothing_is_accepted():
    same = {"pruned_heads": {}, "pooler_act": "tanh", "vision_use_head": False}
    assert options_of(same, classifies=False) == VIT  # Without a type it is a ViT.
    assert options_of({"pruned_heads": None}, classifies=False) == VIT
    gated = {"model_type": "dinov3_vit", "use_gated_mlp": True, "hidden_act": "silu"}
    assert "gelu" not in options_of(gated, classifies=False)


@pytest.mark.parametrize(
    ("each", "shared", "bias"),
    [
        (False, False, "none"),
        (True, False, "every_layer"),
        (False, True, "every_layer_shared"),
        (True, True, "every_layer"),  # Their sum.
    ],
)
def test_beits_bias(each, shared, bias):
    keys = {"use_relative_position_bias": each, "use_shared_relative_position_bias": shared}
    config = {"model_type": "beit", "image_size": [12, 12], **keys}
    assert options_of(config, classifies=True)["relative_position_bias"] == bias
    rectangle = {**config, "image_size": [12, 8]}
    if bias == "none":
        assert options_of(rectangle, classifies=True)["image_size"] == (12, 8)
    else:
        with pytest.raises(ConfigError, match=r"image_size=\(12, 8\) of a BEiT"):
            options_of(rectangle, classifies=True)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"use_mean_pooling": False}, {"pooling": "token"}),
        ({"use_absolute_position_embeddings": True}, {"positions": "learned_1d"}),
    ],
)
def test_beits_own_keys(keys, expected):
    assert options_of({"model_type": "beit", **keys}, classifies=True) == {**BEIT, **expected}
