"""Models into weight files: what a format cannot express is refused by name."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict

from vit_jax.errors import WeightsError
from vit_jax.model_file import DEFAULT_LOSS, ModelFile, Preprocessing
from vit_jax.models.base import NO_NORM, ImageClassifier, ModelOptions
from vit_jax.models.hybrid import HybridOptions
from vit_jax.models.mixer import MixerOptions
from vit_jax.models.positions import LEARNED_1D, NO_POSITIONS, ROTARY, SINCOS_2D, STEM, TABLES
from vit_jax.models.resnet import ResNetOptions
from vit_jax.models.vit import ViTOptions
from vit_jax.parameters import HEAD_NORM
from vit_jax.weights import huggingface, native, npz, program, state_dict, timm
from vit_jax.weights.architecture import POSITION_EMBEDDING, family_name
from vit_jax.weights.equivalence import HEADS, plain_head
from vit_jax.weights.files import write_files
from vit_jax.weights.formats import PICKLE_SUFFIXES
from vit_jax.weights.layouts import Layout, vit_values
from vit_jax.weights.mapping import Tensors
from vit_jax.weights.translation import article


@dataclasses.dataclass(frozen=True)
class Format:
    """A format that models are written in; the first layout that can express a model is taken."""

    layouts: tuple[Layout, ...]
    ending: str = ""  # of its file's name
    is_folder: bool = False  # whether it is, or may be, a folder
    has_head_norm: bool = False  # else a norm before the head is written as a part of it


FORMATS = {
    "npz": Format(
        (
            Layout(
                files=npz.files,
                models=(ViTOptions, HybridOptions, ResNetOptions, MixerOptions),
                values=vit_values(
                    "representation_size",
                    positions=(LEARNED_1D, SINCOS_2D, NO_POSITIONS),
                    qkv_bias=(True,),
                ),
            ),
        ),
        ending=".npz",
    ),
    "timm": Format(timm.LAYOUTS, ending=".safetensors", is_folder=True),
    "huggingface": Format(huggingface.LAYOUTS, is_folder=True),
    "clip": Format((state_dict.layout(state_dict.CLIP),), ending=".safetensors"),
    "torchvision": Format((state_dict.layout(state_dict.TORCHVISION),), ending=".safetensors"),
    "vit_jax": Format((Layout(files=native.files),), is_folder=True, has_head_norm=True),
    "stablehlo": Format((Layout(files=program.files),), ending=".stablehlo", has_head_norm=True),
}
BY_ENDING = {  # The first of several formats that end alike.
    format.ending: name for name, format in reversed(FORMATS.items()) if format.ending
}
# Of single files: no name for a folder.
FILE_ENDINGS = (
    *BY_ENDING,
    *PICKLE_SUFFIXES,
    *(".onnx", ".pb", ".tflite", ".h5", ".keras", ".msgpack", ".gguf", ".json", ".zip", ".tar"),
)
TRUNK_ADVICE = " Without it and the head, as features, it can be: trunk_only=True."


def save_model(
    model: ImageClassifier,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    trunk_only: bool = False,
    preprocessing: Preprocessing | None = None,
    class_names: Sequence[str] | None = None,
) -> None:
    """Writes a model in a format that others read.

    Args:
      model: made by `create_model` or `load_model`.
      path: of the file or folder to write.
      format: by default what `path` ends in. "npz" (the published files' names, with a sidecar
        `.json`), "timm" (a `.safetensors` file if `path` ends so, else a folder), "huggingface" (a
        folder), "clip" and "torchvision" (a `.safetensors` file under OpenAI's or torchvision's
        names), "vit_jax" (a folder with `model.json`), "stablehlo" (a program that needs only JAX).
      trunk_only: leave out the head, and the representation layer before it.
      preprocessing: what the model expects; by default the model's own, if it was loaded, else
        pixels in [-1, 1].
      class_names: the classes in order; by default the model's own, if it was loaded, else none.

    Raises:
      WeightsError: the format cannot express the model, or `path` is no name for it.
    """
    path = os.fspath(path)
    format = format_of(path, format)
    flat = flatten_dict(nnx.to_pure_dict(nnx.split(model)[1]), sep="/")
    parameters = {name: np.asarray(array) for name, array in flat.items()}
    options = model.options
    if class_names is None:
        class_names = getattr(model, "class_names", ())
    if preprocessing is None:
        preprocessing = getattr(model, "preprocessing", Preprocessing())
    if trunk_only:
        parameters, options = without_head(parameters, options)
        class_names = ()
    if options.head_norm != NO_NORM and not FORMATS[format].has_head_norm:
        head, statistics = plain_head(parameters)
        parameters = {n: array for n, array in parameters.items() if n not in statistics} | head
        options = dataclasses.replace(options, head_norm=NO_NORM)
    layout = find_layout(format, options)
    if tabled(options, layout) != options:
        parameters = with_table(model.position_table(), parameters, options, layout)
        options = tabled(options, layout)
    if class_names and len(class_names) != options.num_classes:
        raise WeightsError(
            f"{len(class_names)} class names were given for a head of {options.num_classes}."
        )
    description = ModelFile(
        name=model.name,
        options=dataclasses.asdict(options),
        preprocessing=preprocessing,
        class_names=tuple(class_names),
        loss=DEFAULT_LOSS if trunk_only else getattr(model, "loss", DEFAULT_LOSS),
    )
    write_files(layout.files(path, parameters, options, description))


def format_of(path: str, format: str | None) -> str:
    """The format to write: the given one, else the one that the name of `path` ends in.

    Raises WeightsError where the two disagree, for who reads a file goes by its name; and where
    nothing may be written.
    """
    if "://" in path:
        raise WeightsError(f"{path}: an export is written to this machine; copy it there after.")
    if os.path.exists(os.path.join(path, "checkpoints")):
        raise WeightsError(
            f"{path} is a run's workdir, which an export would damage: name another."
        )
    if format is not None and format not in FORMATS:
        raise WeightsError(f"format={format!r}: must be one of {', '.join(FORMATS)}.")
    ending = os.path.splitext(path)[1].lower()
    found = format or BY_ENDING.get(ending)
    if found is None:
        raise WeightsError(
            f"{path}: the format follows from a name that ends in {', '.join(BY_ENDING)}; for a "
            f"folder say which: one of {', '.join(n for n, f in FORMATS.items() if f.is_folder)}."
        )
    target = FORMATS[found]
    if ending == target.ending != "" or (target.is_folder and ending not in FILE_ENDINGS):
        return found
    kinds = [f"a file NAME{target.ending}"] * bool(target.ending) + ["a folder"] * target.is_folder
    raise WeightsError(f"{path}: {found} is written to {' or '.join(kinds)}: name it so.")


def without_head(
    parameters: Tensors, options: ModelOptions
) -> tuple[dict[str, np.ndarray], ModelOptions]:
    """The trunk alone: no head, and no representation layer before it."""
    trunk = {
        name: array
        for name, array in parameters.items()
        if not name.startswith((*HEADS, f"{HEAD_NORM}/", "pre_logits/"))
    }
    changes: dict[str, Any] = {"num_classes": 0, "head_norm": NO_NORM}
    if hasattr(options, "representation_size"):
        changes["representation_size"] = 0
    return trunk, dataclasses.replace(options, **changes)


def tabled(options: ModelOptions, layout: Layout) -> ModelOptions:
    """The options with positions that the layout does not know as a learned table."""
    positions = getattr(options, "positions", None)
    if positions not in TABLES or positions in ROTARY or options.position_placement != STEM:
        return options
    # Without a choice there is a row for each token.
    needs_rows = layout.values.get("prefix_positions") == (True,) and not options.prefix_positions
    if positions in layout.values.get("positions", TABLES) and not needs_rows:
        return options
    rows = needs_rows or not options.num_prefix_tokens
    changes: dict[str, Any] = {"positions": LEARNED_1D, "prefix_positions": rows}
    return dataclasses.replace(options, **changes)


def with_table(
    table: jax.Array, parameters: Tensors, options: ViTOptions, layout: Layout
) -> dict[str, np.ndarray]:
    """The parameters with the positions [1, S, D] as a learned table; see `tabled`."""
    rows = tabled(options, layout).prefix_positions
    learned = np.asarray(table)[:, 0 if rows else options.num_prefix_tokens :]
    others = {
        name: array
        for name, array in parameters.items()
        if name.split("/")[0] != POSITION_EMBEDDING
    }
    return {**others, POSITION_EMBEDDING: learned}


def find_layout(format: str, options: ModelOptions) -> Layout:
    """The format's first layout that can express the model.

    Raises WeightsError naming the first option that the nearest of them cannot express.
    """
    layouts = [layout for layout in FORMATS[format].layouts if layout.is_for(options)]
    if not layouts:
        family = family_name(type(options))
        raise WeightsError(f"{format} files have no {family} models: write format='vit_jax'.")
    nearest = min(layouts, key=lambda layout: len(layout.misfits(tabled(options, layout))))
    for option, words in nearest.misfits(tabled(options, nearest)).items():
        name = f" in {article(nearest.name)}" if nearest.name else ""
        others = [other for other in FORMATS if can_express(other, options)]
        advice = TRUNK_ADVICE if option == "representation_size" else ""
        raise WeightsError(
            f"{format} files cannot express model.{option}={getattr(options, option)!r}{name}, "
            f"{words}; these can: {', '.join(others)}.{advice}"
        )
    return nearest


def can_express(format: str, options: ModelOptions) -> bool:
    """Whether the format has a layout for the model."""
    return any(
        layout.is_for(options) and not layout.misfits(tabled(options, layout))
        for layout in FORMATS[format].layouts
    )
