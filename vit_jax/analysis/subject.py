"""A model with the pictures that it is looked at through: what figures of `gallery` are made of."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from vit_jax.analysis.captured import reduced
from vit_jax.errors import ConfigError
from vit_jax.inference import class_names_of, preprocessing_of
from vit_jax.models.base import LOGITS, PRE_LOGITS, ImageClassifier
from vit_jax.network import normalize

FOLDER, PREDICTION = "their folder", "the model's prediction"


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model and pictures, and what several figures take from both.

    Attributes:
      model: with its parameters.
      pictures: as the model sees them, before they are normalised, 0 … 255 [B, H, W, C]; or none.
      names: of the pictures.
      folders: that they lie in, one each.
    """

    model: ImageClassifier
    pictures: np.ndarray
    names: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    @functools.cached_property
    def images(self) -> jax.Array:
        """The pictures as the model takes them; raises ConfigError if there are none."""
        if not len(self.pictures):
            raise ConfigError("needs pictures: add --images=GLOB.")
        return normalize(self.pictures, preprocessing_of(self.model))

    @functools.cached_property
    def outputs(self) -> dict[str, np.ndarray]:
        """Of all pictures: `pre_logits` [B, R] and `logits` [B, K]."""

        def outputs(_: Any, values: dict[str, Any]) -> dict[str, Any]:
            return {name: values[name] for name in (PRE_LOGITS, LOGITS)}

        return reduced(self.model, self.images, (), outputs)

    @property
    def features(self) -> np.ndarray:
        """The input of the head, [B, R]."""
        return self.outputs[PRE_LOGITS]

    @property
    def predictions(self) -> np.ndarray:
        """The likeliest class of each picture, int [B]; raises ConfigError without a head."""
        if not self.model.options.num_classes:
            raise ConfigError(f"needs a head: {self.model.name} was loaded without one.")
        return self.outputs[LOGITS].argmax(axis=-1)

    @functools.cached_property
    def predicted_names(self) -> tuple[str, ...]:
        """The name of each picture's likeliest class."""
        names = class_names_of(self.model)
        return tuple(names[number] for number in self.predictions.tolist())

    @property
    def classes_are(self) -> str:
        """Where `classes` come from; empty: there are none."""
        if len(set(self.folders)) > 1:
            return FOLDER
        return PREDICTION if self.model.options.num_classes else ""

    @property
    def classes(self) -> tuple[str, ...]:
        """The class of each picture: its folder's name if they lie in several, else the prediction."""
        by = {FOLDER: lambda: self.folders, PREDICTION: lambda: self.predicted_names}
        return by[self.classes_are]() if self.classes_are else ("",) * len(self.pictures)
