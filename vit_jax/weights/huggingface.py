"""Hugging Face folders of a `ViTForImageClassification` (or `ViTModel`), in and out."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import WeightsError
from vit_jax.model_file import ModelFile, Preprocessing
from vit_jax.models.layers import LAYER_NORM_EPSILON
from vit_jax.weights import metadata, tensor_file
from vit_jax.weights.mapping import (
    CONVOLUTION,
    DENSE,
    HEADS,
    HEADS_OUT,
    Row,
    Tensors,
    read_table,
    table,
    write_table,
)
from vit_jax.weights.metadata import per_channel
from vit_jax.weights.source import Hints, Stated, Weights, make_weights

ACTIVATIONS = {
    "gelu": "erf",
    "gelu_pytorch_tanh": "tanh",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
}
RESAMPLES = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
DEFAULT_HEADS, DEFAULT_EPSILON = 12, 1e-12  # the library's, for a config.json without them
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
{crop}"""
CENTER_CROP = """
Evaluation during training resized the smaller side to {resize} pixels and cropped the centre; the
processor in this folder resizes the whole image.
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
    tensors, _ = tensor_file.read_tensors(path)
    tensors = {full_name(name): array for name, array in tensors.items()}
    if "classifier.weight" in tensors:  # ViTForImageClassification has no use for a pooler.
        tensors = {name: array for name, array in tensors.items() if ".pooler." not in name}
    return make_weights(
        path,
        read_table(TABLE, tensors, stated.options["num_heads"]),
        prefix_choices=(1,),
        stated=stated,
        hints=hints,
        defaults={},  # config.json says all.
    )


def full_name(name: str) -> str:
    """A tensor's name with the prefix that a bare `ViTModel` leaves out."""
    return name if name.startswith(("vit.", "classifier.")) else f"vit.{name}"


def read_stated(folder: pathlib.Path) -> Stated:
    """What `config.json` and, if it is there, `preprocessor_config.json` say."""
    place = folder / "config.json"
    config = metadata.read_json(place)
    for key, known in (
        ("model_type", ("vit",)),
        ("hidden_act", ACTIVATIONS),
        ("pooler_act", ("tanh",)),
    ):
        if key in config and config[key] not in known:
            raise WeightsError(f"{place} has {key}={config[key]!r}; known: {', '.join(known)}.")
    options = {ours: metadata.as_tuple(config[key]) for key, ours in SIZES.items() if key in config}
    options.setdefault("num_heads", DEFAULT_HEADS)
    options["gelu"] = ACTIVATIONS[config.get("hidden_act", "gelu")]
    epsilon = config.get("layer_norm_eps", DEFAULT_EPSILON)
    remarks = ()
    if epsilon != LAYER_NORM_EPSILON:
        remarks = (
            f"layer_norm_eps={epsilon} in config.json, but {LAYER_NORM_EPSILON} is computed with: "
            "about 5e-5 in logits",
        )
    names = metadata.ordered_names(config.get("id2label"), str(place))
    if all(name == f"LABEL_{index}" for index, name in enumerate(names)):  # the library's default
        names = ()
    return Stated(options, read_preprocessing(folder), names, remarks=remarks)


def read_preprocessing(folder: pathlib.Path) -> Preprocessing | None:
    """What `preprocessor_config.json` says; None if there is none."""
    place = folder / "preprocessor_config.json"
    if not place.exists():
        return None
    config = metadata.read_json(place)
    normalize = config.get("do_normalize", True)
    return Preprocessing(
        mean=tuple(config.get("image_mean", (0.5,))) if normalize else (0.0,),
        std=tuple(config.get("image_std", (0.5,))) if normalize else (1.0,),
        crop="resize",
        interpolation=RESAMPLES.get(config.get("resample"), "bilinear"),
    )


def write(path: str, parameters: Tensors, options: Any, model_file: ModelFile) -> None:
    """Writes a folder that `ViTForImageClassification.from_pretrained` reads.

    Raises WeightsError naming what that model cannot express.
    """
    tensors = write_table(TABLE, parameters, options)
    files = {
        "config.json": json_text(config_of(options, model_file)),
        "preprocessor_config.json": json_text(preprocessor_of(options, model_file.preprocessing)),
        "README.md": model_card(options, model_file.preprocessing),
    }
    folder = pathlib.Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    tensor_file.write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    for name, text in files.items():
        (folder / name).write_text(text)


def json_text(content: Mapping[str, Any]) -> str:
    """JSON as the library lays it out."""
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


def config_of(options: Any, model_file: ModelFile) -> dict[str, Any]:
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
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }


def one_or_pair(size: Any) -> Any:
    """A pair of equal numbers as one."""
    return size[0] if isinstance(size, tuple) and size[0] == size[1] else size


def preprocessor_of(options: Any, preprocessing: Preprocessing) -> dict[str, Any]:
    """`preprocessor_config.json`."""
    height, width = options.image_size
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": {name: number for number, name in RESAMPLES.items()}[
            preprocessing.interpolation
        ],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": per_channel(preprocessing.mean, options.channels),
        "image_std": per_channel(preprocessing.std, options.channels),
    }


def model_card(options: Any, preprocessing: Preprocessing) -> str:
    """`README.md`: what the model is, and how to use it."""
    cropped = preprocessing.crop == "center"
    return MODEL_CARD.format(
        **{key: getattr(options, key) for key in ("depth", "width", "num_heads", "mlp_width")},
        num_classes=options.num_classes,
        size="×".join(map(str, options.image_size)),
        patch="×".join(map(str, options.patch_size)),
        crop=CENTER_CROP.format(resize=preprocessing.resize) if cropped else "",
    )
