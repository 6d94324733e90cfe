"""Hugging Face's `config.json`: what each `model_type` of a Vision Transformer says in our terms.

A `model_type`, a key or a value that this package has no model for is refused by name.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import ConfigError
from vit_jax.model_file import as_tuple
from vit_jax.models.positions import CENTRED, LEARNED_1D, NO_BIAS, NO_POSITIONS, ROTARY_2D
from vit_jax.models.vit import ATTENTION_POOLING, AVERAGE_POOLING, CLASS_TOKEN_POOLING
from vit_jax.weights import huggingface_table as tables
from vit_jax.weights.architecture import bias_of
from vit_jax.weights.mapping import Row
from vit_jax.weights.translation import Arguments, Translation, article, named, nothing, only

ACTIVATIONS = {
    "gelu": "erf",
    "gelu_pytorch_tanh": "tanh",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "quick_gelu": "quick",
}
SIZES = {  # their name in config.json -> ours
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "num_heads",
    "intermediate_size": "mlp_width",
    "num_channels": "channels",
    "patch_size": "patch_size",
    "image_size": "image_size",
}
# Keys that any model of the library may have, and that say nothing about what it computes.
GENERAL = frozenset(
    (
        *("_attn_implementation_autoset", "_commit_hash", "_name_or_path", "add_cross_attention"),
        *("architectures", "bad_words_ids", "begin_suppress_tokens", "bos_token_id"),
        *("chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id"),
        *("diversity_penalty", "do_sample", "dtype", "early_stopping"),
        *("encoder_no_repeat_ngram_size", "eos_token_id", "exponential_decay_length_penalty"),
        *("finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "id2label"),
        *("initializer_factor", "initializer_range", "is_decoder", "is_encoder_decoder"),
        *("label2id", "length_penalty", "max_length", "min_length", "model_type", "num_labels"),
        *("no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences"),
        *("output_attentions", "output_hidden_states", "output_scores", "pad_token_id", "prefix"),
        *("problem_type", "remove_invalid_values", "repetition_penalty", "return_dict"),
        *("return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params"),
        *("temperature", "tf_legacy_loss", "tie_encoder_decoder", "tie_word_embeddings"),
        *("tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "typical_p"),
        *("transformers_version", "use_bfloat16", "projection_dim", "logit_scale_init_value"),
        *("attention_dropout", "attention_probs_dropout_prob", "dropout", "drop_path_rate"),
        *("hidden_dropout_prob", "encoder_stride", "pooler_output_size"),
        # Of parameters, which tensors show; of pre-training; of backbones.
        *("layerscale_value", "num_register_tokens", "mlp_ratio", "qkv_bias", "use_mask_token"),
        *("mask_ratio", "norm_pix_loss", "decoder_hidden_size", "decoder_intermediate_size"),
        *("decoder_num_attention_heads", "decoder_num_hidden_layers", "apply_layernorm"),
        *("out_features", "out_indices", "stage_names", "reshape_hidden_states"),
    )
)
KEYS: dict[str, Translation] = {
    **dict.fromkeys(GENERAL, nothing),
    **{
        theirs: lambda value, ours=ours: {ours: as_tuple(value)}  # type: ignore[misc]
        for theirs, ours in SIZES.items()
    },
    "hidden_act": named("gelu", ACTIVATIONS),
    "layer_norm_eps": named("norm_epsilon"),
    "pooler_act": only("tanh"),
    "pruned_heads": only({}, None),
    "use_swiglu_ffn": lambda value: {"mlp": "swiglu" if value else "dense"},
    "vision_use_head": nothing,
    # DINOv3's; biases and kinds of MLP are read off the tensors.
    **dict.fromkeys(("query_bias", "key_bias", "value_bias", "proj_bias", "mlp_bias"), nothing),
    **dict.fromkeys(("pos_embed_jitter", "pos_embed_rescale", "pos_embed_shift"), nothing),
    "use_gated_mlp": nothing,
    "rope_theta": lambda value: {"rotary_temperature": float(value)},
    "rope_parameters": lambda value: {"rotary_temperature": float(value["rope_theta"])},
}
OF_TOKEN, AVERAGE = {"pooling": CLASS_TOKEN_POOLING}, {"pooling": AVERAGE_POOLING}
POSITIONS = {True: LEARNED_1D, False: NO_POSITIONS}
BIASES = ("use_relative_position_bias", "use_shared_relative_position_bias")
BEIT_KEYS: dict[str, Translation] = {
    **dict.fromkeys(BIASES, nothing),  # `beit_bias` reads both.
    "use_mean_pooling": lambda value: AVERAGE if value else OF_TOKEN,
    "use_absolute_position_embeddings": named("positions", POSITIONS),
    # Of parameters, which tensors show; of segmentation and of pre-training.
    **dict.fromkeys(("layer_scale_init_value", "vocab_size", "add_fpn", "pool_scales"), nothing),
    **dict.fromkeys(("use_auxiliary_head", "auxiliary_loss_weight"), nothing),
    **dict.fromkeys(("auxiliary_channels", "auxiliary_num_convs"), nothing),
    **dict.fromkeys(("auxiliary_concat_input", "semantic_loss_ignore_index"), nothing),
}
TOWERS = ("vision_config", "text_config", "vision_config_dict", "text_config_dict")
VIT_DEFAULTS = {"num_attention_heads": 12, "hidden_act": "gelu", "layer_norm_eps": 1e-12}
DINOV2_DEFAULTS = {**VIT_DEFAULTS, "layer_norm_eps": 1e-6}
DINOV3_DEFAULTS = {
    "num_attention_heads": 6,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "rope_theta": 100.0,
}
CLIP_DEFAULTS = {"num_attention_heads": 12, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
BEIT_DEFAULTS = {
    **VIT_DEFAULTS,
    "use_mean_pooling": True,
    "use_absolute_position_embeddings": False,
}
SIGLIP_DEFAULTS = {
    "num_attention_heads": 12,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """One `model_type`.

    Attributes:
      name: of the family, for messages.
      defaults: the library's, for keys that a config.json leaves out.
      rows: of its tensors' names.
      options: ours, of all models of the kind.
      classifier_options: with a head for classes, instead of these.
      keys: of its `config.json`, besides `KEYS`.
      together: a whole config.json -> what several keys of it say.
      bare_keys: whether keys of attention may have no bias where queries have one.
    """

    name: str
    defaults: Arguments
    rows: tuple[Row, ...]
    options: Arguments = dataclasses.field(default_factory=lambda: OF_TOKEN)
    classifier_options: Arguments = dataclasses.field(default_factory=dict)
    keys: Mapping[str, Translation] = dataclasses.field(default_factory=dict)
    together: Translation = nothing
    bare_keys: bool = False


def beit_bias(config: Mapping[str, Any]) -> Arguments:
    """BEiT's bias of relative positions; raises ConfigError for one of a rectangle."""
    bias = bias_of(*(config.get(key, False) for key in BIASES))
    size = as_tuple(config.get("image_size"))
    if bias != NO_BIAS and isinstance(size, tuple) and len({*size}) > 1:
        raise ConfigError(
            f"image_size={size} of a BEiT with relative positions is not supported: the library "
            "takes the rows of a rectangle's table for columns, or not, by its version."
        )
    return {"relative_position_bias": bias}


DINOV3 = {
    "pooling": CLASS_TOKEN_POOLING,
    "positions": ROTARY_2D,
    "rotary_coordinates": CENTRED,
}
REGISTERS = {"pooling": CLASS_TOKEN_POOLING, "prefix_positions": False}
SIGLIP = Kind(
    "SigLIP",
    SIGLIP_DEFAULTS,
    tables.CLIP,
    {"pooling": ATTENTION_POOLING},
    classifier_options=AVERAGE,
)
CLIP = Kind("CLIP", CLIP_DEFAULTS, tables.CLIP, classifier_options=AVERAGE)
BEIT = Kind(
    "BEiT",
    BEIT_DEFAULTS,
    tables.BEIT,
    keys=BEIT_KEYS,
    together=beit_bias,
    bare_keys=True,
)
KINDS = {
    "vit": Kind("ViT", VIT_DEFAULTS, tables.VIT),
    "deit": Kind("DeiT", VIT_DEFAULTS, tables.DEIT),
    "vit_mae": Kind("MAE", VIT_DEFAULTS, tables.VIT),
    "vit_msn": Kind("MSN", {**VIT_DEFAULTS, "layer_norm_eps": 1e-6}, tables.VIT),
    "ijepa": Kind("I-JEPA", VIT_DEFAULTS, tables.VIT, AVERAGE),
    "dinov2": Kind("DINOv2", DINOV2_DEFAULTS, tables.DINOV2),
    "dinov2_with_registers": Kind("DINOv2", DINOV2_DEFAULTS, tables.DINOV2, REGISTERS),
    "dinov3_vit": Kind("DINOv3", DINOV3_DEFAULTS, tables.DINOV3, DINOV3, bare_keys=True),
    "beit": BEIT,
    "data2vec-vision": dataclasses.replace(BEIT, name="Data2VecVision"),
    "clip_vision_model": CLIP,
    "clip": CLIP,
    "siglip_vision_model": SIGLIP,
    "siglip": SIGLIP,
}


def options_of(config: Mapping[str, Any], classifies: bool) -> dict[str, Any]:
    """Our options by a `config.json`; `classifies`: there is a head for classes.

    Raises ConfigError for what this package has no model for.
    """
    kind = kind_of(config)
    options = dict(kind.options)
    towers = {**config, **(config.get("vision_config") or {})}
    keys = {**KEYS, **kind.keys}
    ignored = TOWERS if "vision_config" in config else ()
    for key, value in {**kind.defaults, **towers}.items():
        if key in ignored:
            continue
        if key == "hidden_act" and value == "silu" and towers.get("use_gated_mlp"):
            continue  # of the SwiGLU's gate
        try:
            options |= keys[key](value)
        except KeyError:
            raise ConfigError(
                f"{key}={value!r} of {article(kind.name)} is not known to this package."
            ) from None
        except ValueError:
            raise ConfigError(
                f"{article(kind.name)} with {key}={value!r} is not supported."
            ) from None
    options |= kind.together(towers)
    return options | dict(kind.classifier_options if classifies else {})


def kind_of(config: Mapping[str, Any]) -> Kind:
    """The kind of a `config.json`'s `model_type`; raises ConfigError if there is none here."""
    model_type = config.get("model_type", "vit")
    if model_type not in KINDS:
        raise ConfigError(
            f"model_type={model_type!r} is not supported; this package knows {', '.join(KINDS)}."
        )
    return KINDS[model_type]
