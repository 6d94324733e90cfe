"""timm's class Beit: a relative position bias, and keys without a bias of their own."""

from typing import Any

from vit_jax.models.norms import LAYER_NORM_EPSILON
from vit_jax.models.positions import EVERY_LAYER, EVERY_LAYER_SHARED, LEARNED_1D
from vit_jax.models.vit import ViTOptions
from vit_jax.weights import timm_table as tables
from vit_jax.weights.layouts import without_key_bias
from vit_jax.weights.mapping import Row, Tensors
from vit_jax.weights.timm_arguments import encoder_arguments, mlp_ratio, warn_of_norms

BEIT = "beit_base_patch16_224"
NO_ARGUMENTS = ("class_token", "no_embed_class", "qk_norm")  # It has the first two, not the third.


def prepared(parameters: Tensors, options: ViTOptions) -> Tensors:
    """The parameters as the rows are of them."""
    del options
    return without_key_bias(parameters)


def rows(parameters: Tensors, options: ViTOptions) -> tuple[Row, ...]:
    """The table of a Beit, for parameters as of `prepared`."""
    del parameters, options
    shared = (*tables.FUSED_KERNEL_ROWS, *tables.ENCODER, *tables.EVA_SCALE_ROWS)
    return (*tables.DENSE_ROWS, *shared, *tables.BIAS_ROWS)


def config(parameters: Tensors, options: ViTOptions) -> dict[str, Any]:
    """The configuration of a Beit; all arguments are in it, but for the LayerNorms' epsilon."""
    del parameters
    warn_of_norms(options, LAYER_NORM_EPSILON)
    common = encoder_arguments(options)
    arguments = {
        **{name: value for name, value in common.items() if name not in NO_ARGUMENTS},
        "patch_size": options.patch_size,
        "mlp_ratio": mlp_ratio(options),
        "scale_mlp": options.mlp_norm,
        "use_abs_pos_emb": options.positions == LEARNED_1D,
        "use_rel_pos_bias": options.relative_position_bias == EVERY_LAYER,
        "use_shared_rel_pos_bias": options.relative_position_bias == EVERY_LAYER_SHARED,
        "use_fc_norm": options.norm_after_pooling,
    }
    return {"architecture": BEIT, "model_args": arguments}
