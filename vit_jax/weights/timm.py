"""timm's `.safetensors` files: Vision Transformers and hybrids.

What the tensors cannot say stands in the file's metadata if this package wrote it, else in the
`config.json` that timm's hub puts beside the file.
"""

import dataclasses
import logging
import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.errors import WeightsError
from vit_jax.model_file import ModelFile, Preprocessing
from vit_jax.models.hybrid import HybridOptions
from vit_jax.models.norms import LAYER_NORM_EPSILON
from vit_jax.models.positions import LEARNED_1D, NO_POSITIONS
from vit_jax.models.vit import AVERAGE_POOLING, CLASS_TOKEN_POOLING
from vit_jax.weights import metadata, tensor_file
from vit_jax.weights.architecture import (
    axis_length,
    check_heads,
    num_heads_of_width,
    registered_name,
)
from vit_jax.weights.content import (
    Hints,
    Stated,
    Weights,
    fold_class_position,
    make_weights,
    unused_remarks,
    without,
)
from vit_jax.weights.files import Files, json_text
from vit_jax.weights.mapping import Tensors, find_row, read_table, write_table
from vit_jax.weights.metadata import per_channel
from vit_jax.weights.resampling import BICUBIC
from vit_jax.weights.timm_config import (
    ACTIVATIONS,
    BIT_EPSILONS,
    INTERPOLATIONS,
    POOLINGS,
    STEM_EPSILONS,
    stated_by_config,
)
from vit_jax.weights.timm_table import BACKBONE, PACKED_ROWS, TABLE, has_stages, is_packed

logger = logging.getLogger(__name__)

HYBRID_REMARK = (
    "timm's hybrids use GroupNorm epsilon 1e-5 and standardisation epsilon 1e-8, this model others: "
    "logits differ by about 2e-4"
)
EPSILON_REMARK = "timm computes with LayerNorm epsilon {}, this model with {}: about 5e-5 in logits"
METADATA_KEY = "vit_jax"
PRE_NORM_EPSILON = 1e-5  # of models with a norm before their blocks
UNUSED = re.compile(  # by inference: of masked pre-training
    r"mask_token|mask_embed|decoder[._].*|norm_pix_loss|rope\.periods|.*rel_pos_index|"
    r".*relative_position_index|.*num_batches_tracked"
)

# Our names -> timm's, where it has the same model; others are built from their arguments.
ARCHITECTURES = {
    "ViT-Ti/16": "vit_tiny_patch16_224",
    "ViT-S/32": "vit_small_patch32_224",
    "ViT-S/16": "vit_small_patch16_224",
    "ViT-B/32": "vit_base_patch32_224",
    "ViT-B/16": "vit_base_patch16_224",
    "ViT-B/8": "vit_base_patch8_224",
    "ViT-L/32": "vit_large_patch32_224",
    "ViT-L/16": "vit_large_patch16_224",
    "ViT-H/14": "vit_huge_patch14_224",
    "ViT-g/14": "vit_giant_patch14_224",
    "ViT-G/14": "vit_gigantic_patch14_224",
    "R+ViT-Ti/16": "vit_tiny_r_s16_p8_224",
    "R26+ViT-S/32": "vit_small_r26_s32_224",
    "R26+ViT-B/32": "vit_base_r26_s32_224",
    "R50+ViT-B/16": "vit_base_r50_s16_224",
    "R50+ViT-L/32": "vit_large_r50_s32_224",
}
DISTILLED = "deit_base_distilled_patch16_224"


def read(path: str, hints: Hints, prefix: str = "") -> Weights:
    """The weights of a timm file, with what its metadata or the `config.json` beside it says."""
    tensors, entries = tensor_file.read_tensors(path, prefix)
    stated = read_stated(pathlib.Path(path), entries)
    tensors, unused = without(tensors, UNUSED)
    options, assumed = dict(stated.options), []
    if "patch_embed.proj.weight" in tensors:
        width = axis_length(tensors, "patch_embed.proj.weight", 0)
        check_names(tensors)
        check_is_stated(tensors, options)
        if "num_heads" not in options:
            hinted = hints.options.get("num_heads")
            options["num_heads"] = num_heads_of_width(width) if hinted is None else hinted
            if hinted is None:
                assumed.append(f"num_heads={options['num_heads']}")
        if (claim := options.get("width", width)) != width:  # Its heads would be another's.
            raise WeightsError(f"its metadata says width={claim}, but its tensors have {width}.")
        check_heads(options["num_heads"], width)
        options["norm_after_pooling"] = "fc_norm.weight" in tensors
    if "register_tokens" in tensors:  # DINOv2's own name of them.
        fold_class_position(tensors, "cls_token", "pos_embed")
        options["prefix_positions"] = False
    packed = is_packed_in(tensors)
    return make_weights(
        path,
        read_table(
            PACKED_ROWS + TABLE if packed else TABLE,
            with_key_biases(tensors),
            options.get("num_heads", 0),
        ),
        prefix_choices=prefix_choices(tensors, options),
        stated=dataclasses.replace(
            stated,
            options=options,
            assumed=tuple(assumed),
            remarks=(*stated.remarks, *unused_remarks(unused)),
        ),
        hints=hints,
        defaults=defaults_of(tensors, bool(stated.name)),
    )


def defaults_of(tensors: Tensors, is_own: bool) -> dict[str, Any]:
    """timm's own values, for what no metadata says; `is_own`: the metadata is this package's."""
    epsilon = PRE_NORM_EPSILON if "norm_pre.weight" in tensors else LAYER_NORM_EPSILON
    pooling = AVERAGE_POOLING if "fc_norm.weight" in tensors else CLASS_TOKEN_POOLING
    defaults = {"gelu": "erf", "positions": NO_POSITIONS, "pooling": pooling}
    silent = {"norm_epsilon": epsilon} if epsilon != LAYER_NORM_EPSILON else {}
    return defaults | silent if is_own else {**defaults, **silent, **epsilons_of(tensors)}


def epsilons_of(tensors: Tensors) -> Mapping[str, float]:
    """The epsilons of timm's ResNets, if there is one in the file."""
    if any(name.startswith(BACKBONE) for name in tensors):
        return STEM_EPSILONS
    return BIT_EPSILONS if "stem.conv.weight" in tensors else {}


def check_names(tensors: Tensors) -> None:
    """Raises WeightsError if the blocks are not a Vision Transformer's, before anything is asked."""
    blocks = [name for name in tensors if find_row(TABLE, name)]
    if not any(name.startswith("blocks.") for name in blocks):
        unknown = [name for name in tensors if name not in blocks]
        raise WeightsError(
            "it has a patch embedding, but no blocks of a Vision Transformer: a model of another "
            f"family; the first of its tensors that this package does not know: {unknown[:1]}."
        )


def is_packed_in(tensors: Tensors) -> bool:
    """Whether the MLP's first layer is twice as wide as its second takes."""
    first = axis_length(tensors, "blocks.0.mlp.fc1.weight", 0)
    return first > 0 and first == 2 * axis_length(tensors, "blocks.0.mlp.fc2.weight", 1)


def with_key_biases(tensors: Tensors) -> dict[str, np.ndarray]:
    """The tensors with EVA's biases of keys, which are 0 and not in its files."""
    added = {
        re.sub(r"\.q_", ".k_", name): np.zeros_like(array)
        for name, array in tensors.items()
        if re.fullmatch(r"blocks\.\d+\.attn\.(q_bias|q_proj\.bias)", name)
    }
    return {**added, **tensors}


def check_is_stated(tensors: Tensors, options: Mapping[str, Any]) -> None:
    """Raises WeightsError for EVA's tensors, which do not show rotary positions, without a config."""
    eva = re.compile(r"blocks\.0\.(gamma_1|attn\.q_bias|attn\.q_proj\..*|mlp\.fc1_g\..*)")
    name = next((name for name in tensors if eva.fullmatch(name)), None)
    if name and "num_heads" not in options:
        raise WeightsError(
            f"{name} is a tensor of timm's EVA, EVA-02 or DINOv3, whose positions only their "
            "config.json tells, and there is none: put it beside the file."
        )


def prefix_choices(tensors: Tensors, options: Mapping[str, Any]) -> tuple[int, ...]:
    """How many rows of `pos_embed` may come before the patches': all prefix tokens', or none."""
    tokens = ("cls_token", "dist_token", "reg_token")
    num_prefix = sum(axis_length(tensors, token, 1) for token in tokens)
    if "prefix_positions" in options:
        return (num_prefix if options["prefix_positions"] else 0,)
    return tuple({0, num_prefix})


def read_stated(path: pathlib.Path, entries: Mapping[str, str]) -> Stated:
    """The statements of the file's own metadata, else of the `config.json` beside it, if it is timm's."""
    if METADATA_KEY in entries:
        return Stated.by(metadata.read_entry(entries[METADATA_KEY], metadata.METADATA))
    file = path.with_name("config.json")
    if not metadata.is_used(file, "architecture"):
        return Stated(position_resize=BICUBIC)
    with metadata.translating(file):
        return stated_by_config(metadata.read_json(file))


def files(path: str, parameters: Tensors, options: Any, model_file: ModelFile) -> Files:
    """A `.safetensors` file, or a folder that `timm.create_model("local-dir:…")` reads.

    Raises WeightsError naming what timm cannot express.
    """
    tensors = write_table(PACKED_ROWS + TABLE, parameters, options)
    if isinstance(options, HybridOptions) and any(
        getattr(options, option) != value for option, value in STEM_EPSILONS.items()
    ):
        logger.warning("Note: %s.", HYBRID_REMARK)
    entries = {"format": "pt", METADATA_KEY: metadata.write_entry(model_file)}
    write, target = tensor_file.writer(tensors, entries), pathlib.Path(path)
    if target.suffix == ".safetensors":
        return {target: write}
    if remark := metadata.resize_remark(model_file.preprocessing, "timm's transforms"):
        logger.warning("Note: %s.", remark)
    config = json_text(timm_config(options, model_file))
    return {target / "model.safetensors": write, target / "config.json": config}


def timm_config(options: Any, model_file: ModelFile) -> dict[str, Any]:
    """timm's `config.json`. All arguments are in it, whatever the named architecture's own."""
    hybrid, name = isinstance(options, HybridOptions), registered_name(options)
    if options.distillation_token and (hybrid or options.num_registers):
        raise WeightsError(
            "timm has no hybrid with a distillation token, and no model with that and registers: its "
            "tensors alone can be written, to a name that ends in .safetensors."
        )
    if hybrid and name not in ARCHITECTURES:
        raise WeightsError(
            f"timm has no hybrid like {name or 'this one'}: its tensors alone can be written, to "
            "a name that ends in .safetensors."
        )
    num_classes, pooling = options.num_classes, invert(POOLINGS)[options.pooling]
    arguments = arguments_of(options)
    preprocessing = model_file.preprocessing
    return {
        "architecture": base_architecture(options, name),
        "num_classes": num_classes,
        "num_features": options.width,
        "global_pool": pooling,
        **({"label_names": model_file.class_names} if model_file.class_names else {}),
        "model_args": arguments,
        "pretrained_cfg": {
            "custom_load": False,
            "input_size": (options.channels, *options.image_size),
            "fixed_input_size": True,
            "interpolation": invert(INTERPOLATIONS)[preprocessing.interpolation],
            "crop_pct": crop_percentage(preprocessing, min(options.image_size)),
            "crop_mode": "squash" if preprocessing.crop == "resize" else "center",
            "mean": per_channel(preprocessing.mean, options.channels),
            "std": per_channel(preprocessing.std, options.channels),
            "num_classes": num_classes,
            "pool_size": None,
            "first_conv": first_conv(options),
            "classifier": ("head", "head_dist") if options.distillation_token else "head",
        },
    }


def arguments_of(options: Any) -> dict[str, Any]:
    """The arguments of timm's classes, for complete options of ours."""
    arguments = {
        "img_size": options.image_size,
        "in_chans": options.channels,
        "num_classes": options.num_classes,
        "embed_dim": options.width,
        "depth": options.depth,
        "num_heads": options.num_heads,
        "mlp_ratio": mlp_ratio(options),
        "act_layer": invert(ACTIVATIONS)[options.gelu],
        "class_token": options.has_class_token,
        "reg_tokens": options.num_registers,
        "pos_embed": "learn" if options.positions == LEARNED_1D else "none",
        "no_embed_class": not options.prefix_positions,
        "global_pool": invert(POOLINGS)[options.pooling],
        "fc_norm": options.norm_after_pooling,
        "init_values": options.layer_scale or None,
        "qk_norm": options.query_key_norm,
        "qkv_bias": options.qkv_bias,
        "pre_norm": options.pre_norm,
        "final_norm": options.final_norm,
    }
    if is_packed(options):  # Its activation is not an option there.
        del arguments["act_layer"]
    if not isinstance(options, HybridOptions):  # Their patch size belongs to the backbone.
        arguments["patch_size"] = options.patch_size
    return arguments


def base_architecture(options: Any, name: str | None) -> str:
    """timm's name with what is no argument: the stem, the LayerNorms' epsilon, the kind of MLP."""
    wide, packed = options.norm_epsilon == PRE_NORM_EPSILON, is_packed(options)
    if not wide and options.norm_epsilon != LAYER_NORM_EPSILON:
        logger.warning("Note: %s.", EPSILON_REMARK.format(LAYER_NORM_EPSILON, options.norm_epsilon))
    needed = {
        "vit_giant_patch14_dinov2": packed,
        "vit_base_patch16_clip_224": wide,
        DISTILLED: options.distillation_token,
        ARCHITECTURES.get(name or "", ""): isinstance(options, HybridOptions),
    }
    found = [architecture for architecture, is_needed in needed.items() if is_needed]
    if len(found) > 1:
        raise WeightsError(
            f"timm has no model that is like {' and '.join(found)} at once: its tensors alone can "
            "be written, to a name that ends in .safetensors."
        )
    return found[0] if found else ARCHITECTURES.get(name or "", "vit_base_patch16_224")


def first_conv(options: Any) -> str:
    """timm's name of the layer that sees the image."""
    if not isinstance(options, HybridOptions):
        return "patch_embed.proj"
    return f"{BACKBONE}.stem.conv" if has_stages(options) else f"{BACKBONE}.conv"


def mlp_ratio(options: Any) -> float:
    """The ratio from which timm's int(width · ratio) gives the MLP's width back."""
    hidden_width = options.mlp_width * (2 if is_packed(options) else 1)
    ratio = hidden_width / options.width
    exact = int(options.width * ratio) == hidden_width
    return ratio if exact else math.nextafter(ratio, math.inf)


def crop_percentage(preprocessing: Preprocessing, side: int) -> float:
    """The shortest number from which timm's floor(side / number) gives `resize` back."""
    if preprocessing.crop == "resize":
        return 1.0
    for digits in range(1, 10):
        share = round(side / (preprocessing.resize + 0.5), digits)
        if share and math.floor(side / share) == preprocessing.resize:
            break
    return share


def invert(words: Mapping[str, str]) -> dict[str, str]:
    """Ours -> timm's."""
    return {ours: theirs for theirs, ours in words.items()}
