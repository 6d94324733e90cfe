"""timm's `.safetensors` files, in and out.

What the tensors cannot say stands in the file's metadata if this package wrote it, else in the
`config.json` that timm's hub puts beside the file.
"""

import dataclasses
import functools
import logging
import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.errors import WeightsError
from vit_jax.model_file import TORCHVISION, ModelFile, Preprocessing
from vit_jax.models import registry
from vit_jax.models.norms import LAYER_NORM_EPSILON
from vit_jax.models.positions import NO_POSITIONS, ROTARY
from vit_jax.models.vit import AVERAGE_POOLING, CLASS_TOKEN_POOLING
from vit_jax.weights import metadata, tensor_file, timm_eva
from vit_jax.weights.architecture import (
    axis_length,
    check_heads,
    num_heads_of_width,
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
from vit_jax.weights.layouts import Layout
from vit_jax.weights.mapping import Tensors, find_row, read_table, write_table
from vit_jax.weights.metadata import per_channel
from vit_jax.weights.resampling import BICUBIC
from vit_jax.weights.timm_arguments import WIDE_EPSILON, invert
from vit_jax.weights.timm_classes import CLASSES, Class
from vit_jax.weights.timm_config import (
    BIT_EPSILONS,
    INTERPOLATIONS,
    POOLINGS,
    STEM_EPSILONS,
    stated_by_config,
)
from vit_jax.weights.timm_table import BACKBONE, DENSE_ROWS, PACKED_ROWS, READ

logger = logging.getLogger(__name__)

UNUSED = re.compile(  # by inference: of masked pre-training
    r"mask_token|mask_embed|decoder[._].*|norm_pix_loss|rope\.periods|.*rel_pos_index|"
    r".*relative_position_index|.*num_batches_tracked|lm_head\..*|cls_pt_layers\..*"
)


def read(path: str, hints: Hints, prefix: str = "") -> Weights:
    """The weights of a timm file, with what its metadata or the `config.json` beside it says."""
    tensors, entries = tensor_file.read_tensors(path, prefix)
    has_key_bias = "blocks.0.attn.qkv.bias" in tensors or "blocks.0.attn.k_proj.bias" in tensors
    stated = read_stated(pathlib.Path(path), entries, has_key_bias)
    tensors, unused = without(tensors, UNUSED)
    options, assumed = dict(stated.options), []
    if "patch_embed.proj.weight" in tensors:
        width = axis_length(tensors, "patch_embed.proj.weight", 0)
        check_names(tensors)
        if heads := axis_length(tensors, bias_name(tensors), 1):
            options.setdefault("num_heads", heads)
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
    return make_weights(
        path,
        read_table(
            (*(PACKED_ROWS if is_packed(tensors) else DENSE_ROWS), *READ),
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
    epsilon = WIDE_EPSILON if "norm_pre.weight" in tensors else LAYER_NORM_EPSILON
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
    blocks = [name for name in tensors if find_row(READ, name)]
    if not any(name.startswith("blocks.") for name in blocks):
        unknown = [name for name in tensors if name not in blocks]
        raise WeightsError(
            "it has a patch embedding, but no blocks of a Vision Transformer: a model of another "
            f"family; the first of its tensors that this package does not know: {unknown[:1]}."
        )


def is_packed(tensors: Tensors) -> bool:
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


def bias_name(tensors: Tensors) -> str:
    """The name of the first relative position bias, which shows the heads; "" without one."""
    return next((name for name in tensors if name.endswith("relative_position_bias_table")), "")


def check_is_stated(tensors: Tensors, options: Mapping[str, Any]) -> None:
    """Raises WeightsError for EVA's tensors, which do not show rotary positions, without a config."""
    eva = re.compile(r"blocks\.0\.(gamma_1|attn\.q_bias|attn\.q_proj\..*|mlp\.fc1_g\..*)")
    name = next((name for name in tensors if eva.fullmatch(name)), None)
    if name and "num_heads" not in options:
        raise WeightsError(
            f"{name} is a tensor of timm's EVA, EVA-02, DINOv3 or BEiT, whose positions only their "
            "config.json tells, and there is none: put it beside the file."
        )


def prefix_choices(tensors: Tensors, options: Mapping[str, Any]) -> tuple[int, ...]:
    """How many rows of `pos_embed` may come before the patches': all prefix tokens', or none."""
    tokens = ("cls_token", "dist_token", "reg_token")
    num_prefix = sum(axis_length(tensors, token, 1) for token in tokens)
    if "prefix_positions" in options:
        return (num_prefix if options["prefix_positions"] else 0,)
    return tuple({0, num_prefix})


def read_stated(path: pathlib.Path, entries: Mapping[str, str], has_key_bias: bool) -> Stated:
    """The statements of the file's own metadata, else of the `config.json` beside it, if it is timm's."""
    if own := metadata.read_entries(entries):
        order = None
        if own.options.get("positions") in ROTARY:
            complete = registry.model_options(own.name, **own.options)
            order = timm_eva.head_order(has_key_bias, complete)
        return dataclasses.replace(Stated.by(own), head_order=order)
    file = path.with_name("config.json")
    if not metadata.is_used(file, "architecture"):
        return Stated(position_resize=BICUBIC)
    with metadata.translating(file):
        return stated_by_config(metadata.read_json(file))


def files(
    path: str,
    parameters: Tensors,
    options: Any,
    model_file: ModelFile,
    *,
    kind: Class,
) -> Files:
    """A `.safetensors` file, or a folder that `timm.create_model("local-dir:…")` reads.

    Raises WeightsError if timm has no such model.
    """
    parameters = kind.prepare(parameters, options)
    tensors = write_table(kind.rows(parameters, options), parameters, options)
    write = tensor_file.writer(tensors, metadata.entries_of(model_file))
    target = pathlib.Path(path)
    if target.suffix == tensor_file.SUFFIX:
        return {target: write}
    if remark := metadata.resize_remark(model_file.preprocessing, "timm's transforms", TORCHVISION):
        logger.warning("Note: %s.", remark)
    config = {
        **common_config(options, model_file, kind),
        **kind.config(parameters, options),
    }
    return {target / "model.safetensors": write, target / "config.json": json_text(config)}


def common_config(options: Any, model_file: ModelFile, kind: Class) -> dict[str, Any]:
    """The keys of timm's `config.json` that its models have in common."""
    preprocessing, num_classes = model_file.preprocessing, options.num_classes
    pooling = getattr(options, "pooling", AVERAGE_POOLING)
    return {
        "num_classes": num_classes,
        **({"num_features": options.width} if hasattr(options, "width") else {}),
        "global_pool": invert(POOLINGS)[pooling],
        **({"label_names": model_file.class_names} if model_file.class_names else {}),
        "pretrained_cfg": {
            "custom_load": False,
            "input_size": (options.channels, *options.image_size),
            "fixed_input_size": kind.fixed_input_size,
            "interpolation": invert(INTERPOLATIONS)[preprocessing.interpolation],
            "crop_pct": crop_percentage(preprocessing, min(options.image_size)),
            "crop_mode": "squash" if preprocessing.crop == "resize" else "center",
            "mean": per_channel(preprocessing.mean, options.channels),
            "std": per_channel(preprocessing.std, options.channels),
            "num_classes": num_classes,
            "pool_size": None,
            "first_conv": kind.first_conv(options),
            "classifier": kind.classifier(options),
        },
    }


def crop_percentage(preprocessing: Preprocessing, side: int) -> float:
    """The shortest number from which timm's floor(side / number) gives `resize` back."""
    if preprocessing.crop == "resize":
        return 1.0
    for digits in range(1, 10):
        share = round(side / (preprocessing.resize + 0.5), digits)
        if share and math.floor(side / share) == preprocessing.resize:
            break
    return share


LAYOUTS = tuple(
    Layout(
        files=functools.partial(files, kind=kind),
        name=kind.name,
        models=kind.models,
        values=kind.values,
    )
    for kind in CLASSES
)
