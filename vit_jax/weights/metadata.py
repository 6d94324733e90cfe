"""What tensors cannot carry, as JSON: the content of `model.json` in other places.

That is a sidecar beside `.npz` files, and an entry of `__metadata__` in `.safetensors` files.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import WeightsError
from vit_jax.model_file import FILE_NAME, FORMAT_VERSION, ModelFile, Preprocessing


def encode(model_file: ModelFile, indent: int | None = None) -> str:
    """The description of a model as JSON."""
    content = {
        "format_version": FORMAT_VERSION,
        "model": {"name": model_file.name, **model_file.options},
        "preprocessing": dataclasses.asdict(model_file.preprocessing),
        "class_names": model_file.class_names,
    }
    return json.dumps(content, indent=indent, sort_keys=True)


def decode(text: str, place: str) -> ModelFile:
    """The inverse of `encode`; raises WeightsError, naming the `place` of the text."""
    try:
        content = json.loads(text)
        if content["format_version"] > FORMAT_VERSION:
            raise WeightsError(
                f"{place} has format version {content['format_version']}; this vit_jax reads up "
                f"to {FORMAT_VERSION}: upgrade it."
            )
        options = {key: as_tuple(value) for key, value in content["model"].items()}
        preprocessing = {key: as_tuple(value) for key, value in content["preprocessing"].items()}
        return ModelFile(
            name=options.pop("name"),
            options=options,
            preprocessing=Preprocessing(**preprocessing),
            class_names=tuple(content["class_names"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{place} is not a description of a model: {error!r}.") from error


def as_tuple(value: object) -> object:
    """JSON's lists as tuples."""
    return tuple(value) if isinstance(value, list) else value


def write_sidecar(path: str, model_file: ModelFile) -> None:
    """Writes the description of `NAME.ext` to `NAME.json` beside it.

    Raises WeightsError rather than replace the description of a run.
    """
    place = sidecar(path)
    if place.name == FILE_NAME and (place.parent / "checkpoints").exists():
        raise WeightsError(
            f"{place} describes a run and would be overwritten: choose another name."
        )
    place.write_text(encode(model_file, indent=2) + "\n")


def read_sidecar(path: str) -> ModelFile | None:
    """The description beside `NAME.ext`; None if there is none, or the JSON is something else."""
    place = sidecar(path)
    if not place.exists() or "format_version" not in read_json(place):
        return None
    return decode(place.read_text(), str(place))


def sidecar(path: str) -> pathlib.Path:
    """Where the description of the file `path` lies."""
    return pathlib.Path(path).with_suffix(".json")


def read_json(place: pathlib.Path) -> dict[str, Any]:
    """A JSON object from a file; raises WeightsError if it is missing or not one."""
    try:
        content = json.loads(place.read_text())
    except FileNotFoundError:
        raise WeightsError(f"{place} is missing.") from None
    except ValueError as error:
        raise WeightsError(f"{place} is not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{place} is not a JSON object.")
    return content


def ordered_names(names: Any, place: str) -> tuple[str, ...]:
    """Class names in order, from a list or from a mapping of index to name."""
    if isinstance(names, Mapping):
        by_index = {int(index): str(name) for index, name in names.items()}
        if sorted(by_index) != list(range(len(by_index))):
            raise WeightsError(f"{place} does not number its classes from 0 without gaps.")
        return tuple(by_index[index] for index in range(len(by_index)))
    return tuple(map(str, names or ()))


def per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """One value for each channel."""
    return values if len(values) == channels else values * channels
