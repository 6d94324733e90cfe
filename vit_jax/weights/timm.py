"""timm's `.safetensors` files: Vision Transformers and hybrids.

What the tensors cannot say stands in the file's metadata if this package wrote it, else in the
`config.json` that timm's hub puts beside the file.
"""

import dataclasses
import logging
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import WeightsError
from vit_jax.model_file import AREA, ModelFile, Preprocessing
from vit_jax.models.base import as_pair
from vit_jax.models.hybrid import HybridOptions
from vit_jax.models.positions import LEARNED_1D, NO_POSITIONS
from vit_jax.models.vit import ATTENTION_POOLING, AVERAGE_POOLING, CLASS_TOKEN_POOLING
from vit_jax.weights import metadata, tensor_file
from vit_jax.weights.architecture import (
    axis_length,
    check_heads,
    num_heads_of_width,
    registered_name,
)
from vit_jax.weights.content import Hints, Stated, Weights, make_weights
from vit_jax.weights.files import Files, json_text
from vit_jax.weights.mapping import (
    CONVOLUTION,
    DENSE,
    HEADS,
    HEADS_OUT,
    Row,
    Tensors,
    fused_heads,
    read_table,
    table,
    write_table,
)
from vit_jax.weights.metadata import per_channel

logger = logging.getLogger(__name__)

HYBRID_REMARK = (
    "timm's hybrids use GroupNorm epsilon 1e-5 and standardisation epsilon 1e-8, this package 1e-6 "
    "and 1e-5: logits differ by about 2e-4"
)
METADATA_KEY = "vit_jax"
DEFAULTS = {"gelu": "erf", "positions": NO_POSITIONS}
POOLINGS = {"token": CLASS_TOKEN_POOLING, "avg": AVERAGE_POOLING, "map": ATTENTION_POOLING}
SIZES = {"num_classes": "num_classes", "num_heads": "num_heads"}  # timm's name -> ours
DEFAULT_INPUT_SIZE = (3, 224, 224)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
INTERPOLATIONS = {"bilinear": "bilinear", "bicubic": "bicubic", "box": AREA}
ACTIVATIONS = {"gelu": "erf", "gelu_tanh": "tanh"}

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
BACKBONE = "patch_embed.backbone"
UNIT = BACKBONE + ".stages.{stage-1}.blocks.{unit-1}"
OUR_UNIT = "stem/stage{stage}/unit{unit:02}"


def has_stages(options: Any) -> bool:
    """Whether a hybrid's stem has more than its root."""
    return isinstance(options, HybridOptions) and len(options.stem_depths) > 0


def qkv(path: str, *names: str) -> tuple[str, ...]:
    """Our names of the projections that timm keeps in one tensor."""
    return tuple(f"{path}/{name}/{{kernel,bias}}" for name in names)


TABLE = table(
    Row("patch_embed.proj.{weight,bias}", "embedding/{kernel,bias}", CONVOLUTION),
    Row("cls_token", "class_token"),
    Row("dist_token", "distillation_token"),
    Row("reg_token", "registers"),
    Row("pos_embed", "position_embedding"),
    Row("blocks.{layer}.norm{1,2}.{weight,bias}", "blocks/norm{1,2}/{scale,bias}"),
    Row(
        "blocks.{layer}.attn.qkv.{weight,bias}",
        qkv("blocks/attention", "query", "key", "value"),
        fused_heads(3),
    ),
    Row(
        "blocks.{layer}.attn.{q,k}_norm.{weight,bias}",
        "blocks/attention/{query,key}_norm/{scale,bias}",
    ),
    Row("blocks.{layer}.attn.proj.{weight,bias}", "blocks/attention/out/{kernel,bias}", HEADS_OUT),
    Row("blocks.{layer}.ls{1,2}.gamma", "blocks/layer_scale{1,2}"),
    Row("blocks.{layer}.mlp.fc{1,2}.{weight,bias}", "blocks/mlp/dense{1,2}/{kernel,bias}", DENSE),
    Row("fc_norm.{weight,bias}", "norm/{scale,bias}", when=lambda o: o.norm_after_pooling),
    Row("norm.{weight,bias}", "norm/{scale,bias}"),
    Row("attn_pool.latent", "attention_pooling/probe"),
    Row("attn_pool.q.{weight,bias}", "attention_pooling/attention/query/{kernel,bias}", HEADS),
    Row(
        "attn_pool.kv.{weight,bias}",
        qkv("attention_pooling/attention", "key", "value"),
        fused_heads(2),
    ),
    Row("attn_pool.proj.{weight,bias}", "attention_pooling/attention/out/{kernel,bias}", HEADS_OUT),
    Row("attn_pool.norm.{weight,bias}", "attention_pooling/norm/{scale,bias}"),
    Row(
        "attn_pool.mlp.fc{1,2}.{weight,bias}",
        "attention_pooling/mlp/dense{1,2}/{kernel,bias}",
        DENSE,
    ),
    Row("head.{weight,bias}", "head/{kernel,bias}", DENSE),
    Row("head_dist.{weight,bias}", "distillation_head/{kernel,bias}", DENSE),
    # Hybrids; a stem without stages is not nested.
    Row(BACKBONE + ".stem.conv.weight", "stem/conv_root/kernel", CONVOLUTION, has_stages),
    Row(BACKBONE + ".stem.norm.{weight,bias}", "stem/norm_root/{scale,bias}", when=has_stages),
    Row(BACKBONE + ".conv.weight", "stem/conv_root/kernel", CONVOLUTION),
    Row(BACKBONE + ".norm.{weight,bias}", "stem/norm_root/{scale,bias}"),
    Row(UNIT + ".conv{1,2,3}.weight", OUR_UNIT + "/conv{1,2,3}/kernel", CONVOLUTION),
    Row(UNIT + ".norm{1,2,3}.{weight,bias}", OUR_UNIT + "/norm{1,2,3}/{scale,bias}"),
    Row(UNIT + ".downsample.conv.weight", OUR_UNIT + "/projection/kernel", CONVOLUTION),
    Row(UNIT + ".downsample.norm.{weight,bias}", OUR_UNIT + "/norm_projection/{scale,bias}"),
)


def read(path: str, hints: Hints) -> Weights:
    """The weights of a timm file, with what its metadata or the `config.json` beside it says."""
    tensors, entries = tensor_file.read_tensors(path)
    stated = read_stated(pathlib.Path(path), entries)
    norm_after_pooling = "fc_norm.weight" in tensors
    options = {**stated.options, "norm_after_pooling": norm_after_pooling}
    pooling = AVERAGE_POOLING if norm_after_pooling else CLASS_TOKEN_POOLING
    assumed: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    width = axis_length(tensors, "patch_embed.proj.weight", 0)
    if "num_heads" not in options:
        hinted = hints.options.get("num_heads")
        options["num_heads"] = num_heads_of_width(width) if hinted is None else hinted
        if "num_heads" not in hints.options:
            assumed = (f"num_heads={options['num_heads']}",)
    check_heads(options["num_heads"], width)
    if any(name.startswith(BACKBONE) for name in tensors):
        remarks = (HYBRID_REMARK,)
    reading = read_table(TABLE, tensors, options["num_heads"])
    return make_weights(
        path,
        reading,
        prefix_choices=prefix_choices(tensors, options),
        stated=dataclasses.replace(stated, options=options, assumed=assumed, remarks=remarks),
        hints=hints,
        defaults={**DEFAULTS, "pooling": pooling},
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
        return Stated()
    with metadata.translating(file):
        return stated_by_config(metadata.read_json(file))


def stated_by_config(config: Mapping[str, Any]) -> Stated:
    """The statements of timm's `config.json`; raises WeightsError for what this package cannot compute."""
    given = {**config.get("pretrained_cfg", {}), **config, **config.get("model_args", {})}
    options: dict[str, Any] = {}
    if given.get("global_pool"):
        options["pooling"] = translate("global_pool", given["global_pool"], POOLINGS)
    if given.get("act_layer"):
        options["gelu"] = translate("act_layer", given["act_layer"], ACTIVATIONS)
    for theirs, ours in SIZES.items():
        if theirs in given:
            options[ours] = given[theirs]
    if "no_embed_class" in given:
        options["prefix_positions"] = not given["no_embed_class"]
    size = given.get("img_size") or given.get("input_size", DEFAULT_INPUT_SIZE)[1:]
    options["image_size"] = as_pair("image_size", size)
    names = metadata.ordered_names(given.get("label_names") or ())
    return Stated(options, preprocessing_of(given, min(options["image_size"])), names)


def translate(key: str, value: str, table: Mapping[str, str]) -> str:
    """Our word for timm's; raises WeightsError if there is none."""
    if value not in table:
        raise WeightsError(
            f"config.json has {key}={value!r}; this package knows {', '.join(table)}."
        )
    return table[value]


def preprocessing_of(given: Mapping[str, Any], side: int) -> Preprocessing:
    """timm's preprocessing for images of which the smaller side has `side` pixels."""
    squash = given.get("crop_mode") == "squash"
    return Preprocessing(
        mean=tuple(given.get("mean", IMAGENET_MEAN)),
        std=tuple(given.get("std", IMAGENET_STD)),
        crop="resize" if squash else "center",
        resize=math.floor(side / given.get("crop_pct", 0.875)),
        interpolation=INTERPOLATIONS.get(given.get("interpolation", ""), "bicubic"),
    )


def files(path: str, parameters: Tensors, options: Any, model_file: ModelFile) -> Files:
    """A `.safetensors` file, or a folder that `timm.create_model("local-dir:…")` reads.

    Raises WeightsError naming what timm cannot express.
    """
    tensors = write_table(TABLE, parameters, options)
    if isinstance(options, HybridOptions):
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
    arguments = {
        "img_size": options.image_size,
        "in_chans": options.channels,
        "num_classes": num_classes,
        "embed_dim": options.width,
        "depth": options.depth,
        "num_heads": options.num_heads,
        "mlp_ratio": mlp_ratio(options),
        "act_layer": invert(ACTIVATIONS)[options.gelu],
        "class_token": options.has_class_token,
        "reg_tokens": options.num_registers,
        "pos_embed": "learn" if options.positions == LEARNED_1D else "none",
        "no_embed_class": not options.prefix_positions,
        "global_pool": pooling,
        "fc_norm": options.norm_after_pooling,
        "init_values": options.layer_scale or None,
        "qk_norm": options.query_key_norm,
    }
    if not hybrid:  # Their patch size belongs to the backbone.
        arguments["patch_size"] = options.patch_size
    preprocessing = model_file.preprocessing
    return {
        "architecture": architecture_of(options, name),
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


def architecture_of(options: Any, name: str) -> str:
    """timm's name of an architecture like it; its arguments are written too."""
    return (
        DISTILLED if options.distillation_token else ARCHITECTURES.get(name, "vit_base_patch16_224")
    )


def first_conv(options: Any) -> str:
    """timm's name of the layer that sees the image."""
    if not isinstance(options, HybridOptions):
        return "patch_embed.proj"
    return f"{BACKBONE}.stem.conv" if has_stages(options) else f"{BACKBONE}.conv"


def mlp_ratio(options: Any) -> float:
    """The ratio from which timm's int(width · ratio) gives the MLP's width back."""
    ratio = options.mlp_width / options.width
    exact = int(options.width * ratio) == options.mlp_width
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
