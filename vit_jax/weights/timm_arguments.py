"""The arguments of timm's models that several of its classes take."""

import logging
import math
from collections.abc import Mapping
from typing import Any

from vit_jax.models.layers import SWIGLU
from vit_jax.models.norms import LAYER_NORM_EPSILON
from vit_jax.weights.timm_config import POOLINGS

logger = logging.getLogger(__name__)

EPSILON_REMARK = "timm computes with LayerNorm epsilon {}, this model with {}: about 5e-5 in logits"
WIDE_EPSILON = 1e-5  # of timm's LayerNorms, where it is not the common one


def invert(words: Mapping[str, str]) -> dict[str, str]:
    """Ours -> timm's."""
    return {ours: theirs for theirs, ours in words.items()}


def is_swiglu(options: Any) -> bool:
    """Whether the MLP has a gate."""
    return options.mlp == SWIGLU


def warn_of_norms(options: Any, *theirs: float) -> None:
    """Says that the LayerNorms' epsilon is none of timm's, where it is not."""
    if options.norm_epsilon not in theirs:
        logger.warning("Note: %s.", EPSILON_REMARK.format(LAYER_NORM_EPSILON, options.norm_epsilon))


def mlp_ratio(options: Any, *, packed: bool = False) -> float:
    """The ratio from which timm's int(width · ratio) gives back the width of the MLP's first layer.

    It is twice the MLP's if the gate is `packed` in it.
    """
    return exact_ratio(options.mlp_width * (2 if packed else 1), options.width)


def exact_ratio(hidden_width: int, width: int) -> float:
    """The ratio of which int(width · ratio) is `hidden_width`."""
    ratio = hidden_width / width
    exact = int(width * ratio) == hidden_width
    return ratio if exact else math.nextafter(ratio, math.inf)


def encoder_arguments(options: Any) -> dict[str, Any]:
    """The arguments that timm's ViT and EVA have in common."""
    return {
        "img_size": options.image_size,
        "in_chans": options.channels,
        "num_classes": options.num_classes,
        "embed_dim": options.width,
        "depth": options.depth,
        "num_heads": options.num_heads,
        "class_token": options.has_class_token,
        "no_embed_class": not options.prefix_positions,
        "global_pool": invert(POOLINGS)[options.pooling],
        "init_values": options.layer_scale or None,
        "qk_norm": options.query_key_norm,
        "qkv_bias": options.qkv_bias,
    }
