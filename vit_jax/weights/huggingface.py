"""Hugging Face folders of a `ViTForImageClassification` (or `ViTModel`), in and out."""

import dataclasses
import logging
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.errors import WeightsError
from vit_jax.model_file import DEFAULT_LOSS, ModelFile
from vit_jax.models.base import ModelOptions, as_pair
from vit_jax.weights import metadata, preprocessor, tensor_file
from vit_jax.weights.architecture import POSITION_EMBEDDING as TABLE_NAME
from vit_jax.weights.architecture import axis_length, check_heads
from vit_jax.weights.content import (
    Hints,
    Stated,
    Weights,
    fold_class_position,
    make_weights,
    unused_remarks,
    without,
)
from vit_jax.weights.files import Files, json_text, text
from vit_jax.weights.huggingface_config import SIZES, options_of
from vit_jax.weights.mapping import (
    CONVOLUTION,
    DENSE,
    HEADS,
    HEADS_OUT,
    ONE_LONG,
    Row,
    Tensors,
    fused_dense,
    fused_heads,
    read_table,
    renamed,
    table,
    write_table,
)
from vit_jax.weights.resampling import BICUBIC_TORCH

logger = logging.getLogger(__name__)

DEFAULT_SIZE = (224, 224)
WRITTEN_ACTIVATIONS = {"erf": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}
SEVERAL_LABELS = "multi_label_classification"
LOSSES = {SEVERAL_LABELS: "sigmoid", "regression": "l2"}  # config.json's problem_type -> ours
PROBLEMS = {
    "sigmoid": SEVERAL_LABELS,
    "binary": SEVERAL_LABELS,
    "l2": "regression",
    "huber": "regression",
}
LAYER = "encoder.layer.{layer}"
CLIP_LAYER = "encoder.layers.{layer}"
PATCH_KERNELS = (
    "embeddings.patch_embeddings.projection.weight",
    "embeddings.patch_embedding.weight",
    "embeddings.patch_embeddings.weight",
)
# Of modules around a trunk, which a bare trunk's names leave out.
PREFIXES = ("vit.", "deit.", "ijepa.", "dinov2.", "dinov2_with_registers.", "vision_model.")
UNUSED = re.compile(  # by the vision tower's inference
    r"embeddings\.mask_token|decoder\..*|text_model\..*|text_projection\..*|logit_scale|logit_bias"
    r"|.*position_ids"
)

MODEL_CARD = """---
library_name: transformers
pipeline_tag: image-classification
tags:
- vision
- vit
---

# Vision Transformer

{depth} blocks of width {width} with {num_heads} heads and an MLP of {mlp_width}, for {num_classes}
classes of {size} images in patches of {patch}; trained with vit_jax.

```python
from transformers import pipeline
pipeline("image-classification", model="FOLDER")("image.jpg")
```
"""


def never(options: Any) -> bool:
    """For rows that are only read."""
    return False


TABLE = table(
    Row("embeddings.cls_token", "class_token"),
    Row("embeddings.position_embeddings", "position_embedding"),
    Row(
        "embeddings.patch_embeddings.projection.{weight,bias}",
        "embedding/{kernel,bias}",
        CONVOLUTION,
    ),
    Row(LAYER + ".layernorm_{before,after}.{weight,bias}", "blocks/norm{1,2}/{scale,bias}"),
    Row(
        LAYER + ".attention.attention.{query,key,value}.{weight,bias}",
        "blocks/attention/{query,key,value}/{kernel,bias}",
        HEADS,
    ),
    Row(
        LAYER + ".attention.output.dense.{weight,bias}",
        "blocks/attention/out/{kernel,bias}",
        HEADS_OUT,
    ),
    Row(
        LAYER + ".{intermediate,output}.dense.{weight,bias}",
        "blocks/mlp/dense{1,2}/{kernel,bias}",
        DENSE,
    ),
    Row("layernorm.{weight,bias}", "norm/{scale,bias}"),
    Row("pooler.dense.{weight,bias}", "pre_logits/{kernel,bias}", DENSE),
    Row("classifier.{weight,bias}", "head/{kernel,bias}", DENSE),
    # DeiT's token of its teacher and DINOv2's registers are tokens without a use of their own.
    Row("embeddings.{distillation_token,register_tokens}", "{registers,registers}", when=never),
    # DINOv2
    Row(LAYER + ".norm{1,2}.{weight,bias}", "blocks/norm{1,2}/{scale,bias}", when=never),
    Row(LAYER + ".layer_scale{1,2}.lambda1", "blocks/layer_scale{1,2}", when=never),
    Row(
        LAYER + ".mlp.fc{1,2}.{weight,bias}",
        "blocks/mlp/dense{1,2}/{kernel,bias}",
        DENSE,
        never,
    ),
    Row(
        LAYER + ".mlp.weights_in.{weight,bias}",
        ("blocks/mlp/gate/{kernel,bias}", "blocks/mlp/dense1/{kernel,bias}"),
        fused_dense(2),
        never,
    ),
    Row(LAYER + ".mlp.weights_out.{weight,bias}", "blocks/mlp/dense2/{kernel,bias}", DENSE, never),
    # DINOv3
    Row("embeddings.patch_embeddings.{weight,bias}", "embedding/{kernel,bias}", CONVOLUTION, never),
    Row("layer.{layer}.norm{1,2}.{weight,bias}", "blocks/norm{1,2}/{scale,bias}", when=never),
    Row("layer.{layer}.layer_scale{1,2}.lambda1", "blocks/layer_scale{1,2}", when=never),
    Row(
        "layer.{layer}.attention.{q,k,v}_proj.{weight,bias}",
        "blocks/attention/{query,key,value}/{kernel,bias}",
        HEADS,
        never,
    ),
    Row(
        "layer.{layer}.attention.o_proj.{weight,bias}",
        "blocks/attention/out/{kernel,bias}",
        HEADS_OUT,
        never,
    ),
    Row(
        "layer.{layer}.mlp.{gate,up,down}_proj.{weight,bias}",
        "blocks/mlp/{gate,dense1,dense2}/{kernel,bias}",
        DENSE,
        never,
    ),
    Row("norm.{weight,bias}", "norm/{scale,bias}", when=never),
    # CLIP and SigLIP
    Row("embeddings.class_embedding", "class_token", ONE_LONG, never),
    Row("embeddings.position_embedding.weight", TABLE_NAME, ONE_LONG, never),
    Row(
        "embeddings.patch_embedding.{weight,bias}",
        "embedding/{kernel,bias}",
        CONVOLUTION,
        never,
    ),
    Row("pre_layrnorm.{weight,bias}", "pre_norm/{scale,bias}", when=never),
    Row("post_layernorm.{weight,bias}", "norm/{scale,bias}", when=never),
    Row(CLIP_LAYER + ".layer_norm{1,2}.{weight,bias}", "blocks/norm{1,2}/{scale,bias}", when=never),
    Row(
        CLIP_LAYER + ".self_attn.{q,k,v}_proj.{weight,bias}",
        "blocks/attention/{query,key,value}/{kernel,bias}",
        HEADS,
        never,
    ),
    Row(
        CLIP_LAYER + ".self_attn.out_proj.{weight,bias}",
        "blocks/attention/out/{kernel,bias}",
        HEADS_OUT,
        never,
    ),
    Row(
        CLIP_LAYER + ".mlp.fc{1,2}.{weight,bias}",
        "blocks/mlp/dense{1,2}/{kernel,bias}",
        DENSE,
        never,
    ),
    Row("visual_projection.{weight,bias}", "head/{kernel,bias}", DENSE, never),
    Row("head.probe", "attention_pooling/probe", when=never),
    Row(
        "head.attention.in_proj_{weight,bias}",
        tuple(
            f"attention_pooling/attention/{name}/{{kernel,bias}}"
            for name in ("query", "key", "value")
        ),
        fused_heads(3),
        never,
    ),
    Row(
        "head.attention.out_proj.{weight,bias}",
        "attention_pooling/attention/out/{kernel,bias}",
        HEADS_OUT,
        never,
    ),
    Row(
        "head.layernorm.{weight,bias}",
        "attention_pooling/norm/{scale,bias}",
        when=never,
    ),
    Row(
        "head.mlp.fc{1,2}.{weight,bias}",
        "attention_pooling/mlp/dense{1,2}/{kernel,bias}",
        DENSE,
        never,
    ),
)


def read(path: str, hints: Hints, prefix: str = "") -> Weights:
    """The weights of a folder's `model.safetensors`, with the `config.json` beside it."""
    tensors, _ = tensor_file.read_tensors(path, prefix)
    classifies = "classifier.weight" in tensors
    stated = read_stated(pathlib.Path(path).parent, classifies)
    prefixed = next((p for p in PREFIXES if any(name.startswith(p) for name in tensors)), "")
    tensors = renamed((name, trunk_name(name), array) for name, array in tensors.items())
    tensors, unused = without(tensors, UNUSED)
    if classifies:  # It takes the trunk's tokens: what else pools them is of no use.
        others = re.compile(r"pooler\..*|(head|post_layernorm)\..*")
        if "head.probe" in tensors:  # SigLIP's classifier is behind the norm.
            others = re.compile(r"head\..*")
        tensors, pooler = without(tensors, others)
        unused += pooler
    else:  # A bare trunk may keep the names of the classes that it was trained on.
        stated = dataclasses.replace(stated, class_names=())
    if "visual_projection.weight" in tensors:
        tensors["visual_projection.bias"] = np.zeros(len(tensors["visual_projection.weight"]), "f4")
    check_classifier(tensors)
    tensors = with_key_biases(tensors)
    if {"embeddings.register_tokens", "embeddings.position_embeddings"} <= tensors.keys():
        fold_class_position(tensors, "embeddings.cls_token", "embeddings.position_embeddings")
    num_heads = stated.options["num_heads"]
    kernel = next((name for name in PATCH_KERNELS if name in tensors), "")
    check_heads(num_heads, axis_length(tensors, kernel, 0))
    remarks = (*stated.remarks, *unused_remarks(unused))
    reading = read_table(TABLE, tensors, num_heads)
    return make_weights(
        path,
        dataclasses.replace(
            reading, file_names={k: full_name(v, prefixed) for k, v in reading.file_names.items()}
        ),
        prefix_choices=prefix_choices(tensors, stated.options),
        stated=dataclasses.replace(stated, remarks=remarks),
        hints=hints,
        defaults={},  # config.json says all.
    )


def prefix_choices(tensors: Tensors, options: Mapping[str, Any]) -> tuple[int, ...]:
    """How many rows of positions come before the patches'."""
    if not options.get("prefix_positions", True):
        return (0,)
    tokens = ("embeddings.cls_token", "embeddings.class_embedding")
    count = sum(name in tensors for name in (*tokens, "embeddings.distillation_token"))
    return (count,)


def with_key_biases(tensors: Tensors) -> dict[str, np.ndarray]:
    """The tensors with DINOv3's biases of keys, which are 0 and not in its files."""
    added = {
        name.replace("q_proj", "k_proj"): np.zeros_like(array)
        for name, array in tensors.items()
        if re.fullmatch(r"layer\.\d+\.attention\.q_proj\.bias", name)
    }
    return {**added, **tensors}


def check_classifier(tensors: Tensors) -> None:
    """Raises WeightsError for DINOv2's classifier, which is on two kinds of pooling at once."""
    width = axis_length(tensors, "embeddings.patch_embeddings.projection.weight", 0)
    if width and axis_length(tensors, "classifier.weight", 1) == 2 * width:
        raise WeightsError(
            "its classifier takes the class token and the average of the patches together "
            "(Dinov2ForImageClassification), which this package does not compute: without the "
            "tensors classifier.* it is loaded as a trunk."
        )


def full_name(name: str, prefix: str) -> str:
    """The inverse of `trunk_name`."""
    return name if name.startswith(("classifier.", "visual_projection.")) else prefix + name


def trunk_name(name: str) -> str:
    """A tensor's name as a bare trunk has it."""
    return next((name.removeprefix(p) for p in PREFIXES if name.startswith(p)), name)


def read_stated(folder: pathlib.Path, classifies: bool) -> Stated:
    """The statements of `config.json` and, if it is there, `preprocessor_config.json`."""
    file = folder / "config.json"
    config = metadata.read_json(file)
    with metadata.translating(file):
        stated = stated_by_config(config, classifies)
    file = folder / "preprocessor_config.json"
    if not file.exists():
        return stated
    config = metadata.read_json(file)
    with metadata.translating(file):
        size = as_pair("image_size", stated.options.get("image_size", DEFAULT_SIZE))
        preprocessing, remarks = preprocessor.read(config, size)
    return dataclasses.replace(
        stated, preprocessing=preprocessing, remarks=(*stated.remarks, *remarks)
    )


def stated_by_config(config: Mapping[str, Any], classifies: bool) -> Stated:
    """The statements of `config.json`; raises ConfigError for a model that this package has not."""
    options = options_of(config, classifies)
    names = metadata.ordered_names(config.get("id2label") or ())
    if all(name == f"LABEL_{index}" for index, name in enumerate(names)):  # the library's default
        names = ()
    loss = LOSSES.get(config.get("problem_type"), DEFAULT_LOSS)
    return Stated(options, class_names=names, loss=loss, position_resize=BICUBIC_TORCH)


def files(path: str, parameters: Tensors, options: ModelOptions, model_file: ModelFile) -> Files:
    """A folder that `ViTForImageClassification.from_pretrained` reads.

    Raises WeightsError naming what that model cannot express.
    """
    folder, preprocessing = pathlib.Path(path), model_file.preprocessing
    if remark := metadata.resize_remark(preprocessing, "Hugging Face's image processors"):
        logger.warning("Note: %s.", remark)
    tensors = {
        full_name(name, "vit."): array
        for name, array in write_table(TABLE, parameters, options).items()
    }
    return {
        folder / "model.safetensors": tensor_file.writer(tensors, {"format": "pt"}),
        folder / "config.json": json_text(config_of(options, model_file)),
        folder / "preprocessor_config.json": json_text(preprocessor.write(options, preprocessing)),
        folder / "README.md": text(model_card(options)),
    }


def config_of(options: ModelOptions, model_file: ModelFile) -> dict[str, Any]:
    """`config.json`."""
    names = model_file.class_names or [f"LABEL_{index}" for index in range(options.num_classes)]
    return {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        **{key: one_or_pair(getattr(options, ours)) for key, ours in SIZES.items()},
        "hidden_act": WRITTEN_ACTIVATIONS[options.gelu],
        "layer_norm_eps": options.norm_epsilon,
        "qkv_bias": options.qkv_bias,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        **({"problem_type": PROBLEMS[model_file.loss]} if model_file.loss in PROBLEMS else {}),
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }


def one_or_pair(size: Any) -> Any:
    """A pair of equal numbers as one."""
    return size[0] if isinstance(size, tuple) and size[0] == size[1] else size


def model_card(options: ModelOptions) -> str:
    """`README.md`: what the model is, and how to use it."""
    return MODEL_CARD.format(
        **{key: getattr(options, key) for key in ("depth", "width", "num_heads", "mlp_width")},
        num_classes=options.num_classes,
        size="×".join(map(str, options.image_size)),
        patch="×".join(map(str, options.patch_size)),
    )
