"""Models into weight files: what a format cannot express is refused by name."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict

from vit_jax.errors import WeightsError
from vit_jax.model_file import DEFAULT_LOSS, ModelFile, Preprocessing
from vit_jax.models.base import NO_NORM, ImageClassifier, ModelOptions
from vit_jax.models.hybrid import HybridOptions
from vit_jax.models.layers import DENSE_MLP
from vit_jax.models.mixer import MixerOptions
from vit_jax.models.positions import LEARNED_1D, NO_POSITIONS, ROTARY, SINCOS_2D, STEM, TABLES
from vit_jax.models.resnet import ResNetOptions
from vit_jax.models.vit import CLASS_TOKEN_POOLING, ViTOptions
from vit_jax.parameters import HEAD_NORM
from vit_jax.weights import huggingface, native, npz, program, timm
from vit_jax.weights.architecture import POSITION_EMBEDDING, family_name
from vit_jax.weights.equivalence import HEADS, plain_head
from vit_jax.weights.files import Files, write_files
from vit_jax.weights.formats import PICKLE_SUFFIXES
from vit_jax.weights.mapping import Tensors


@dataclasses.dataclass(frozen=True)
class Format:
    """A format that models are written in, and what it can express."""

    files: Callable[[str, Tensors, Any, ModelFile], Files]  # path, parameters, options, description
    ending: str = ""  # of its file's name
    is_folder: bool = False  # whether it is, or may be, a folder
    models: tuple[type, ...] | None = None  # option classes; None: all
    values: Mapping[str, tuple] = dataclasses.field(
        default_factory=dict
    )  # option -> what it may be


FORMATS = {
    "npz": Format(
        npz.files,
        ending=".npz",
        models=(ViTOptions, HybridOptions, ResNetOptions, MixerOptions),
        values={
            "head_norm": (NO_NORM,),
            "distillation_token": (False,),
            "num_registers": (0,),
            "layer_scale": (0,),
            "query_key_norm": (False,),
            "position_placement": (STEM,),
            "positions": (LEARNED_1D, SINCOS_2D, NO_POSITIONS),
            "qkv_bias": (True,),
            "mlp": (DENSE_MLP,),
            "mlp_norm": (False,),
            "attention_norm": (False,),
            "pre_norm": (False,),
            "final_norm": (True,),
        },
    ),
    "timm": Format(
        timm.files,
        ending=".safetensors",
        is_folder=True,
        models=(ViTOptions, HybridOptions),
        values={
            "head_norm": (NO_NORM,),
            "representation_size": (0,),
            "position_placement": (STEM,),
            "positions": (LEARNED_1D, NO_POSITIONS),
            "mlp_norm": (False,),
            "attention_norm": (False,),
        },
    ),
    "huggingface": Format(
        huggingface.files,
        is_folder=True,
        models=(ViTOptions,),
        values={
            "head_norm": (NO_NORM,),
            "pooling": (CLASS_TOKEN_POOLING,),
            "representation_size": (0,),
            "norm_after_pooling": (False,),
            "distillation_token": (False,),
            "num_registers": (0,),
            "layer_scale": (0,),
            "query_key_norm": (False,),
            "position_placement": (STEM,),
            "positions": (LEARNED_1D,),
            "prefix_positions": (True,),
            "mlp": (DENSE_MLP,),
            "mlp_norm": (False,),
            "attention_norm": (False,),
            "pre_norm": (False,),
            "final_norm": (True,),
        },
    ),
    "vit_jax": Format(native.files, is_folder=True),
    "stablehlo": Format(program.files, ending=".stablehlo"),
}
BY_ENDING = {format.ending: name for name, format in FORMATS.items() if format.ending}
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
      format: by default what `path` ends in. "npz" (the published files' names, with a sidecar `.json`), "timm" (a `.safetensors`
        file if `path` ends so, else a folder), "huggingface" (a folder), "vit_jax" (a folder with
        `model.json`), "stablehlo" (a program that needs only JAX).
      trunk_only: leave out the head, and the representation layer before it.
      preprocessing: what the model expects; by default the model's own, if it was loaded, else
        pixels in [-1, 1].
      class_names: the classes in order; by default the model's own, if it was loaded, else none.

    Raises:
      WeightsError: the format cannot express the model, or `path` is no name for it.
    """
    path = os.fspath(path)
    format = format_of(path, format)
    target = FORMATS[format]
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
    if options.head_norm not in target.values.get("head_norm", (options.head_norm,)):
        head, statistics = plain_head(parameters)
        parameters = {n: array for n, array in parameters.items() if n not in statistics} | head
        options = dataclasses.replace(options, head_norm=NO_NORM)
    if needs_table(target, options):
        parameters, options = with_table(model.position_table(), parameters, options, target)
    check_expressible(format, options)
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
    write_files(target.files(path, parameters, options, description))


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


def needs_table(target: Format, options: ModelOptions) -> bool:
    """Whether positions that the format does not know can be written out as a learned table."""
    positions = getattr(options, "positions", None)
    if positions not in TABLES or positions in ROTARY or options.position_placement != STEM:
        return False
    return any(
        getattr(options, option) not in target.values.get(option, (getattr(options, option),))
        for option in ("positions", "prefix_positions")
    )


def with_table(
    table: jax.Array, parameters: Tensors, options: ViTOptions, target: Format
) -> tuple[dict[str, np.ndarray], ViTOptions]:
    """The same model with its positions [1, S, D] as a learned table."""
    prefix_rows = "prefix_positions" in target.values  # The format has no choice but to have them.
    learned = np.asarray(table)[:, 0 if prefix_rows else options.num_prefix_tokens :]
    others = {
        name: array
        for name, array in parameters.items()
        if name.split("/")[0] != POSITION_EMBEDDING
    }
    options = dataclasses.replace(
        options,
        positions=LEARNED_1D,
        prefix_positions=prefix_rows or not options.num_prefix_tokens,
    )
    return {**others, POSITION_EMBEDDING: learned}, options


def check_expressible(format: str, options: ModelOptions) -> None:
    """Raises WeightsError naming the first option that the format cannot express."""
    target = FORMATS[format]
    if target.models and type(options) not in target.models:
        family = family_name(type(options))
        raise WeightsError(f"{format} files have no {family} models: write format='vit_jax'.")
    for option, allowed in target.values.items():
        value = getattr(options, option, allowed[0])
        if value not in allowed:
            advice = TRUNK_ADVICE if option == "representation_size" else ""
            raise WeightsError(
                f"{format} files cannot express model.{option}={value!r}, only "
                f"{', '.join(map(repr, allowed))}.{advice}"
            )
