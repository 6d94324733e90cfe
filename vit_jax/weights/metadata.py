"""Metadata that tensors cannot carry, as JSON: the content of `model.json` in other files.

That is a sidecar beside `.npz` files and programs, and an entry of `__metadata__` in
`.safetensors` files.
"""

import contextlib
import json
import logging
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax.errors import ConfigError, WeightsError
from vit_jax.model_file import AREA, FILE_NAME, ModelFile, Preprocessing, decode, to_json
from vit_jax.weights.files import Files, json_text

logger = logging.getLogger(__name__)

NPZ = ".npz"
ENTRY = "vit_jax"  # of `__metadata__`
MARK = "format_version"  # a key that descriptions have
METADATA = "its metadata"  # in messages: what describes a model, wherever it lies
OWNERS = ("checkpoints", "params.safetensors")  # A `model.json` beside these is theirs.


def write_entry(model_file: ModelFile) -> str:
    """The description of a model in one line."""
    return json.dumps(to_json(model_file), sort_keys=True, allow_nan=False)


def read_entry(text: str | bytes, origin: str) -> ModelFile:
    """The inverse of `write_entry`; raises WeightsError, naming the `origin` of the text."""
    try:
        return decode(text)
    except ValueError as error:
        raise WeightsError(f"{origin} {error}") from error


def entries_of(model_file: ModelFile) -> dict[str, str]:
    """The `__metadata__` of a `.safetensors` file for PyTorch, with the description of its model."""
    return {"format": "pt", ENTRY: write_entry(model_file)}


def read_entries(entries: Mapping[str, str]) -> ModelFile | None:
    """The description in the `__metadata__` of a `.safetensors` file; None if there is none."""
    return read_entry(entries[ENTRY], METADATA) if ENTRY in entries else None


def resize_remark(preprocessing: Preprocessing, library: str, rounding: str) -> str:
    """The difference between the pictures of training and those of a library's users; "" for none.

    `rounding` is the library's, as of `Preprocessing`.
    """
    if preprocessing.interpolation == AREA:
        return (
            f"the model is for pictures resized by area; {library} take a box filter instead, "
            "which counts pixels in whole"
        )
    if not preprocessing.antialias:
        return (
            f"the model is for pictures resized without antialiasing, which {library} cannot do: "
            "their users will see smoother pictures"
        )
    if preprocessing.crop == "center" and preprocessing.rounding != rounding:
        return (
            f"{library} round the sides of a resized picture, and where its centre begins, in another "
            "way: their users may see some pictures shifted by a pixel"
        )
    return ""


def sidecar_of(path: str) -> pathlib.Path:
    """The path of a file's description: `NAME.json` for `NAME.npz`, else `PATH.json`."""
    return pathlib.Path(f"{path.removesuffix(NPZ)}.json")


def write_sidecar(path: str, model_file: ModelFile) -> Files:
    """The sidecar of the file `path`; raises WeightsError rather than replace another's file."""
    sidecar = sidecar_of(path)
    if is_owned(sidecar) or (os.path.exists(sidecar) and not has_key(sidecar, MARK)):
        raise WeightsError(
            f"{sidecar} belongs to something else and would be overwritten: choose another name."
        )
    return {sidecar: json_text(to_json(model_file))}


def read_sidecar(path: str) -> ModelFile | None:
    """The description beside a file; None if there is none, or the JSON is something else."""
    sidecar = sidecar_of(path)
    if is_owned(sidecar) or not is_used(sidecar, MARK):
        return None
    return read_entry(sidecar.read_bytes(), str(sidecar))


def is_owned(path: pathlib.Path) -> bool:
    """Whether the path is that of the description of a run, or of an export of this package."""
    return path.name == FILE_NAME and any((path.parent / name).exists() for name in OWNERS)


def is_used(path: pathlib.Path, key: str) -> bool:
    """Whether a JSON file is there and has the key that it is known by; warns if it has not."""
    if not path.exists():
        return False
    known = has_key(path, key)
    if not known:
        logger.warning("%s is not used: it does not describe the weights beside it.", path)
    return known


def has_key(path: pathlib.Path, key: str) -> bool:
    """Whether the file holds a JSON object with the key."""
    try:
        return key in read_json(path)
    except WeightsError:
        return False


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """A JSON object from a file; raises WeightsError if it is missing or not one."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise WeightsError(f"{path} is missing.") from None
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path} is not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{path} is not a JSON object.")
    return content


@contextlib.contextmanager
def translating(path: str | pathlib.Path) -> Iterator[None]:
    """Turns what a value of the wrong kind leads to into one message that names its file."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise WeightsError(f"{path} has a value of the wrong kind: {error!r}.") from error
    except ConfigError as error:
        raise WeightsError(f"{path}: {error}") from None


def ordered_names(names: Any) -> tuple[str, ...]:
    """Class names in order, from a list or from a mapping of index to name.

    Raises ValueError for anything else.
    """
    if isinstance(names, Mapping):
        by_index = {int(index): name for index, name in names.items()}
        if sorted(by_index) != list(range(len(by_index))):
            raise ValueError("it does not number its classes from 0 without gaps")
        names = [by_index[index] for index in range(len(by_index))]
    if not isinstance(names, list | tuple):
        raise ValueError(f"{names!r} are no class names")
    return tuple(map(str, names))


def per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """One value for each channel."""
    return values if len(values) == channels else values * channels
