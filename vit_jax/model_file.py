"""`model.json`: all that using a trained model takes, besides its parameters."""

import dataclasses
import json
import math
import os
from typing import Annotated, Any

from vit_jax import storage
from vit_jax.errors import CheckpointError, ConfigError
from vit_jax.kinds import Kind, is_number

FORMAT_VERSION = 1
FILE_NAME = "model.json"
DEFAULT_LOSS = "softmax"
KEYS = frozenset(("format_version", "model", "preprocessing", "class_names", "loss"))
NEAREST, TORCHVISION, HUGGINGFACE = ROUNDINGS = ("nearest", "torchvision", "huggingface")
CROPS = ("resize", "center")
AREA = "area"  # Each pixel is the mean over what it covers; `antialias` says nothing then.
INTERPOLATIONS = ("bilinear", "bicubic", AREA)
PIXEL_DTYPES = ("uint8", "float32")


def is_value_range(value: Any) -> bool:
    """Whether `value` is (lowest, highest), two finite numbers in that order; or ()."""
    if not isinstance(value, tuple | list) or len(value) not in (0, 2):
        return False
    numbers = [number for number in value if is_number(number)]
    return not value or (len(numbers) == 2 and numbers[0] < numbers[1])


Range = Annotated[
    tuple,
    Kind("(lowest, highest), two numbers such as (0.0, 4095.0), or () for none", is_value_range),
]


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """The way from an image to the model's input.

    `crop` "resize" resizes the whole image to the model's size; "center" first resizes the smaller
    side to `resize` pixels and then crops the centre. Pixels in [0, 1] become (x − mean) / std,
    channel by channel; one value stands for all channels. Of files with 16 bits of grey the value
    2**`bit_depth` - 1 is white; or of any file the values in `value_range`, (black, white), are
    mapped to pixels. `dtype` is that of pixels: uint8 rounds and cuts them. `rounding` is the way in
    which the longer side and the centre's offset become integers: this package's, torchvision's (so
    timm's) or Hugging Face's. Raises ConfigError for values that cannot be used.
    """

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    crop: str = "resize"
    resize: int = 256
    interpolation: str = "bilinear"
    antialias: bool = True
    bit_depth: int = 16
    value_range: tuple[float, ...] = ()
    dtype: str = "uint8"
    rounding: str = NEAREST

    def __post_init__(self) -> None:
        for field, lowest in (("mean", -math.inf), ("std", 0)):
            values = getattr(self, field)
            if not values or not all(
                isinstance(value, int | float) and lowest < value < math.inf for value in values
            ):
                positive = "" if lowest else "positive "
                raise ConfigError(f"preprocessing {field}={values!r}: must be {positive}numbers.")
        if not isinstance(self.resize, int) or self.resize < 1:
            raise ConfigError(f"preprocessing resize={self.resize!r}: must be a positive integer.")
        if self.bit_depth not in range(8, 17):
            raise ConfigError(f"preprocessing bit_depth={self.bit_depth!r}: must be from 8 to 16.")
        if not is_value_range(self.value_range):
            raise ConfigError(
                f"preprocessing value_range={self.value_range!r}: must be (lowest, highest) or ()."
            )
        for field, choices in (
            ("crop", CROPS),
            ("interpolation", INTERPOLATIONS),
            ("dtype", PIXEL_DTYPES),
            ("rounding", ROUNDINGS),
        ):
            if getattr(self, field) not in choices:
                raise ConfigError(
                    f"preprocessing {field}={getattr(self, field)!r}: must be one of "
                    f"{', '.join(choices)}."
                )

    def at_side(self, side: int, of: int = 224) -> "Preprocessing":
        """The same for images of another smaller side than `of`: the crop keeps its share."""
        return dataclasses.replace(self, resize=round(self.resize * side / of))

    def for_channels(self, channels: int) -> "Preprocessing":
        """The same for so many channels: with averages, unless it has a value for each."""
        means: dict[str, Any] = {
            field: values if len(values) == channels else (sum(values) / len(values),)
            for field, values in (("mean", self.mean), ("std", self.std))
        }
        return dataclasses.replace(self, **means)


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """An architecture's name and complete options, its preprocessing, its classes' names, its loss."""

    name: str
    options: dict[str, Any]
    preprocessing: Preprocessing = Preprocessing()
    class_names: tuple[str, ...] = ()
    # It was trained with, so that a logit is read as it was meant; older files do not say.
    loss: str = DEFAULT_LOSS


def write_model_file(directory: str | os.PathLike[str], model_file: ModelFile) -> None:
    """Writes `directory/model.json`, whole or not at all."""
    storage.write_json(storage.join(os.fspath(directory), FILE_NAME), to_json(model_file))


def read_model_file(directory: str | os.PathLike[str]) -> ModelFile:
    """Reads `directory/model.json`; raises CheckpointError if it is not there or not whole."""
    path = storage.join(os.fspath(directory), FILE_NAME)
    try:
        return decode(storage.read(path))
    except (FileNotFoundError, NotADirectoryError):
        advice = _advice(directory) or f" {directory} is not a run's workdir."
        raise CheckpointError(f"{path} is missing:{advice}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise CheckpointError(f"{path} {error}{_advice(directory)}") from error


def _advice(directory: str | os.PathLike[str]) -> str:
    """How a run's file, which is written at its start, is had again; "" where there is no run."""
    if not storage.exists(storage.join(os.fspath(directory), "checkpoints")):
        return ""
    return (
        f" {directory} has checkpoints, which this file describes. The run's own command writes the "
        "same one at its start in another --workdir: copy it from there."
    )


def to_json(model_file: ModelFile) -> dict[str, Any]:
    """The content of `model.json`."""
    return {
        "format_version": FORMAT_VERSION,
        "model": {"name": model_file.name, **model_file.options},
        "preprocessing": dataclasses.asdict(model_file.preprocessing),
        "class_names": list(model_file.class_names),
        "loss": model_file.loss,
    }


def from_json(content: dict[str, Any]) -> ModelFile:
    """The inverse of `to_json`; raises whatever a value of the wrong kind leads to."""
    options = {key: as_tuple(value) for key, value in content["model"].items()}
    preprocessing = {key: as_tuple(value) for key, value in content["preprocessing"].items()}
    name, class_names = options.pop("name"), content["class_names"]
    loss = content.get("loss", DEFAULT_LOSS)
    if unknown := content.keys() - KEYS:
        raise KeyError(f"the key {min(unknown)!r} is not known: a newer vit_jax wrote it")
    if not isinstance(class_names, list) or not all(
        isinstance(text, str) for text in (name, loss, *class_names)
    ):
        raise TypeError("names must be texts")
    return ModelFile(name, options, Preprocessing(**preprocessing), tuple(class_names), loss)


def decode(text: str | bytes) -> ModelFile:
    """The model file that JSON's text describes; raises ValueError, to be read after the file's name."""
    try:
        content = json.loads(text)
        version = content["format_version"]
        if version <= FORMAT_VERSION:
            return from_json(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ConfigError) as error:
        raise ValueError(f"is damaged: {error!r}.") from error
    raise ValueError(
        f"has format version {version}, written by a newer vit_jax; this one reads up to "
        f"{FORMAT_VERSION}: upgrade it."
    )


def as_tuple(value: Any) -> Any:
    """JSON's lists as tuples."""
    return tuple(value) if isinstance(value, list) else value
