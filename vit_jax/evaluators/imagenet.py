"""ImageNet's relatives: other images or other labels for a classifier of ImageNet's 1,000 classes.

Each is measured by its authors' protocol. The images are the user's (`source='folder:DIR'`); labels
and classes follow from WordNet ids where both sides use them (folders n01440764, ... and a model
whose classes are called so), else from a file that the user supplies.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from vit_jax import storage
from vit_jax.data.sources.examples import LabelSets, Source
from vit_jax.data.sources.views import Labelled, Subset
from vit_jax.errors import ConfigError, DataError
from vit_jax.evaluators.base import Setting
from vit_jax.evaluators.class_groups import make_groups
from vit_jax.evaluators.classification import Classification, LabelledSplit, grouped
from vit_jax.kinds import Text

WORDNET_ID = re.compile(r"n\d{8}")
VALIDATION_IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})")  # In a file's name; the first is 1.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adversarial(Classification):
    """ImageNet-A: natural images that mislead ResNet-50, of 200 classes (arXiv 1907.07174).

    Only these classes are predicted. Its folders have WordNet ids.
    """

    NAME: ClassVar[str] = "imagenet_a"

    def open(self, setting: Setting) -> LabelledSplit:
        """By `classes`, or as `names_in_model` says."""
        if self.classes:
            return super().open(setting)
        data = setting.data
        split = data.open(self.source, self.split, own_classes=True)
        names = split.source.class_names
        groups = make_groups(
            f"{self.prefix}: {self.source or data.config.source}",
            zip(names, self.names_in_model(names, setting), strict=True),
            names,
            data.class_names,
            data.num_classes,
            restricted=self.RESTRICTED,
        )
        return grouped(split, groups)

    def names_in_model(self, names: Sequence[str], setting: Setting) -> Sequence[str]:
        """The model's names of the data's classes: the same."""
        del setting
        return names


@dataclasses.dataclass(frozen=True, kw_only=True)
class Renditions(Adversarial):
    """ImageNet-R: art, toys and the like, of 200 classes (arXiv 2006.16241).

    Only these classes are predicted. Its folders have WordNet ids.
    """

    NAME: ClassVar[str] = "imagenet_r"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sketch(Adversarial):
    """ImageNet-Sketch: drawings in black and white of all 1,000 classes (arXiv 1905.13549).

    Its folders have WordNet ids.
    """

    NAME: ClassVar[str] = "imagenet_sketch"
    RESTRICTED: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class V2(Adversarial):
    """ImageNet-v2: a validation set collected anew, ten images a class (arXiv 1902.10811).

    Its folders are the numbers of the classes in the order of their WordNet ids.
    """

    NAME: ClassVar[str] = "imagenet_v2"
    RESTRICTED: ClassVar[bool] = False

    def names_in_model(self, names: Sequence[str], setting: Setting) -> Sequence[str]:
        """The model's names of the data's classes: by number, or the same where these are names."""
        known, count = setting.data.class_names, setting.data.num_classes
        if not all(name.isdecimal() and int(name) < count for name in names):
            return names
        known = known or tuple(map(str, range(count)))
        order = in_order_of_ids(known, count)
        return [known[order[int(name)]] for name in names]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectNet(Classification):
    """ObjectNet: objects in unusual positions, 113 of whose 313 classes are ImageNet's (NeurIPS 2019).

    Several of ImageNet's classes may be one of its own: `classes` names its file of lines, a line for
    each pair. Any of the model's classes may be predicted; images of other classes are left out.
    """

    NAME: ClassVar[str] = "objectnet"
    RESTRICTED: ClassVar[bool] = False

    def open(self, setting: Setting) -> LabelledSplit:
        """By `classes`."""
        if not self.classes:
            raise ConfigError(
                f"{self.prefix}: say which of the model's classes each of ObjectNet's is, by a file of "
                "lines ITS NAME, tab, THE MODEL'S NAME: classes='FILE'. Its authors publish them as "
                "objectnet_to_imagenet_1k.json."
            )
        return super().open(setting)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Real(Classification):
    """ReaL: ImageNet's validation images with all classes that people see in them (arXiv 2006.07159).

    An answer is right if it is one of an image's classes; images without any are left out.

    Attributes:
      labels: its authors' `real.json`: a list of classes for each validation image, by number.
    """

    NAME: ClassVar[str] = "imagenet_real"
    HAS_LOSS: ClassVar[bool] = False

    labels: Text = ""

    def open(self, setting: Setting) -> LabelledSplit:
        """By `labels`."""
        data = setting.data
        split = data.open(self.source, self.split, own_classes=True)
        order = in_order_of_ids(data.class_names, data.num_classes)
        names = data.class_names or split.source.class_names
        sets = read_label_sets(self.labels, f"{self.prefix}: labels", data.num_classes)
        numbers = validation_numbers(split.source, len(sets))
        chosen = [order[sets[number]] for number in numbers]
        kept = np.flatnonzero([len(one) for one in chosen])
        labels = LabelSets(
            np.concatenate([chosen[index] for index in kept]).astype(np.int32),
            np.cumsum([len(chosen[index]) for index in kept]),
            data.num_classes,
        )
        source = Labelled(Subset(split.source, kept), labels, tuple(names))
        return LabelledSplit(dataclasses.replace(split, source=source), None, tuple(names))


def in_order_of_ids(names: Sequence[str], num_classes: int) -> np.ndarray:
    """The model's class for each of ImageNet's in the order of their WordNet ids, int [K].

    A model whose classes have other names, or none, is taken to have them in that order.
    """
    if names and all(map(WORDNET_ID.fullmatch, names)):
        return np.argsort(np.array(names), kind="stable")
    return np.arange(num_classes)


def read_label_sets(path: str, key: str, num_classes: int) -> list[list[int]]:
    """Each image's classes, from a JSON file; raises ConfigError if it is no list of these."""
    if not path:
        raise ConfigError(f"{key}: name the file of each image's classes: labels='real.json'.")
    try:
        sets = json.loads(storage.read(storage.expand(path)))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}={path!r} cannot be read ({error}).") from error
    if not isinstance(sets, list) or not all(_is_set(one, num_classes) for one in sets):
        raise ConfigError(
            f"{key}={path!r}: expected a list with a list for each image, of classes from 0 to "
            f"{num_classes - 1:,}, which the model has."
        )
    return sets


def _is_set(value: Any, num_classes: int) -> bool:
    return isinstance(value, list) and all(
        isinstance(number, int) and 0 <= number < num_classes for number in value
    )


def validation_numbers(source: Source, count: int) -> list[int]:
    """Which of ImageNet's validation images each is, from 0, by its name.

    Raises DataError for an image whose name does not say it, or says more than `count`.
    """
    numbers = []
    for index in range(len(source)):
        name = source.name_of(index)
        found = VALIDATION_IMAGE.search(name)
        if not found or not 1 <= int(found[1]) <= count:
            raise DataError(
                f"{name}: expected ILSVRC2012_val_ and a number from 00000001 to {count:08d} in the "
                "name of each image, which says whose labels are its."
            )
        numbers.append(int(found[1]) - 1)
    return numbers
