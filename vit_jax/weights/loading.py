"""Models from weight files: read, fit to what is asked for, report."""

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from vit_jax import hub
from vit_jax.class_mapping import ClassMapping
from vit_jax.errors import WeightsError
from vit_jax.model_file import DEFAULT_LOSS, ModelFile, read_model_file
from vit_jax.models import registry
from vit_jax.models.base import ImageClassifier, ModelOptions
from vit_jax.parameters import OBJECTIVE
from vit_jax.weights import architecture
from vit_jax.weights.adapt import Adaptation, Report
from vit_jax.weights.content import Hints, Weights
from vit_jax.weights.formats import is_workdir, read_weights
from vit_jax.weights.pretrained import find_pretrained
from vit_jax.weights.resampling import AUTO, check_method

logger = logging.getLogger(__name__)

HINTS = ("num_heads", "image_size")


def load_model(
    path: str | os.PathLike[str],
    checkpoint: str | int = "latest",
    ema: bool = False,
    *,
    pretrained: str | None = None,
    source_grid: tuple[int, int] | None = None,
    position_resize: str = AUTO,
    **options: Any,
) -> ImageClassifier:
    """A model with the weights at `path`.

    Args:
      path: a run's workdir, an export of this package, a published `.npz` file, a timm
        `.safetensors` file or folder, a Hugging Face folder; or a name on the Hub,
        `hf:USER/NAME[/FILE][@REVISION]`; or with `pretrained` a model's name, "ViT-B/16".
      checkpoint: of a workdir: "latest", "best" or a step.
      ema: of a workdir: the averaged parameters.
      pretrained: of the weights that `vit_jax.list_pretrained()` lists for the model `path`, such
        as "augreg_in21k"; of several sizes those of `image_size`, else the smallest.
      source_grid: (rows, columns) of the file's position embeddings, where nothing else tells.
      position_resize: how position embeddings, and a relative position bias, are resampled to
        another grid: "auto" (as the library that the file is of would), "bilinear_corner",
        "bilinear", "bicubic" or "bicubic_torch"; see `vit_jax.weights.resampling.resize_matrix`.
      **options: the model's options that differ from the file's, such as `image_size` or
        `num_classes`; and those that the file does not tell, such as `num_heads` or `gelu`.

    Returns:
      The module, as `create_model` returns it, with three attributes more: `preprocessing`
      (`vit_jax.model_file.Preprocessing`), `class_names` (a tuple, empty if unknown) and `loss`
      (that it was trained with, "softmax" if unknown).

    Raises:
      WeightsError: the file cannot be read, is of another architecture, or does not say enough.
      ConfigError: an option does not exist or has an impossible value.
      HubError: the weights cannot be fetched.
    """
    if pretrained is not None:
        path = find_pretrained(os.fspath(path), pretrained, options.get("image_size")).reference
    weights = read_weights(path, Hints(options, source_grid), checkpoint=checkpoint, ema=ema)
    return build_model(weights, options, position_resize)


def build_model(
    weights: Weights, options: Mapping[str, Any], position_resize: str = AUTO
) -> ImageClassifier:
    """The model that the weights make up, with `options` instead of its own; see `load_model`."""
    check_method(position_resize)
    check_complete(weights)
    file = weights.model_file
    complete = registry.model_options(file.name, **{**file.options, **options})
    graphdef, shapes = architecture.abstract_parameters(file.name, complete)
    adaptation = Adaptation(weights=weights, options=complete, position_resize=position_resize)
    parameters, report = adaptation.apply(
        shapes, lambda name: fresh_parameter(file.name, complete, name)
    )
    announce(report)
    model = nnx.merge(graphdef, unflatten_dict(jax.tree.map(jnp.asarray, parameters), sep="/"))
    described = describe(weights, complete)
    model.preprocessing, model.class_names = described.preprocessing, described.class_names
    model.loss = described.loss
    return model


def read_initial_weights(
    path: str | os.PathLike[str],
    options: ModelOptions,
    *,
    checkpoint: str | int = "latest",
    ema: bool = False,
    source_grid: tuple[int, int] | None = None,
    cached_only: bool = False,
) -> Weights:
    """Weights to start training from, as they are in the file.

    Args:
      path, checkpoint, ema, source_grid: as for `load_model`.
      cached_only: of a name on the Hub: ask nothing of the network.
      options: of the model to train, complete.

    Raises:
      WeightsError: the file cannot be read, or does not say enough.
      HubError: it cannot be fetched.
    """
    if not (is_workdir(path) or hub.is_reference(path) or os.path.exists(path)):
        raise WeightsError(f"{path} does not exist: name the weights with --config.init=PATH.")
    # Only these: the model's other options may be defaults, which say nothing about the file.
    known = {key: getattr(options, key) for key in HINTS if hasattr(options, key)}
    hints = Hints(known, source_grid)
    return read_weights(path, hints, checkpoint=checkpoint, ema=ema, cached_only=cached_only)


def read_description(
    path: str | os.PathLike[str],
    known: Mapping[str, Any],
    source_grid: tuple[int, int] | None = None,
    *,
    cached_only: bool = False,
) -> ModelFile:
    """The description of the model at `path`; of a run without reading its parameters.

    `known` are options that a file may leave open; others and errors as of `read_initial_weights`.
    """
    if is_workdir(path):
        return read_model_file(path)
    return read_weights(path, Hints(known, source_grid), cached_only=cached_only).model_file


def fit_weights(
    weights: Weights,
    options: ModelOptions,
    fresh: Mapping[str, Any],
    *,
    skip: str = "",
    class_names: Sequence[str] = (),
    head_map: ClassMapping | None = None,
    position_resize: str = AUTO,
) -> tuple[dict[str, Any], Report]:
    """Parameters to start training from.

    Args:
      weights: from a file.
      options: of the model to train, complete.
      fresh: its initial parameters, a nested dict of arrays or shapes.
      skip: regular expression of parameters that stay as in `fresh` all the same, by our names
        (`blocks/07/mlp/dense1/kernel`) or the file's.
      class_names: of the data; the head is kept only if the file's are the same or unknown.
      head_map: which of the file's classes those are, of a head whose rows are kept class by class.
      position_resize: as for `load_model`.

    Returns:
      The parameters, nested as `fresh`, those from the file as numpy arrays, masked where single
      layers or classes start fresh; and what became of each.

    Raises:
      WeightsError: the weights are of another architecture, `skip` matches nothing, or `head_map`
        finds no row to keep.
      ConfigError: `head_map` does not fit the classes.
    """
    flat = flatten_dict(fresh, sep="/")
    adaptation = Adaptation(
        weights=weights,
        options=options,
        class_names=class_names,
        head_map=head_map,
        skip=skip,
        position_resize=position_resize,
    )
    shapes = {name: tuple(array.shape) for name, array in flat.items()}
    parameters, report = adaptation.apply(shapes, flat.__getitem__)
    return unflatten_dict(parameters, sep="/"), report


def fresh_parameter(model_name: str, options: ModelOptions, name: str) -> jax.Array:
    """One parameter's initial value; under jit, so that the others are not computed."""

    def initialize() -> jax.Array:
        model = registry.build_model(model_name, jax.random.key(0), options)
        return flatten_dict(nnx.to_pure_dict(nnx.split(model)[1]), sep="/")[name]

    return jax.jit(initialize)()


def check_complete(weights: Weights) -> None:
    """Raises WeightsError unless the file holds its own model, whole and nothing else."""
    _, shapes = architecture.abstract_parameters(weights.model_file.name, weights.options)
    for name in shapes:
        if name not in weights.parameters:
            raise WeightsError(f"{weights.path}: {name} is not in it.")
    others = [name for name in weights.parameters if name not in shapes]
    unknown = [*weights.unknown, *(name for name in others if not name.startswith(f"{OBJECTIVE}/"))]
    if unknown:
        raise WeightsError(
            f"{weights.path}: {len(unknown)} tensors are no parameters of {weights.model_file.name}, "
            f"the first: {unknown[0]!r}. Without them the model would compute something else; "
            "to start a training from the rest, set config.init."
        )


def announce(report: Report) -> None:
    """Prints the report; only its notes if every parameter is loaded as it is."""
    if any(row.status != "loaded" for row in report.rows):
        logger.warning("%s", report)
    elif report.notes:
        logger.warning("Weights from %s. %s", report.path, " ".join(report.notes))


def describe(weights: Weights, options: ModelOptions) -> ModelFile:
    """The description of a model with the file's weights and other options."""
    file, preprocessing = weights.model_file, weights.model_file.preprocessing
    preprocessing = preprocessing.for_channels(options.channels)
    old_side, new_side = min(weights.options.image_size), min(options.image_size)
    preprocessing = preprocessing.at_side(new_side, old_side)
    same_classes = options.num_classes == weights.options.num_classes
    return ModelFile(
        name=file.name,
        options=dataclasses.asdict(options),
        preprocessing=preprocessing,
        class_names=file.class_names if same_classes else (),
        loss=file.loss if same_classes else DEFAULT_LOSS,
    )
