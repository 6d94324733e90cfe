"""`model.json`: all that using a trained model takes, besides its parameters."""

import dataclasses
import json
import os
from typing import Any

from etils import epath

from vit_jax.errors import CheckpointError

FORMAT_VERSION = 1
FILE_NAME = "model.json"


@dataclasses.dataclass(frozen=True)
class Preprocessing:
    """What turns an image into the model's input.

    `crop` "resize" resizes the whole image to the model's size; "center" first resizes the smaller
    side to `resize` pixels and then crops the centre. Pixels in [0, 1] become (x − mean) / std,
    channel by channel; one value stands for all channels.
    """

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    crop: str = "resize"
    resize: int = 256
    interpolation: str = "bilinear"
    antialias: bool = True


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """An architecture's name and complete options, its preprocessing, and its classes' names."""

    name: str
    options: dict[str, Any]
    preprocessing: Preprocessing = Preprocessing()
    class_names: tuple[str, ...] = ()


def write_model_file(directory: str | os.PathLike[str], model_file: ModelFile) -> None:
    """Writes `directory/model.json`, whole or not at all."""
    content = {
        "format_version": FORMAT_VERSION,
        "model": {"name": model_file.name, **model_file.options},
        "preprocessing": dataclasses.asdict(model_file.preprocessing),
        "class_names": list(model_file.class_names),
    }
    write_json(epath.Path(directory) / FILE_NAME, content)


def read_model_file(directory: str | os.PathLike[str]) -> ModelFile:
    """Reads `directory/model.json`; raises CheckpointError if it is not there or not whole."""
    path = epath.Path(directory) / FILE_NAME
    try:
        content = json.loads(path.read_text())
        if content["format_version"] > FORMAT_VERSION:
            raise CheckpointError(
                f"{path} has format version {content['format_version']}, written by a newer "
                f"vit_jax; this one reads up to {FORMAT_VERSION}: upgrade it."
            )
        options = {key: _as_tuple(value) for key, value in content["model"].items()}
        preprocessing = {key: _as_tuple(value) for key, value in content["preprocessing"].items()}
        return ModelFile(
            name=options.pop("name"),
            options=options,
            preprocessing=Preprocessing(**preprocessing),
            class_names=tuple(content["class_names"]),
        )
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{path} is missing: {directory} is not a run's workdir.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r}.") from error


def write_json(path: epath.Path, content: Any) -> None:
    """Writes JSON to `path` in one step, so that a kill leaves the old file or the new one."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    temporary.replace(path)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
