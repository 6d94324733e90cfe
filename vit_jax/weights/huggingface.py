"""Hugging Face folders of a `ViTForImageClassification` (or `ViTModel`), in and out."""

import dataclasses
import logging
import pathlib
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import ConfigError
from vit_jax.model_file import DEFAULT_LOSS, ModelFile, as_tuple
from vit_jax.models.base import ModelOptions, as_pair
from vit_jax.models.layers import LAYER_NORM_EPSILON
from vit_jax.models.vit import CLASS_TOKEN_POOLING
from vit_jax.weights import metadata, preprocessor, tensor_file
from vit_jax.weights.architecture import axis_length, check_heads
from vit_jax.weights.content import Hints, Stated, Weights, make_weights
from vit_jax.weights.files import Files, json_text, text
from vit_jax.weights.mapping import (
    CONVOLUTION,
    DENSE,
    HEADS,
    HEADS_OUT,
    Row,
    Tensors,
    read_table,
    renamed,
    table,
    write_table,
)

logger = logging.getLogger(__name__)

ACTIVATIONS = {
    "gelu": "erf",
    "gelu_pytorch_tanh": "tanh",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
}
DEFAULT_HEADS, DEFAULT_EPSILON = 12, 1e-12  # the library's, for a config.json without them
DEFAULT_SIZE = (224, 224)
SEVERAL_LABELS = "multi_label_classification"
LOSSES = {SEVERAL_LABELS: "sigmoid", "regression": "l2"}  # config.json's problem_type -> ours
PROBLEMS = {
    "sigmoid": SEVERAL_LABELS,
    "binary": SEVERAL_LABELS,
    "l2": "regression",
    "huber": "regression",
}
KNOWN = {  # keys of config.json -> the values that this package can compute with
    "model_type": ("vit",),
    "hidden_act": tuple(ACTIVATIONS),
    "pooler_act": ("tanh",),
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
LAYER = "vit.encoder.layer.{layer}"
PATCH_KERNEL = "vit.embeddings.patch_embeddings.projection.weight"

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
TABLE = table(
    Row("vit.embeddings.cls_token", "class_token"),
    Row("vit.embeddings.position_embeddings", "position_embedding"),
    Row(
        "vit.embeddings.patch_embeddings.projection.{weight,bias}",
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
    Row("vit.layernorm.{weight,bias}", "norm/{scale,bias}"),
    Row("vit.pooler.dense.{weight,bias}", "pre_logits/{kernel,bias}", DENSE),
    Row("classifier.{weight,bias}", "head/{kernel,bias}", DENSE),
)


def read(path: str, hints: Hints) -> Weights:
    """The weights of a folder's `model.safetensors`, with the `config.json` beside it."""
    stated = read_stated(pathlib.Path(path).parent)
    num_heads = stated.options["num_heads"]
    tensors, _ = tensor_file.read_tensors(path)
    tensors = renamed((name, full_name(name), array) for name, array in tensors.items())
    if "classifier.weight" in tensors:  # ViTForImageClassification has no use for a pooler.
        tensors = {name: array for name, array in tensors.items() if ".pooler." not in name}
    else:  # A bare ViTModel may keep the names of the classes that it was trained on.
        stated = dataclasses.replace(stated, class_names=())
    check_heads(num_heads, axis_length(tensors, PATCH_KERNEL, 0))
    return make_weights(
        path,
        read_table(TABLE, tensors, num_heads),
        prefix_choices=(1,),
        stated=stated,
        hints=hints,
        defaults={},  # config.json says all.
    )


def full_name(name: str) -> str:
    """A tensor's name with the prefix that a bare `ViTModel` leaves out."""
    return name if name.startswith(("vit.", "classifier.")) else f"vit.{name}"


def read_stated(folder: pathlib.Path) -> Stated:
    """The statements of `config.json` and, if it is there, `preprocessor_config.json`."""
    file = folder / "config.json"
    config = metadata.read_json(file)
    with metadata.translating(file):
        stated = stated_by_config(config)
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


def stated_by_config(config: Mapping[str, Any]) -> Stated:
    """The statements of `config.json`; raises ConfigError for a model that this package has not."""
    for key, known in KNOWN.items():
        if key in config and config[key] not in known:
            raise ConfigError(f"{key}={config[key]!r}; this package knows {', '.join(known)}.")
    options = {ours: as_tuple(config[key]) for key, ours in SIZES.items() if key in config}
    options.setdefault("num_heads", DEFAULT_HEADS)
    options["gelu"] = ACTIVATIONS[config.get("hidden_act", "gelu")]
    options["pooling"] = CLASS_TOKEN_POOLING
    epsilon = config.get("layer_norm_eps", DEFAULT_EPSILON)
    remarks: tuple[str, ...] = ()
    if epsilon != LAYER_NORM_EPSILON:
        remarks = (
            f"layer_norm_eps={epsilon} in config.json, but {LAYER_NORM_EPSILON} is computed with: "
            "about 5e-5 in logits",
        )
    names = metadata.ordered_names(config.get("id2label") or ())
    if all(name == f"LABEL_{index}" for index, name in enumerate(names)):  # the library's default
        names = ()
    loss = LOSSES.get(config.get("problem_type"), DEFAULT_LOSS)
    return Stated(options, class_names=names, remarks=remarks, loss=loss)


def files(path: str, parameters: Tensors, options: ModelOptions, model_file: ModelFile) -> Files:
    """A folder that `ViTForImageClassification.from_pretrained` reads.

    Raises WeightsError naming what that model cannot express.
    """
    folder, preprocessing = pathlib.Path(path), model_file.preprocessing
    if remark := metadata.resize_remark(preprocessing, "Hugging Face's image processors"):
        logger.warning("Note: %s.", remark)
    tensors = write_table(TABLE, parameters, options)
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
        "hidden_act": "gelu_pytorch_tanh" if options.gelu == "tanh" else "gelu",
        "layer_norm_eps": LAYER_NORM_EPSILON,
        "qkv_bias": True,
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
