"""The source `python:MODULE:ATTRIBUTE`: your own objects, any that have a length and items.

An item is (image, label), as of a list or a data set of PyTorch's, a dictionary with both, as of
Hugging Face's `datasets`, or an `Example`. A Grain source of such items is one, too.

`python:NAME` is what `as_source` named so in this process.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np
from PIL import Image

from vit_jax import storage
from vit_jax.data.sources.columns import read_columns
from vit_jax.data.sources.examples import Example, LabelSets, Source, as_label
from vit_jax.data.sources.holding_out import Pool, hold_out
from vit_jax.data.sources.listing import natural_order
from vit_jax.data.sources.split_names import EVALUATION_SPLITS, find_by_purpose
from vit_jax.data.sources.splits import (
    Shape,
    Splits,
    check_known_classes,
    uniform_hash,
    with_synonyms,
)
from vit_jax.data.sources.views import Subset
from vit_jax.errors import ConfigError, DataError

KIND = "python"
_KEYS = {"image": ("image", "img", "jpg", "png"), "label": ("label", "labels", "class", "cls")}
_CLASS_NAMES = ("class_names", "classes")  # Attributes: ours, torchvision's.
_LABELS = ("labels", "targets")

logger = logging.getLogger(__name__)

_named: dict[str, Any] = {}


def as_source(name: str, **splits: Any) -> str:
    """Names objects, so that a config can; returns its `data.source`, "python:NAME".

        config.data.source = vit_jax.as_source("flowers", train=mine, validation=other)
        vit_jax.train.run(config, "runs/flowers")

    Args:
      name: any but with a colon; what it named before is forgotten.
      splits: the data by split; see docs/data.md for what it may be. Without one for evaluation,
        some of `train` are held out.
    """
    if not name or ":" in name or not splits:
        raise ConfigError(f"as_source({name!r}): give a name without a colon, and train=DATA.")
    _named[name] = splits
    return f"{KIND}:{name}"


def python(location: str, data: ml_collections.ConfigDict, shape: Shape) -> Splits:
    """The splits of an object: its own if it is a mapping of them, else it is the training split.

    Args:
        location: MODULE:ATTRIBUTE; what can be called, such as a class, is called once. Or a name.
        data: `config.data`; `columns` names the keys of dictionaries.
        shape: says how many classes numbers without names have.

    Raises:
        ConfigError: there is no such module or attribute.
        DataError: it has no length and items, or no labels.
    """
    found = _look_up(location)
    splits = dict(found) if isinstance(found, Mapping) else {"train": found}
    train = find_by_purpose(tuple(splits), "train") or next(iter(splits))

    @functools.cache
    def opened(split: str) -> Source:
        if split == train:
            return _as_source(splits[split], split, None, data, shape)
        return _as_source(splits[split], split, opened(train).class_names, data, shape)

    opens: Splits = {split: functools.partial(opened, split) for split in splits}
    if not splits.keys() & set(EVALUATION_SPLITS):
        opens |= hold_out(
            lambda: _pool(opened(train)), lambda rows: Subset(opened(train), rows), data, location
        )
    return with_synonyms(opens)


def _look_up(location: str) -> Any:
    module, separator, attribute = location.rpartition(":")
    where = f"config.data.source={KIND}:{location}"
    if not separator:
        if location not in _named:
            raise ConfigError(
                f"{where}: write {KIND}:MODULE:ATTRIBUTE, or name objects of this process with "
                "vit_jax.as_source."
            )
        return _named[location]
    try:
        found = sys.modules.get(module) or importlib.import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(
            f"{where}: {error}. The module is searched for as `import` does: in the current folder "
            "and PYTHONPATH."
        ) from error
    if callable(found) and (isinstance(found, type) or not hasattr(found, "__getitem__")):
        return _called(found)
    return found


@functools.lru_cache(maxsize=8)  # A run looks several times.
def _called(function: Callable[[], Any]) -> Any:
    return function()


def _as_source(
    given: Any,
    split: str,
    known: tuple[str, ...] | None,
    data: ml_collections.ConfigDict,
    shape: Shape,
) -> Source:
    """An object as a source with the classes `known`, those of the training split, or its own."""
    if isinstance(given, Source):
        return given
    if not (hasattr(given, "__len__") and hasattr(given, "__getitem__")):
        raise DataError(
            f"split {split} of config.data.source={data.source!r} is a {type(given).__name__}, "
            "without __len__ or __getitem__: examples are read by their numbers."
        )
    columns = read_columns(data.columns)
    label = columns.get("label") or columns.get("labels", "")
    keys = {"image": columns.get("path", ""), "label": label}
    names = known or _class_names(given, keys["label"])
    labels = _labels(given, keys["label"])
    if labels is None and not (names or shape.num_classes):
        labels = _read_labels(given, keys, split)
    if labels is not None and not names:
        names = _names_by(labels)
    names = names or tuple(map(str, range(shape.num_classes)))
    numbers = None if labels is None else _numbers(labels, names, f"{data.source}, {split}")
    return Given(given, split, keys, names, numbers)


class Given(Source):
    """The items of an object, read when asked for, in several threads at a time.

    Args:
        given: the object.
        split: its name, for those of examples.
        keys: of "image" and "label" in items that are dictionaries; "": the usual ones.
        class_names: by label.
        labels: int32 [N], or sets; None: an item says it when it is read.
    """

    def __init__(
        self,
        given: Any,
        split: str,
        keys: dict[str, str],
        class_names: tuple[str, ...],
        labels: np.ndarray | LabelSets | None,
    ):
        self.class_names, self.labels = class_names, labels
        self._given, self._split, self._keys = given, split, keys

    def __len__(self) -> int:
        return len(self._given)

    def __getitem__(self, index: int) -> Example:
        name = self.name_of(index)
        image, label = _parts(self._given[index], self._keys, name)
        if self.labels is not None:
            return Example(as_image(image, name), as_label(self.labels[index]), name)
        (number,) = _numbers([label], self.class_names, name)
        return Example(as_image(image, name), int(number), name)

    def name_of(self, index: int) -> str:
        """The example's name: its split and number."""
        return f"{self._split}/{index}"


def as_image(value: Any, name: str) -> bytes | np.ndarray:
    """An item's image as an `Example` has it: a file's bytes, or an array [H, W, C].

    Raises DataError for what is none; OSError where it is a path, and its file cannot be read.
    """
    if isinstance(value, Mapping):  # As `datasets` has what it does not decode.
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return value
    if isinstance(value, str | os.PathLike):
        return storage.read(os.fspath(value))
    if isinstance(value, Image.Image):
        value = np.asarray(value if value.mode in ("L", "RGB") else value.convert("RGB"))
    array = np.asarray(value)
    if array.dtype.kind not in "uif" or array.ndim not in (2, 3):
        kind = type(value).__name__
        found = (
            f"{array.dtype} {list(array.shape)}" if isinstance(value, np.ndarray) else f"a {kind}"
        )
        raise DataError(
            f"{name}: its image is {found}; expected the bytes of an image file, its path, a Pillow "
            "image, or an array [height, width, channels] of numbers"
        )
    return array if array.ndim == 3 else array[..., np.newaxis]


def _parts(item: Any, keys: Mapping[str, str], name: str) -> tuple[Any, Any]:
    """An item's image and label."""
    if isinstance(item, Mapping):
        found = [_key(item, keys[kind], kind, name) for kind in ("image", "label")]
        return item[found[0]], item[found[1]]
    if isinstance(item, Sequence) and len(item) >= 2 and not isinstance(item, str | bytes):
        return item[0], item[1]
    raise DataError(
        f"{name}: its item is a {type(item).__name__}; expected (image, label), or a dictionary with "
        "both"
    )


def _key(item: Mapping[str, Any], given: str, kind: str, name: str) -> str:
    wanted = (given,) if given else _KEYS[kind]
    key = next((key for key in wanted if key in item), None)
    if key is None:
        option = "path" if kind == "image" else "label"
        raise DataError(
            f"{name}: its item has no {kind}, only {', '.join(map(str, item))}: name it with "
            f"--config.data.columns={option}=KEY."
        )
    return key


# ---------------------------------------------------------------------------- classes and labels


def _class_names(given: Any, label: str) -> tuple[str, ...]:
    """The names of classes that an object says; empty: none."""
    for attribute in _CLASS_NAMES:
        names = getattr(given, attribute, None)
        if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
            return tuple(names)
    features = getattr(given, "features", None)  # Of a `Dataset` of Hugging Face.
    if isinstance(features, Mapping):
        key = next((key for key in ((label,) if label else _KEYS["label"]) if key in features), "")
        return tuple(getattr(features.get(key), "names", None) or ())
    return ()


def _labels(given: Any, label: str) -> Sequence[Any] | None:
    """The labels of all items, where the object has them at hand."""
    columns = getattr(given, "column_names", None)  # Of a `Dataset` of Hugging Face.
    if isinstance(columns, list):
        key = next((key for key in ((label,) if label else _KEYS["label"]) if key in columns), None)
        return None if key is None else list(given[key])
    if isinstance(given, list | tuple):
        return None
    found = (getattr(given, attribute, None) for attribute in _LABELS)
    return next(
        (each for each in found if hasattr(each, "__len__") and len(each) == len(given)), None
    )


def _read_labels(given: Any, keys: dict[str, str], split: str) -> list[Any]:
    """The labels of all items, which are read for them."""
    if not isinstance(given, list | tuple):
        logger.info(
            "Every item of split %s is read for its class: give the object `class_names` or `labels`, "
            "or set config.model.num_classes, and none is.",
            split,
        )
    return [_parts(given[index], keys, f"{split}/{index}")[1] for index in range(len(given))]


def _words(label: Any) -> list[Any]:
    """The classes of one item."""
    if np.ndim(label) == 0:
        return [label if isinstance(label, str) else int(label)]
    return [word if isinstance(word, str) else int(word) for word in label]


def _names_by(labels: Sequence[Any]) -> tuple[str, ...]:
    """The classes that labels name, in natural order; or as many as their numbers say."""
    words = {word for label in labels for word in _words(label)}
    if all(isinstance(word, int) for word in words):
        return tuple(map(str, range(max(words, default=-1) + 1)))
    return tuple(sorted(map(str, words), key=natural_order))


def _numbers(
    labels: Sequence[Any], class_names: tuple[str, ...], where: str
) -> np.ndarray | LabelSets:
    """Labels, texts or numbers, by the order of `class_names`: int32 [N], or sets."""
    number = {name: number for number, name in enumerate(class_names)}
    words = [_words(label) for label in labels]
    flat = [word for each in words for word in each]
    if unknown := {word for word in flat if isinstance(word, str)} - number.keys():
        check_known_classes(sorted(unknown), class_names, where, "the training split")
    values = np.array([number.get(word, word) for word in flat], np.int32)
    if len(wrong := values[(values < 0) | (values >= len(class_names))]):
        raise DataError(f"{where}: the label {wrong[0]} is none of {len(class_names):,} classes.")
    if all(np.ndim(label) == 0 for label in labels):
        return values
    return LabelSets(values, np.cumsum(list(map(len, words))), len(class_names))


def _pool(source: Source) -> Pool:
    """What is known of examples; where labels are not at hand, all are taken for one class."""
    hashes = [uniform_hash(source.name_of(index)) for index in range(len(source))]
    if source.labels is None:
        return Pool(np.array(hashes), np.zeros(len(source), np.int32), ["all"])
    return Pool(np.array(hashes), source.labels, source.class_names)
