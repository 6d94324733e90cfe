"""Hugging Face folders of Vision Transformers and their relatives, in and out."""

import dataclasses
import functools
import logging
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.errors import WeightsError
from vit_jax.model_file import DEFAULT_LOSS, HUGGINGFACE, ModelFile
from vit_jax.models.base import as_pair
from vit_jax.models.vit import ViTOptions
from vit_jax.weights import metadata, preprocessor, tensor_file
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
from vit_jax.weights.huggingface_classes import CLASSES, Class
from vit_jax.weights.huggingface_config import SIZES, kind_of, options_of
from vit_jax.weights.huggingface_table import DEIT_WITH_TEACHER
from vit_jax.weights.layouts import Layout
from vit_jax.weights.mapping import Tensors, read_table, renamed, write_table
from vit_jax.weights.resampling import BICUBIC_TORCH, BILINEAR

logger = logging.getLogger(__name__)

DEFAULT_SIZE = (224, 224)
SEVERAL_LABELS = "multi_label_classification"
LOSSES = {SEVERAL_LABELS: "sigmoid", "regression": "l2"}  # config.json's problem_type -> ours
WRITTEN_ACTIVATIONS = {"erf": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}
PROBLEMS = {  # our losses -> config.json's problem_type
    "sigmoid": SEVERAL_LABELS,
    "binary": SEVERAL_LABELS,
    "l2": "regression",
    "huber": "regression",
}
MODEL_CARD = """---
library_name: transformers
pipeline_tag: {task}
tags:
- vision
- vit
---

# Vision Transformer

{depth} blocks of width {width} with {num_heads} heads and an MLP of {mlp_width}, {purpose} of {size} images in patches of {patch}; trained with vit_jax.

```python
from transformers import pipeline
pipeline("{task}", model="FOLDER")("image.jpg")
```
"""
PATCH_KERNELS = (
    "embeddings.patch_embeddings.projection.weight",
    "embeddings.patch_embedding.weight",
    "embeddings.patch_embeddings.weight",
)
# Of modules around a trunk, which a bare trunk's names leave out.
PREFIXES = (
    *("vit.", "deit.", "ijepa.", "dinov2.", "dinov2_with_registers.", "vision_model.", "beit."),
    "data2vec_vision.",
)
HEADS = ("classifier.", "cls_classifier.", "distillation_classifier.", "visual_projection.")
UNUSED = re.compile(  # by the vision tower's inference
    r"embeddings\.mask_token|decoder\..*|text_model\..*|text_projection\..*|logit_scale|logit_bias"
    r"|.*position_ids|.*relative_position_index|lm_head\..*"
)


def read(path: str, hints: Hints, prefix: str = "") -> Weights:
    """The weights of a folder's `model.safetensors`, with the `config.json` beside it."""
    tensors, _ = tensor_file.read_tensors(path, prefix)
    classifies = not tensors.keys().isdisjoint(("classifier.weight", "cls_classifier.weight"))
    folder = pathlib.Path(path).parent
    stated = read_stated(folder, classifies)
    prefixed = next((p for p in PREFIXES if any(name.startswith(p) for name in tensors)), "")
    tensors = renamed((name, trunk_name(name), array) for name, array in tensors.items())
    tensors = {name: array for name, array in tensors.items() if array.size}  # No registers.
    tensors, unused = without(tensors, UNUSED)
    if classifies:  # It takes the trunk's tokens: what else pools them is of no use.
        others = re.compile(r"pooler\.dense\..*|(head|post_layernorm)\..*")
        if "head.probe" in tensors:  # SigLIP's classifier is behind the norm.
            others = re.compile(r"head\..*")
        tensors, pooler = without(tensors, others)
        unused += pooler
    else:  # A bare trunk may keep the names of the classes that it was trained on.
        stated = dataclasses.replace(stated, class_names=())
    if "visual_projection.weight" in tensors:
        tensors["visual_projection.bias"] = np.zeros(len(tensors["visual_projection.weight"]), "f4")
    kind = kind_of(metadata.read_json(folder / "config.json"))
    tensors = dict(with_narrow_classifier(tensors))
    tensors = with_key_biases(tensors) if kind.bare_keys else tensors
    if {"embeddings.register_tokens", "embeddings.position_embeddings"} <= tensors.keys():
        fold_class_position(tensors, "embeddings.cls_token", "embeddings.position_embeddings")
    options = {**stated.options, "norm_after_pooling": "pooler.layernorm.weight" in tensors}
    num_heads = options["num_heads"]
    kernel = next((name for name in PATCH_KERNELS if name in tensors), "")
    check_heads(num_heads, axis_length(tensors, kernel, 0))
    remarks = (*stated.remarks, *unused_remarks(unused))
    rows = DEIT_WITH_TEACHER if "cls_classifier.weight" in tensors else kind.rows
    reading = read_table(rows, tensors, num_heads)
    return make_weights(
        path,
        dataclasses.replace(
            reading, file_names={k: full_name(v, prefixed) for k, v in reading.file_names.items()}
        ),
        prefix_choices=prefix_choices(tensors, options),
        stated=dataclasses.replace(stated, options=options, remarks=remarks),
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
    """The tensors with biases of keys, 0 where a file has none."""
    added = {
        name.replace("query", "key").replace("q_proj", "k_proj"): np.zeros_like(array)
        for name, array in tensors.items()
        if re.fullmatch(r".*layer\.\d+\.attention\.(q_proj|attention\.query)\.bias", name)
    }
    return {**added, **tensors}


def with_narrow_classifier(tensors: Tensors) -> Tensors:
    """The tensors with DINOv2's classifier on the class token alone.

    Raises WeightsError if it takes the average of the patches too.
    """
    name = "classifier.weight"
    width = axis_length(tensors, PATCH_KERNELS[0], 0)
    if not width or axis_length(tensors, name, 1) != 2 * width:
        return tensors
    if tensors[name][:, width:].any():
        raise WeightsError(
            "its classifier takes the class token and the average of the patches together "
            "(Dinov2ForImageClassification), which this package does not compute: without the "
            "tensors classifier.* it is loaded as a trunk."
        )
    return {**tensors, name: tensors[name][:, :width]}


def full_name(name: str, prefix: str) -> str:
    """The inverse of `trunk_name`."""
    return name if name.startswith(HEADS) else prefix + name


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
    return Stated(
        options,
        class_names=names,
        loss=loss,
        position_resize=BICUBIC_TORCH,
        bias_resize=BILINEAR,
    )


def files(
    path: str,
    parameters: Tensors,
    options: ViTOptions,
    model_file: ModelFile,
    *,
    kind: Class,
) -> Files:
    """A folder that the class's `from_pretrained` reads; raises WeightsError if it has no such model."""
    folder, preprocessing = pathlib.Path(path), model_file.preprocessing
    if remark := metadata.resize_remark(
        preprocessing, "Hugging Face's image processors", HUGGINGFACE
    ):
        logger.warning("Note: %s.", remark)
    parameters = kind.prepare(parameters)
    tensors = {
        full_name(name, kind.prefix): array
        for name, array in write_table(kind.rows, parameters, options).items()
    }
    if kind.mask_token is not None:
        name = f"{kind.prefix}embeddings.mask_token"
        tensors[name] = np.zeros((*kind.mask_token, options.width), np.float32)
    config = {**common_keys(options, model_file, kind), **kind.keys(options, parameters)}
    return {
        folder / "model.safetensors": tensor_file.writer(tensors, {"format": "pt"}),
        folder / "config.json": json_text(config),
        folder / "preprocessor_config.json": json_text(preprocessor.write(options, preprocessing)),
        folder / "README.md": text(model_card(options)),
    }


def common_keys(options: ViTOptions, model_file: ModelFile, kind: Class) -> dict[str, Any]:
    """The keys of every `config.json`."""
    names = model_file.class_names or [f"LABEL_{index}" for index in range(options.num_classes)]
    problem = {"problem_type": PROBLEMS[model_file.loss]} if model_file.loss in PROBLEMS else {}
    classes = {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }
    sizes = {key: one_or_pair(getattr(options, ours)) for key, ours in SIZES.items()}
    del sizes["intermediate_size"]  # Not every class has it.
    return {
        "architectures": [kind.name],
        "model_type": kind.model_type,
        **sizes,
        "hidden_act": WRITTEN_ACTIVATIONS[options.gelu],
        "layer_norm_eps": options.norm_epsilon,
        **problem,
        **(classes if options.num_classes else {}),
    }


def one_or_pair(size: Any) -> Any:
    """A pair of equal numbers as one."""
    return size[0] if isinstance(size, tuple) and size[0] == size[1] else size


def model_card(options: ViTOptions) -> str:
    """`README.md`: what the model is, and how to use it."""
    count = options.num_classes
    return MODEL_CARD.format(
        **{key: getattr(options, key) for key in ("depth", "width", "num_heads", "mlp_width")},
        task="image-classification" if count else "image-feature-extraction",
        purpose=f"for {count}\nclasses" if count else "for\nfeatures",
        size="×".join(map(str, options.image_size)),
        patch="×".join(map(str, options.patch_size)),
    )


LAYOUTS = tuple(
    Layout(
        files=functools.partial(files, kind=kind),
        name=kind.name,
        models=(ViTOptions,),
        values=kind.values,
        needs=kind.needs,
    )
    for kind in CLASSES
)
